"""Stories of two link cores: what one side does, what the other one hears."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from asyncparl.errors import ProtocolError
from asyncparl.protocol.events import AnswerArrived, CallArrived, CancelArrived, Opened
from asyncparl.protocol.link import DEFAULT_MAX_VALUE_BYTES, LinkCore, LinkState, Outgoing
from asyncparl.protocol.messages import (
    PROTOCOL_VERSION,
    Call,
    CallKind,
    Cancel,
    Cancelled,
    Goodbye,
    Grant,
    Hello,
    Item,
    Message,
    Raised,
    Returned,
)
from asyncparl.protocol.values import decode_value, encode_value
from tests.protocol.pair import REPORT, call, carry, frame_of, messages, open_pair, taken

# --- opening ----------------------------------------------------------------------------------------------------


def test_both_sides_say_hello_at_once() -> None:
    left, right = LinkCore(name="left", pid=7, call_window=3), LinkCore(name="right")
    assert carry(left, right) == [Opened(Hello(PROTOCOL_VERSION, 3, "left", 7, "", DEFAULT_MAX_VALUE_BYTES))]
    assert carry(right, left) == [Opened(Hello(PROTOCOL_VERSION, 1024, "right", 0, "", DEFAULT_MAX_VALUE_BYTES))]
    assert left.state is right.state is LinkState.OPEN
    assert (left.caller.window, right.caller.window) == (1024, 3)


def test_calls_may_be_made_before_the_peer_said_hello() -> None:
    left, right = LinkCore(name="left"), LinkCore(name="right")
    call_ids = [call(left), call(left)]
    assert len(carry(left, right)) == 1  # the Hello only
    carry(right, left)
    assert [event.call.call_id for event in carry(left, right) if isinstance(event, CallArrived)] == call_ids


def test_a_second_hello_is_refused() -> None:
    left, _ = open_pair()
    with pytest.raises(ProtocolError, match=r"^a second Hello$"):
        left.receive(frame_of(Hello(PROTOCOL_VERSION, 1, "right", 0)))


def test_a_peer_of_another_version_is_refused_by_name_and_stays_outside() -> None:
    core = LinkCore(name="left")
    call(core)
    taken(core)
    with pytest.raises(ProtocolError, match=r"^right speaks protocol version 99, this side 3: install the same"):
        core.receive(frame_of(Hello(99, 1, "right", 0)))
    assert core.state is LinkState.OPENING
    assert not core.has_outgoing


@pytest.mark.parametrize(
    "message",
    [Call(1, 0, "f", 0), Cancel(1), Returned(1), Raised(1, REPORT), Cancelled(1), Item(1), Grant(1, 1), Goodbye()],
    ids=lambda message: type(message).__name__,
)
def test_whatever_comes_before_the_hello_or_after_the_goodbye_or_the_loss_is_refused(message: Message) -> None:
    kind = type(message).__name__
    with pytest.raises(ProtocolError, match=f"^{kind} while the link is opening$"):
        LinkCore(name="left").receive(frame_of(message))

    left, right = open_pair()
    right.say_goodbye()
    carry(right, left)
    with pytest.raises(ProtocolError, match=f"^{kind} while the link is closing$"):
        left.receive(frame_of(message))

    left.lose()
    with pytest.raises(ProtocolError, match=f"^{kind} while the link is lost$"):
        left.receive(frame_of(message))


# --- calls and answers ------------------------------------------------------------------------------------------


def test_a_call_arrives_with_its_value_and_its_answer_comes_back() -> None:
    left, right = open_pair()
    call_id = call(left, {"n": 3})
    [arrived] = carry(left, right)
    assert isinstance(arrived, CallArrived)
    assert arrived.call == Call(call_id, CallKind.METHOD, "sample", 0)
    assert decode_value(arrived.frame.payload) == {"n": 3}

    right.answer_returned(call_id, encode_value([1, 2]))
    [answer] = carry(right, left)
    assert isinstance(answer, AnswerArrived)
    assert (answer.call_id, answer.frame.message) == (call_id, Returned(call_id))
    assert decode_value(answer.frame.payload) == [1, 2]
    assert left.caller.num_open == right.callee.num_open == 0


def test_an_exception_comes_back_as_words_and_as_itself() -> None:
    left, right = open_pair()
    call_id = call(left)
    carry(left, right)
    right.answer_raised(call_id, REPORT, encode_value(ValueError("no")))
    [answer] = carry(right, left)
    assert isinstance(answer, AnswerArrived)
    assert answer.frame.message == Raised(call_id, REPORT)
    assert repr(decode_value(answer.frame.payload)) == "ValueError('no')"


def test_both_sides_may_call_at_once_and_answers_may_come_in_any_order() -> None:
    left, right = open_pair()
    first, second, theirs = call(left), call(left), call(right)
    assert first == theirs  # each side counts for itself
    carry(left, right)
    carry(right, left)
    right.answer_returned(second, encode_value("second"))
    right.answer_returned(first, encode_value("first"))
    left.answer_returned(theirs, encode_value("theirs"))
    answers = [decode_value(event.frame.payload) for event in carry(right, left) if isinstance(event, AnswerArrived)]
    assert answers == ["second", "first"]
    [answer] = carry(left, right)
    assert isinstance(answer, AnswerArrived) and decode_value(answer.frame.payload) == "theirs"


@pytest.mark.parametrize("again", [Returned(1), Raised(1, REPORT), Cancelled(1)], ids=lambda m: type(m).__name__)
def test_a_call_is_answered_once(again: Message) -> None:
    left, right = open_pair()
    call_id = call(left)
    carry(left, right)
    right.answer_returned(call_id)
    carry(right, left)

    # and a second answer is the peer's fault
    with pytest.raises(ProtocolError, match=r"^an answer to call 1, which is not open$"):
        left.receive(frame_of(again))


def test_answering_a_second_time_is_our_own_bug() -> None:
    left, right = open_pair()
    call_id = call(left)
    carry(left, right)
    right.answer_returned(call_id)
    for answer in (right.answer_returned, right.answer_cancelled):
        with pytest.raises(KeyError):
            answer(call_id)
    assert len(taken(right)) == 1


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Returned(7), "^an answer to call 7, which is not open$"),
        (Item(7), "^an item of call 7, which is not open$"),
        (Call(1, 0, "f", 0), "^call 1 after call 1: repeated or out of order$"),
    ],
)
def test_what_does_not_belong_to_any_call_is_the_peers_fault(message: Message, complaint: str) -> None:
    left, right = open_pair()
    call(right)
    carry(right, left)
    with pytest.raises(ProtocolError, match=complaint):
        left.receive(frame_of(message))


# --- the window -------------------------------------------------------------------------------------------------


def test_no_more_calls_are_sent_than_the_peers_window_and_the_rest_follow_in_order() -> None:
    left, right = open_pair(window=2)
    call_ids = [call(left) for _ in range(5)]
    arrived = []
    while left.caller.num_open:
        arrived += [event.call.call_id for event in carry(left, right) if isinstance(event, CallArrived)]
        assert right.callee.num_open == min(2, left.caller.num_open)
        right.answer_returned(arrived[-1])  # the newest first
        carry(right, left)
        if right.callee.num_open:
            right.answer_returned(arrived[-2])
            carry(right, left)
    assert arrived == call_ids


def test_a_peer_that_ignores_our_window_is_refused() -> None:
    left, _ = open_pair(window=2)
    left.receive(frame_of(Call(1, 0, "f", 0)))
    left.receive(frame_of(Call(2, 0, "f", 0)))
    with pytest.raises(ProtocolError, match=r"^more than 2 unanswered calls$"):
        left.receive(frame_of(Call(3, 0, "f", 0)))


# --- cancelling -------------------------------------------------------------------------------------------------


def test_a_call_cancelled_while_it_waits_is_never_sent() -> None:
    left, right = open_pair(window=1)
    first, second, third = call(left), call(left), call(left)
    assert left.cancel(second)
    carry(left, right)
    right.answer_returned(first)
    carry(right, left)
    assert messages(left) == [Call(third, CallKind.METHOD, "sample", 0)]
    assert left.caller.num_open == 1


def test_the_value_of_a_call_cancelled_while_it_waits_is_let_go() -> None:
    core = LinkCore(name="left")
    value = encode_value("v" * 1000)
    num_references = sys.getrefcount(value)
    call_id = core.call(CallKind.METHOD, "sample", value)
    assert sys.getrefcount(value) > num_references
    core.cancel(call_id)
    assert sys.getrefcount(value) == num_references


def test_a_call_cancelled_while_it_runs_is_answered_cancelled_and_nobody_hears_of_it() -> None:
    left, right = open_pair()
    call_id = call(left)
    carry(left, right)
    assert left.cancel(call_id)
    assert carry(left, right) == [CancelArrived(call_id)]
    assert right.callee.is_open(call_id) and not right.callee.is_wanted(call_id)
    right.answer_cancelled(call_id)
    assert carry(right, left) == []
    assert left.caller.num_open == right.callee.num_open == 0


@pytest.mark.parametrize(
    "answer",
    [
        lambda core: core.answer_returned(1, encode_value("large")),
        lambda core: core.answer_raised(1, REPORT, encode_value(ValueError())),
    ],
    ids=["returned", "raised"],
)
def test_the_result_of_a_cancelled_call_is_dropped_before_it_is_sent(answer: Callable[[LinkCore], None]) -> None:
    left, right = open_pair()
    call_id = call(left)
    carry(left, right)
    left.cancel(call_id)
    carry(left, right)
    answer(right)
    [outgoing] = taken(right)
    assert outgoing == Outgoing(Cancelled(call_id))


def test_a_cancel_that_crosses_the_answer_is_ignored_on_both_sides() -> None:
    left, right = open_pair()
    call_id = call(left)
    carry(left, right)
    right.answer_returned(call_id)
    assert left.cancel(call_id)
    assert carry(left, right) == []
    assert carry(right, left) == []
    assert left.caller.num_open == right.callee.num_open == 0


def test_a_call_that_was_sent_but_not_taken_yet_is_cancelled_after_it() -> None:
    left, right = open_pair()
    call_id = call(left)
    left.cancel(call_id)
    assert [type(event) for event in carry(left, right)] == [CallArrived, CancelArrived]
    right.answer_cancelled(call_id)
    assert carry(right, left) == []
    assert left.caller.num_open == 0


def test_cancelling_twice_or_too_late_does_nothing() -> None:
    left, right = open_pair(window=1)
    running, waiting = call(left), call(left)
    for call_id in (running, waiting):
        assert left.cancel(call_id)
        assert not left.cancel(call_id)
    assert carry(left, right)[1:] == [CancelArrived(running)]
    assert right.receive(frame_of(Cancel(running))) is None  # a peer may repeat itself
    right.answer_cancelled(running)
    carry(right, left)
    assert not left.cancel(running)
    assert not left.has_outgoing


def test_a_cancel_of_a_call_that_never_came_is_ignored() -> None:
    left, _ = open_pair()
    assert left.receive(frame_of(Cancel(5))) is None
