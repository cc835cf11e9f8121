"""The tables of calls: every move of the two diagrams, and no other."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from asyncparl.errors import CallFate, ProtocolError
from asyncparl.protocol.calls import CALLEE_MOVES, CALLER_MOVES, CalleeState, CalleeTable, CallerState, CallerTable
from asyncparl.protocol.messages import Call, CallKind

# --- calls that we make -----------------------------------------------------------------------------------------


def queued() -> CallerTable:
    """Call 1 waits for room."""
    table = CallerTable()
    assert table.open(credit=1) == 1
    return table


def sent() -> CallerTable:
    table = queued()
    table.window = 1
    assert table.next_to_send() == 1
    return table


def overdue() -> CallerTable:
    """Its time was up, and it was cancelled."""
    table = sent()
    assert table.expire(1) is CallerState.SENT
    return table


def abandoned() -> CallerTable:
    table = sent()
    assert table.cancel(1) is CallerState.SENT
    return table


def answered() -> CallerTable:
    table = sent()
    assert table.answer(1)
    return table


def cancelled_while_queued() -> CallerTable:
    table = queued()
    assert table.cancel(1) is CallerState.QUEUED
    return table


def answered_after_all() -> CallerTable:
    table = abandoned()
    assert not table.answer(1)
    return table


def expired_while_queued() -> CallerTable:
    table = queued()
    assert table.expire(1) is CallerState.QUEUED
    return table


CALLER = [
    queued,
    sent,
    overdue,
    abandoned,
    answered,
    cancelled_while_queued,
    expired_while_queued,
    answered_after_all,
]
REFUSED = "refused"
# What an event of call 1 gives in each state, in the order of CALLER.
CALLER_EVENTS: dict[str, tuple[Callable[[CallerTable], object], list[object]]] = {
    "cancel": (
        lambda table: table.cancel(1),
        [CallerState.QUEUED, CallerState.SENT, CallerState.OVERDUE, *([None] * 5)],
    ),
    "expire": (lambda table: table.expire(1), [CallerState.QUEUED, CallerState.SENT, *([None] * 6)]),
    "timed_out": (lambda table: table.timed_out(1), [REFUSED, True, True, False, *([REFUSED] * 4)]),
    "answer": (lambda table: table.answer(1), [REFUSED, True, True, False, *([REFUSED] * 4)]),
    "item": (lambda table: table.item(1), [REFUSED, True, False, False, *([REFUSED] * 4)]),
    "grant": (lambda table: table.grant(1, 2), [False, True, *([False] * 6)]),
    "lose": (
        lambda table: table.lose(),
        [
            [(1, CallFate.NEVER_STARTED)],
            [(1, CallFate.MAY_HAVE_RUN)],
            [(1, CallFate.MAY_HAVE_RUN)],
            *([[]] * 5),
        ],
    ),
}


def outcome(event: Callable[[CallerTable], object], table: CallerTable) -> object:
    try:
        return event(table)
    except ProtocolError:
        return REFUSED


@pytest.mark.parametrize("event_name", CALLER_EVENTS)
@pytest.mark.parametrize("state", CALLER, ids=lambda state: state.__name__)
def test_every_event_in_every_state_of_a_call_we_made(state: Callable[[], CallerTable], event_name: str) -> None:
    event, outcomes = CALLER_EVENTS[event_name]
    assert outcome(event, state()) == outcomes[CALLER.index(state)]


def test_the_callers_diagram_is_complete() -> None:
    assert CALLER_MOVES == {
        (CallerState.QUEUED, "send"): CallerState.SENT,
        (CallerState.QUEUED, "cancel"): None,
        (CallerState.SENT, "answer"): None,
        (CallerState.SENT, "cancel"): CallerState.ABANDONED,
        (CallerState.ABANDONED, "answer"): None,
        (CallerState.QUEUED, "expire"): None,
        (CallerState.SENT, "expire"): CallerState.OVERDUE,
        (CallerState.OVERDUE, "cancel"): CallerState.ABANDONED,
        (CallerState.OVERDUE, "answer"): None,
        (CallerState.SENT, "timed_out"): CallerState.ABANDONED,
        (CallerState.OVERDUE, "timed_out"): CallerState.ABANDONED,
        (CallerState.ABANDONED, "timed_out"): CallerState.ABANDONED,
    }


@pytest.mark.parametrize(("state", "num_open"), list(zip(CALLER, [1, 1, 1, 1, 0, 0, 0, 0], strict=True)))
def test_a_call_is_open_until_its_answer_or_the_loss(state: Callable[[], CallerTable], num_open: int) -> None:
    table = state()
    assert table.num_open == num_open
    table.lose()
    assert table.num_open == 0


def test_nothing_is_sent_before_the_peer_has_named_its_window() -> None:
    assert queued().next_to_send() is None


def test_calls_are_sent_in_order_and_no_more_than_the_window() -> None:
    table = CallerTable(window=2)
    assert [table.open(0) for _ in range(4)] == [1, 2, 3, 4]
    assert [table.next_to_send() for _ in range(3)] == [1, 2, None]
    table.answer(2)
    assert [table.next_to_send() for _ in range(2)] == [3, None]


@pytest.mark.parametrize("state", [answered, answered_after_all], ids=lambda state: state.__name__)
def test_an_answer_makes_room_for_another_call(state: Callable[[], CallerTable]) -> None:
    table = state()
    assert table.open(0) == 2
    assert table.next_to_send() == 2


@pytest.mark.parametrize("state", [abandoned, overdue], ids=lambda state: state.__name__)
def test_a_call_that_was_given_up_takes_up_room_until_its_answer(state: Callable[[], CallerTable]) -> None:
    table = state()
    table.open(0)
    assert table.next_to_send() is None


def test_nothing_is_left_of_calls_that_are_given_up_while_they_wait() -> None:
    table = CallerTable()
    for number in range(10_000):
        call_id = table.open(0)
        (table.cancel if number % 2 else table.expire)(call_id)
    assert table.num_open == 0
    assert len(table._queue) < 100


@pytest.mark.parametrize("state", [cancelled_while_queued, expired_while_queued], ids=lambda state: state.__name__)
def test_a_call_given_up_in_the_queue_is_passed_over(state: Callable[[], CallerTable]) -> None:
    table = state()
    table.window = 1
    assert table.open(0) == 2
    assert table.next_to_send() == 2


def test_items_beyond_the_credit_are_the_peers_fault() -> None:
    table = sent()
    assert table.item(1)
    with pytest.raises(ProtocolError, match=r"^an item of call 1 beyond the credit it was granted$"):
        table.item(1)
    table.grant(1, 2)
    assert table.item(1) and table.item(1)
    with pytest.raises(ProtocolError, match="beyond the credit"):
        table.item(1)


def test_items_of_an_abandoned_call_are_counted_too() -> None:
    table = abandoned()
    assert not table.item(1)
    table.grant(1, 1)  # nobody tells the callee
    with pytest.raises(ProtocolError, match="beyond the credit"):
        table.item(1)


def test_losing_the_link_names_every_call_that_somebody_waits_for_once_and_oldest_first() -> None:
    table = CallerTable(window=3)
    for _ in range(5):
        table.open(0)
    while table.next_to_send():
        pass
    table.cancel(2)
    table.answer(1)
    never, may = CallFate.NEVER_STARTED, CallFate.MAY_HAVE_RUN
    assert table.lose() == [(3, may), (4, never), (5, never)]
    assert table.lose() == []
    assert table.next_to_send() is None


# --- calls that we serve ----------------------------------------------------------------------------------------


def never_came() -> CalleeTable:
    return CalleeTable(window=2)


def serving() -> CalleeTable:
    table = never_came()
    table.arrive(1, credit=1)
    return table


def cancelling() -> CalleeTable:
    table = serving()
    assert table.cancel(1)
    return table


def done() -> CalleeTable:
    table = serving()
    table.answer(1)
    return table


def done_after_cancel() -> CalleeTable:
    table = cancelling()
    table.answer(1)
    return table


CALLEE = [never_came, serving, cancelling, done, done_after_cancel]
CALLEE_EVENTS: dict[str, tuple[Callable[[CalleeTable], object], list[object]]] = {
    "arrive": (lambda table: table.arrive(1, 0), [None, ProtocolError, ProtocolError, ProtocolError, ProtocolError]),
    "cancel": (lambda table: table.cancel(1), [False, True, False, False, False]),
    "answer": (lambda table: table.answer(1), [KeyError, None, None, KeyError, KeyError]),
    "grant": (lambda table: table.grant(1, 1), [False, True, True, False, False]),
    "spend": (lambda table: table.spend(1), [KeyError, None, None, KeyError, KeyError]),
    "is_open": (lambda table: table.is_open(1), [False, True, True, False, False]),
    "is_wanted": (lambda table: table.is_wanted(1), [False, True, False, False, False]),
    "has_credit": (lambda table: table.has_credit(1), [False, True, True, False, False]),
    "lose": (lambda table: table.lose(), [[], [1], [1], [], []]),
    "num_open": (lambda table: table.num_open, [0, 1, 1, 0, 0]),
}


@pytest.mark.parametrize("event_name", CALLEE_EVENTS)
@pytest.mark.parametrize("state", CALLEE, ids=lambda state: state.__name__)
def test_every_event_in_every_state_of_a_call_we_serve(state: Callable[[], CalleeTable], event_name: str) -> None:
    event, outcomes = CALLEE_EVENTS[event_name]
    expected = outcomes[CALLEE.index(state)]
    if isinstance(expected, type):
        with pytest.raises(expected):
            event(state())
    else:
        assert event(state()) == expected


def test_the_callees_diagram_is_complete() -> None:
    assert CALLEE_MOVES == {
        (CalleeState.SERVING, "cancel"): CalleeState.CANCELLING,
        (CalleeState.SERVING, "answer"): None,
        (CalleeState.CANCELLING, "answer"): None,
    }


# --- calls with a time limit ------------------------------------------------------------------------------------


def limited(*deadlines: float) -> CalleeTable:
    """Calls 1, 2, ... that must be answered by then."""
    table = CalleeTable(window=9)
    for call_id, deadline in enumerate(deadlines, start=1):
        table.arrive(call_id, credit=1)
        table.limit(Call(call_id, CallKind.METHOD, "f", 0), deadline)
    return table


def test_a_call_starts_only_while_there_is_time_left() -> None:
    assert limited(5.0).begin(1, now=4.9)
    assert not limited(5.0).begin(1, now=5.0)
    table = serving()
    assert table.begin(1, now=1e9)  # it has no limit
    table.cancel(1)
    assert not table.begin(1, now=0.0)
    assert not table.begin(2, now=0.0)  # never came


def test_calls_are_overdue_in_the_order_of_their_deadlines_and_each_once() -> None:
    table = limited(7.0, 5.0, 6.0, 9.0)
    assert table.next_deadline() == 5.0
    assert table.take_overdue(4.9) == []
    assert table.take_overdue(7.0) == [2, 3, 1]
    assert table.take_overdue(8.0) == []
    assert table.next_deadline() == 9.0


@pytest.mark.parametrize("end", ["answer", "spend", "lift_limit"])
def test_a_call_that_was_answered_or_has_given_an_item_is_not_overdue(end: str) -> None:
    table = limited(5.0, 6.0)
    getattr(table, end)(1)
    assert table.limit_of(1) is None
    assert table.take_overdue(9.0) == [2]


def test_nothing_is_overdue_after_the_loss() -> None:
    table = limited(5.0)
    table.lose()
    assert table.next_deadline() == math.inf
    assert table.take_overdue(9.0) == []
    assert table.limit_of(1) is None


def test_an_id_must_be_newer_than_every_earlier_one() -> None:
    table = CalleeTable(window=9)
    table.arrive(3, 0)
    for call_id in (3, 2, 0, -1):
        with pytest.raises(ProtocolError, match=f"^call {call_id} after call 3: repeated or out of order$"):
            table.arrive(call_id, 0)
    table.arrive(7, 0)  # those between were cancelled before they were sent


def test_more_calls_than_the_window_are_the_peers_fault() -> None:
    table = CalleeTable(window=2)
    table.arrive(1, 0)
    table.arrive(2, 0)
    with pytest.raises(ProtocolError, match=r"^more than 2 unanswered calls$"):
        table.arrive(3, 0)
    table.cancel(1)
    with pytest.raises(ProtocolError, match="more than 2"):  # a cancelled one still counts
        table.arrive(3, 0)
    table.answer(1)
    table.arrive(3, 0)


def test_credit_is_spent_and_granted() -> None:
    table = serving()
    table.spend(1)
    assert not table.has_credit(1)
    with pytest.raises(AssertionError, match="without credit"):
        table.spend(1)
    table.grant(1, 2)
    table.spend(1)
    assert table.has_credit(1)


def test_after_the_loss_nothing_is_open() -> None:
    table = serving()
    table.arrive(2, 0)
    assert table.lose() == [1, 2]
    assert (table.lose(), table.num_open, table.is_open(1)) == ([], 0, False)
