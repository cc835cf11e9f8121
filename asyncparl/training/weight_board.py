"""Weights for actors on the learner's host: written once for each version, whatever their number, and read in place.

The learner's process makes the memory. It has no name; actors open it through the learner's entry in /proc, and map it
read-only. Who cannot, on another host, in a container of its own, or as another user, is sent weights as ever.

An actor is told of weights by a call, and looks at them during that call only. So their slot may be written to again
when all calls that name it have ended, however they did: nothing is taken any more of an actor whose call was lost.
"""

from __future__ import annotations

import mmap
import os
import secrets
import stat
import sys
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

_TOKEN_BYTES = 16
_HEAD_BYTES = 4096  # the token; slots begin after it, and at multiples of it


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


class WeightBoard:
    """The learner's side; it is open until its block ends. Event loop only.

    Args:
        num_bytes: of the weights.
        num_slots: with one more than there are actors there is always room. They take memory when they are used.

    Raises:
        OSError: the system has no such memory.
    """

    def __init__(self, num_bytes: int, num_slots: int) -> None:
        if sys.platform != "linux":
            raise OSError("only Linux has memory without a name")
        self._fd = os.memfd_create("asyncparl-weights", os.MFD_CLOEXEC)
        try:
            token = secrets.token_bytes(_TOKEN_BYTES)
            self.address = BoardAddress(_host(), os.getpid(), self._fd, token, num_bytes, num_slots)
            os.ftruncate(self._fd, self.address.start(num_slots))
            os.posix_fallocate(self._fd, 0, _HEAD_BYTES)
            memory = mmap.mmap(self._fd, self.address.start(num_slots))
        except BaseException:
            os.close(self._fd)
            raise
        memory[:_TOKEN_BYTES] = token
        self._slots = [_weights(memory, self.address, slot) for slot in range(num_slots)]
        self._versions: list[int | None] = [None] * num_slots
        self._num_readers = [0] * num_slots

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)
        self._slots = []

    def lend(self, version: int, packed: NDArray[np.uint8]) -> int | None:
        """The slot that has these weights, for one reader more, who owes a `give_back`. None: there is no room.

        Args:
            version: says whether they are there already. packed: the weights.
        """
        if not self._slots:
            return None  # it was closed
        if version in self._versions:
            slot = self._versions.index(version)
        elif 0 in self._num_readers:
            slot = self._num_readers.index(0)  # the lowest: what was used before is in the caches
            if not self._has_memory(slot):
                return None
            self._slots[slot][:] = packed
            self._versions[slot] = version
        else:
            return None
        self._num_readers[slot] += 1
        return slot

    def give_back(self, slot: int) -> None:
        """A reader will not look there any more."""
        self._num_readers[slot] -= 1

    def _has_memory(self, slot: int) -> bool:
        """Asked for before it is written to: there, want of memory would be a signal."""
        if self._versions[slot] is None:
            try:
                os.posix_fallocate(self._fd, self.address.start(slot), self.address.num_bytes)
            except OSError:
                return False
        return True


class BoardReader:
    """An actor's side."""

    def __init__(self, memory: mmap.mmap, address: BoardAddress) -> None:
        self._memory = memory
        self._address = address

    @classmethod
    def open(cls, address: BoardAddress) -> Self | None:
        """None: it cannot be seen from here."""
        path = f"/proc/{address.pid}/fd/{address.fd}"
        try:
            if address.host != _host():
                return None
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


def _host() -> str:
    """Equal for processes that mean the same by a process id."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
