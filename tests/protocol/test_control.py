"""What a driver and a node say to each other: it round-trips, and nothing else is understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncparl.errors import ProtocolError
from asyncparl.protocol.control import Answer, Request, decode_answer, decode_request, encode_control
from asyncparl.protocol.node_messages import ActorOutput, ActorStarted, ShutDown, StartActor, StopActor
from asyncparl.protocol.tickets import SignedLease
from asyncparl.protocol.values import NOTHING, encode_value
from tests.protocol.strategies import few, instances_of, many, peak_memory

requests = st.one_of([instances_of(kind) for kind in get_args(Request)])
answers = st.one_of([instances_of(kind) for kind in get_args(Answer)])

Decode = Callable[[bytes], Any]
decoders = pytest.mark.parametrize("decode", [decode_request, decode_answer])


@many
@given(requests)
def test_every_request_round_trips(request: Request) -> None:
    payload, buffers = encode_control(request)
    assert not buffers
    assert decode_request(payload) == request


@many
@given(answers)
def test_every_answer_and_event_round_trips(answer: Any) -> None:
    payload, buffers = encode_control(answer)
    assert not buffers
    assert decode_answer(payload) == answer


def test_an_empty_answer_is_none() -> None:
    assert decode_answer(NOTHING.payload) is None


@pytest.mark.parametrize("added", [{"new": 1}, {"new": [{"deeper": "x"}], "newer": None}])
def test_fields_that_a_newer_peer_added_are_ignored(added: dict[str, Any]) -> None:
    for struct, decode in ((StopActor("a", 1.0), decode_request), (ActorStarted("ipc:///a", 1), decode_answer)):
        assert decode(msgspec.msgpack.encode(msgspec.to_builtins(struct) | added)) == struct


def test_a_field_with_a_default_may_be_absent() -> None:
    payload = msgspec.msgpack.encode({"type": "ActorOutput", "actor_id": "a", "is_error": False, "lines": []})
    assert decode_answer(payload) == ActorOutput("a", False, [], num_dropped=0)


@decoders
@pytest.mark.parametrize(
    "payload",
    [
        b"\x80",
        b"\xff",
        msgspec.msgpack.encode({"type": "FormatDisk"}),
        msgspec.msgpack.encode({"type": "StopActor", "actor_id": 5, "grace_s": 1.0}),
        msgspec.msgpack.encode({"type": "ActorStarted", "address": "a"}),
        msgspec.msgpack.encode({"type": "ActorStarted", "address": "a", "pid": "1"}),
        b"\x81\xa4type\xa9StopActo\xff",  # text that is no UTF-8
        b"\x81\xa1x" + b"\x91" * 100_000,
        encode_value({"a": 1}).payload,
        encode_value({1}).payload,  # a pickle
        encode_control(ShutDown(1.0)).payload + b"\x00",
    ],
)
def test_what_is_no_control_message_is_refused(payload: bytes, decode: Decode) -> None:
    with pytest.raises(ProtocolError, match=r"^not (a request to|the answer of) a node or a master: "):
        decode(payload)


def test_a_request_is_no_answer_and_the_other_way_round() -> None:
    with pytest.raises(ProtocolError, match="StartActor"):
        decode_answer(encode_control(StartActor("a", "Simulator#1", SignedLease(b"l", b"s"))).payload)
    with pytest.raises(ProtocolError, match="ActorStarted"):
        decode_request(encode_control(ActorStarted("ipc:///a", 1)).payload)


def test_an_empty_request_is_refused() -> None:
    with pytest.raises(ProtocolError, match="truncated"):
        decode_request(b"")


@decoders
@many
@given(st.data())
def test_damaged_control_messages_are_read_or_refused(decode: Decode, data: st.DataObject) -> None:
    payload = bytearray(encode_control(data.draw(requests | answers)).payload)
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    kept = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    for damaged in (bytes(payload), kept):
        try:
            decode(damaged)
        except ProtocolError:
            pass


@decoders
@few
@given(garbage=st.binary())
def test_garbage_is_read_or_refused(decode: Decode, garbage: bytes) -> None:
    try:
        decode(garbage)
    except ProtocolError:
        pass


@decoders
@pytest.mark.parametrize(
    "payload",
    [
        b"\x82\xa4type\xabActorOutput\xa5lines\xdd\xff\xff\xff\xff",  # a list of 4 Gi lines
        b"\x82\xa4type\xa9StopActor\xa8actor_id\xdb\xff\xff\xff\xff",  # a text of 4 GiB
        b"\xdf\xff\xff\xff\xff",
    ],
)
def test_nothing_is_allocated_by_an_announced_size(payload: bytes, decode: Decode) -> None:
    def refused() -> None:
        with pytest.raises(ProtocolError):
            decode(payload)

    refused()  # whatever is cached is now
    assert peak_memory(refused) < 20_000
