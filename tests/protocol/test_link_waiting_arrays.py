"""The user may change an array as soon as the call that carries it was made."""

from __future__ import annotations

from asyncparl.protocol.events import CallArrived
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.messages import CallKind, Returned
from asyncparl.protocol.values import Encoded
from tests.protocol.pair import call, carry, frame_of, open_pair, taken


def value_with(memory: bytearray) -> Encoded:
    return Encoded(b"", [memory])


def test_the_arrays_of_a_call_that_waits_for_room_may_be_changed_at_once() -> None:
    left, _ = open_pair(window=1)
    call(left)
    taken(left)
    memory = bytearray(b"before")
    left.call(CallKind.METHOD, "sample", value_with(memory))
    memory[:] = b"after!"
    left.receive(frame_of(Returned(1)))
    assert left.take_outgoing().value.buffers == [b"before"]


def test_the_arrays_of_a_call_that_waits_for_the_hello_may_be_changed_at_once() -> None:
    left, right = LinkCore(name="left"), LinkCore(name="right")
    memory = bytearray(b"before")
    left.call(CallKind.METHOD, "sample", value_with(memory))
    memory[:] = b"after!"
    carry(right, left)
    [_, arrived] = carry(left, right)
    assert isinstance(arrived, CallArrived)
    assert arrived.frame.buffers[0] == b"before"


def test_a_call_that_can_leave_at_once_is_not_copied() -> None:
    left, _ = open_pair()
    memory = bytearray(b"before")
    left.call(CallKind.METHOD, "sample", value_with(memory))
    [outgoing] = taken(left)
    assert outgoing.value.buffers[0] is memory


def test_what_a_full_channel_refuses_is_copied_and_later_messages_too() -> None:
    left, _ = open_pair()
    memories = [bytearray(b"before") for _ in range(4)]

    def call_with(memory: bytearray) -> None:
        left.call(CallKind.METHOD, "sample", value_with(memory))

    call_with(memories[0])
    call_with(memories[1])
    left.detach_outgoing()
    memories[0][:] = memories[1][:] = b"after!"

    sent = [left.take_outgoing()]
    call_with(memories[2])
    left.detach_outgoing()
    memories[2][:] = b"after!"

    sent.append(left.take_outgoing())
    sent.append(left.take_outgoing())
    call_with(memories[3])
    left.detach_outgoing()
    memories[3][:] = b"after!"
    assert left.next_outgoing.value.buffers == [b"before"]
    sent.append(left.take_outgoing())
    assert [outgoing.value.buffers for outgoing in sent] == [[b"before"]] * 4


def test_what_is_detached_already_is_not_copied_again() -> None:
    left, _ = open_pair()
    left.call(CallKind.METHOD, "sample", value_with(bytearray(b"before")))
    left.detach_outgoing()
    [copy] = left.next_outgoing.value.buffers
    left.detach_outgoing()
    assert left.take_outgoing().value.buffers[0] is copy
