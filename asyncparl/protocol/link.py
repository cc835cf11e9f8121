"""One end of a link as a pure machine: what to send, and what a received frame means.

    OPENING --Hello received--> OPEN --Goodbye received--> CLOSING
        \\________________________\\________________________\\___ lose() ___> LOST

Give it frames with `receive`; take what must be sent with `take_outgoing`. Calls may be made from the start: they wait
in the table until the peer's `Hello` names its window. After `lose` nothing is sent and nothing is open.

Any message that has no place in the present state is a `ProtocolError`: the peer is at fault and the link must be
dropped; the state is then undefined but for `lose`.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from functools import partial

import msgspec

from asyncparl.errors import CallFate, ProtocolError
from asyncparl.protocol.calls import CalleeTable, CallerState, CallerTable
from asyncparl.protocol.deadlines import is_duration
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
from asyncparl.protocol.fragments import Cutter, Joiner, Transfer
from asyncparl.protocol.frames import Buffer, Frame, decode_frames, decode_head, frame_parts
from asyncparl.protocol.lanes import Lanes, Outgoing
from asyncparl.protocol.messages import (
    PROTOCOL_VERSION,
    Call,
    CallKind,
    Cancel,
    Cancelled,
    ErrorReport,
    Fragment,
    FragmentsDropped,
    FragmentsTaken,
    GiveBack,
    Goodbye,
    Grant,
    Hello,
    Item,
    Raised,
    Returned,
    SharesMemory,
    TimedOut,
)
from asyncparl.protocol.owned import Owned
from asyncparl.protocol.values import NOTHING, Encoded, Large

CALL_WINDOW = 1024
"""Unanswered calls that each side accepts: enough to hide a round trip of 50 ms at 20,000 calls a second."""

DEFAULT_MAX_VALUE_BYTES = 4 << 30
"""The largest value that travels, if nobody says otherwise."""


class LinkState(Enum):
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    LOST = "lost"


class LinkCore:
    """Both roles, caller and callee, of one end of a link.

    Args:
        max_value_bytes: the largest value that is taken from the peer; None: there is no limit but memory.
    """

    def __init__(
        self,
        *,
        name: str,
        pid: int = 0,
        process_id: str = "",
        call_window: int = CALL_WINDOW,
        max_value_bytes: int | None = DEFAULT_MAX_VALUE_BYTES,
    ) -> None:
        self.state = LinkState.OPENING
        self.peer: Hello | None = None
        """What the peer said of itself."""
        self.caller = CallerTable()
        self.callee = CalleeTable(call_window)
        self._waiting: dict[int, Outgoing] = {}
        hello = Hello(PROTOCOL_VERSION, call_window, name, pid, process_id, max_value_bytes)
        self._outgoing: deque[Outgoing] = deque([Outgoing(hello)])
        self._num_detached = 0
        self._deadlines: dict[int, float] = {}
        """Of calls of ours that were not taken to be sent yet, by our clock."""
        self.may_refer = False
        """The peer understands frames that refer to the arena."""
        self._is_silent = False
        """We said goodbye, or the link is lost: whatever we would say now is dropped."""
        self.largest_value = max_value_bytes
        """That may be sent: both sides take it. None: there is no limit."""
        self._cutter: Cutter[Outgoing] = Cutter()
        self._joiner = Joiner(max_value_bytes)
        self._lanes = Lanes(self._cutter, self._outgoing)
        self._large_calls: set[int] = set()
        """Those that wait, and are to be sent in fragments."""
        self._calling: Transfer[Outgoing] | None = None
        """The call that is on its way in fragments. It waits still, and with it those that were made after it."""
        self._closes: set[int] = set()
        """Calls of the peer's that end us once they are answered."""

    # --- what we want ---------------------------------------------------------------------------------------

    def call(
        self,
        kind: int,
        target: str,
        value: Encoded = NOTHING,
        *,
        credit: int = 0,
        object_id: int = 0,
        deadline: float | None = None,
    ) -> int:
        """Make a call; its id. It is outgoing at once if the peer's window has room, else when it has.

        A call that must wait takes a copy of its arrays, so that the user may change them. `deadline`, by our clock,
        is what the callee is told of: how much time is left when the call leaves.

        Raises:
            RuntimeError: the link is lost; nobody would ever settle the call.
        """
        if self.state is LinkState.LOST:
            raise RuntimeError("a call on a lost link")
        call_id = self.caller.open(credit)
        if deadline is not None:
            self._deadlines[call_id] = deadline
        self._waiting[call_id] = Outgoing(Call(call_id, kind, target, credit, object_id), value)
        if isinstance(value, Large):
            self._large_calls.add(call_id)
        self._send_what_fits()
        if value.buffers and call_id in self._waiting:
            self._waiting[call_id] = self._waiting[call_id].detach()
        return call_id

    def cancel(self, call_id: int) -> bool:
        """Give up on a call of ours; False if it is already settled. Its late answer will be dropped."""
        state = self.caller.cancel(call_id)
        self._tell_cancelled(call_id, state)
        return state is not None

    def expire(self, call_id: int) -> CallerState | None:
        """The time of a call of ours is up; the state that it was in.

        QUEUED: it was never sent, and is settled. SENT: the callee is told, and may have a last word; `cancel` it when
        that does not come. None: it is settled, or was told before.
        """
        state = self.caller.expire(call_id)
        self._tell_cancelled(call_id, state)
        return state

    def grant(self, call_id: int, num_items: int) -> None:
        """Take more items of a stream of ours."""
        if self.caller.grant(call_id, num_items):
            self._say(Outgoing(Grant(call_id, num_items)))
        elif call_id in self._waiting:
            call, value, _ = self._waiting[call_id]
            assert isinstance(call, Call)
            self._waiting[call_id] = Outgoing(msgspec.structs.replace(call, credit=call.credit + num_items), value)

    def answer_returned(self, call_id: int, value: Encoded = NOTHING, *, streamed: bool = False) -> None:
        """Answer a call of the peer's; the result of a cancelled call is dropped here."""
        wanted = self.callee.is_wanted(call_id)
        self._answer(call_id, Outgoing(Returned(call_id, streamed), value) if wanted else Outgoing(Cancelled(call_id)))

    def answer_raised(self, call_id: int, error: ErrorReport, value: Encoded = NOTHING) -> None:
        """Answer a call of the peer's with an exception; `value` is the exception itself, if it can travel."""
        wanted = self.callee.is_wanted(call_id)
        self._answer(call_id, Outgoing(Raised(call_id, error), value) if wanted else Outgoing(Cancelled(call_id)))

    def answer_cancelled(self, call_id: int) -> None:
        """Answer a call of the peer's that was cancelled."""
        self._answer(call_id, Outgoing(Cancelled(call_id)))

    def send_item(self, call_id: int, value: Encoded) -> None:
        """Send the next item of a stream; only while `callee.has_credit`."""
        if self.state is not LinkState.LOST:
            self.callee.spend(call_id)
            self._say_in_order(call_id, Outgoing(Item(call_id), value))

    def time_is_up(self, call_id: int, running: str, running_s: float, now: float) -> None:
        """Tell the peer what there is to say of a call of its own that has taken too long, or was cancelled for that.

        Args:
            running: the method that is in its way, if it has not started, and for how long that has run.
            now: the time of our clock.
        """
        limit = self.callee.limit_of(call_id)
        if limit is not None:
            self.callee.cancel(call_id)  # so that nobody starts it any more
            self.callee.lift_limit(call_id)
            if limit.began_at is None:
                self._say(Outgoing(TimedOut(call_id, False, running, running_s)))
            else:
                self._say(Outgoing(TimedOut(call_id, True, limit.call.target, now - limit.began_at)))

    def share_memory(self) -> None:
        """Tell the peer that we see the arena."""
        self._say(Outgoing(SharesMemory()))

    def give_back(self, offsets: list[int]) -> None:
        """Return what the peer has lent."""
        self._say(Outgoing(GiveBack(offsets)))

    def say_goodbye(self) -> None:
        """Tell the peer that we send nothing more. Answers from now on go nowhere; calls wait for the loss."""
        self._say(Outgoing(Goodbye()))
        self._is_silent = True
        self.caller.window = 0
        self._stop_transfers()

    # --- what happens ---------------------------------------------------------------------------------------

    def receive(self, frame: Frame, now: float = 0.0) -> Event | None:
        """What a frame means; None if nobody cares any more. `now`: the time of our clock.

        Raises:
            ProtocolError: the peer may not send this now.
        """
        message = frame.message
        if self.state is not LinkState.OPEN and not (self.state is LinkState.OPENING and type(message) is Hello):
            raise ProtocolError(f"{type(message).__name__} while the link is {self.state.value}")
        match message:
            case Returned(call_id=call_id) | Raised(call_id=call_id) | Cancelled(call_id=call_id):
                wanted = self.caller.answer(call_id)
                self._send_what_fits()
                return AnswerArrived(call_id, frame) if wanted else None
            case Call(call_id=call_id, credit=credit, timeout_s=timeout_s):
                if timeout_s is not None:
                    _check_time_left(call_id, timeout_s)
                self.callee.arrive(call_id, credit)
                if message.kind == CallKind.CLOSE:
                    self._closes.add(call_id)
                return CallArrived(message, frame)
            case Item(call_id):
                return ItemArrived(call_id, frame) if self.caller.item(call_id) else None
            case Grant(call_id, num_items):
                return GrantArrived(call_id) if self.callee.grant(call_id, num_items) else None
            case Cancel(call_id):
                if call_id in self._lanes.open:
                    self._stop_answering(call_id)
                return CancelArrived(call_id) if self.callee.cancel(call_id) else None
            case Fragment():
                return self._join(message, frame)
            case _:
                return self._receive_rare(message, now)

    def _receive_rare(
        self,
        message: GiveBack | FragmentsTaken | FragmentsDropped | SharesMemory | TimedOut | Goodbye | Hello,
        now: float,
    ) -> Event | None:
        match message:
            case FragmentsTaken(num_bytes):
                self._cutter.acknowledged(num_bytes, now)
                return None
            case FragmentsDropped(transfer_id):
                self._joiner.drop(transfer_id)
                self._say_taken()
                return None
            case GiveBack(offsets):
                return MemoryReturned(offsets)
            case SharesMemory():
                self.may_refer = True
                return None
            case TimedOut(call_id):
                return TimeIsUp(call_id, message) if self.caller.timed_out(call_id) else None
            case Goodbye():
                self.state = LinkState.CLOSING
                self.caller.window = 0  # it will not answer, so what was not sent yet is never started
                if self._calling is not None:
                    self._drop(self._calling)
                    self._calling = None
                self._joiner.drop_all()
                return PeerClosing()
            case Hello():
                return self._open(message)

    def place(self, beginning: memoryview, message_bytes: int) -> memoryview | None:
        """Where to read a transport message to, of which the beginning has come; None: anywhere."""
        head = decode_head(beginning, message_bytes)
        if head is None or not isinstance(head.message, Fragment):
            return None
        return self._joiner.place(head.message, head.head_bytes, head.buffer_bytes, message_bytes)

    def lose(self) -> tuple[list[tuple[int, CallFate]], list[int]]:
        """The link is gone: (calls of ours with their fate, calls of the peer's that need no answer any more)."""
        self.state = LinkState.LOST
        self._is_silent = True
        self._outgoing.clear()
        self._waiting.clear()
        self._deadlines.clear()
        self._large_calls.clear()
        self._stop_transfers()
        self._joiner.drop_all()
        return self.caller.lose(), self.callee.lose()

    # --- what must be sent ----------------------------------------------------------------------------------

    @property
    def has_outgoing(self) -> bool:
        """Whether `take_outgoing` has anything to give."""
        return bool(self._outgoing) or self._cutter.is_ready

    @property
    def num_outgoing(self) -> int:
        """How many messages wait to be sent, fragments aside."""
        return len(self._outgoing)

    @property
    def next_outgoing(self) -> Outgoing | None:
        """What `take_outgoing` will give, if that is no fragment."""
        return self._outgoing[0] if self._outgoing else None

    @property
    def num_fragments_sent(self) -> int:
        """Ever: as long as it grows, something goes on."""
        return self._cutter.num_taken

    @property
    def is_receiving(self) -> bool:
        """Whether a part of something large has come, and not all of it."""
        return self._joiner.num_open > 0

    @property
    def has_transfers(self) -> bool:
        """Whether the peer has not taken all that travels in fragments."""
        return not self._cutter.is_idle

    @property
    def needs_time(self) -> bool:
        """Whether `take_outgoing` needs to know the time."""
        return bool(self._deadlines) or (not self._outgoing and self._cutter.is_ready)

    def take_outgoing(self, now: float = 0.0) -> Outgoing:
        """The next message to send. `now`: the time of our clock, by which a call is told how much is left to it."""
        if not self._outgoing:
            return self._next_fragment(now)
        self._num_detached = max(0, self._num_detached - 1)
        outgoing = self._outgoing.popleft()
        return self._timed(outgoing, now) if self._deadlines else outgoing

    def _timed(self, outgoing: Outgoing, now: float) -> Outgoing:
        """If it is a call that may take only so long: with what is left of that."""
        message = outgoing.message
        if isinstance(message, Call):
            deadline = self._deadlines.pop(message.call_id, None)
            if deadline is not None:
                timed = msgspec.structs.replace(message, timeout_s=max(0.0, deadline - now))
                outgoing = outgoing._replace(message=timed)
        return outgoing

    def detach_outgoing(self) -> None:
        """The channel is full: copy the arrays of what could not leave yet, so that the user may change them."""
        for index in range(self._num_detached, len(self._outgoing)):
            self._outgoing[index] = self._outgoing[index].detach()
        self._num_detached = len(self._outgoing)

    # --- inside ---------------------------------------------------------------------------------------------

    def _open(self, hello: Hello) -> Opened:
        if self.state is not LinkState.OPENING:
            raise ProtocolError("a second Hello")
        if hello.protocol_version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"{hello.name} speaks protocol version {hello.protocol_version}, this side {PROTOCOL_VERSION}: "
                "install the same version of asyncparl on both sides"
            )
        self.state = LinkState.OPEN
        self.peer = hello
        too_large = self._refuse_what_is_too_large(hello.max_value_bytes)
        if not self._is_silent:
            self.caller.window = hello.call_window
            self._send_what_fits()
        return Opened(hello, too_large)

    def _tell_cancelled(self, call_id: int, state: CallerState | None) -> None:
        """What follows from giving up on a call that was in this state."""
        if state is CallerState.QUEUED:
            del self._waiting[call_id]
            self._deadlines.pop(call_id, None)
            if call_id in self._large_calls:
                self._stop_calling(call_id)
        elif state is CallerState.SENT:
            self._say(Outgoing(Cancel(call_id)))

    def _send_what_fits(self) -> None:
        while self._waiting and self._calling is None:
            if self._large_calls and (first := next(iter(self._waiting))) in self._large_calls:
                if self.caller.has_room:
                    self._calling = self._cutter.add(self._waiting[first])
                return
            call_id = self.caller.next_to_send()
            if call_id is None:
                return
            self._outgoing.append(self._waiting.pop(call_id))

    def _answer(self, call_id: int, answer: Outgoing) -> None:
        # A call may end after its link did: then there is nobody to tell.
        if self.state is not LinkState.LOST:
            self.callee.answer(call_id)
            self._say_in_order(call_id, answer)
            if self._closes:
                self._closes.discard(call_id)

    def _say(self, outgoing: Outgoing) -> None:
        if not self._is_silent:
            self._outgoing.append(outgoing)

    # --- what is too large for one message ------------------------------------------------------------------

    def _say_in_order(self, call_id: int, outgoing: Outgoing) -> None:
        """An item of a call of the peer's, or its answer: after what was said of that call before."""
        if self._is_silent:
            return
        if not self._lanes.open and not isinstance(outgoing.value, Large):
            self._outgoing.append(outgoing)
        else:
            self._lanes.say(call_id, outgoing, is_last=call_id in self._closes)

    def _next_fragment(self, now: float) -> Outgoing:
        transfer, (fragment, parts, is_unchanging) = self._cutter.take(partial(self._parts_of, now=now), now)
        if transfer.is_sent:
            match transfer.key.message:
                case Call() as call:
                    self._call_sent(call)
                case Item(call_id) | Returned(call_id) | Raised(call_id):
                    self._lanes.sent(call_id)
        return Outgoing(fragment, Encoded(b"", parts), is_unchanging)

    def _parts_of(self, transfer: Transfer[Outgoing], *, now: float) -> list[Buffer | Owned]:
        """The bytes of a transfer that begins. Nobody else keeps them, so that memory is free once it is sent."""
        message, value, _ = transfer.key
        if isinstance(message, Call):
            call_id = message.call_id
            message, value, _ = self._timed(self._waiting[call_id], now)  # that one has all of its credit
            self._waiting[call_id] = Outgoing(message)
        transfer.key = Outgoing(message)
        return frame_parts(message, value.payload, value.buffers)

    def _call_sent(self, sent: Call) -> None:
        """The last fragment of a call leaves."""
        self._calling = None
        self._large_calls.discard(sent.call_id)
        call = self._waiting.pop(sent.call_id).message
        self.caller.next_to_send()  # that is this one: all others wait for it
        if isinstance(call, Call) and call.credit > sent.credit:
            self._say(Outgoing(Grant(sent.call_id, call.credit - sent.credit)))
        self._send_what_fits()

    def _stop_calling(self, call_id: int) -> None:
        """A large call is not to be made any more."""
        self._large_calls.discard(call_id)
        calling = self._calling
        if calling is not None and isinstance(call := calling.key.message, Call) and call.call_id == call_id:
            self._calling = None
            self._drop(calling)
        self._send_what_fits()

    def _stop_answering(self, call_id: int) -> None:
        """The peer gave up on a call: what was said of it and is not sent yet, is not sent."""
        is_answered = not self.callee.is_open(call_id)
        self._drop(self._lanes.stop(call_id, Outgoing(Cancelled(call_id)) if is_answered else None))

    def _drop(self, transfer: Transfer[Outgoing]) -> None:
        if self._cutter.drop(transfer):
            self._say(Outgoing(FragmentsDropped(transfer.transfer_id)))

    def _stop_transfers(self) -> None:
        """We say goodbye, or the link is lost: nothing of this is sent any more."""
        self._cutter.stop()
        self._lanes.clear()
        self._calling = None

    def _join(self, fragment: Fragment, frame: Frame) -> Event | None:
        whole = self._joiner.take(fragment, frame.buffers)
        if fragment.asks:
            self._say_taken()
        if whole is None:
            return None
        frames = decode_frames(whole)
        if len(frames) != 1 or not isinstance(frames[0].message, Call | Item | Returned | Raised):
            raise ProtocolError(f"{[type(each.message).__name__ for each in frames]} in fragments")
        return self.receive(frames[0])

    def _say_taken(self) -> None:
        if num_bytes := self._joiner.take_acknowledgement():
            self._say(Outgoing(FragmentsTaken(num_bytes)))

    def _refuse_what_is_too_large(self, peers_limit: int | None) -> tuple[int, ...]:
        """The peer has said what it takes."""
        limits = [limit for limit in (self.largest_value, peers_limit) if limit is not None]
        self.largest_value = limit = min(limits, default=None)
        if limit is None:
            return ()
        too_large = [each for each in self._large_calls if self._waiting[each].value.num_bytes > limit]
        for call_id in too_large:
            self.cancel(call_id)
        return tuple(too_large)


def _check_time_left(call_id: int, timeout_s: float) -> None:
    if not is_duration(timeout_s):
        raise ProtocolError(f"call {call_id} has {timeout_s} s left, which is no time")
