"""Two cores, and values that travel in fragments: what may overtake what, and what becomes of what is not wanted."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import pytest

from asyncparl.errors import CallFate, ProtocolError
from asyncparl.protocol import fragments, pace, values
from asyncparl.protocol.events import AnswerArrived, CallArrived, CancelArrived, Event, ItemArrived, Opened
from asyncparl.protocol.frames import decode_frames
from asyncparl.protocol.link import LinkCore, Outgoing
from asyncparl.protocol.messages import (
    PROTOCOL_VERSION,
    Call,
    CallKind,
    Cancelled,
    Fragment,
    FragmentsDropped,
    FragmentsTaken,
    Goodbye,
    Grant,
    Hello,
    Item,
    Message,
    Raised,
    Returned,
)
from asyncparl.protocol.owned import owned
from asyncparl.protocol.values import NOTHING, Encoded, Large, encode_value
from tests.protocol.pair import REPORT, call, carry, frame_of, messages, open_pair, packed

FRAGMENT = 100


@pytest.fixture(autouse=True)
def small_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "FRAGMENT_BYTES", FRAGMENT)
    monkeypatch.setattr(pace, "WINDOW_BYTES", 2 * FRAGMENT)


def large(fill: bytes = b"x", num_bytes: int = 1000) -> Encoded:
    """A value that travels in some ten fragments."""
    return Large(b"", [owned(fill * num_bytes)])


def large_call(core: LinkCore, fill: bytes = b"x", credit: int = 0) -> int:
    return core.call(CallKind.METHOD, "take", large(fill), credit=credit)


def carry_all(left: LinkCore, right: LinkCore) -> tuple[list[Event], list[Event]]:
    """Everything that both have to say: what it means to the left one, and to the right one."""
    to_left, to_right = list[Event](), list[Event]()
    while left.has_outgoing or right.has_outgoing:
        to_right += carry(left, right)
        to_left += carry(right, left)
    return to_left, to_right


def carry_one(sender: LinkCore, receiver: LinkCore) -> Event | None:
    [frame] = decode_frames(packed(sender.take_outgoing()))
    return receiver.receive(frame)


def content(event: Event | None) -> bytes:
    assert isinstance(event, CallArrived | AnswerArrived | ItemArrived)
    return bytes(event.frame.buffers[0])


def ids(events: list[Event]) -> list[int]:
    return [event.call.call_id if isinstance(event, CallArrived) else event.call_id for event in events]  # type: ignore[union-attr]


def test_a_large_call_and_its_large_answer_arrive_whole() -> None:
    left, right = open_pair()
    call_id = large_call(left)
    _, [arrived] = carry_all(left, right)
    assert content(arrived) == b"x" * 1000
    right.answer_returned(call_id, large(b"y"))
    [answer], _ = carry_all(left, right)
    assert isinstance(answer, AnswerArrived)
    assert answer.frame.message == Returned(call_id)
    assert content(answer) == b"y" * 1000
    assert not left.has_transfers
    assert not right.has_transfers


def test_a_payload_without_buffers_is_cut_too() -> None:
    left, right = open_pair()
    left.call(CallKind.METHOD, "take", Large(b"p" * 1000))
    _, [arrived] = carry_all(left, right)
    assert isinstance(arrived, CallArrived)
    assert bytes(arrived.frame.payload) == b"p" * 1000


def test_calls_do_not_overtake_a_large_one() -> None:
    left, right = open_pair()
    made = [call(left), large_call(left), call(left), large_call(left), call(left)]
    _, arrived = carry_all(left, right)
    assert ids(arrived) == made


def test_the_window_counts_large_calls_too() -> None:
    left, right = open_pair(window=1)
    first, second = call(left), large_call(left)
    _, arrived = carry_all(left, right)
    assert ids(arrived) == [first]
    right.answer_returned(first)
    _, arrived = carry_all(left, right)
    assert ids(arrived) == [second]


def test_cancels_and_answers_pass_a_large_call() -> None:
    left, right = open_pair()
    first = call(left)
    theirs = call(right)
    carry_all(left, right)
    large_call(left)
    carry_one(left, right)
    left.cancel(first)
    left.answer_returned(theirs)
    assert carry_one(left, right) == CancelArrived(first)
    assert isinstance(carry_one(left, right), AnswerArrived)


def test_small_answers_pass_a_large_one() -> None:
    left, right = open_pair()
    first, second = call(left), call(left)
    carry_all(left, right)
    right.answer_returned(first, large())
    carry_one(right, left)
    right.answer_returned(second)
    to_left, _ = carry_all(left, right)
    assert ids(to_left) == [second, first]


def test_items_and_the_end_of_a_stream_keep_their_order() -> None:
    left, right = open_pair()
    stream = call(left, credit=4)
    carry_all(left, right)
    for value in (large(b"a"), encode_value("b"), large(b"c"), large(b"d")):
        right.send_item(stream, value)
    right.answer_returned(stream, streamed=True)
    to_left, _ = carry_all(left, right)
    assert [type(event) for event in to_left] == [ItemArrived] * 4 + [AnswerArrived]
    assert [content(event)[:1] for event in (to_left[0], to_left[2], to_left[3])] == [b"a", b"c", b"d"]


def test_streams_do_not_wait_for_each_other() -> None:
    left, right = open_pair()
    first, second = call(left, credit=2), call(left, credit=2)
    carry_all(left, right)
    right.send_item(first, large())
    carry_one(right, left)
    right.send_item(second, encode_value(1))
    right.answer_raised(second, REPORT)
    to_left, _ = carry_all(left, right)
    assert ids(to_left) == [second, second, first]


def test_the_answer_that_ends_the_callee_comes_after_all_others() -> None:
    left, right = open_pair()
    first, second = call(left), call(left)
    closing = left.call(CallKind.CLOSE, "close")
    carry_all(left, right)
    right.answer_returned(first, large())
    right.answer_returned(second, large())
    right.answer_returned(closing)
    to_left, _ = carry_all(left, right)
    assert sorted(ids(to_left)[:2]) == [first, second]
    assert ids(to_left)[2:] == [closing]


def test_it_does_not_wait_for_an_answer_that_nobody_wants_any_more() -> None:
    left, right = open_pair()
    first, closing = call(left), left.call(CallKind.CLOSE, "close")
    carry_all(left, right)
    right.answer_returned(first, large())
    right.answer_returned(closing)
    carry_one(right, left)
    left.cancel(first)
    to_left, _ = carry_all(left, right)
    assert ids(to_left) == [closing]


@pytest.mark.parametrize("num_sent", [0, 1, 3])
def test_a_large_call_that_is_cancelled_on_its_way_never_arrives(num_sent: int) -> None:
    left, right = open_pair()
    large_call(left)
    for _ in range(num_sent):
        if not left.has_outgoing:
            carry(right, left)
        carry_one(left, right)
    assert left.cancel(1)
    following = call(left)
    _, arrived = carry_all(left, right)
    assert ids(arrived) == [following]
    assert right._joiner.num_open == 0
    assert not left.has_transfers


def test_so_does_one_whose_time_is_up() -> None:
    left, right = open_pair()
    call_id = left.call(CallKind.METHOD, "take", large(), deadline=5.0)
    carry_one(left, right)
    left.expire(call_id)
    assert carry_all(left, right) == ([], [])
    assert left.caller.num_open == 0
    assert right._joiner.num_open == 0


def test_a_large_answer_that_is_cancelled_on_its_way_is_not_sent_to_its_end() -> None:
    left, right = open_pair()
    call_id = call(left)
    carry_all(left, right)
    right.answer_returned(call_id, large())
    carry_one(right, left)
    left.cancel(call_id)
    carry(left, right)
    said = messages(right)
    assert Cancelled(call_id) in said
    assert FragmentsDropped(1) in said
    assert not any(isinstance(message, Fragment) for message in said)


def test_a_stream_that_is_left_while_an_item_is_on_its_way_sends_no_more() -> None:
    left, right = open_pair()
    stream = call(left, credit=3)
    carry_all(left, right)
    right.send_item(stream, large())
    right.send_item(stream, large())
    carry_one(right, left)
    left.cancel(stream)
    assert carry(left, right) == [CancelArrived(stream)]
    assert not any(isinstance(message, Fragment | Cancelled) for message in messages(right))
    right.answer_cancelled(stream)
    assert carry_all(left, right) == ([], [])
    assert left.caller.num_open == 0


def test_a_call_of_which_a_part_was_sent_never_started() -> None:
    left, right = open_pair()
    sent, on_its_way, behind = call(left), large_call(left), call(left)
    for _ in range(3):
        carry_one(left, right)
    lost, _ = left.lose()
    assert dict(lost) == {
        sent: CallFate.MAY_HAVE_RUN,
        on_its_way: CallFate.NEVER_STARTED,
        behind: CallFate.NEVER_STARTED,
    }
    assert not left.has_transfers


def test_our_goodbye_ends_all_transfers() -> None:
    left, right = open_pair()
    theirs = call(right)
    carry_all(left, right)
    large_call(left)
    left.answer_returned(theirs, large())
    carry_one(left, right)
    left.say_goodbye()
    assert messages(left) == [Goodbye()]
    left.receive(frame_of(FragmentsTaken(1)))  # was said before it was heard
    assert not left.has_outgoing
    assert not left.has_transfers


def test_the_goodbye_of_the_peer_ends_calls_to_it_and_lets_no_item_be_missed() -> None:
    left, right = open_pair()
    theirs = call(right, credit=2)
    carry_all(left, right)
    large_call(left)
    left.send_item(theirs, large())
    carry_one(left, right)
    left.receive(frame_of(Goodbye()))
    left.send_item(theirs, encode_value("after it"))
    said = messages(left)
    assert said.count(FragmentsDropped(1)) == 1
    assert {message.transfer_id for message in said if isinstance(message, Fragment)} == {2}
    assert not any(isinstance(message, Item) for message in said)
    assert dict(left.lose()[0]) == {1: CallFate.NEVER_STARTED}
    assert not left.has_transfers


def test_credit_for_a_stream_whose_call_is_on_its_way_is_not_lost() -> None:
    left, right = open_pair()
    call_id = large_call(left, credit=1)
    carry_one(left, right)
    left.grant(call_id, 2)
    _, [arrived, *_] = carry_all(left, right)
    assert isinstance(arrived, CallArrived)
    for _ in range(3):
        assert right.callee.has_credit(call_id)
        right.callee.spend(call_id)
    assert not right.callee.has_credit(call_id)


def test_a_call_with_a_limit_says_what_was_left_when_it_began() -> None:
    left, right = open_pair()
    left.call(CallKind.METHOD, "take", large(), deadline=10.0)
    arrived = None
    now = 4.0
    while arrived is None:
        carry(right, left)
        [frame] = decode_frames(packed(left.take_outgoing(now)))
        arrived, now = right.receive(frame), now + 1
    assert isinstance(arrived, CallArrived)
    assert arrived.call.timeout_s == 6.0


def test_what_has_been_sent_is_not_kept() -> None:
    left, _ = open_pair()
    value = large()
    [buffer] = value.buffers
    left.call(CallKind.METHOD, "take", value)
    left.take_outgoing()
    del value
    assert not any(isinstance(each, Outgoing | Encoded) for each in gc.get_referrers(buffer))


def test_a_fragment_says_whether_the_user_may_still_change_it() -> None:
    left, _ = open_pair()
    value = values.large(Encoded(b"", [bytearray(1000)]))
    left.call(CallKind.METHOD, "take", value)
    assert left.take_outgoing().is_unchanging, "the head of the frame"
    assert not left.take_outgoing().is_unchanging
    value.own(nullcontext(), lambda: None)
    assert left.take_outgoing().is_unchanging


def test_a_call_that_is_larger_than_the_peer_takes_is_settled_when_that_is_known() -> None:
    left, right = LinkCore(name="left"), LinkCore(name="right", max_value_bytes=500)
    too_large, small = large_call(left), call(left)
    [opened] = carry(right, left)
    assert isinstance(opened, Opened)
    assert opened.too_large == (too_large,)
    assert left.largest_value == 500
    assert isinstance(carry(left, right)[0], Opened)
    _, arrived = carry_all(left, right)
    assert ids(arrived) == []
    assert left.caller.num_open == 1
    right.answer_returned(small)


@pytest.mark.parametrize("limits", [(None, None), (None, 7), (7, None), (7, 9)])
def test_the_lower_limit_counts(limits: tuple[int | None, int | None]) -> None:
    left = LinkCore(name="left", max_value_bytes=limits[0])
    left.receive(frame_of(Hello(PROTOCOL_VERSION, 1, "right", 0, "", limits[1])))
    known = [limit for limit in limits if limit is not None]
    assert left.largest_value == (min(known) if known else None)


NESTED: list[Message] = [Fragment(1, 0, 10), Goodbye(), Grant(1, 1), FragmentsTaken(1)]


@pytest.mark.parametrize("message", NESTED, ids=lambda message: type(message).__name__)
def test_only_what_has_a_value_travels_in_fragments(message: Message) -> None:
    left, _ = open_pair()
    data = bytes(packed(Outgoing(message, NOTHING)))
    with pytest.raises(ProtocolError, match="in fragments"):
        left.receive(frame_of(Fragment(1, 0, len(data)), Encoded(b"", [data])))


def test_nor_do_several_frames_at_once_or_what_is_none() -> None:
    data = bytes(packed(Outgoing(Call(1, 0, "f", 0)))) * 2
    for content in (data, b"garbage, and more of that"):
        left, _ = open_pair()
        with pytest.raises(ProtocolError):
            left.receive(frame_of(Fragment(1, 0, len(content)), Encoded(b"", [content])))


def test_a_raised_value_may_be_large() -> None:
    left, right = open_pair()
    call_id = call(left)
    carry_all(left, right)
    right.answer_raised(call_id, REPORT, large())
    [answer], _ = carry_all(left, right)
    assert isinstance(answer, AnswerArrived)
    assert answer.frame.message == Raised(call_id, REPORT)
