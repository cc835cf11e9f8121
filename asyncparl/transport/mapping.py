"""Memory that two processes have in common: a memfd, mapped once by each of them.

It has no name, so that nothing can be left behind: the kernel frees it when the last one who maps it has ended. Its
descriptor is needed for passing it on only, and then closed.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import sys
from typing import Any

from asyncparl.errors import ProtocolError

MAX_SHARED_BYTES = 1 << 32
"""The largest memory that is accepted from a peer. It costs addresses only, until it is used."""

_SEALS = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, _SHRINK, _GROW: who maps it need not fear that its end disappears
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MADV_REMOVE, _MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 9, 22, 23


def create_memory(num_bytes: int) -> int:
    """The descriptor of new memory whose size nobody can change.

    Raises:
        OSError: the system has no such thing, or refuses it.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "only Linux has memory without a name")
    import fcntl

    fd = os.memfd_create("asyncparl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, num_bytes)
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Mapping:
    """Shared memory as this process sees it, until nobody holds this object or a view of it.

    Args:
        fd: of `create_memory`, in this process or in the peer's; it is not needed afterwards. None: memory that only
            this process and its forks share.
        num_bytes: only without `fd`.

    Raises:
        ProtocolError: the descriptor is of something else, such as a file that its owner could shorten.
        OSError: there is no room among the addresses of this process.
    """

    def __init__(self, fd: int | None, num_bytes: int = 0) -> None:
        if fd is None:
            self.num_bytes = num_bytes
            self._map = mmap.mmap(-1, num_bytes)
        else:
            self.num_bytes = _checked_size(fd)
            self._map = _map_without_descriptor(fd, self.num_bytes)
        self.address = _address_of(self._map)

    def view(self, offset: int, num_bytes: int) -> tuple[memoryview, Any]:
        """A writable view of a part, and the object that lives for as long as any view made from it."""
        whole_pages = min(num_bytes + -num_bytes % mmap.PAGESIZE, self.num_bytes - offset)
        exporter = _array_type(whole_pages).from_buffer(self._map, offset)
        return memoryview(exporter).cast("B")[:num_bytes], exporter

    def populate(self, offset: int, num_bytes: int, *, for_writing: bool) -> bool:
        """Give a part its pages now: faster than one by one, and where there are none it says so.

        Without this the process would be killed by SIGBUS. False: there is no memory left.
        """
        advice = _MADV_POPULATE_WRITE if for_writing else _MADV_POPULATE_READ
        return self._advise(offset, num_bytes, advice) in (0, errno.EINVAL)  # EINVAL: Linux before 5.14

    def discard(self, offset: int, num_bytes: int) -> None:
        """Give the pages of a part back to the system. What it held is lost, here and at the peer."""
        self._advise(offset, num_bytes, _MADV_REMOVE)

    def _advise(self, offset: int, num_bytes: int, advice: int) -> int:
        start = offset - offset % mmap.PAGESIZE
        try:
            self._map.madvise(advice, start, offset + num_bytes - start)
        except OSError as error:
            return error.errno or errno.EFAULT
        return 0


def _map_without_descriptor(fd: int, num_bytes: int) -> mmap.mmap:
    """Python's own way would keep a descriptor open for as long as anybody has a view: so it only finds the room."""
    room = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE)
    address = _address_of(room)
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    if _libc().mmap(address, num_bytes, protection, flags, fd, 0) != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return room


def _address_of(room: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(room))


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    sizes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (*sizes, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    return libc


@functools.lru_cache(maxsize=256)
def _array_type(num_bytes: int) -> Any:
    """Making such a type takes twenty times as long as making an array of it."""
    return ctypes.c_ubyte * num_bytes


def _checked_size(fd: int) -> int:
    import fcntl

    try:
        is_sealed = fcntl.fcntl(fd, _F_GET_SEALS) & _SEALS == _SEALS
        num_bytes = os.fstat(fd).st_size
    except OSError as error:
        raise ProtocolError(f"the peer passed a descriptor that is no shared memory: {error}") from None
    if not is_sealed or not 0 < num_bytes <= MAX_SHARED_BYTES or num_bytes % (2 * mmap.PAGESIZE):
        raise ProtocolError(f"the peer passed shared memory of {num_bytes} bytes, or without seals")
    return num_bytes
