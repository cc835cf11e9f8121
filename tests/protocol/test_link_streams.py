"""Streams over a link: items, credit and the end of both."""

from __future__ import annotations

import pytest

from asyncparl.errors import ProtocolError
from asyncparl.protocol.events import AnswerArrived, CancelArrived, GrantArrived, ItemArrived
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.messages import Cancel, Item, Returned
from asyncparl.protocol.values import decode_value, encode_value
from tests.protocol.pair import call, carry, frame_of, messages, open_stream


def items(core: LinkCore, call_id: int, *values: object) -> None:
    for value in values:
        core.send_item(call_id, encode_value(value))


def test_items_arrive_in_order_and_before_the_end() -> None:
    left, right, call_id = open_stream(credit=2)
    items(right, call_id, "a", "b")
    right.answer_returned(call_id, streamed=True)
    *arrived, end = carry(right, left)
    assert [decode_value(event.frame.payload) for event in arrived if isinstance(event, ItemArrived)] == ["a", "b"]
    assert isinstance(end, AnswerArrived) and end.frame.message == Returned(call_id, streamed=True)


def test_no_item_is_sent_without_credit_and_a_grant_gives_more() -> None:
    left, right, call_id = open_stream(credit=1)
    assert right.callee.has_credit(call_id)
    items(right, call_id, "a")
    assert not right.callee.has_credit(call_id)
    with pytest.raises(AssertionError, match="without credit"):
        items(right, call_id, "b")

    left.grant(call_id, 2)
    assert carry(left, right) == [GrantArrived(call_id)]
    items(right, call_id, "b", "c")
    assert not right.callee.has_credit(call_id)
    assert len(carry(right, left)) == 3


def test_a_grant_for_a_stream_that_still_waits_travels_with_its_call() -> None:
    left, right = LinkCore(name="left"), LinkCore(name="right")
    call_id = call(left, credit=1)
    left.grant(call_id, 2)
    carry(right, left)
    carry(left, right)
    items(right, call_id, "a", "b", "c")
    assert not right.callee.has_credit(call_id)
    assert len(carry(right, left)) == 3


def test_a_peer_that_sends_beyond_its_credit_is_refused() -> None:
    left, _, call_id = open_stream(credit=1)
    left.receive(frame_of(Item(call_id)))
    with pytest.raises(ProtocolError, match="beyond the credit"):
        left.receive(frame_of(Item(call_id)))


def test_items_on_their_way_when_the_stream_is_cancelled_are_dropped() -> None:
    left, right, call_id = open_stream(credit=3)
    items(right, call_id, "a", "b")
    left.cancel(call_id)
    assert carry(right, left) == []
    assert carry(left, right) == [CancelArrived(call_id)]
    items(right, call_id, "c")  # it may still try
    right.answer_returned(call_id, streamed=True)
    assert carry(right, left) == []
    assert left.caller.num_open == 0


def test_a_grant_after_the_end_is_not_sent_and_one_that_crosses_the_end_is_ignored() -> None:
    left, right, call_id = open_stream(credit=1)
    right.answer_returned(call_id, streamed=True)
    left.grant(call_id, 1)
    assert carry(left, right) == []
    carry(right, left)
    left.grant(call_id, 1)
    assert not left.has_outgoing


def test_no_grant_follows_a_cancel() -> None:
    left, _, call_id = open_stream(credit=1)
    left.cancel(call_id)
    left.grant(call_id, 1)
    assert messages(left) == [Cancel(call_id)]
