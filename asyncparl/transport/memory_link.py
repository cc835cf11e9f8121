"""One connection of the transport for `memory://`: what is under way, and the knobs to disturb it."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn

import trio

from asyncparl.errors import MessageTooLarge
from asyncparl.transport.arena import Arena
from asyncparl.transport.base import Channel, ChannelStatistics, Part
from asyncparl.transport.mapping import Mapping


def _no_delay() -> float:
    return 0.0


class MemoryLink:
    """Both directions of one connection, and the knobs to disturb it. Every knob may be turned at any time.

    Attributes:
        dialer: the channel of the side that dialed.
        acceptor: the channel of the side that accepted.
        delay_s: called for each message, returns how long it is under way. A message is never due before the one
            that was sent before it, so that links reorder against each other but never within themselves.
        lossy_close: whether closing a channel loses what is still under way, as it may on a real network.
    """

    def __init__(self, queued_messages: int, max_message_bytes: int, shared_bytes: int = 0) -> None:
        self.delay_s: Callable[[], float] = _no_delay
        self.lossy_close = False
        there, back = _Direction(queued_messages), _Direction(queued_messages)
        self.dialer = MemoryChannel(self, there, back, max_message_bytes)
        self.acceptor = MemoryChannel(self, back, there, max_message_bytes)
        self._directions = (there, back)
        if shared_bytes:
            mapping = Mapping(None, 2 * shared_bytes)
            self.dialer.arena = Arena(mapping, is_dialer=True)
            self.acceptor.arena = Arena(mapping, is_dialer=False)

    def cut(self) -> None:
        """Break the link: what is under way is lost, and both sides notice at once."""
        for direction in self._directions:
            direction.lose_under_way()
            direction.end(0.0)
        self._wake()

    def half_close(self, channel: MemoryChannel) -> None:
        """Only `channel` loses its peer. The other side notices nothing, and what it sends gets lost."""
        channel.incoming.lose_under_way()
        channel.incoming.swallow()
        channel.incoming.end(0.0)
        self._wake()

    def drop(self) -> None:
        """Turn the link into a black hole: what is under way or sent later gets lost, and nobody notices."""
        for direction in self._directions:
            direction.lose_under_way()
            direction.swallow()
        self._wake()

    def close(self, channel: MemoryChannel) -> None:
        """`channel` has been closed by its owner; the other side learns it after what is under way."""
        if self.lossy_close:
            channel.outgoing.lose_under_way()
        channel.outgoing.end(self.delay_s())
        channel.incoming.swallow()
        self._wake()

    def _wake(self) -> None:
        """Whoever waits on either side looks again."""
        for direction in self._directions:
            direction.wake()


class _Direction:
    """The messages from one channel to the other. Its lock makes sending from other threads safe."""

    def __init__(self, queued_messages: int) -> None:
        self._capacity = queued_messages
        self._lock = threading.Lock()
        self._messages: deque[tuple[float, bytearray]] = deque()  # with the time when it is due
        self._last_due = -math.inf
        self._swallows = False
        self._clock = trio.lowlevel.current_clock()
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()
        self._changed = trio.Event()
        self.ended_at = math.inf  # when the receiving side learns that nothing more will come

    def now(self) -> float:
        return self._clock.current_time()  # not trio.current_time(), which works on the loop's thread only

    def put(self, message: bytearray, delay_s: float) -> bool:
        """Whether there was room for it."""
        with self._lock:
            if self._swallows:
                return True
            if len(self._messages) >= self._capacity:
                return False
            self._last_due = max(self._last_due, self.now() + delay_s)
            self._messages.append((self._last_due, message))
        self._announce()
        return True

    def get(self) -> bytearray | None:
        with self._lock:
            if not self._messages or self._messages[0][0] > self.now():
                return None
            _, message = self._messages.popleft()
        self._announce()
        return message

    def has_room(self) -> bool:
        return self._swallows or len(self._messages) < self._capacity

    def next_due(self) -> float:
        """When there may be something to get, or to learn."""
        with self._lock:
            return self._messages[0][0] if self._messages else self.ended_at

    def lose_under_way(self) -> None:
        with self._lock:
            now = self.now()
            self._messages = deque(entry for entry in self._messages if entry[0] <= now)
            self._last_due = min(self._last_due, now)

    def swallow(self) -> None:
        """From now on messages vanish."""
        self._swallows = True

    def end(self, delay_s: float) -> None:
        """Nothing more will come; the receiving side learns it after everything that is under way."""
        self.ended_at = min(self.ended_at, max(self._last_due, self.now() + delay_s))

    def has_ended(self) -> bool:
        return self.ended_at <= self.now()

    def _announce(self) -> None:
        if threading.get_ident() == self._thread:
            self.wake()
            return
        try:
            self._token.run_sync_soon(self.wake)
        except trio.RunFinishedError:
            pass  # nobody waits any more

    def wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_for_change(self, until: float) -> None:
        with trio.move_on_at(until):
            await self._changed.wait()


class MemoryChannel(Channel):
    """See `Channel`. One end of a `MemoryLink`."""

    def __init__(self, link: MemoryLink, outgoing: _Direction, incoming: _Direction, max_message_bytes: int) -> None:
        self.link = link
        self.max_message_bytes = max_message_bytes
        self.incoming = incoming
        self.outgoing = outgoing
        self._closed = False
        self._broken = False
        self._receiving = False
        self._num_sent = self._sent_bytes = self._num_received = self._received_bytes = 0

    def send_nowait(self, parts: Sequence[Part], *, unchanging: bool = False) -> None:
        self._check_sendable()
        message = bytearray().join(parts)
        if len(message) > self.max_message_bytes:
            raise MessageTooLarge(
                f"message of {len(message)} bytes; the limit of this channel is {self.max_message_bytes}"
            )
        if not self.outgoing.put(message, self.link.delay_s()):
            raise trio.WouldBlock
        self._num_sent += 1
        self._sent_bytes += len(message)

    async def wait_sendable(self) -> None:
        await trio.lowlevel.checkpoint()
        while True:
            self._check_sendable()
            if self.outgoing.has_room():
                return
            await self.outgoing.wait_for_change(self.incoming.ended_at)

    def _check_sendable(self) -> None:
        if self._closed or self._broken or self.incoming.has_ended():
            self._refuse()

    def receive_nowait(self) -> memoryview:
        if self._closed or self._broken:
            self._refuse()
        message = self.incoming.get()
        if message is None:
            if not self.incoming.has_ended():
                raise trio.WouldBlock
            self._broken = True
            self._refuse()
        self._num_received += 1
        self._received_bytes += len(message)
        return memoryview(message)

    async def receive(self) -> memoryview:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving already")
        self._receiving = True
        try:
            waited = False
            while True:
                try:
                    view = self.receive_nowait()
                except trio.WouldBlock:
                    await self.incoming.wait_for_change(self.incoming.next_due())
                    waited = True
                else:
                    break
            if not waited:
                await trio.lowlevel.cancel_shielded_checkpoint()
            return view
        finally:
            self._receiving = False

    def _refuse(self) -> NoReturn:
        if self._closed:
            raise trio.ClosedResourceError("this channel was closed")
        raise trio.BrokenResourceError("the peer of this channel is gone")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.arena is not None:
            self.arena.close()
        self.link.close(self)

    @property
    def closed(self) -> bool:
        return self._closed

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(self._num_sent, self._sent_bytes, self._num_received, self._received_bytes)
