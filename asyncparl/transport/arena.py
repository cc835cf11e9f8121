"""Memory that both ends of a channel see. Each end writes into its own half, and reads the other one in place.

What is written for the peer is a **block**: lent to it until it says that it does not look at it any more. The peer's
blocks are seen through views, and the death of the last view of one is noted; whoever owns the channel tells the peer
(`take_returns`), which takes the block back (`take_back`).

Views die in any thread, in the middle of anything, perhaps while this thread holds a lock, or where Ctrl-C must not be
lost. So their finalizer is a function in C, which appends to a deque; whoever comes by later looks there.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import trio

from asyncparl.errors import ProtocolError
from asyncparl.transport.base import Part
from asyncparl.transport.blocks import Blocks
from asyncparl.transport.mapping import Mapping

_MUCH = 16  # one in so many bytes of the half
_COPY_BYTES = 1 << 22  # at a time: other threads get their turn in between


def _nobody() -> None:
    pass


class _Block:
    """A block of our half."""

    __slots__ = ("handed", "is_held", "num_lent", "on_lent", "size", "start")

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.size = size
        self.num_lent = 0
        self.is_held = False
        """Somebody in this process has a view of it."""
        self.handed: list[tuple[int, int]] = []
        """Parts of it that the peer was lent, and may write to ever since."""
        self.on_lent: Callable[[], None] = _nobody


class _Hold(weakref.ref[Any]):
    """Of what all views of a block are made from. Dies before it."""

    __slots__ = ("block", "offset", "size")
    offset: int
    size: int
    block: _Block
    __hash__ = object.__hash__  # what it refers to has none
    __eq__ = object.__eq__


class Space:
    """A block that somebody fills in place, and then lends.

    Attributes:
        view: its memory. It is free again when the last view is gone and the peer has returned what it was lent.
    """

    def __init__(self, view: memoryview, block: _Block) -> None:
        self.view = view
        self._block = block

    def call_when_lent(self, function: Callable[[], None]) -> None:
        """`function` is called whenever a part has been lent, by the thread that lends it."""
        self._block.on_lent = function


class Arena:
    """One end of the memory of a channel. All methods may be called from any thread.

    Args:
        mapping: the memory; both ends have the same.
        is_dialer: whether the first half is ours, or the second.
    """

    def __init__(self, mapping: Mapping, *, is_dialer: bool) -> None:
        self._mapping: Mapping | None = mapping
        self.num_bytes = mapping.num_bytes // 2
        self._our_start, self._their_start = (0, self.num_bytes) if is_dialer else (self.num_bytes, 0)
        self._lock = threading.Lock()
        self._blocks = Blocks(self.num_bytes)
        self._populated_end = 0
        self._lent: dict[int, _Block] = {}
        self._spaces: dict[int, _Block] = {}
        self._holds: set[_Hold] = set()
        self._dead_spaces: deque[_Hold] = deque()
        self._dead_views: deque[_Hold] = deque()
        self._returns: list[int] = []
        self._returning_bytes = 0
        self._seen_end = 0
        self._out, _ = mapping.view(self._our_start, self.num_bytes)
        _arenas.add(self)

    # --- our half -------------------------------------------------------------------------------------------

    def lend(self, data: Part) -> int | None:
        """Copy `data`, one byte or more, to where the peer can see it; what is in a `Space` already is not copied.

        Returns where it is, for the peer's `borrow`; None if there is no room.
        """
        source = memoryview(data)
        if source.format != "B" or source.ndim != 1:
            source = source.cast("B")
        with self._lock:
            if self._mapping is None:
                return None
            self._collect()
            if self._spaces and (offset := self._lend_in_place(source)) is not None:
                return offset
            block = self._take(len(source))
            if block is None:
                return None
            block.num_lent = 1
            self._lent[block.start] = block
            out = self._out
        for start in range(0, len(source), _COPY_BYTES):
            part = source[start : start + _COPY_BYTES]
            out[block.start + start : block.start + start + len(part)] = part
        return block.start

    def may_lend_in_place(self, data: Part) -> bool:
        """Whether `lend` would not copy this, because it is in a `Space`, and was not lent before."""
        with self._lock:
            if self._mapping is None or not self._spaces:
                return False
            return self._find_space(memoryview(data).cast("B"))[0] is not None

    def take_back(self, offset: int) -> None:
        """The peer does not see any more what was lent at `offset`.

        Raises:
            ProtocolError: nothing was.
        """
        with self._lock:
            block = self._lent.pop(offset, None)
            if block is None:
                raise ProtocolError(f"the peer returned memory at {offset} that it was not lent")
            block.num_lent -= 1
            self._free_if_unused(block)

    def reserve(self, num_bytes: int) -> Space | None:
        """Room for `num_bytes`, one or more, that `lend` will not copy; None if there is none. It holds anything."""
        with self._lock:
            mapping = self._mapping
            if mapping is None:
                return None
            self._collect()
            block = self._take(num_bytes)
            if block is None:
                return None
            block.is_held = True
            self._spaces[block.start] = block
        view, exporter = mapping.view(self._our_start + block.start, num_bytes)
        hold = _Hold(exporter, self._dead_spaces.append)
        hold.block = block
        self._holds.add(hold)
        return Space(view, block)

    @property
    def num_lent(self) -> int:
        """How many references the peer holds."""
        return len(self._lent)

    @property
    def num_in_use(self) -> int:
        """How many blocks of our half are not free."""
        with self._lock:
            self._collect()
            return self._blocks.num_in_use

    def _take(self, num_bytes: int) -> _Block | None:
        start = self._blocks.take(num_bytes)
        if start is None:
            return None
        block = _Block(start, num_bytes)
        end = self._blocks.touched_end
        if end > self._populated_end:
            assert self._mapping is not None
            fresh = end - self._populated_end
            if not self._mapping.populate(self._our_start + self._populated_end, fresh, for_writing=True):
                self._blocks.give_back(start)
                return None
            self._populated_end = end
        return block

    def _lend_in_place(self, source: memoryview) -> int | None:
        """Where it is, if it is in a space, and the peer has not been given that part before."""
        block, start = self._find_space(source)
        if block is None:
            return None
        block.handed.append((start, start + len(source)))
        block.num_lent += 1
        self._lent[start] = block
        block.on_lent()
        return start

    def _find_space(self, source: memoryview) -> tuple[_Block | None, int]:
        if source.readonly:
            return None, 0
        assert self._mapping is not None
        start = ctypes.addressof(ctypes.c_ubyte.from_buffer(source)) - self._mapping.address - self._our_start
        end = start + len(source)
        for block in self._spaces.values():
            if block.start <= start and end <= block.start + block.size:
                is_handed = any(start < other_end and other_start < end for other_start, other_end in block.handed)
                return (None if is_handed else block), start
        return None, 0

    def _collect(self) -> None:
        """Free what finalizers have noted, and what has not been needed lately."""
        while self._dead_spaces:
            hold = self._dead_spaces.popleft()
            self._holds.discard(hold)
            hold.block.is_held = False
            self._free_if_unused(hold.block)
        if (unused := self._blocks.trim()) is not None:
            assert self._mapping is not None
            start, end = unused
            self._mapping.discard(self._our_start + start, end - start)
            self._populated_end = start

    def _free_if_unused(self, block: _Block) -> None:
        if not block.num_lent and not block.is_held:
            self._blocks.give_back(block.start)
            self._spaces.pop(block.start, None)

    # --- the peer's half ------------------------------------------------------------------------------------

    def borrow(self, offset: int, num_bytes: int) -> memoryview:
        """A view of what the peer lent; writable. When it and all views made from it are gone, the block is returned.

        Raises:
            ProtocolError: the peer has no such memory.
            trio.ClosedResourceError: the channel has been closed.
        """
        mapping = self._mapping
        if mapping is None:
            raise trio.ClosedResourceError("this channel was closed")
        end = offset + num_bytes
        if offset < 0 or num_bytes <= 0 or end > self.num_bytes:
            raise ProtocolError(f"the peer lends {num_bytes} bytes at {offset} of its {self.num_bytes}")
        if end > self._seen_end:
            if not mapping.populate(self._their_start + self._seen_end, end - self._seen_end, for_writing=False):
                raise ProtocolError(f"the memory that the peer lends at {offset} cannot be read")
            self._seen_end = end
        view, exporter = mapping.view(self._their_start + offset, num_bytes)
        hold = _Hold(exporter, self._dead_views.append)
        hold.offset, hold.size = offset, num_bytes
        self._holds.add(hold)
        return view

    def take_returns(self) -> list[int]:
        """The offsets of what was borrowed and is not looked at any more, to be told to the peer; each once."""
        if not self._dead_views and not self._returns:
            return []
        with self._lock:
            self._look_at_dead_views()
            offsets, self._returns, self._returning_bytes = self._returns, [], 0
        return offsets

    def has_much_to_return(self) -> bool:
        """Whether the peer should hear of `take_returns` even if there is nothing else to tell it."""
        if self._dead_views:
            with self._lock:
                self._look_at_dead_views()
        return self._returning_bytes * _MUCH >= self.num_bytes

    def _look_at_dead_views(self) -> None:
        while self._dead_views:
            hold = self._dead_views.popleft()
            self._holds.discard(hold)
            self._returns.append(hold.offset)
            self._returning_bytes += hold.size

    # --- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Lend and borrow nothing more. Views stay valid; the memory is freed with the last of them, here and there."""
        with self._lock:
            self._mapping = None
            self._out = memoryview(b"")
        self._holds.clear()  # nobody needs to know any more

    def keep_for_child(self) -> None:
        """A child is being forked that will see what is held here: that is never used again."""
        self._holds.clear()


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def _before_fork() -> None:
    for arena in list(_arenas):
        arena.keep_for_child()


def _after_fork_in_child() -> None:
    for arena in list(_arenas):
        arena._lock = threading.Lock()  # a thread that does not exist here may have had it
        arena.close()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
