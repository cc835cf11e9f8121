"""The calls of one link: those we make and those we serve. Every call is settled exactly once.

Rule 1: no I/O, no clock, no task here. Rule 2: the tables do not know which process they are in; a link has one of
each. Rule 3: every legal move is in `CALLER_MOVES` and `CALLEE_MOVES`; anything else is the peer's fault
(`ProtocolError`) or a bug of ours (`KeyError`, an assertion).

The caller's view of a call:

    QUEUED ----send----> SENT ----answer----> settled
      |                   |
    cancel              cancel
      v                   v
    settled            ABANDONED --answer--> forgotten     (settled for the user at the cancel)

The callee's view: SERVING --cancel--> CANCELLING, and both end with the one answer. A cancel that crosses the answer
on the way finds nothing and is ignored. Losing the link settles everything that is left, on both sides.

A call may have a time limit. When it is up, a call that is QUEUED is settled, and one that is SENT becomes OVERDUE: it
was cancelled, and the callee has a moment for a last word, the answer or `TimedOut`. The callee counts for itself: time
that is up is a cancel there. What was not started by then never starts (`begin`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from asyncparl.errors import CallFate, ProtocolError
from asyncparl.protocol.deadlines import Deadlines
from asyncparl.protocol.messages import Call


class CallerState(Enum):
    QUEUED = "queued"
    SENT = "sent"
    OVERDUE = "overdue"
    ABANDONED = "abandoned"


class CalleeState(Enum):
    SERVING = "serving"
    CANCELLING = "cancelling"


# (state, event) -> next state; None: the call is gone from the table.
CALLER_MOVES: dict[tuple[CallerState, str], CallerState | None] = {
    (CallerState.QUEUED, "send"): CallerState.SENT,
    (CallerState.QUEUED, "cancel"): None,
    (CallerState.SENT, "cancel"): CallerState.ABANDONED,
    (CallerState.SENT, "answer"): None,
    (CallerState.ABANDONED, "answer"): None,
    (CallerState.QUEUED, "expire"): None,
    (CallerState.SENT, "expire"): CallerState.OVERDUE,
    (CallerState.OVERDUE, "cancel"): CallerState.ABANDONED,
    (CallerState.OVERDUE, "answer"): None,
    (CallerState.SENT, "timed_out"): CallerState.ABANDONED,
    (CallerState.OVERDUE, "timed_out"): CallerState.ABANDONED,
    (CallerState.ABANDONED, "timed_out"): CallerState.ABANDONED,
}
CALLEE_MOVES: dict[tuple[CalleeState, str], CalleeState | None] = {
    (CalleeState.SERVING, "cancel"): CalleeState.CANCELLING,
    (CalleeState.SERVING, "answer"): None,
    (CalleeState.CANCELLING, "answer"): None,
}


_MIN_STALE = 64


@dataclass(slots=True)
class _OutgoingCall:
    state: CallerState
    credit: int
    """Items that the callee may still send."""


@dataclass(slots=True)
class CallerTable:
    """Calls we made. `window` is how many unanswered ones the peer accepts: 0 until it has said so."""

    window: int = 0
    _last_id: int = 0
    _calls: dict[int, _OutgoingCall] = field(default_factory=dict)
    _queue: deque[int] = field(default_factory=deque)
    _num_sent: int = 0

    def open(self, credit: int) -> int:
        """A new call, queued."""
        self._last_id += 1
        self._calls[self._last_id] = _OutgoingCall(CallerState.QUEUED, credit)
        self._queue.append(self._last_id)
        return self._last_id

    def next_to_send(self) -> int | None:
        """The oldest queued call that the peer's window has room for, now counted as sent."""
        while self._queue and self._num_sent < self.window:
            call_id = self._queue.popleft()
            if call_id in self._calls:  # else it was cancelled while it waited
                self._move(call_id, "send")
                self._num_sent += 1
                return call_id
        return None

    def cancel(self, call_id: int) -> CallerState | None:
        """Give up on a call; the state that it was in, or None if it is already settled."""
        call = self._calls.get(call_id)
        if call is None or call.state is CallerState.ABANDONED:
            return None
        state = call.state
        self._move(call_id, "cancel")
        self._forget_cancelled()
        return state

    def expire(self, call_id: int) -> CallerState | None:
        """The time of a call is up; the state that it was in, or None if there is nothing to be done about it."""
        call = self._calls.get(call_id)
        if call is None or call.state not in (CallerState.QUEUED, CallerState.SENT):
            return None
        state = call.state
        self._move(call_id, "expire")
        self._forget_cancelled()
        return state

    def timed_out(self, call_id: int) -> bool:
        """The callee says that the time of a call is up; whether anybody still waits for it.

        Raises:
            ProtocolError: no such call is open at the callee.
        """
        call = self._calls.get(call_id)
        if call is None or call.state is CallerState.QUEUED:
            raise ProtocolError(f"the time of call {call_id} is up, which is not open")
        wanted = call.state is not CallerState.ABANDONED
        self._move(call_id, "timed_out")
        return wanted

    def answer(self, call_id: int) -> bool:
        """An answer arrived; whether anybody still waits for it.

        Raises:
            ProtocolError: no such call is open at the callee: a second answer, or an id that we never sent.
        """
        call = self._calls.get(call_id)
        if call is None or call.state is CallerState.QUEUED:
            raise ProtocolError(f"an answer to call {call_id}, which is not open")
        wanted = call.state is not CallerState.ABANDONED
        self._move(call_id, "answer")
        self._num_sent -= 1
        return wanted

    def item(self, call_id: int) -> bool:
        """An item of a stream arrived; whether anybody still waits for it.

        Raises:
            ProtocolError: no such call is open at the callee, or it had no credit left.
        """
        call = self._calls.get(call_id)
        if call is None or call.state is CallerState.QUEUED:
            raise ProtocolError(f"an item of call {call_id}, which is not open")
        if not call.credit:
            raise ProtocolError(f"an item of call {call_id} beyond the credit it was granted")
        call.credit -= 1
        return call.state is CallerState.SENT

    def grant(self, call_id: int, num_items: int) -> bool:
        """Allow more items; whether the callee must be told (not before the call is sent, nor when it is given up)."""
        call = self._calls.get(call_id)
        if call is None or call.state in (CallerState.ABANDONED, CallerState.OVERDUE):
            return False
        call.credit += num_items
        return call.state is CallerState.SENT

    def lose(self) -> list[tuple[int, CallFate]]:
        """The link is gone: everything that somebody still waits for, oldest first."""
        fates = {
            CallerState.QUEUED: CallFate.NEVER_STARTED,
            CallerState.SENT: CallFate.MAY_HAVE_RUN,
            CallerState.OVERDUE: CallFate.MAY_HAVE_RUN,
        }
        lost = [(call_id, fates[call.state]) for call_id, call in self._calls.items() if call.state in fates]
        self._calls.clear()
        self._queue.clear()
        self._num_sent = 0
        return lost

    @property
    def has_room(self) -> bool:
        """Whether the peer accepts another call now."""
        return self._num_sent < self.window

    @property
    def num_open(self) -> int:
        """Calls that are queued, sent or abandoned and not yet answered."""
        return len(self._calls)

    def _forget_cancelled(self) -> None:
        """Of those that were cancelled while they waited something is left in the queue: clear it away at times."""
        if len(self._queue) > 2 * len(self._calls) + _MIN_STALE:
            self._queue = deque(call_id for call_id in self._queue if call_id in self._calls)

    def _move(self, call_id: int, event: str) -> None:
        state = CALLER_MOVES[self._calls[call_id].state, event]
        if state is None:
            del self._calls[call_id]
        else:
            self._calls[call_id].state = state


@dataclass(slots=True)
class _IncomingCall:
    state: CalleeState
    credit: int


@dataclass(slots=True)
class Limit:
    """What is known of a call of the peer's that may not take for ever. Times are those of our own clock."""

    call: Call
    deadline: float
    ticket: int
    """Of the deadline, among those of the table."""
    began_at: float | None = None
    """None: it has not started."""


@dataclass(slots=True)
class CalleeTable:
    """Calls that the peer made. `window` is how many unanswered ones we accept."""

    window: int
    _last_id: int = 0
    _calls: dict[int, _IncomingCall] = field(default_factory=dict)
    _limits: dict[int, Limit] = field(default_factory=dict)
    _deadlines: Deadlines[int] = field(default_factory=Deadlines)

    def arrive(self, call_id: int, credit: int) -> None:
        """A call came in.

        Raises:
            ProtocolError: its id is not newer than every earlier one, or the window is full.
        """
        if call_id <= self._last_id:
            raise ProtocolError(f"call {call_id} after call {self._last_id}: repeated or out of order")
        if len(self._calls) >= self.window:
            raise ProtocolError(f"more than {self.window} unanswered calls")
        self._last_id = call_id
        self._calls[call_id] = _IncomingCall(CalleeState.SERVING, credit)

    def cancel(self, call_id: int) -> bool:
        """The caller gave up; whether that is news."""
        call = self._calls.get(call_id)
        if call is None or call.state is CalleeState.CANCELLING:
            return False
        self._move(call_id, "cancel")
        return True

    def limit(self, call: Call, deadline: float) -> None:
        """A call that has arrived must have its answer by then, or the first of its items."""
        if call.call_id in self._calls:
            self._limits[call.call_id] = Limit(call, deadline, self._deadlines.add(deadline, call.call_id))

    def limit_of(self, call_id: int) -> Limit | None:
        """That of a call that needs an answer still, if it has one."""
        return self._limits.get(call_id)

    def lift_limit(self, call_id: int) -> None:
        """The call has no limit any more."""
        if (limit := self._limits.pop(call_id, None)) is not None:
            self._deadlines.drop(limit.ticket)

    def next_deadline(self) -> float:
        """When the time of some call is up; infinity if there is no limit."""
        return self._deadlines.next_at()

    def take_overdue(self, now: float) -> list[int]:
        """Calls whose time is up. Each is told once."""
        return self._deadlines.take_due(now)

    def begin(self, call_id: int, now: float) -> bool:
        """It is this call's turn: whether it may start. It may not if it is not wanted, or if its time is up."""
        limit = self._limits.get(call_id)
        if not self.is_wanted(call_id) or (limit is not None and now >= limit.deadline):
            return False
        if limit is not None:
            limit.began_at = now
        return True

    def is_open(self, call_id: int) -> bool:
        """Whether the call still needs an answer."""
        return call_id in self._calls

    def is_wanted(self, call_id: int) -> bool:
        """Whether the call needs an answer and was not cancelled."""
        call = self._calls.get(call_id)
        return call is not None and call.state is CalleeState.SERVING

    def answer(self, call_id: int) -> None:
        """We answered. A second answer, or one to a call that never came, is our bug: `KeyError`."""
        self._move(call_id, "answer")
        if self._limits:
            self.lift_limit(call_id)

    def grant(self, call_id: int, num_items: int) -> bool:
        """The caller takes more items; whether the call is still open."""
        call = self._calls.get(call_id)
        if call is None:
            return False
        call.credit += num_items
        return True

    def has_credit(self, call_id: int) -> bool:
        """Whether an item may be sent now."""
        call = self._calls.get(call_id)
        return call is not None and call.credit > 0

    def spend(self, call_id: int) -> None:
        """An item was sent. Without credit that is our bug: an assertion."""
        call = self._calls[call_id]
        assert call.credit > 0, f"an item of call {call_id} without credit"
        call.credit -= 1
        if self._limits:
            self.lift_limit(call_id)  # from here on its caller counts

    def lose(self) -> list[int]:
        """The link is gone: the calls that nobody will hear the answer of."""
        lost = list(self._calls)
        self._calls.clear()
        self._limits.clear()
        self._deadlines = Deadlines()
        return lost

    @property
    def num_open(self) -> int:
        """Calls that we owe an answer."""
        return len(self._calls)

    def _move(self, call_id: int, event: str) -> None:
        state = CALLEE_MOVES[self._calls[call_id].state, event]
        if state is None:
            del self._calls[call_id]
        else:
            self._calls[call_id].state = state
