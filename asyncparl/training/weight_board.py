"""Memory of one host where weights are written once for each version, and read in place by all actors of that host.

One process makes the memory. It has no name; others open it through that process' entry in /proc, and map it read-only.
Who cannot, in a container of its own or as another user, is sent weights as ever. Who reads which slot, and when it may
be written to again, is the learner's business: see `weight_boards.py`.
"""

from __future__ import annotations

import mmap
import os
import secrets
import stat
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

_TOKEN_BYTES = 16
_HEAD_BYTES = 4096  # the token; slots begin after it, and at multiples of it


@cache
def this_host() -> str:
    """Equal for processes that mean the same by a process id; empty where nothing of that kind is known."""
    if sys.platform != "linux":
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


class BoardAddress(NamedTuple):
    """Where to find a board, for processes of the same host."""

    host: str
    pid: int
    fd: int
    token: bytes
    num_bytes: int  # of the weights
    num_slots: int

    def start(self, slot: int) -> int:
        """Where a slot begins; that of `num_slots` is the end."""
        return _HEAD_BYTES + slot * (self.num_bytes + -self.num_bytes % _HEAD_BYTES)


class BoardMemory:
    """The side of the process that makes it and writes to it.

    Args:
        num_bytes: of the weights.
        num_slots: they take memory when they are used.

    Raises:
        OSError: the system has no such memory.
    """

    def __init__(self, num_bytes: int, num_slots: int) -> None:
        if sys.platform != "linux":
            raise OSError("only Linux has memory without a name")
        self._fd: int | None = os.memfd_create("asyncparl-weights", os.MFD_CLOEXEC)
        try:
            token = secrets.token_bytes(_TOKEN_BYTES)
            self.address = BoardAddress(this_host(), os.getpid(), self._fd, token, num_bytes, num_slots)
            os.ftruncate(self._fd, self.address.start(num_slots))
            os.posix_fallocate(self._fd, 0, _HEAD_BYTES)
            memory = mmap.mmap(self._fd, self.address.start(num_slots))
        except BaseException:
            self.close()
            raise
        memory[:_TOKEN_BYTES] = token
        self._slots = [_weights(memory, self.address, slot) for slot in range(num_slots)]
        self._has_memory = [False] * num_slots

    def write(self, slot: int, packed: NDArray[np.uint8]) -> bool:
        """Whether there was memory for it."""
        if self._fd is None:
            return False
        if not self._has_memory[slot]:
            try:  # before it is written to: there, want of memory would be a signal
                os.posix_fallocate(self._fd, self.address.start(slot), self.address.num_bytes)
            except OSError:
                return False
            self._has_memory[slot] = True
        self._slots[slot][:] = packed
        return True

    def close(self) -> None:
        """Nobody finds it any more. Who has mapped it sees it still."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._slots = None, []


class BoardReader:
    """An actor's side."""

    def __init__(self, memory: mmap.mmap, address: BoardAddress) -> None:
        self._memory = memory
        self._address = address

    @classmethod
    def open(cls, address: BoardAddress) -> Self | None:
        """None: it cannot be seen from here."""
        path = f"/proc/{address.pid}/fd/{address.fd}"
        if address.host != this_host():
            return None
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # should it be something else by now, opening it might block
                return None
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                memory = mmap.mmap(fd, address.start(address.num_slots), access=mmap.ACCESS_READ)
            finally:
                os.close(fd)
        except (OSError, ValueError):  # the latter: it is too short
            return None
        return cls(memory, address) if memory[:_TOKEN_BYTES] == address.token else None

    def weights(self, slot: int) -> NDArray[np.uint8]:
        """What is there, read-only; only to be looked at during the call that named the slot."""
        return _weights(self._memory, self._address, slot)


def _weights(memory: mmap.mmap, address: BoardAddress, slot: int) -> NDArray[np.uint8]:
    return np.frombuffer(memory, np.uint8, address.num_bytes, address.start(slot))
