"""Buffers that are in an arena instead of in their frame: what refers to them, and what comes back."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncparl.errors import ProtocolError
from asyncparl.protocol.events import MemoryReturned
from asyncparl.protocol.frames import Buffer, Frame, Lent, decode_frames, encode_frame
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.messages import GiveBack, Goodbye, Message, SharesMemory
from tests.protocol.pair import carry, frame_of, messages, open_pair
from tests.protocol.strategies import many
from tests.protocol.strategies import messages as any_messages

ARENA = memoryview(bytearray(range(256)) * 40)
NUM_BYTES = len(ARENA)


def borrow(offset: int, num_bytes: int) -> memoryview:
    """A view of the arena, as a transport gives it."""
    if num_bytes <= 0 or offset + num_bytes > NUM_BYTES:
        raise ProtocolError("beyond the arena")
    return ARENA[offset : offset + num_bytes]


lent = st.integers(0, NUM_BYTES - 1).flatmap(
    lambda offset: st.builds(Lent, st.just(offset), st.integers(1, NUM_BYTES - offset))
)
inline = st.sampled_from([0, 1, 63, 64, 65, 200]).flatmap(lambda n: st.binary(min_size=n, max_size=n))
mixed: st.SearchStrategy[list[Buffer | Lent]] = st.lists(lent | inline, max_size=5)
frames = st.builds(encode_frame, any_messages, st.binary(max_size=50), mixed).map(b"".join)


def content(buffer: Buffer | Lent) -> bytes:
    return bytes(borrow(*buffer) if isinstance(buffer, Lent) else buffer)


def frames_or_refusal(data: bytes) -> Sequence[Frame] | None:
    try:
        return decode_frames(memoryview(data), borrow)
    except ProtocolError:
        return None


@many
@given(any_messages, st.binary(max_size=50), mixed)
def test_buffers_in_the_arena_and_in_the_frame_arrive_in_order(
    message: Message, payload: bytes, buffers: list[Buffer | Lent]
) -> None:
    data = b"".join(encode_frame(message, payload, buffers))
    [frame] = decode_frames(memoryview(data), borrow)
    assert (frame.message, bytes(frame.payload)) == (message, payload)
    assert [bytes(buffer) for buffer in frame.buffers] == [content(buffer) for buffer in buffers]


def test_what_is_in_the_arena_is_not_in_the_frame() -> None:
    parts = encode_frame(Goodbye(), b"payload", [Lent(100, 5000), b"x" * 64])
    assert sum(map(len, parts)) < 256
    [frame] = decode_frames(memoryview(bytearray(b"".join(parts))), borrow)
    assert frame.buffers[0].obj is ARENA.obj


def test_the_layout_is_the_documented_one() -> None:
    envelope = msgspec.msgpack.encode(Goodbye())
    head = struct.pack("<2sBBHHII", b"aP", 1, 1, 2, 0, len(envelope), 3)
    table = struct.pack("<QQQQ", 5000, 2, 100, 2**64 - 1)
    start = head + table + envelope + b"pay"
    expected = start + bytes(-len(start) % 64) + b"in" + bytes(62)
    assert b"".join(encode_frame(Goodbye(), b"pay", [Lent(100, 5000), b"in"])) == expected


@many
@given(frames, st.integers(0))
def test_a_truncated_frame_is_refused_unless_only_padding_is_missing(data: bytes, cut: int) -> None:
    kept = data[: cut % len(data)]
    missing = data[len(kept) :]
    assert frames_or_refusal(kept) is None or missing == bytes(len(missing))


@many
@given(frames, st.integers(0), st.integers(1, 255))
def test_a_flipped_byte_gives_frames_or_a_refusal(data: bytes, place: int, flipped_bits: int) -> None:
    flipped = bytearray(data)
    flipped[place % len(data)] ^= flipped_bits
    frames_or_refusal(bytes(flipped))


headers = st.builds(
    lambda num_buffers, rest: struct.pack("<2sBBHHII", b"aP", 1, 1, num_buffers, 0, 1, 0) + rest,
    st.integers(0, 3) | st.just(0xFFFF),
    st.binary(max_size=100),
)


@many
@given(headers)
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    frames_or_refusal(data)


@pytest.mark.parametrize("place", [Lent(NUM_BYTES, 1), Lent(0, NUM_BYTES + 1), Lent(5, 0), Lent(2**64 - 2, 2**63)])
def test_a_reference_to_what_is_not_there_is_refused(place: Lent) -> None:
    data = b"".join(encode_frame(Goodbye(), b"", [place]))
    assert frames_or_refusal(data) is None


def test_a_reference_on_a_link_without_an_arena_is_refused() -> None:
    data = b"".join(encode_frame(Goodbye(), b"", [Lent(0, 10)]))
    with pytest.raises(ProtocolError, match="this link has none"):
        decode_frames(memoryview(data))


# --- between two cores ------------------------------------------------------------------------------------------


def test_frames_may_refer_to_the_arena_once_the_peer_has_said_that_it_sees_it() -> None:
    left, right = LinkCore(name="left"), LinkCore(name="right")
    left.share_memory()
    assert [core.may_refer for core in (left, right)] == [False, False]
    carry(left, right)
    assert [core.may_refer for core in (left, right)] == [False, True]


def test_what_is_given_back_arrives() -> None:
    left, right = open_pair()
    left.give_back([0, 4096])
    assert carry(left, right) == [MemoryReturned([0, 4096])]


def test_nothing_is_given_back_after_the_goodbye_or_the_loss() -> None:
    for end in (LinkCore.say_goodbye, LinkCore.lose):
        left, _ = open_pair()
        end(left)
        left.give_back([0])
        assert GiveBack([0]) not in messages(left)


@pytest.mark.parametrize("message", [GiveBack([0]), SharesMemory()])
def test_nothing_of_memory_comes_before_the_hello(message: Message) -> None:
    with pytest.raises(ProtocolError, match="while the link is opening"):
        LinkCore(name="left").receive(frame_of(message))
