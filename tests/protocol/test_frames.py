"""Frames: whatever goes in comes out, and whatever comes in from a stranger is refused by name."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncparl.errors import ProtocolError, SerializationError
from asyncparl.protocol.frames import Buffer, Frame, decode_frames, encode_frame
from asyncparl.protocol.messages import Cancel, ErrorReport, Goodbye, Hello, Message, Raised, Returned
from tests.protocol.strategies import few, instances_of, many, messages, peak_memory

payloads = st.binary(max_size=200)
buffers = st.lists(st.sampled_from([0, 1, 63, 64, 65, 200]).flatmap(lambda n: st.binary(min_size=n, max_size=n)))
large_frames = st.builds(encode_frame, messages, payloads, buffers).map(b"".join)
small_frames = st.builds(encode_frame, messages, payloads).map(b"".join)
transport_messages = large_frames | st.lists(small_frames, min_size=1, max_size=3).map(b"".join)


def arrived(parts: Sequence[Buffer]) -> memoryview:
    """A transport message as the receiver holds it."""
    return memoryview(bytearray(b"".join(parts)))


def frames_or_refusal(data: bytes) -> list[Frame] | None:
    """The frames, or None if they were refused with a `ProtocolError`."""
    try:
        frames = decode_frames(memoryview(data))
    except ProtocolError:
        return None
    handed_out = sum(len(frame.payload) + sum(map(len, frame.buffers)) for frame in frames)
    assert handed_out <= len(data)
    return frames


def frame_by_hand(envelope: bytes, payload: bytes = b"", *, version: int = 1, **announced: int) -> bytes:
    """A frame without buffers as the layout in `frames.py` describes it; `announced` sizes may lie."""
    sizes = {"num_buffers": 0, "envelope_len": len(envelope), "payload_len": len(payload)} | announced
    head = struct.pack("<2sBBHHII", b"aP", version, 0, sizes["num_buffers"], 0, *list(sizes.values())[1:])
    frame = head + envelope + payload
    return frame + bytes(-len(frame) % 8)


# --- there and back ---------------------------------------------------------------------------------------------


@many
@given(messages, payloads, buffers)
def test_any_message_with_payload_and_buffers_round_trips(
    message: Message, payload: bytes, buffers: list[bytes]
) -> None:
    [frame] = decode_frames(arrived(encode_frame(message, payload, buffers)))
    assert (frame.message, frame.payload, list(frame.buffers)) == (message, payload, buffers)
    assert type(frame.message) is type(message)


@few
@given(st.lists(st.tuples(messages, payloads), min_size=1, max_size=5))
def test_frames_without_buffers_may_share_a_transport_message(sent: list[tuple[Message, bytes]]) -> None:
    parts = [part for message, payload in sent for part in encode_frame(message, payload)]
    assert [(frame.message, frame.payload) for frame in decode_frames(arrived(parts))] == sent


@few
@given(messages, payloads, buffers)
def test_buffers_are_passed_on_uncopied_and_start_at_multiples_of_64(
    message: Message, payload: bytes, buffers: list[bytes]
) -> None:
    originals = [bytearray(buffer) for buffer in buffers]
    starts = {}
    offset = 0
    for part in encode_frame(message, payload, originals):
        starts[id(part)] = offset
        offset += len(part)
    assert [starts[id(buffer)] % 64 for buffer in originals] == [0] * len(originals)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_buffer_may_be_of_any_bytes_like_type(kind: Any) -> None:
    [frame] = decode_frames(arrived(encode_frame(Goodbye(), b"", [kind(b"x" * 70), kind(b"y")])))
    assert list(frame.buffers) == [b"x" * 70, b"y"]


@pytest.mark.parametrize("buffers", [[], [b"buffer"]], ids=["small", "with a buffer"])
def test_what_is_decoded_are_views_of_the_received_memory(buffers: list[bytes]) -> None:
    view = arrived(encode_frame(Goodbye(), b"payload", buffers))
    [frame] = decode_frames(view)
    for part in (frame.payload, *frame.buffers):
        assert part.obj is view.obj
        assert not part.readonly


def test_the_bytes_are_those_of_the_layout() -> None:
    envelope = msgspec.msgpack.encode([3, 258, True])
    assert b"".join(encode_frame(Returned(258, True), b"pay")) == frame_by_hand(envelope, b"pay")

    # with buffers: their table after the header, everything padded to 64
    head = struct.pack("<2sBBHHII", b"aP", 1, 0, 2, 0, len(envelope), 3) + struct.pack("<QQ", 65, 1)
    expected = (head + envelope + b"pay").ljust(64, b"\0") + (b"x" * 65).ljust(128, b"\0") + b"y".ljust(64, b"\0")
    assert b"".join(encode_frame(Returned(258, True), b"pay", [b"x" * 65, b"y"])) == expected


# --- other versions ---------------------------------------------------------------------------------------------


@few
@given(st.data())
def test_fields_that_a_newer_peer_added_at_the_end_are_ignored(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(get_args(Message)))
    message = data.draw(instances_of(kind))
    added = data.draw(st.lists(st.none() | st.integers(0, 9) | st.text() | st.lists(st.text(), max_size=2), min_size=1))
    envelope = msgspec.msgpack.encode(msgspec.to_builtins(message) + added)
    [frame] = decode_frames(memoryview(frame_by_hand(envelope, b"payload")))
    assert (frame.message, frame.payload) == (message, b"payload")


def test_fields_with_a_default_may_be_absent() -> None:
    [frame] = decode_frames(memoryview(frame_by_hand(msgspec.msgpack.encode([3, 7]))))
    assert frame.message == Returned(7, streamed=False)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", r"^not an asyncparl frame: it starts with b'HT'$"),
        (frame_by_hand(b"", version=2), r"^frame version 2; this side speaks 1$"),
        (frame_by_hand(msgspec.msgpack.encode([99, 1])), r"^a frame's envelope is no known message: .*99"),
        (frame_by_hand(msgspec.msgpack.encode([2])), r"^a frame's envelope is no known message: .*length"),
        (frame_by_hand(msgspec.msgpack.encode([2, "1"])), r"^a frame's envelope is no known message: .*`int`"),
        (frame_by_hand(b"\x94\x00\x01\x01\xa1\xff\x01"), r"^a frame's envelope is no known message: "),
        (b"aP\x01", r"^3 bytes are too few for a frame$"),
        (b"", r"^an empty transport message$"),
    ],
)
def test_the_error_names_what_is_wrong(data: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode_frames(memoryview(data))


# --- strangers --------------------------------------------------------------------------------------------------

headers = st.builds(
    lambda num_buffers, envelope_len, payload_len, rest: (
        struct.pack("<2sBBHHII", b"aP", 1, 0, num_buffers, 0, envelope_len, payload_len) + rest
    ),
    st.integers(0, 5) | st.just(0xFFFF),
    st.integers(0, 20) | st.just(0xFFFFFFFF),
    st.integers(0, 20) | st.just(0xFFFFFFFF),
    st.binary(max_size=200),
)
envelopes = st.builds(frame_by_hand, st.binary(max_size=50))


@many
@given(st.binary() | headers | envelopes)
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    frames_or_refusal(data)


@many
@given(large_frames, st.integers(0))
def test_a_truncated_frame_is_refused_unless_only_padding_is_missing(data: bytes, cut: int) -> None:
    kept = data[: cut % len(data)]
    frames = frames_or_refusal(kept)
    missing = data[len(kept) :]
    assert frames is None or (frames == decode_frames(memoryview(data)) and missing == bytes(len(missing)))


@many
@given(transport_messages, st.integers(0), st.integers(1, 255))
def test_a_flipped_byte_gives_frames_or_a_refusal(data: bytes, place: int, flipped_bits: int) -> None:
    flipped = bytearray(data)
    flipped[place % len(data)] ^= flipped_bits
    frames_or_refusal(bytes(flipped))


@pytest.mark.parametrize(
    "data",
    [
        frame_by_hand(b"", envelope_len=0xFFFFFFFF),
        frame_by_hand(b"", payload_len=0xFFFFFFFF),
        frame_by_hand(b"", num_buffers=0xFFFF),
        frame_by_hand(struct.pack("<Q", 2**63) + b"\x91\x08", num_buffers=1, envelope_len=2),
        frame_by_hand(b"\x94\x00\x01\x01\xdb\xff\xff\xff\xff"),  # a Hello with a name of 4 GiB
        frame_by_hand(b"\xdd\xff\xff\xff\xff\x08"),  # a Goodbye with 4 Gi fields
        frame_by_hand(b"\x92\x08\xdd\xff\xff\xff\xff"),  # an unknown field: a list of 4 Gi
        frame_by_hand(b"\x92\x08" + b"\x91" * 100_000),  # an unknown field, nested 100,000 deep
    ],
)
def test_nothing_is_allocated_by_an_announced_size(data: bytes) -> None:
    assert frames_or_refusal(data) is None
    assert peak_memory(lambda: frames_or_refusal(data)) < 20_000


@few
@given(st.binary() | headers | envelopes | transport_messages)
def test_memory_grows_with_what_arrived_only(data: bytes) -> None:
    frames_or_refusal(data)
    assert peak_memory(lambda: frames_or_refusal(data)) < 20_000 + 50 * len(data)


# --- what no frame can hold -------------------------------------------------------------------------------------


def test_more_buffers_than_a_frame_can_number_are_an_error_of_the_value() -> None:
    assert len(encode_frame(Goodbye(), b"", [b""] * 65_535)) == 65_536
    with pytest.raises(SerializationError, match="65536 buffers"):
        encode_frame(Goodbye(), b"", [b""] * 65_536)


class Enormous(bytes):
    """Says that it is as large as no test can afford."""

    num_bytes = 0

    def __len__(self) -> int:
        return self.num_bytes


def test_the_length_of_a_payload_has_48_bits() -> None:
    payload = Enormous()
    payload.num_bytes = (5 << 32) + 7
    [head, *_] = encode_frame(Goodbye(), payload)
    with pytest.raises(ProtocolError, match=f"announces {len(head) + payload.num_bytes} bytes"):
        decode_frames(memoryview(head))
    payload.num_bytes = 1 << 48
    with pytest.raises(SerializationError, match="281474976710656 bytes"):
        encode_frame(Goodbye(), payload)


def test_a_long_payload_is_passed_on_as_it_is() -> None:
    payload = b"p" * 100_000
    for buffers in ([], [b"b" * 70]):
        parts = encode_frame(Goodbye(), payload, buffers)
        assert any(part is payload for part in parts)
        [frame] = decode_frames(arrived(parts))
        assert (frame.payload, list(frame.buffers)) == (payload, buffers)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Hello(1, 1, "a\udcff", 2), Hello(1, 1, "a\\udcff", 2)),
        (
            Raised(1, ErrorReport("OSError", "no \ud800 here", "tb", "é")),
            Raised(1, ErrorReport("OSError", "no \\ud800 here", "tb", "é")),
        ),
    ],
)
def test_text_that_utf_8_cannot_express_is_escaped(message: Message, expected: Message) -> None:
    [frame] = decode_frames(arrived(encode_frame(message)))
    assert frame.message == expected


def test_payload_and_buffers_may_be_longer_than_65535_bytes() -> None:
    [frame] = decode_frames(arrived(encode_frame(Cancel(1), b"p" * 70_000, [b"b" * 70_000])))
    assert (len(frame.payload), len(frame.buffers[0])) == (70_000, 70_000)
    [frame] = decode_frames(arrived(encode_frame(Cancel(1), b"p" * 70_000)))
    assert len(frame.payload) == 70_000
