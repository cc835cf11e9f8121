"""Two link cores in a world that loses nothing by itself, and a record of what must hold between them.

Each end has one FIFO of transport messages on their way to it. A step lets one end do something, or delivers one
message. The world checks every event against its own simple record of every call, so that a wrong one fails at once.
Some values are large: they travel in fragments, which the world puts together for itself, on both sides of the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from asyncparl.errors import CallFate
from asyncparl.protocol.calls import CallerState
from asyncparl.protocol.events import (
    AnswerArrived,
    CallArrived,
    CancelArrived,
    Event,
    GrantArrived,
    ItemArrived,
    Opened,
    PeerClosing,
    TimeIsUp,
)
from asyncparl.protocol.fragments import Joiner
from asyncparl.protocol.frames import Frame, decode_frames
from asyncparl.protocol.link import LinkCore, LinkState
from asyncparl.protocol.messages import (
    Call,
    CallKind,
    Cancel,
    Cancelled,
    Fragment,
    FragmentsDropped,
    FragmentsTaken,
    Item,
    Raised,
    Returned,
    TimedOut,
)
from asyncparl.protocol.owned import owned
from asyncparl.protocol.values import Encoded, Large
from tests.protocol.pair import REPORT, packed

FRAGMENT_BYTES = 60
WINDOW_BYTES = 3 * FRAGMENT_BYTES
"""For those who let the world play: so small that every large value is cut."""


def value_of(memory: bytearray, pick: int) -> Encoded:
    """What a call, an item or an answer carries; one in four is large, and copied before."""
    return Large(b"", [owned(memory)]) if pick % 4 == 3 else Encoded(b"", [memory])


class Way:
    """Frames as they pass a point between the ends: those in fragments once they are whole."""

    def __init__(self) -> None:
        self.joiner = Joiner(None)

    def passes(self, frame: Frame) -> Frame | None:
        """The whole frame; None for a part of one."""
        match frame.message:
            case Fragment() as fragment:
                whole = self.joiner.take(fragment, frame.buffers)
                return None if whole is None else decode_frames(whole)[0]
            case FragmentsDropped(transfer_id):
                self.joiner.drop(transfer_id)
        return frame


@dataclass
class CallRecord:
    """What we know of one call, whichever side we look from."""

    value: bytes
    granted: int
    """Items that its caller allowed so far."""
    outcome: str = ""
    """How its caller saw it end; empty while it waits."""
    is_large: bool = False
    on_wire: bool = False
    arrived: bool = False
    cancel_arrived: bool = False
    answer: str = ""
    """What its callee answered."""
    deadline: float | None = None
    """By the clock of its caller."""
    is_overdue: bool = False
    """Its caller has counted to the end, and waits for the last word."""
    callee_deadline: float | None = None
    """By the clock of its callee; None: none, or not any more."""
    has_begun: bool = False
    was_told_of: bool = False
    """Its callee has said that its time is up."""
    num_items_sent: int = 0
    num_items_received: int = 0


@dataclass
class End:
    """One core, the messages on their way to it, and the calls that it made."""

    core: LinkCore
    window: int
    inbox: deque[memoryview] = field(default_factory=deque)
    calls: dict[int, CallRecord] = field(default_factory=dict)
    num_on_wire: int = 0
    """Calls of ours that left, and whose answer has not come back."""
    last_arrived: int = 0
    said_goodbye: bool = False
    sent: Way = field(default_factory=Way)
    received: Way = field(default_factory=Way)

    def unsettled(self) -> list[int]:
        return [call_id for call_id, record in self.calls.items() if not record.outcome]


class World:
    """Both ends. In every step `who` is 0 or 1, and `pick` chooses among what is possible.

    Time passes only in `tick`. The clocks of the two ends run alike, and are a thousand seconds apart.
    """

    def __init__(self, windows: tuple[int, int]) -> None:
        self.seconds = 0.0
        self.ends = [End(LinkCore(name=f"end {i}", call_window=window), window) for i, window in enumerate(windows)]
        self.steps: dict[str, Callable[[int, int], None]] = {
            "call": self.call,
            "timed_call": self.timed_call,
            "tick": self.tick,
            "expire": self.expire,
            "begin": self.begin,
            "overdue": self.overdue,
            "cancel": self.cancel,
            "grant": self.grant,
            "answer": self.answer,
            "item": self.item,
            "leave": self.leave,
            "deliver": self.deliver,
            "goodbye": self.goodbye,
            "lose": self.lose,
        }

    # --- what an end does -----------------------------------------------------------------------------------

    def call(self, who: int, pick: int) -> None:
        end = self.ends[who]
        if end.core.state is LinkState.LOST:
            return
        self._call(who, pick, None)

    def timed_call(self, who: int, pick: int) -> None:
        if self.ends[who].core.state is not LinkState.LOST:
            self._call(who, pick, self._now(who) + 1 + pick % 4)

    def _call(self, who: int, pick: int, deadline: float | None) -> None:
        end = self.ends[who]
        record = CallRecord(f"call {len(end.calls)} of {who}".encode(), granted=pick % 3, deadline=deadline)
        memory = bytearray(record.value)
        value = value_of(memory, pick)
        record.is_large = isinstance(value, Large)
        call_id = end.core.call(CallKind.METHOD, "f", value, credit=record.granted, deadline=deadline)
        assert call_id not in end.calls
        end.calls[call_id] = record
        self._user_goes_on(who, pick, memory)

    def tick(self, who: int, pick: int) -> None:
        self.seconds += 1 + pick % 3

    def expire(self, who: int, pick: int) -> None:
        """A caller looks at its clock."""
        end = self.ends[who]
        due = [call_id for call_id in end.unsettled() if (end.calls[call_id].deadline or 1e9) <= self._now(who)]
        if not due:
            return
        call_id = due[pick % len(due)]
        record = end.calls[call_id]
        was_overdue, record.is_overdue = record.is_overdue, True
        match end.core.expire(call_id):
            case CallerState.QUEUED:
                assert not record.on_wire
                record.outcome = "its time was up before it was sent"
            case state:
                assert state is (None if was_overdue else CallerState.SENT)

    def begin(self, who: int, pick: int) -> None:
        """The turn of a call has come."""
        served = [call_id for call_id in self._served(who) if not self.ends[1 - who].calls[call_id].has_begun]
        if served:
            call_id = served[pick % len(served)]
            record = self.ends[1 - who].calls[call_id]
            in_time = record.callee_deadline is None or self._now(who) < record.callee_deadline
            record.has_begun = self.ends[who].core.callee.begin(call_id, self._now(who))
            assert record.has_begun == (in_time and not record.cancel_arrived)

    def overdue(self, who: int, pick: int) -> None:
        """A callee looks at its clock."""
        end, now = self.ends[who], self._now(who)
        overdue = end.core.callee.take_overdue(now)
        due = [
            call_id
            for call_id in self._served(who)
            if (self.ends[1 - who].calls[call_id].callee_deadline or 1e9) <= now
        ]
        assert sorted(overdue) == due
        assert end.core.callee.next_deadline() > now
        for call_id in overdue:
            self._time_is_up(who, call_id)

    def _time_is_up(self, who: int, call_id: int) -> None:
        record = self.ends[1 - who].calls[call_id]
        self.ends[who].core.time_is_up(call_id, "g", 7.0, self._now(who))
        record.callee_deadline, record.cancel_arrived = None, True
        record.was_told_of = not self.ends[who].said_goodbye

    def cancel(self, who: int, pick: int) -> None:
        end = self.ends[who]
        if end.calls:
            call_id = list(end.calls)[pick % len(end.calls)]
            record = end.calls[call_id]
            assert end.core.cancel(call_id) == (not record.outcome)
            record.outcome = record.outcome or "cancelled by the caller"

    def grant(self, who: int, pick: int) -> None:
        end = self.ends[who]
        if end.calls:
            call_id = list(end.calls)[pick % len(end.calls)]
            record = end.calls[call_id]
            end.core.grant(call_id, 1 + pick % 2)
            record.granted += 1 + pick % 2 if not (record.outcome or record.is_overdue) else 0

    def answer(self, who: int, pick: int) -> None:
        core, served = self.ends[who].core, self._served(who)
        if not served:
            return
        call_id = served[pick % len(served)]
        record = self.ends[1 - who].calls[call_id]
        record.answer = ("returned", "raised", "cancelled")[pick % 3] if not record.cancel_arrived else "cancelled"
        memory = bytearray(record.value)
        match pick % 3:
            case 0:
                core.answer_returned(call_id, value_of(memory, pick // 3))
            case 1:
                core.answer_raised(call_id, REPORT, value_of(memory, pick // 3))
            case 2:
                core.answer_cancelled(call_id)
        self._user_goes_on(who, pick, memory)

    def item(self, who: int, pick: int) -> None:
        core = self.ends[who].core
        served = [call_id for call_id in self._served(who) if core.callee.has_credit(call_id)]
        if served:
            call_id = served[pick % len(served)]
            record = self.ends[1 - who].calls[call_id]
            memory = bytearray(record.value + b", item %d" % record.num_items_sent)
            core.send_item(call_id, value_of(memory, pick))
            record.num_items_sent += 1
            record.callee_deadline = None
            self._user_goes_on(who, pick, memory)

    def goodbye(self, who: int, pick: int) -> None:
        self.ends[who].core.say_goodbye()
        self.ends[who].said_goodbye = True

    def lose(self, who: int, pick: int) -> None:
        """This end notices that the link is lost; the other one may notice later, and still receive until then."""
        end = self.ends[who]
        served = self._served(who)
        lost, unanswered = end.core.lose()
        assert [call_id for call_id, _ in lost] == end.unsettled()
        assert unanswered == served
        for call_id, fate in lost:
            record = end.calls[call_id]
            assert fate is CallFate.MAY_HAVE_RUN or not record.on_wire
            assert fate is CallFate.NEVER_STARTED or record.on_wire or not record.is_large
            record.outcome = fate.value
        end.inbox.clear()
        end.num_on_wire = 0

    # --- what happens between the ends ----------------------------------------------------------------------

    def leave(self, who: int, pick: int) -> None:
        """The channel takes one message."""
        end, peer = self.ends[who], self.ends[1 - who]
        if not end.core.has_outgoing:
            return
        expected = end.core.next_outgoing
        outgoing = end.core.take_outgoing(self._now(who))
        data = packed(outgoing)
        [frame] = decode_frames(data)
        whole = end.sent.passes(frame)
        if expected is None:
            assert isinstance(outgoing.message, Fragment)
        else:
            assert outgoing.value is expected.value
            assert outgoing.message is expected.message or isinstance(outgoing.message, Call)
        if whole is not None and isinstance(whole.message, Call):
            self._check_leaving(who, whole.message)
        if peer.core.state is not LinkState.LOST:
            peer.inbox.append(data)

    def _check_leaving(self, who: int, call: Call) -> None:
        record = self.ends[who].calls[call.call_id]
        left_s = None if record.deadline is None else max(0.0, record.deadline - self._now(who))
        if left_s is None or call.timeout_s is None or not record.is_large:
            assert call.timeout_s == left_s
        else:
            assert call.timeout_s >= left_s, "it is what was left when it began to leave"
        record.on_wire = True
        self.ends[who].num_on_wire += 1
        assert self.ends[who].num_on_wire <= self.ends[1 - who].window

    def deliver(self, who: int, pick: int) -> None:
        """One message reaches this end."""
        end = self.ends[who]
        if not end.inbox:
            return
        [frame] = decode_frames(end.inbox.popleft())
        was_open = end.core.state is LinkState.OPEN
        event = end.core.receive(frame)
        assert was_open or isinstance(event, Opened)
        whole = end.received.passes(frame)
        if whole is None:
            assert event is None
        else:
            self._check_event(who, whole, event)
        assert end.core.callee.num_open == len(self._served(who)) <= end.window

    def _check_event(self, who: int, frame: Frame, event: Event | None) -> None:
        end, peer = self.ends[who], self.ends[1 - who]
        if isinstance(frame.message, Returned | Raised | Cancelled):
            end.num_on_wire -= 1
        match event:
            case CallArrived() | CancelArrived() | GrantArrived():
                self._check_served(who, frame, event)
            case ItemArrived() | AnswerArrived() | TimeIsUp():
                self._check_own(self.ends[who].calls[event.call_id], frame, event)
            case Opened(hello):
                assert hello.call_window == peer.window
            case PeerClosing():
                assert peer.said_goodbye
            case None:
                ours = Item | Returned | Raised | Cancelled | TimedOut | FragmentsTaken | FragmentsDropped
                known = isinstance(frame.message, ours)
                assert known or self._is_over(who, frame)

    def _check_served(self, who: int, frame: Frame, event: CallArrived | CancelArrived | GrantArrived) -> None:
        """What a callee hears."""
        end, peer = self.ends[who], self.ends[1 - who]
        match event:
            case CallArrived(call):
                record = peer.calls[call.call_id]
                assert not record.arrived
                assert call.call_id > end.last_arrived
                assert frame.buffers[0] == record.value
                record.arrived, end.last_arrived = True, call.call_id
                if call.timeout_s is not None:
                    record.callee_deadline = self._now(who) + call.timeout_s
                    end.core.callee.limit(call, record.callee_deadline)
            case CancelArrived(call_id):
                record = peer.calls[call_id]
                assert record.arrived and not record.answer and not record.cancel_arrived
                assert record.outcome or record.is_overdue
                record.cancel_arrived = True
                if record.callee_deadline is not None:
                    self._time_is_up(who, call_id)
            case GrantArrived(call_id):
                record = peer.calls[call_id]
                assert record.arrived and not record.answer

    @staticmethod
    def _check_own(record: CallRecord, frame: Frame, event: ItemArrived | AnswerArrived | TimeIsUp) -> None:
        """What a caller hears."""
        assert not record.outcome
        match event:
            case TimeIsUp(_, message):
                assert record.was_told_of
                assert message.has_started == record.has_begun
                assert message.running == ("f" if record.has_begun else "g")
                record.outcome = "its time was up"
            case ItemArrived():
                assert frame.buffers[0] == record.value + b", item %d" % record.num_items_received
                record.num_items_received += 1
                assert record.num_items_received <= record.granted
            case AnswerArrived():
                is_cut_short = record.is_overdue and isinstance(frame.message, Cancelled)
                assert type(frame.message).__name__.lower() == record.answer or is_cut_short
                assert record.num_items_received == record.num_items_sent or record.is_overdue
                assert not frame.buffers or frame.buffers[0] == record.value
                record.outcome = record.answer

    def _is_over(self, who: int, frame: Frame) -> bool:
        """Whether a Cancel or Grant came after the answer left, or a Cancel after the callee had given up by itself."""
        record = self.ends[1 - who].calls[frame.message.call_id]  # type: ignore[union-attr]
        return bool(record.answer) or (isinstance(frame.message, Cancel) and record.cancel_arrived)

    # --- inside ---------------------------------------------------------------------------------------------

    def _now(self, who: int) -> float:
        return self.seconds + 1000 * who

    def _served(self, who: int) -> list[int]:
        """The peer's calls that this end owes an answer."""
        if self.ends[who].core.state is LinkState.LOST:
            return []
        return [call_id for call_id, record in self.ends[1 - who].calls.items() if record.arrived and not record.answer]

    def _user_goes_on(self, who: int, pick: int, memory: bytearray) -> None:
        """The channel takes some messages, and what it refuses is detached; then the user overwrites the array."""
        for _ in range(pick % 4):
            self.leave(who, pick)
        self.ends[who].core.detach_outgoing()
        memory[:] = bytes(len(memory))

    # --- the end --------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Bring everything to rest, and check that nothing is left."""
        self._deliver_everything()
        # With a window of 0 calls wait until the link is lost.
        if all(end.core.state is LinkState.OPEN and not end.said_goodbye and end.window for end in self.ends):
            self._check_credits()
            self._answer_everything()
        else:
            for who in (0, 1):
                self.lose(who, 0)
        for end in self.ends:
            assert end.unsettled() == []
            assert end.core.caller.num_open == end.core.callee.num_open == end.num_on_wire == 0
            assert not end.core.has_outgoing
            assert not end.core.has_transfers
            assert end.core._joiner.num_open == 0

    def _deliver_everything(self) -> None:
        while any(end.core.has_outgoing or end.inbox for end in self.ends):
            for who in (0, 1):
                self.leave(who, 0)
                self.deliver(who, 0)

    def _check_credits(self) -> None:
        """At rest, both sides agree on how many items may still come."""
        for who in (0, 1):
            for call_id in self._served(who):
                record = self.ends[1 - who].calls[call_id]
                if not record.cancel_arrived:
                    has_credit = self.ends[who].core.callee.has_credit(call_id)
                    assert has_credit == (record.granted > record.num_items_sent)

    def _answer_everything(self) -> None:
        while any(end.unsettled() for end in self.ends) or self._served(0) or self._served(1):
            assert self._served(0) or self._served(1), "a call that waits, and nobody serves it"
            for who in (0, 1):
                self.answer(who, 0)
            self._deliver_everything()
