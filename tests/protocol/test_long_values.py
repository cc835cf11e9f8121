"""Long `bytes`, texts and `bytearray`: they are not copied to be sent, and arrive as what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncparl.protocol import values
from asyncparl.protocol.frames import decode_frames, encode_frame
from asyncparl.protocol.messages import Returned
from asyncparl.protocol.owned import LARGE_BYTES, Owned, in_one_piece, new_bytes, utf8_of
from asyncparl.protocol.values import decode_value, encode_value, large
from tests.protocol.strategies import WRAPPINGS, Batch, peak_memory, received, travel, wrapped

LONG = 100_000

THINGS: dict[str, Any] = {
    "bytes": b"b" * LONG,
    "bytes of 5 MB": bytes(range(250)) * 20_000,
    "a text": "t" * LONG,
    "a text of 5 MB": "text!" * 1_000_000,
    "a text that is not ASCII": "\u00e4\u6f22\U0001f600" * LONG,
    "a text that UTF-8 cannot express": "\udc80" * LONG,
    "a bytearray": bytearray(b"a" * LONG),
    "a bytearray of 5 MB": bytearray(range(250)) * 20_000,
}
things = pytest.mark.parametrize("thing", THINGS.values(), ids=list(THINGS))


@wrapped
@things
def test_long_things_arrive_as_they_were(thing: Any, wrap: Any, unwrap: Any) -> None:
    encoded = encode_value(wrap(thing))
    [frame] = decode_frames(memoryview(bytearray(b"".join(encode_frame(Returned(1), *encoded)))))
    for got in (unwrap(travel(wrap(thing))), unwrap(decode_value(frame.payload, frame.buffers))):
        assert type(got) is type(thing)
        assert got == thing


@pytest.mark.parametrize("length", [values._LONG_BYTES - 1, values._LONG_BYTES, LARGE_BYTES, LARGE_BYTES + 1])
def test_so_do_those_that_are_just_long_enough(length: int) -> None:
    for thing in (b"x" * length, "x" * length, "\u00e4" * length, bytearray(length)):
        assert travel([thing, {"a": (thing,)}]) == [thing, {"a": (thing,)}]


def test_long_bytes_are_sent_from_where_they_are() -> None:
    data = b"x" * LONG
    for value in (data, [data], {"a": (1, data)}):
        [buffer] = encode_value(value).buffers
        assert buffer is data
        [buffer] = encode_value(value).detach().buffers
        assert buffer is data


@wrapped
def test_encoding_8_mb_of_bytes_allocates_next_to_nothing(wrap: Any, unwrap: Any) -> None:
    value = wrap(b"x" * 8_000_000)
    assert peak_memory(lambda: encode_value(value)) < 200_000


@pytest.mark.parametrize("wrap", [wrap for wrap, _ in WRAPPINGS if wrap is not Batch])  # a pickle has a copy of a text
def test_so_does_a_text(wrap: Any) -> None:
    value = wrap("x" * 8_000_000)
    assert peak_memory(lambda: encode_value(value)) < 200_000


def test_bytes_deep_in_a_pickle_are_not_copied_either() -> None:
    data = b"x" * (LARGE_BYTES + 1)
    payload = encode_value(Batch({"deep": [data, 7]})).payload
    assert isinstance(payload, Owned)
    assert any(piece is data for piece in payload.pieces)


def test_a_bytearray_is_followed_until_it_is_detached() -> None:
    for thing in (bytearray(LONG), bytearray(LARGE_BYTES + 1)):
        encoded = encode_value([thing])
        detached = encoded.detach()
        thing[0] = 7
        assert decode_value(*received(encoded))[0][0] == 7
        assert decode_value(*received(detached))[0][0] == 0


def test_what_arrives_does_not_change_with_the_memory_it_came_in() -> None:
    for length in (LONG, 3 * LARGE_BYTES + 5):
        encoded = encode_value([b"x" * length, "x" * length, bytearray(b"x" * length)])
        payload, buffers = received(encoded)
        made = decode_value(payload, buffers)
        for buffer in buffers:
            buffer[:] = b"y" * len(buffer)
        assert made == [b"x" * length, "x" * length, bytearray(b"x" * length)]


def test_the_same_bytearray_twice_arrives_as_one() -> None:
    thing = bytearray(LONG)
    first, second = travel([thing, thing])
    assert first is second


def test_more_than_a_frame_has_room_for_stay_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MAX_BUFFERS", 3)
    value = [b"b" * LONG, "t" * LONG, np.zeros(LONG), b"c" * LONG, "u" * LONG]
    encoded = encode_value(value)
    assert len(encoded.buffers) == 3
    got = decode_value(*received(encoded))
    assert [len(part) for part in got] == [LONG] * 5
    assert got[3:] == value[3:]


def test_a_pickle_of_many_small_things_is_whole() -> None:
    value = Batch([{"number": i, "name": f"name {i}"} for i in range(100_000)])
    encoded = encode_value(value)
    assert len(encoded.payload) > LARGE_BYTES
    assert travel(value) == value


@pytest.mark.parametrize("length", [0, 1, LARGE_BYTES, LARGE_BYTES + 1, 2 * LARGE_BYTES + 4097])
def test_bytes_are_made_of_any_memory(length: int) -> None:
    source = np.random.default_rng(1).integers(0, 256, length, np.uint8)
    made = new_bytes(memoryview(source))
    expected = source.tobytes()
    source[:] = 0
    assert type(made) is bytes
    assert made == expected
    assert hash(made) == hash(expected)


def test_a_value_can_be_sent_in_fragments_more_than_once() -> None:
    encoded = encode_value([Batch(b"x" * (LARGE_BYTES + 1)), "t" * (LARGE_BYTES + 1), np.ones(LARGE_BYTES)]).detach()
    for value in (encoded, encode_value(["t" * (LARGE_BYTES + 1), b"b" * LONG, np.ones(LARGE_BYTES)]).detach()):
        sizes = []
        for _ in range(2):
            sent = large(value)
            sizes.append(sent.num_bytes)
            for part in (sent.payload, *sent.buffers):
                while isinstance(part, Owned) and not part.is_over:
                    part.take(1 << 20)
        assert sizes == [value.num_bytes] * 2
        assert len(b"".join(encode_frame(Returned(1), *value))) > value.num_bytes


def test_a_text_lives_as_long_as_what_is_sent_of_it() -> None:
    sent = utf8_of("".join(["text!"] * 1_000_000))
    assert isinstance(sent, Owned)
    assert bytes(in_one_piece(sent)) == b"text!" * 1_000_000
