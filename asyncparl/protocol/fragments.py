"""Frames in fragments: a large one is cut, several take turns, and the receiver puts each of them together again.

Rule 1: no I/O, no clock, no task here. Rule 2: the fragments of one frame are sent in order and without a gap, so that
anything else is the peer's fault (`ProtocolError`). Rule 3: what is on its way is limited (`pace.py`) until the
receiver says that it has taken it: so little is in queues and sockets that a small message is never far behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from asyncparl.errors import ProtocolError
from asyncparl.protocol.frames import Buffer
from asyncparl.protocol.messages import Fragment
from asyncparl.protocol.owned import Owned, new_memory
from asyncparl.protocol.pace import Pace

K = TypeVar("K")

FRAGMENT_BYTES = 1 << 20
"""What a fragment holds at most."""

MAX_TRANSFERS = 16
"""Frames of which a part has been sent; others wait. The receiver has memory for all of these."""

FRAME_ROOM_BYTES = 16 << 20
"""How much larger than the value in it a frame may be: its table, envelope and padding."""

_ROOM_BYTES = 64
"""Before the memory for a frame, for the head of a message that is read to its place, and after it, for its padding."""


class Cut(NamedTuple):
    """What is sent next."""

    fragment: Fragment
    parts: list[memoryview]
    is_unchanging: bool
    """Nothing of it is the user's memory, which he may change."""


class Transfer(Generic[K]):
    """A frame on its way."""

    __slots__ = ("_parts", "at", "key", "num_bytes", "transfer_id")

    def __init__(self, key: K) -> None:
        self.key = key
        """What it stands for at the sender."""
        self.transfer_id = 0
        """0: nothing of it was sent."""
        self.at = 0
        self.num_bytes = 0
        self._parts: deque[Owned] = deque()

    def begin(self, transfer_id: int, parts: Sequence[Buffer | Owned]) -> None:
        """Its bytes are known now."""
        self.transfer_id = transfer_id
        self._parts = deque(part if isinstance(part, Owned) else Owned([part]) for part in parts if len(part))
        self.num_bytes = sum(len(part) for part in self._parts)

    def cut(self) -> Cut:
        """The next fragment: whole pieces as far as they fit; only what is larger than a fragment is cut itself."""
        fragment = Fragment(self.transfer_id, self.at, self.num_bytes)
        room, cut, is_unchanging = FRAGMENT_BYTES, list[memoryview](), True
        while self._parts and (self._parts[0].next_bytes <= room or not cut):
            part = self._parts[0]
            is_unchanging = is_unchanging and not part.is_foreign
            cut.append(part.take(room))
            if part.is_over:
                self._parts.popleft()
            room -= len(cut[-1])
            self.at += len(cut[-1])
        return Cut(fragment, cut, is_unchanging)

    @property
    def is_sent(self) -> bool:
        """Whether nothing of it is left."""
        return self.transfer_id > 0 and not self._parts


class Cutter(Generic[K]):
    """The sender's side of a link: whose turn it is, and whether there is room for a fragment.

    Attributes:
        is_ready: whether `take` has something to give.
        num_taken: fragments, ever.
    """

    def __init__(self) -> None:
        self.is_ready = False
        self.num_taken = 0
        self._turns: deque[Transfer[K]] = deque()
        self._waiting: deque[Transfer[K]] = deque()
        self._last_id = 0
        self._pace = Pace()
        self._is_stopped = False

    def add(self, key: K) -> Transfer[K]:
        """A frame that is to be sent. When it is its turn for the first time, `take` asks for its bytes."""
        transfer = Transfer(key)
        (self._turns if len(self._turns) < MAX_TRANSFERS else self._waiting).append(transfer)
        self._look()
        return transfer

    def take(self, parts_of: Callable[[Transfer[K]], Sequence[Buffer | Owned]], now: float) -> tuple[Transfer[K], Cut]:
        """The next fragment of the transfer whose turn it is. Only if `is_ready`. `now`: the time of our clock."""
        transfer = self._turns.popleft()
        if not transfer.transfer_id:
            self._last_id += 1
            transfer.begin(self._last_id, parts_of(transfer))
        cut = transfer.cut()
        self.num_taken += 1
        if self._pace.sent(transfer.at - cut.fragment.at, now, is_last=transfer.is_sent):
            cut = cut._replace(fragment=msgspec.structs.replace(cut.fragment, asks=True))
        if not transfer.is_sent:
            self._turns.append(transfer)
        self._look()
        return transfer, cut

    def acknowledged(self, num_bytes: int, now: float) -> None:
        """The receiver has taken so much.

        Raises:
            ProtocolError: so much was not on its way.
        """
        if not 0 < num_bytes <= self._pace.num_under_way:
            raise ProtocolError(
                f"{num_bytes} bytes of fragments were taken, of {self._pace.num_under_way} on their way"
            )
        self._pace.taken(num_bytes, now)
        self._look()

    def drop(self, transfer: Transfer[K]) -> bool:
        """Send no more of it; whether the receiver must be told. Only what is not sent completely."""
        (self._turns if transfer in self._turns else self._waiting).remove(transfer)
        self._look()
        return transfer.transfer_id > 0

    def stop(self) -> None:
        """Send nothing any more, and tell nobody."""
        self._is_stopped = True
        self._turns.clear()
        self._waiting.clear()
        self._look()

    @property
    def is_idle(self) -> bool:
        """Whether the receiver has all that it will get."""
        return self._is_stopped or not (self._turns or self._waiting or self._pace.num_under_way)

    def _look(self) -> None:
        while self._waiting and len(self._turns) < MAX_TRANSFERS:
            self._turns.append(self._waiting.popleft())
        self.is_ready = bool(self._turns) and self._pace.has_room and not self._is_stopped


class _Assembly:
    """A frame as far as it has come, in memory with some room before and after it."""

    __slots__ = ("_covered", "_room", "memory", "num_bytes")

    def __init__(self, num_bytes: int) -> None:
        self._room = _memory_for(num_bytes)
        self.memory = self._room[_ROOM_BYTES:-_ROOM_BYTES]
        self.num_bytes = 0
        """How much of it has come."""
        self._covered = b""
        """What was where the head of a message lies now."""

    def place(self, head_bytes: int, message_bytes: int) -> memoryview:
        """Memory for a message with nothing but a head and what comes next, which is then in its place.

        The head lies on the end of what has come before. `put` restores that.
        """
        start = _ROOM_BYTES + self.num_bytes - head_bytes
        self._covered = bytes(self._room[start : start + head_bytes])
        return self._room[start : start + message_bytes]

    def put(self, part: memoryview) -> None:
        """It comes next; copied, unless it was read to its place."""
        at = _ROOM_BYTES + self.num_bytes
        if part.obj is self._room.obj:
            self._room[at - len(self._covered) : at] = self._covered
        else:
            self._room[at : at + len(part)] = part
        self.num_bytes += len(part)


class Joiner:
    """The receiver's side of a link. Memory is there for what was announced, and costs nothing until it has come.

    Args:
        max_value_bytes: the largest value that is taken; None: there is no limit but memory.
    """

    def __init__(self, max_value_bytes: int | None) -> None:
        self._max_value_bytes = max_value_bytes
        self._open: dict[int, _Assembly] = {}
        self._last_id = 0
        self._num_untold = 0
        """Taken, which the sender does not know yet."""

    def place(self, fragment: Fragment, head_bytes: int, num_bytes: int, message_bytes: int) -> memoryview | None:
        """Where to read a message to that begins to come, so that nothing of it needs to be copied; None: anywhere.

        Args:
            head_bytes: of the message, before the part of the frame that it brings.
            num_bytes: of that part. It fills the rest of the message, but for its padding.
        """
        assembly = self._open.get(fragment.transfer_id)
        if assembly is None or fragment.at != assembly.num_bytes or fragment.size != len(assembly.memory):
            return None  # it begins; or a fault, which `take` finds
        fits = num_bytes <= fragment.size - fragment.at and message_bytes - head_bytes - num_bytes < _ROOM_BYTES
        return assembly.place(head_bytes, message_bytes) if fits and head_bytes <= _ROOM_BYTES else None

    def take(self, fragment: Fragment, parts: Sequence[memoryview]) -> memoryview | None:
        """A fragment came, which is copied to its place, if it is not there; the whole frame if it was the last one.

        Raises:
            ProtocolError: it is not the next of its transfer, or that must not begin.
            MemoryError: there is none for so large a value.
        """
        assembly = self._open.get(fragment.transfer_id) or self._begin(fragment)
        num_bytes = sum(len(part) for part in parts)
        if fragment.at != assembly.num_bytes or fragment.size != len(assembly.memory):
            raise ProtocolError(
                f"a fragment at {fragment.at} of {fragment.size} bytes, where {assembly.num_bytes} of "
                f"{len(assembly.memory)} have come"
            )
        if not 0 < num_bytes <= fragment.size - fragment.at:
            raise ProtocolError(f"a fragment of {num_bytes} bytes at {fragment.at} of {fragment.size}")
        for part in parts:
            assembly.put(part)
        self._num_untold += num_bytes
        if assembly.num_bytes < fragment.size:
            return None
        del self._open[fragment.transfer_id]
        return assembly.memory

    def take_acknowledgement(self) -> int:
        """What the sender does not know yet to have been taken, and is told now."""
        num_bytes, self._num_untold = self._num_untold, 0
        return num_bytes

    def drop(self, transfer_id: int) -> None:
        """The rest of it will not come.

        Raises:
            ProtocolError: there is no such transfer.
        """
        if self._open.pop(transfer_id, None) is None:
            raise ProtocolError(f"transfer {transfer_id} was dropped, which is not under way")

    def drop_all(self) -> None:
        """Nothing will come any more."""
        self._open.clear()

    @property
    def num_open(self) -> int:
        """Frames of which a part has come."""
        return len(self._open)

    def _begin(self, fragment: Fragment) -> _Assembly:
        limit = self._max_value_bytes
        if fragment.transfer_id <= self._last_id:
            raise ProtocolError(f"a fragment of transfer {fragment.transfer_id}, which is over")
        if len(self._open) >= MAX_TRANSFERS:
            raise ProtocolError(f"more than {MAX_TRANSFERS} frames in fragments at once")
        if fragment.at or fragment.size <= 0:
            raise ProtocolError(f"transfer {fragment.transfer_id} begins at {fragment.at} of {fragment.size} bytes")
        if limit is not None and fragment.size > limit + FRAME_ROOM_BYTES:
            raise ProtocolError(
                f"a value of about {fragment.size:,} bytes is announced, and the limit here is {limit:,} "
                "(max_value_bytes)"
            )
        self._last_id = fragment.transfer_id
        assembly = self._open[fragment.transfer_id] = _Assembly(fragment.size)
        return assembly


def _memory_for(num_bytes: int) -> memoryview:
    try:
        return new_memory(num_bytes + 2 * _ROOM_BYTES)
    except MemoryError:
        raise MemoryError(f"there is no memory for a value of {num_bytes:,} bytes") from None
