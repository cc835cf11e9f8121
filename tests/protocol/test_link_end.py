"""The end of a link: goodbye and loss. Every call is settled, and says how far it came."""

from __future__ import annotations

import pytest

from asyncparl.errors import CallFate
from asyncparl.protocol.events import AnswerArrived, CallArrived, PeerClosing
from asyncparl.protocol.link import LinkCore, LinkState
from asyncparl.protocol.messages import Goodbye, Hello
from asyncparl.protocol.values import encode_value
from tests.protocol.pair import REPORT, call, carry, messages, open_pair, open_stream


def test_goodbye_is_heard_and_its_sender_says_nothing_more() -> None:
    left, right = open_pair()
    theirs = call(right, credit=1)
    ours = call(left)
    carry(right, left)
    left.say_goodbye()
    left.say_goodbye()
    left.send_item(theirs, encode_value("late"))
    left.answer_returned(theirs)
    left.cancel(ours)
    call(left)
    assert [type(event) for event in carry(left, right)] == [CallArrived, PeerClosing]
    assert right.state is LinkState.CLOSING


def test_goodbye_before_the_peers_hello_sends_no_call_later() -> None:
    left, right = LinkCore(name="left"), LinkCore(name="right")
    call_id = call(left)
    left.say_goodbye()
    carry(right, left)
    assert [type(message) for message in messages(left)] == [Hello, Goodbye]
    assert left.lose() == ([(call_id, CallFate.NEVER_STARTED)], [])


def test_answers_still_reach_the_one_who_said_goodbye() -> None:
    left, right = open_pair()
    call_id = call(left)
    left.say_goodbye()
    carry(left, right)
    right.answer_returned(call_id)
    assert [type(event) for event in carry(right, left)] == [AnswerArrived]


def test_a_call_to_a_peer_that_said_goodbye_was_never_started() -> None:
    left, right = open_pair()
    before = call(left)
    carry(left, right)
    right.say_goodbye()
    carry(right, left)
    after = call(left)
    assert not left.has_outgoing
    assert left.lose() == ([(before, CallFate.MAY_HAVE_RUN), (after, CallFate.NEVER_STARTED)], [])


def test_losing_the_link_settles_everything_with_its_fate() -> None:
    left, right = open_pair(window=3)
    answered, cancelled, running, waiting = (call(left) for _ in range(4))
    theirs = [call(right), call(right)]
    carry(left, right)
    carry(right, left)
    right.answer_returned(answered)
    carry(right, left)
    left.cancel(cancelled)
    left.answer_returned(theirs[0])
    right.answer_returned(running)  # lost on its way
    # the answer made room for the call that waited, and nobody knows how far it came
    may_have_run = [(running, CallFate.MAY_HAVE_RUN), (waiting, CallFate.MAY_HAVE_RUN)]
    assert left.lose() == (may_have_run, theirs[1:])
    assert left.state is LinkState.LOST
    assert left.lose() == ([], [])


def test_a_link_that_never_opened_never_started_any_call() -> None:
    core = LinkCore(name="left")
    call_ids = [call(core), call(core)]
    assert core.lose() == ([(call_id, CallFate.NEVER_STARTED) for call_id in call_ids], [])


def test_after_the_loss_nothing_is_sent_and_answers_and_cancels_do_no_harm() -> None:
    _, right, theirs = open_stream(credit=5)
    ours = call(right)
    right.lose()
    right.send_item(theirs, encode_value("a"))
    right.answer_returned(theirs)
    right.answer_raised(theirs, REPORT)
    right.answer_cancelled(theirs)
    right.grant(ours, 1)
    right.say_goodbye()
    right.detach_outgoing()
    assert not right.cancel(ours)
    assert not right.has_outgoing
    assert right.caller.num_open == right.callee.num_open == 0


def test_a_call_on_a_lost_link_is_our_own_bug() -> None:
    left, _ = open_pair()
    left.lose()
    with pytest.raises(RuntimeError, match="lost"):
        call(left)
    assert left.caller.num_open == 0
