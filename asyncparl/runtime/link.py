"""A link: one channel joined to one protocol core. The only place where bytes meet messages.

Receiving is one task, `Link.run`. Sending needs none: whoever has something to say sends it at once, from whatever
thread, and only what a full channel refuses waits for the link's sender task. A lock guards the core, because a
worker's methods run in a thread of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import trio

from asyncparl.errors import CallFate, MessageTooLarge, ProtocolError
from asyncparl.protocol.calls import CallerState
from asyncparl.protocol.events import (
    AnswerArrived,
    CallArrived,
    CancelArrived,
    Event,
    GrantArrived,
    ItemArrived,
    MemoryReturned,
    Opened,
    PeerClosing,
    TimeIsUp,
)
from asyncparl.protocol.frames import Buffer, Lent, decode_frames, encode_frame
from asyncparl.protocol.link import LinkCore, LinkState
from asyncparl.protocol.messages import Call, ErrorReport, Fragment, FragmentsTaken
from asyncparl.protocol.owned import LARGE_BYTES, Owned
from asyncparl.protocol.values import NOTHING, Encoded, Large
from asyncparl.runtime.activity import WaitingCall, note_calling
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.lending import hold_large, lend_large
from asyncparl.runtime.roles import Callee, Caller
from asyncparl.runtime.served_limits import ServedLimits
from asyncparl.transport.arena import Arena, Space
from asyncparl.transport.base import Channel

MAX_MESSAGE_BYTES = 16 << 20
"""What a channel accepts in one message. What is larger than `LARGE_BYTES` travels in fragments."""

_DRAIN_LIMIT = 64
"""Messages handled before other tasks get their turn."""

_MAX_OUTGOING = 4096
"""Messages that wait to be sent. More than the windows of both sides allow a peer that reads."""

_FRAGMENTS_AT_ONCE = 2
"""After so many others get their turn with the link, and the loop."""

_JOIN_LIMIT_BYTES = 1 << 16
"""Small frames that wait together are sent together, up to this size."""


class LinkLost(Exception):
    """The link was lost before the call was made: nothing was sent, and nobody would settle the call."""


class Link:
    """One end of a link. Calls may be made before it has a channel: they wait in the core."""

    def __init__(self, core: LinkCore, callee: Callee | None = None) -> None:
        self.core = core
        self._callee = callee
        self._lock = threading.Lock()
        self._callers: dict[int, Caller] = {}
        self._channel: Channel | None = None
        self._arena: Arena | None = None
        self._refused = b""
        """The one message that the full channel did not take."""
        self._blocked = trio.Event()
        self._limits: ServedLimits | None = None
        """Of calls that we serve; made for the first that has one."""
        self._on_quiet: list[Callable[[], None]] = []
        """Who wants to know that nothing of what was said is on its way in fragments any more."""
        self.loop = EventLoop()
        note_calling(self)

    # --- calling --------------------------------------------------------------------------------------------

    def call(
        self,
        caller: Caller,
        kind: int,
        target: str,
        value: Encoded = NOTHING,
        *,
        credit: int = 0,
        object_id: int = 0,
        deadline: float | None = None,
    ) -> int:
        """Make a call; its id. From any thread. `deadline` is for the callee; whose call it is counts for himself.

        Raises:
            LinkLost: nothing was sent.
            MessageTooLarge: nothing was sent.
        """
        value = self._fit(value)
        with self._lock:
            if self.is_lost:
                raise LinkLost
            call_id = self.core.call(kind, target, value, credit=credit, object_id=object_id, deadline=deadline)
            self._callers[call_id] = caller
            self._flush()
        self._own(value)
        return call_id

    def cancel(self, call_id: int) -> bool:
        """Give up on a call of ours: its caller hears nothing more. From any thread.

        False: it was told already, or is told in this very moment.
        """
        with self._lock:
            if self._callers.pop(call_id, None) is None:
                return False
            if self.core.cancel(call_id):
                self._flush()
            return True

    def expire(self, call_id: int) -> CallerState | None:
        """The time of a call of ours is up; the state that it was in.

        QUEUED: it never starts, and its caller hears nothing more. SENT: he may hear a last word, or `cancel` it. None:
        it was told already, or is told in this very moment.
        """
        with self._lock:
            if call_id not in self._callers:
                return None
            state = self.core.expire(call_id)
            if state is CallerState.QUEUED:
                del self._callers[call_id]
            self._flush()
            return state

    def grant(self, call_id: int, num_items: int) -> None:
        """Take more items of a stream. From any thread."""
        with self._lock:
            self.core.grant(call_id, num_items)
            self._flush()

    # --- answering; from any thread -------------------------------------------------------------------------

    def answer_returned(self, call_id: int, value: Encoded = NOTHING, *, streamed: bool = False) -> None:
        """Answer a call of the peer's.

        Raises:
            MessageTooLarge: nothing was sent, and the call is still owed an answer.
        """
        if self.core.callee.is_wanted(call_id):  # else the core drops it
            value = self._fit(value)
        with self._lock:
            self.core.answer_returned(call_id, value, streamed=streamed)
            self._flush()
        self._own(value)

    def answer_raised(self, call_id: int, error: ErrorReport, value: Encoded = NOTHING) -> None:
        """Answer a call of the peer's with an exception; one that is too large to travel is told in words.

        No effect if the call has been answered.
        """
        try:
            value = self._fit(value)
        except MessageTooLarge:
            value = NOTHING
        with self._lock:
            if self.core.callee.is_open(call_id):
                self.core.answer_raised(call_id, error, value)
                self._flush()
        self._own(value)

    def answer_cancelled(self, call_id: int) -> None:
        """Answer a call of the peer's that was cancelled."""
        with self._lock:
            self.core.answer_cancelled(call_id)
            self._flush()

    def send_item(self, call_id: int, value: Encoded) -> None:
        """Send the next item of a stream; its credit must have been looked at.

        Raises:
            MessageTooLarge: nothing was sent.
        """
        value = self._fit(value)
        with self._lock:
            self.core.send_item(call_id, value)
            self._flush()
        self._own(value)

    def is_wanted(self, call_id: int) -> bool:
        """Whether the peer still waits for this call of its own."""
        with self._lock:
            return self.core.callee.is_wanted(call_id)

    def may_begin(self, call: Call) -> bool:
        """It is the turn of a call of the peer's: whether to start it. From any thread."""
        if call.timeout_s is None:
            return self.is_wanted(call.call_id)
        with self._lock:
            now = self.loop.now()
            if self.core.callee.begin(call.call_id, now):
                return True
            self.core.time_is_up(call.call_id, "", 0.0, now)
            self._flush()
            return False

    def has_credit(self, call_id: int) -> bool:
        """Whether the peer takes another item of this stream."""
        with self._lock:
            return self.core.callee.has_credit(call_id)

    def reserve(self, num_bytes: int) -> Space | None:
        """Room in the arena for something that will be sent over this link; None if there is none. From any thread."""
        if self._arena is None or not self.core.may_refer:
            return None
        return self._arena.reserve(num_bytes)

    # --- life -----------------------------------------------------------------------------------------------

    def attach(self, channel: Channel) -> None:
        """Give the link its channel; what waited is sent."""
        with self._lock:
            self._channel = channel
            self._arena = channel.arena
            if channel.arena is not None:
                self.core.share_memory()
            self._flush()

    async def run(self) -> str:
        """Receive until the link is lost; returns why. The open calls stay open until `lose`.

        Callers and the callee are told in this task, so they must not block.
        """
        assert self._channel is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_refused, self._channel)
            try:
                why = await self._receive(self._channel)
            finally:
                self._channel.close()
                nursery.cancel_scope.cancel()
        with self._lock:
            # What is called from now on has certainly not been started.
            self.core.caller.window = 0
        return why

    def lose(self, error_for: Callable[[CallFate], BaseException]) -> list[int]:
        """Settle everything: our open calls with an error of the caller's choice. Returns the peer's open calls."""
        with self._lock:
            lost, unanswered = self.core.lose()
            callers, self._callers = self._callers, {}
            self._refused = b""
            if self._limits is not None:
                self._limits.end()
            self._tell_quiet()
        self.disconnect()
        for call_id, fate in lost:
            callers[call_id].call_lost(error_for(fate))
        return unanswered

    def disconnect(self) -> None:
        """Say goodbye and close the channel: `run` returns."""
        if self._channel is not None:
            with self._lock:
                self.core.say_goodbye()
                self._flush()
            self._channel.close()

    def flush(self) -> None:
        """Send what waits, as far as the channel takes it."""
        with self._lock:
            self._flush()

    def call_when_quiet(self, function: Callable[[], None]) -> None:
        """`function` is called, once, when the peer has taken all that travels in fragments, which may be now.

        From any thread, and in any.
        """
        with self._lock:
            self._on_quiet.append(function)
            self._tell_quiet()

    def waiting_calls(self) -> Iterable[WaitingCall]:
        """Calls of ours that have no answer yet. From any thread, and without a lock."""
        return [caller.describe() for caller in tuple(self._callers.values())]

    @property
    def is_lost(self) -> bool:
        """Whether `lose` was called."""
        return self.core.state is LinkState.LOST

    # --- receiving ------------------------------------------------------------------------------------------

    async def _receive(self, channel: Channel) -> str:
        channel.place = self._place
        try:
            while True:
                if self.core.num_outgoing > _MAX_OUTGOING:
                    await self._wait_until_taken(channel)
                num_left = _DRAIN_LIMIT - self._take_in(await channel.receive())
                while num_left > 0:
                    try:
                        view = channel.receive_nowait()
                    except trio.WouldBlock:
                        break
                    num_left -= self._take_in(view)
        except trio.BrokenResourceError:
            return "the connection was lost"
        except trio.ClosedResourceError:
            return "the connection was closed"
        except ProtocolError as error:
            return f"the peer broke the protocol: {error}"
        except MemoryError as error:
            return str(error)
        finally:
            channel.place = None

    def _place(self, beginning: memoryview, message_bytes: int) -> memoryview | None:
        with self._lock:
            return self.core.place(beginning, message_bytes)

    async def _wait_until_taken(self, channel: Channel) -> None:
        """The peer asks and asks, and takes no answer: it is not heard before it does."""
        while self.core.num_outgoing > _MAX_OUTGOING:
            await channel.wait_sendable()
            self.flush()

    def _take_in(self, view: memoryview) -> int:
        """Handle a message; for how many it counts."""
        weight = 1
        for frame in decode_frames(view, None if self._arena is None else self._arena.borrow):
            now = 0.0
            if type(frame.message) is Fragment:
                weight = _DRAIN_LIMIT
            elif type(frame.message) is FragmentsTaken:
                now = self.loop.now()
            with self._lock:
                event = self.core.receive(frame, now)
                if self.core.has_outgoing:
                    self._flush()
                if self._on_quiet:
                    self._tell_quiet()
            if isinstance(event, MemoryReturned):
                self._take_back(event.offsets)
            else:
                self._tell(event)
        if self._arena is not None and self._arena.has_much_to_return():
            with self._lock:
                self.core.give_back(self._arena.take_returns())
                self._flush()
        return weight

    def _tell(self, event: Event | None) -> None:
        match event:
            case AnswerArrived(call_id, frame):
                # Absent: cancelled in this very moment.
                if (caller := self._callers.pop(call_id, None)) is not None:
                    caller.answer_arrived(frame)
            case ItemArrived(call_id, frame):
                if (caller := self._callers.get(call_id)) is not None:
                    caller.item_arrived(frame)
            case CallArrived():
                self._serve(event)
            case CancelArrived(call_id):
                self._stop_serving(call_id)
            case TimeIsUp(call_id, message):
                if (caller := self._callers.pop(call_id, None)) is not None:
                    caller.timed_out(message)
            case GrantArrived(call_id):
                self._serving().grant_arrived(self, call_id)
            case Opened(_, too_large):
                self._opened(too_large)
            case PeerClosing() | MemoryReturned() | None:
                pass

    def _opened(self, too_large: Iterable[int]) -> None:
        for call_id in too_large:
            if (caller := self._callers.pop(call_id, None)) is not None:
                caller.call_lost(MessageTooLarge(f"a value that is larger than the peer takes; {self._limit()}"))
        if self._callee is not None:
            self._callee.link_opened(self)

    # --- calls of the peer's that have a time limit -----------------------------------------------------------

    def _serve(self, arrived: CallArrived) -> None:
        if (timeout_s := arrived.call.timeout_s) is not None:
            if self._limits is None:
                self._limits = ServedLimits(self.core.callee, self._lock, self.loop, self._stop_serving)
            self._limits.count(arrived.call, timeout_s)
        self._serving().call_arrived(self, arrived)

    def _stop_serving(self, call_id: int) -> None:
        """The peer gave up on a call, or its time is up."""
        callee = self._serving()
        if (limit := self.core.callee.limit_of(call_id)) is not None:
            running, running_s = callee.running(limit.call)
            with self._lock:
                self.core.time_is_up(call_id, running, running_s, self.loop.now())
                self._flush()
        callee.cancel_arrived(self, call_id)

    def _serving(self) -> Callee:
        if self._callee is None:
            raise ProtocolError("the peer made a call, and nothing is served here")
        return self._callee

    def _take_back(self, offsets: list[int]) -> None:
        if self._arena is None:
            raise ProtocolError("the peer returned memory, and was lent none")
        for offset in offsets:
            self._arena.take_back(offset)

    # --- sending --------------------------------------------------------------------------------------------

    def _fit(self, value: Encoded) -> Encoded:
        """What can be sent: something large is copied to the arena, before anybody has to wait for the lock, or is a
        `Large`, of which `_own` copies what does not leave at once.

        Raises:
            MessageTooLarge: it is larger than is allowed; with the size and the limit.
        """
        if not value.buffers and len(value.payload) <= LARGE_BYTES:
            return value
        num_bytes, limit = value.num_bytes, self.core.largest_value
        if limit is not None and num_bytes > limit:
            raise MessageTooLarge(f"a value of {num_bytes:,} bytes; {self._limit()}")
        if num_bytes <= LARGE_BYTES:
            return value
        return hold_large(self._arena if self.core.may_refer else None, value)

    def _own(self, value: Encoded) -> None:
        """The user gets his arrays back: what has not left is copied, from its end, while its beginning leaves."""
        if not isinstance(value, Large):
            return
        try:
            # In another thread copying goes on beside the loop, which sends: two would be in each other's way.
            value.own(self._lock, self.flush if self.loop.is_here else lambda: None)
        except (OSError, MemoryError):  # nowhere to copy it to, and it must not be sent once the user may change it
            with self._lock:
                self.core.say_goodbye()
            if self._channel is not None:
                self._do_in_loop(self._channel.close)

    def _limit(self) -> str:
        return f"the limit is {self.core.largest_value:,} bytes, which `connect(max_value_bytes=...)` changes"

    def _flush(self) -> None:
        """Send as much as the channel takes. The lock is held."""
        channel, core = self._channel, self.core
        if channel is None:
            core.detach_outgoing()
            return
        if self._arena is not None and core.has_outgoing and (offsets := self._arena.take_returns()):
            core.give_back(offsets)
        try:
            if not self._send_all(channel):
                core.detach_outgoing()
                self._do_in_loop(self._set_blocked)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the receiving task learns of it too, and settles what is open
        except MessageTooLarge:
            # Ours are checked before; so the peer takes less than what it asked for.
            self._do_in_loop(channel.close)

    def _send_all(self, channel: Channel) -> bool:
        """Send what waits; False if some of it still does, for room in the channel or until others had their turn."""
        if self._refused and not self._send(channel, [self._refused]):
            return False
        num_fragments = 0
        while self.core.has_outgoing:
            if self.core.next_outgoing is None:
                # Room first: a fragment that is refused would be copied.
                if num_fragments == _FRAGMENTS_AT_ONCE or not channel.make_room():
                    return False
                num_fragments += 1
            if not self._send(channel, *self._next_parts()):
                return False
        return True

    def _send(self, channel: Channel, parts: Sequence[Buffer], is_unchanging: bool = False) -> bool:
        """Send one message; if the channel refuses it, it is the next one."""
        try:
            channel.send_nowait(parts, unchanging=is_unchanging)
        except trio.WouldBlock:
            self._refused = b"".join(parts)
            return False
        self._refused = b""
        return True

    def _next_parts(self) -> tuple[list[Buffer], bool]:
        """The next message for the channel, one frame or several small ones; and whether nobody changes it any more."""
        core = self.core
        message, value, is_unchanging = core.take_outgoing(self.loop.now() if core.needs_time else 0.0)
        buffers: Sequence[Buffer | Owned | Lent] = value.buffers
        if buffers and self._arena is not None and core.may_refer:
            buffers = lend_large(self._arena, value.buffers)
        parts = encode_frame(message, value.payload, buffers)
        if value.buffers or not core.has_outgoing:
            return parts, is_unchanging
        size = len(parts[0]) if len(parts) == 1 else _JOIN_LIMIT_BYTES
        while (
            size < _JOIN_LIMIT_BYTES and (following := core.next_outgoing) is not None and not following.value.buffers
        ):
            message, value, _ = core.take_outgoing(self.loop.now() if core.needs_time else 0.0)
            frame = encode_frame(message, value.payload)
            parts += frame
            size += len(frame[0]) if len(frame) == 1 else _JOIN_LIMIT_BYTES
        return parts, False

    def _tell_quiet(self) -> None:
        """The lock is held."""
        if not self.core.has_transfers:
            told, self._on_quiet = self._on_quiet, []
            for function in told:
                function()

    def _do_in_loop(self, function: Callable[[], None]) -> None:
        if self.loop.is_here:
            function()
        else:
            self.loop.run_soon(function)  # if it has ended, then the link has too

    def _set_blocked(self) -> None:
        self._blocked.set()  # the event of this moment: the sender makes a new one each time

    async def _send_refused(self, channel: Channel) -> None:
        try:
            while True:
                await self._blocked.wait()
                self._blocked = trio.Event()
                await channel.wait_sendable()
                self.flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # as in `_flush`
