"""Memory of our own for what is large: copied piece by piece, so that other threads and links get their turn meanwhile.

A copy of 500 MB takes a quarter of a second and more. Where numpy is loaded it is asked to copy, because it lets other
threads run. Each piece goes back to the system as soon as it is not needed any more: not all of them at the end, for
that would take a tenth of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

LARGE_BYTES = 2 << 20
"""What is larger than this is not copied at once, and does not travel in one message."""

PIECE_BYTES = 2 << 20
"""What the system gives, and takes back, at once: one of its large pages."""

_STEP_BYTES = 512 * 1024
"""Copied at a time without numpy: in between, others may have the interpreter."""

_Bytes = bytes | bytearray | memoryview


class Owned:
    """A buffer that nobody changes any more, in pieces that follow each other.

    Or one of the user's that becomes that (`to_own`): it is sent from its beginning, while `own_piece` copies it from
    its end, until the two meet: what was sent by then was never copied. A lock of its owner guards both.
    """

    __slots__ = ("_first", "_foreign_end", "_num_bytes", "_pieces")

    def __init__(self, pieces: Sequence[_Bytes], *, are_foreign: bool = False) -> None:
        self._pieces: list[_Bytes] = list(pieces)
        self._num_bytes = sum(len(piece) for piece in pieces)
        self._first = 0
        """Those before it were sent, and are not kept."""
        self._foreign_end = len(self._pieces) if are_foreign else 0
        """Those before it are the user's still."""

    def __len__(self) -> int:
        return self._num_bytes

    @property
    def pieces(self) -> Sequence[_Bytes]:
        """What is not sent yet."""
        return self._pieces[self._first :]

    @property
    def next_bytes(self) -> int:
        """How long the piece is that comes next."""
        return len(self._pieces[self._first])

    @property
    def is_foreign(self) -> bool:
        """Whether what comes next is the user's."""
        return self._first < self._foreign_end

    @property
    def is_over(self) -> bool:
        """Whether all of it was sent."""
        return self._first == len(self._pieces)

    def take(self, max_bytes: int) -> memoryview:
        """What comes next, of one piece; it is not kept."""
        piece = memoryview(self._pieces[self._first])
        if len(piece) > max_bytes:
            self._pieces[self._first] = piece[max_bytes:]
            return piece[:max_bytes]
        self._pieces[self._first] = b""
        self._first += 1
        return piece

    def own_piece(self, lock: AbstractContextManager[object]) -> bool:
        """Copy the last piece that is the user's; False if there is none any more.

        It is copied without the lock, and may be sent meanwhile.
        """
        with lock:
            if not self.is_foreign:
                return False
            index = self._foreign_end - 1
            piece = memoryview(self._pieces[index])
        copy = _fresh_pages(len(piece))
        copy_into(copy, piece)
        with lock:
            if left := len(self._pieces[index]):
                self._pieces[index] = copy[len(copy) - left :]
            self._foreign_end = index
        return True


def owned(buffer: _Bytes) -> Owned:
    """A copy of a buffer."""
    copy = to_own(buffer)
    while copy.own_piece(contextlib.nullcontext()):
        pass
    return copy


def to_own(buffer: _Bytes | Owned) -> Owned:
    """A buffer of which nothing is copied yet; there is no need if nobody changes it."""
    if isinstance(buffer, Owned):
        return Owned(buffer.pieces)
    source = memoryview(buffer).cast("B")
    starts = range(0, len(source), PIECE_BYTES)
    return Owned([source[at : at + PIECE_BYTES] for at in starts], are_foreign=True)


def in_one_piece(buffer: _Bytes | Owned) -> memoryview:
    """All of a buffer; copied only if it has several pieces."""
    pieces = buffer.pieces if isinstance(buffer, Owned) else [buffer]
    return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))


def copy_into(target: memoryview, source: _Bytes | Owned) -> None:
    """Copy bytes from one memory to another one of the same size."""
    start = 0
    for part in source.pieces if isinstance(source, Owned) else [source]:
        _copy(target[start : start + len(part)], memoryview(part).cast("B"))
        start += len(part)


def _copy(target: memoryview, source: memoryview) -> None:
    numpy = _numpy()
    if numpy is not None:
        numpy.copyto(numpy.frombuffer(target, numpy.uint8), numpy.frombuffer(source, numpy.uint8))
        return
    for at in range(0, len(source), _STEP_BYTES):
        target[at : at + _STEP_BYTES] = source[at : at + _STEP_BYTES]


def new_memory(num_bytes: int) -> memoryview:
    """Writable memory of one byte or more, with any content. It takes none of the system's before it is written to.

    Raises:
        MemoryError: there is not so much.
    """
    numpy = _numpy()
    try:
        return _fresh_pages(num_bytes) if numpy is None else memoryview(numpy.empty(num_bytes, numpy.uint8))
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"{num_bytes:,} bytes: {error}") from None


def new_bytes(buffer: memoryview) -> bytes:
    """`bytes(buffer)`, three times as fast for what is large: in large pages, and other threads run meanwhile."""
    if len(buffer) <= LARGE_BYTES:
        return bytes(buffer)
    made: bytes = _empty_bytes(None, len(buffer))  # nobody else has seen it yet, so that it may still change
    address = ctypes.cast(ctypes.c_char_p(made), ctypes.c_void_p).value
    assert address is not None
    _ask_for_large_pages(address, len(buffer))
    copy_into(memoryview((ctypes.c_char * len(buffer)).from_address(address)).cast("B"), buffer)
    return made


_empty_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)


def _ask_for_large_pages(address: int, num_bytes: int) -> None:
    """For memory that has not been written to. Whether the system has them shows in the time that it takes only."""
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_HUGEPAGE)


def utf8_of(text: str) -> bytes | Owned:
    """A text as it travels; copied only if it is little, or not ASCII alone."""
    if len(text) <= LARGE_BYTES or not text.isascii():
        return text.encode()
    memory = (ctypes.c_char * len(text)).from_address(_utf8_address(text))
    memory._text = text  # type: ignore[attr-defined]  # so that it lives as long
    return Owned([memoryview(memory).cast("B")])


_utf8_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyUnicode_AsUTF8", ctypes.pythonapi))


def _fresh_pages(num_bytes: int) -> memoryview:
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if num_bytes >= PIECE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


def _numpy() -> Any:
    """None if it is not loaded, or only half so."""
    numpy = sys.modules.get("numpy")
    return numpy if hasattr(numpy, "copyto") else None
