"""How long calls may take: what users may say, what is due when, and what two cores tell each other of it."""

from __future__ import annotations

import gc
import math
import random
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncparl.errors import ProtocolError
from asyncparl.protocol.calls import CallerState
from asyncparl.protocol.deadlines import Deadlines, check_timeout
from asyncparl.protocol.events import AnswerArrived, CallArrived, CancelArrived, TimeIsUp
from asyncparl.protocol.frames import encode_frame
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.messages import Call, CallKind, Cancel, Cancelled, Message, TimedOut
from asyncparl.protocol.values import NOTHING
from tests.protocol.pair import carry, frame_of, messages, open_pair
from tests.protocol.world import World

# --- what users may say -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "seconds"), [(None, None), (5, 5.0), (0.001, 0.001), (1e300, 1e300)])
def test_a_time_limit_is_a_positive_number_or_none(value: object, seconds: float | None) -> None:
    assert check_timeout("timeout_s", value) == seconds


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0, ValueError),
        (0.0, ValueError),
        (-1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        ("5", TypeError),
        (True, TypeError),
        ([5], TypeError),
    ],
)
def test_anything_else_is_one_clear_error(value: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^timeout_s must be .*seconds.* None") as caught:
        check_timeout("timeout_s", value)
    assert repr(value) in str(caught.value)


# --- what is due ------------------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.floats(0, 100)),
        st.tuples(st.just("drop"), st.integers(0, 1000)),
        st.tuples(st.just("take"), st.floats(0, 100)),
    ),
    max_size=300,
)


@given(steps)
def test_what_is_due_is_told_once_in_order_and_never_if_it_was_dropped(script: list[tuple[str, float]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    expected: dict[int, tuple[float, int]] = {}
    """By ticket; the second number is the order in which they were added."""
    for number, (step, value) in enumerate(script):
        if step == "add":
            expected[deadlines.add(value, number)] = (value, number)
        elif step == "drop" and expected:
            ticket = list(expected)[int(value) % len(expected)]
            deadlines.drop(ticket)
            del expected[ticket]
        elif step == "take":
            due = sorted(each for each in expected.values() if each[0] <= value)
            assert deadlines.take_due(value) == [number for _, number in due]
            expected = {ticket: each for ticket, each in expected.items() if each[0] > value}
        assert len(deadlines) == len(expected)
        assert deadlines.next_at() == min((at for at, _ in expected.values()), default=math.inf)


def test_what_was_dropped_is_not_held_and_takes_no_room() -> None:
    class Thing:
        pass

    deadlines: Deadlines[Thing] = Deadlines()
    thing = Thing()
    is_there = weakref.ref(thing)
    deadlines.drop(deadlines.add(1e9, thing))
    del thing
    gc.collect()
    assert is_there() is None
    for _ in range(10_000):
        deadlines.drop(deadlines.add(1e9, Thing()))
    assert len(deadlines._heap) < 100


def test_a_ticket_that_was_told_or_dropped_already_does_no_harm() -> None:
    deadlines: Deadlines[str] = Deadlines()
    first, second = deadlines.add(1.0, "first"), deadlines.add(2.0, "second")
    assert deadlines.take_due(1.0) == ["first"]
    deadlines.drop(first)
    deadlines.drop(0)
    assert deadlines.take_due(2.0) == ["second"]
    deadlines.drop(second)


# --- what two cores say -----------------------------------------------------------------------------------------


def timed_call(core: LinkCore, deadline: float) -> int:
    return core.call(CallKind.METHOD, "sample", deadline=deadline)


def test_a_call_without_a_limit_costs_one_byte_and_one_with_a_limit_nine() -> None:
    def num_bytes(message: Message) -> int:
        return int.from_bytes(encode_frame(message)[0][8:12], "little")

    plain = num_bytes(Call(1, CallKind.METHOD, "sample", 2))
    assert plain == len(b"\x97\x01\x01\x00\xa6sample\x02\x00") + len(b"\xc0")
    assert num_bytes(Call(1, CallKind.METHOD, "sample", 2, 0, 5.0)) == plain + 8


def test_the_callee_is_told_what_is_left_when_the_call_leaves() -> None:
    left, _ = open_pair(window=1)
    waits = [timed_call(left, deadline=10.0), timed_call(left, deadline=10.0)]
    [first] = [left.take_outgoing(now=4.0).message]
    assert first == Call(waits[0], CallKind.METHOD, "sample", 0, 0, 6.0)
    left.receive(frame_of(Cancelled(waits[0])))
    assert left.take_outgoing(now=9.5).message == Call(waits[1], CallKind.METHOD, "sample", 0, 0, 0.5)
    assert not left.needs_time


def test_a_call_that_leaves_too_late_says_so() -> None:
    left, _ = open_pair()
    timed_call(left, deadline=10.0)
    message = left.take_outgoing(now=11.0).message
    assert isinstance(message, Call)
    assert message.timeout_s == 0.0


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, -math.inf])
def test_a_time_that_no_clock_can_count_is_the_peers_fault(seconds: float) -> None:
    left, _ = open_pair()
    with pytest.raises(ProtocolError, match=r"^call 1 has .* s left, which is no time$"):
        left.receive(frame_of(Call(1, CallKind.METHOD, "sample", 0, 0, seconds)))


def test_a_call_whose_time_is_up_before_it_is_sent_is_never_sent() -> None:
    left = LinkCore(name="left")
    call_id = timed_call(left, deadline=1.0)
    assert left.expire(call_id) is CallerState.QUEUED
    right = LinkCore(name="right")
    carry(right, left)
    assert [event for event in carry(left, right) if isinstance(event, CallArrived)] == []
    assert left.caller.num_open == 0
    assert not left.needs_time


def served(deadline: float) -> tuple[LinkCore, LinkCore, int]:
    """A call of the left core with a limit, which the right core is to serve."""
    left, right = open_pair()
    call_id = timed_call(left, deadline)
    [arrived] = carry(left, right)
    assert isinstance(arrived, CallArrived)
    right.callee.limit(arrived.call, deadline)
    return left, right, call_id


@pytest.mark.parametrize("begins", [True, False])
def test_the_callee_says_whether_it_had_started_and_what_it_did_instead(begins: bool) -> None:
    left, right, call_id = served(deadline=10.0)
    if begins:
        assert right.callee.begin(call_id, now=4.0)
    assert right.callee.take_overdue(now=10.0) == [call_id]
    right.time_is_up(call_id, "reset", 61.0, now=10.0)
    right.answer_cancelled(call_id)
    said = TimedOut(call_id, True, "sample", 6.0) if begins else TimedOut(call_id, False, "reset", 61.0)
    assert carry(right, left) == [TimeIsUp(call_id, said)]  # the answer after that is nobody's
    assert left.caller.num_open == right.callee.num_open == 0


def test_it_never_starts_after_that() -> None:
    _, right, call_id = served(deadline=10.0)
    right.time_is_up(call_id, "", 0.0, now=10.0)
    assert not right.callee.begin(call_id, now=0.0)


def test_a_caller_whose_time_is_up_tells_the_callee_once_and_has_a_last_word() -> None:
    left, right, call_id = served(deadline=10.0)
    assert left.expire(call_id) is CallerState.SENT
    assert left.expire(call_id) is None
    assert carry(left, right) == [CancelArrived(call_id)]
    right.time_is_up(call_id, "", 0.0, now=10.0)
    right.time_is_up(call_id, "", 0.0, now=10.0)  # says nothing more
    assert messages(right) == [TimedOut(call_id, False)]
    assert left.receive(frame_of(TimedOut(call_id, False))) == TimeIsUp(call_id, TimedOut(call_id, False))
    assert messages(left) == []
    assert not left.cancel(call_id)


def test_an_answer_that_was_on_its_way_is_one() -> None:
    left, right, call_id = served(deadline=10.0)
    right.answer_returned(call_id)
    left.expire(call_id)
    [answer] = carry(right, left)
    assert isinstance(answer, AnswerArrived)
    assert carry(left, right) == []  # a cancel that comes too late


def test_who_gives_up_waiting_for_the_last_word_says_nothing_more() -> None:
    left, _, call_id = served(deadline=10.0)
    left.expire(call_id)
    assert messages(left) == [Cancel(call_id)]
    assert left.cancel(call_id)
    assert messages(left) == []
    assert left.receive(frame_of(TimedOut(call_id, True, "sample", 1.0))) is None
    assert left.receive(frame_of(Cancelled(call_id))) is None


@pytest.mark.parametrize("call_id", [1, 2])
def test_the_end_of_a_time_that_nobody_counts_is_the_peers_fault(call_id: int) -> None:
    left = LinkCore(name="left")
    timed_call(left, deadline=1.0)  # call 1 waits, call 2 was never made
    right = LinkCore(name="right", call_window=0)
    carry(right, left)
    with pytest.raises(ProtocolError, match=f"^the time of call {call_id} is up, which is not open$"):
        left.receive(frame_of(TimedOut(call_id, False)))


def test_a_stream_is_limited_to_its_first_item() -> None:
    left, right = open_pair()
    call_id = left.call(CallKind.METHOD, "items", credit=1, deadline=10.0)
    [arrived] = carry(left, right)
    assert isinstance(arrived, CallArrived)
    right.callee.limit(arrived.call, 10.0)
    right.send_item(call_id, NOTHING)
    assert right.callee.next_deadline() == math.inf


def test_the_world_of_interleavings_sees_every_way_in_which_time_ends() -> None:
    """So that the properties of `test_link_interleavings.py` say something of them."""
    outcomes, rng = set[str](), random.Random(1)
    for _ in range(40):
        world = World((2, 2))
        for _ in range(150):
            world.steps[rng.choice([*world.steps][:-2])](rng.randint(0, 1), rng.randint(0, 99))
        world.settle()
        outcomes |= {record.outcome for end in world.ends for record in end.calls.values() if record.deadline}
    assert outcomes >= {"returned", "its time was up", "its time was up before it was sent", "cancelled by the caller"}
