"""Frames in fragments: whatever is cut is put together again, and whatever else comes is refused by name."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncparl.errors import ProtocolError
from asyncparl.protocol import fragments, pace
from asyncparl.protocol import owned as memory
from asyncparl.protocol.fragments import FRAME_ROOM_BYTES, MAX_TRANSFERS, Cutter, Joiner
from asyncparl.protocol.messages import Fragment
from asyncparl.protocol.owned import LARGE_BYTES, copy_into, new_memory, owned, to_own
from tests.protocol.strategies import few, many, peak_memory

SMALL = 10


@pytest.fixture(autouse=True, scope="module")
def small_fragments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragments, "FRAGMENT_BYTES", SMALL)
        patch.setattr(pace, "WINDOW_BYTES", 3 * SMALL)
        yield


frames = st.lists(st.binary(max_size=4 * SMALL), min_size=1, max_size=6).filter(any)


def joined(cutter: Cutter[list[bytes]], joiner: Joiner, dice: random.Random) -> list[bytes]:
    """What arrives of everything that is to be sent; the channel takes and brings at random."""
    arrived, under_way = [], deque[tuple[Fragment, list[bytes]]]()
    while cutter.is_ready or under_way:
        if cutter.is_ready and (not under_way or dice.random() < 0.5):
            _, (fragment, parts, _) = cutter.take(lambda transfer: transfer.key, 0.0)
            assert 0 < sum(map(len, parts)) <= SMALL
            under_way.append((fragment, [bytes(part) for part in parts]))
            assert sum(len(part) for _, parts in under_way for part in parts) < 4 * SMALL
        else:
            fragment, copies = under_way.popleft()
            whole = joiner.take(fragment, [memoryview(part) for part in copies])
            if whole is not None:
                arrived.append(bytes(whole))
            if fragment.asks:
                num_bytes = joiner.take_acknowledgement()
                cutter.acknowledged(num_bytes, 0.0)
    return arrived


@many
@given(st.lists(frames, max_size=2 * MAX_TRANSFERS), st.integers(0))
def test_any_frames_arrive_whole_however_they_take_turns(sent: list[list[bytes]], seed: int) -> None:
    cutter, joiner = Cutter[list[bytes]](), Joiner(None)
    for frame in sent:
        cutter.add(frame)
    arrived = joined(cutter, joiner, random.Random(seed))
    assert sorted(arrived) == sorted(b"".join(frame) for frame in sent)
    assert cutter.is_idle
    assert joiner.num_open == 0


def test_a_short_frame_does_not_wait_for_the_end_of_a_long_one() -> None:
    cutter = Cutter[list[bytes]]()
    cutter.add([b"l" * 1000])
    cutter.add([b"s" * SMALL])
    assert joined(cutter, Joiner(None), random.Random(1)) == [b"s" * SMALL, b"l" * 1000]


def test_no_more_is_on_its_way_than_the_window_allows() -> None:
    cutter = Cutter[list[bytes]]()
    cutter.add([b"x" * 1000])
    taken = 0
    while cutter.is_ready:
        cutter.take(lambda transfer: transfer.key, 0.0)
        taken += 1
    assert taken == 3
    cutter.acknowledged(SMALL, 0.0)
    assert cutter.is_ready


@pytest.mark.parametrize("num_bytes", [0, -1, SMALL + 1])
def test_what_was_not_on_its_way_cannot_be_taken(num_bytes: int) -> None:
    cutter = Cutter[list[bytes]]()
    cutter.add([b"x" * 1000])
    cutter.take(lambda transfer: transfer.key, 0.0)
    with pytest.raises(ProtocolError, match="on their way"):
        cutter.acknowledged(num_bytes, 0.0)


def test_who_is_dropped_before_his_turn_is_unknown_to_the_receiver() -> None:
    cutter = Cutter[list[bytes]]()
    transfers = [cutter.add([b"x" * 1000]) for _ in range(MAX_TRANSFERS + 2)]
    begun = cutter.take(lambda transfer: transfer.key, 0.0)[0]
    assert [cutter.drop(transfer) for transfer in transfers] == [transfer is begun for transfer in transfers]
    assert not cutter.is_ready
    assert not cutter.is_idle, "what was sent is not taken yet"
    cutter.acknowledged(SMALL, 0.0)
    assert cutter.is_idle


def begun(joiner: Joiner) -> Joiner:
    joiner.take(Fragment(1, 0, 100), [memoryview(b"x" * 10)])
    return joiner


LIES: dict[str, Callable[[Joiner], object]] = {
    "a gap": lambda joiner: joiner.take(Fragment(1, 11, 100), [memoryview(b"x")]),
    "an overlap": lambda joiner: joiner.take(Fragment(1, 9, 100), [memoryview(b"x")]),
    "the same again": lambda joiner: joiner.take(Fragment(1, 0, 100), [memoryview(b"x" * 10)]),
    "another size": lambda joiner: joiner.take(Fragment(1, 10, 101), [memoryview(b"x")]),
    "too much": lambda joiner: joiner.take(Fragment(1, 10, 100), [memoryview(b"x" * 91)]),
    "nothing": lambda joiner: joiner.take(Fragment(1, 10, 100), []),
    "less than nothing": lambda joiner: joiner.take(Fragment(1, -1, 100), [memoryview(b"x")]),
    "a beginning in the middle": lambda joiner: joiner.take(Fragment(2, 1, 100), [memoryview(b"x")]),
    "a frame without bytes": lambda joiner: joiner.take(Fragment(2, 0, 0), [memoryview(b"x")]),
    "a negative size": lambda joiner: joiner.take(Fragment(2, 0, -5), [memoryview(b"x")]),
    "an old number": lambda joiner: joiner.take(Fragment(0, 0, 100), [memoryview(b"x")]),
    "a size beyond the limit": lambda joiner: joiner.take(Fragment(2, 0, 1001 + FRAME_ROOM_BYTES), [memoryview(b"x")]),
    "the end of what never began": lambda joiner: joiner.drop(2),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_no_correct_peer_sends_is_refused(lie: str) -> None:
    joiner = begun(Joiner(1000))
    with pytest.raises(ProtocolError):
        LIES[lie](joiner)


def test_a_transfer_that_is_over_cannot_go_on_or_begin_again() -> None:
    for end in (
        lambda joiner: joiner.drop(1),
        lambda joiner: joiner.take(Fragment(1, 10, 100), [memoryview(b"x" * 90)]),
    ):
        for at in (0, 10):
            joiner = begun(Joiner(None))
            end(joiner)
            with pytest.raises(ProtocolError, match="is over"):
                joiner.take(Fragment(1, at, 100), [memoryview(b"x")])


def test_only_so_many_transfers_may_be_under_way() -> None:
    joiner = Joiner(None)
    for number in range(1, MAX_TRANSFERS + 1):
        joiner.take(Fragment(number, 0, 100), [memoryview(b"x")])
    with pytest.raises(ProtocolError, match=f"more than {MAX_TRANSFERS} frames"):
        joiner.take(Fragment(MAX_TRANSFERS + 1, 0, 100), [memoryview(b"x")])
    joiner.drop(3)
    joiner.take(Fragment(MAX_TRANSFERS + 1, 0, 100), [memoryview(b"x")])


@pytest.mark.parametrize("num_bytes", [2**62, 2**64 - 1])
def test_a_size_for_which_there_is_no_memory_is_said_to_be_that(num_bytes: int) -> None:
    with pytest.raises(MemoryError, match="no memory for a value of"):
        Joiner(None).take(Fragment(1, 0, num_bytes), [memoryview(b"x")])


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_an_announced_size_alone_costs_no_memory() -> None:
    before = resident_bytes()
    joiner = Joiner(None)
    for number in range(1, 5):
        joiner.take(Fragment(number, 0, 2 << 30), [memoryview(b"x")])
    assert resident_bytes() - before < 64 << 20


def test_what_was_dropped_is_free() -> None:
    def announce_and_drop() -> None:
        joiner = Joiner(None)
        for number in range(1, 100):
            joiner.take(Fragment(number, 0, 1 << 20), [memoryview(b"x")])
            joiner.drop(number)

    assert peak_memory(announce_and_drop) < 4 << 20


# --- what is read to its place ------------------------------------------------------------------------------------

HEADS = st.sampled_from([40, 64])


@many
@given(st.binary(min_size=1, max_size=400), st.lists(st.tuples(st.booleans(), st.integers(1, 90), HEADS), min_size=1))
def test_parts_that_are_read_to_their_place_are_joined_with_those_that_are_not(
    frame: bytes, cuts: list[tuple[bool, int, int]]
) -> None:
    joiner, at, whole = Joiner(None), 0, None
    for turn in range(len(frame)):
        in_place, size, head = cuts[turn % len(cuts)]
        part = frame[at : at + size]
        fragment = Fragment(1, at, len(frame))
        message = b"h" * head + part + b"p" * (-len(part) % 64)
        place = joiner.place(fragment, head, len(part), len(message)) if in_place else None
        assert (place is None) == (at == 0 or not in_place)
        arrived = memoryview(bytearray(len(message))) if place is None else place
        assert len(arrived) == len(message)
        arrived[:] = message
        whole = joiner.take(fragment, [arrived[head : head + len(part)]])
        at += len(part)
        if whole is not None:
            break
    assert whole is not None
    assert bytes(whole) == frame


@pytest.mark.parametrize(
    ("fragment", "head_bytes", "num_bytes", "padding"),
    [
        (Fragment(2, 10, 100), 64, 10, 0),
        (Fragment(1, 9, 100), 64, 10, 0),
        (Fragment(1, 11, 100), 64, 10, 0),
        (Fragment(1, 10, 101), 64, 10, 0),
        (Fragment(1, 10, 100), 65, 10, 0),
        (Fragment(1, 10, 100), 64, 91, 0),
        (Fragment(1, 10, 100), 64, 10, 64),
    ],
)
def test_only_what_comes_next_and_fits_is_read_to_its_place(
    fragment: Fragment, head_bytes: int, num_bytes: int, padding: int
) -> None:
    joiner = begun(Joiner(None))
    assert joiner.place(fragment, head_bytes, num_bytes, head_bytes + num_bytes + padding) is None
    assert joiner.place(Fragment(1, 10, 100), 64, 90, 64 + 90 + 38) is not None


fuzzed = st.builds(
    lambda number, at, size, data: (Fragment(number, at, size), data),
    st.integers(-1, 4),
    st.sampled_from([0, 1, 5, 10, -1, 2**63]),
    st.sampled_from([5, 10, 1, 0, -1, 2**64 - 1]),
    st.binary(max_size=6),
)


@many
@given(st.lists(fuzzed | st.integers(-1, 4)))
def test_any_fragments_are_taken_or_refused(script: list[tuple[Fragment, bytes] | int]) -> None:
    joiner = Joiner(1 << 20)
    try:
        for step in script:
            if isinstance(step, int):
                joiner.drop(step)
            elif (whole := joiner.take(step[0], [memoryview(step[1])])) is not None:
                assert len(whole) == step[0].size
            assert joiner.num_open <= MAX_TRANSFERS
    except ProtocolError:
        pass


# --- memory of our own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_bytes", [1, LARGE_BYTES, LARGE_BYTES + 1, 3 * LARGE_BYTES + 17])
def test_a_copy_in_pieces_is_the_same_and_stays_so(num_bytes: int) -> None:
    original = np.random.default_rng(1).integers(0, 256, num_bytes, np.uint8)
    expected = original.tobytes()
    copy = owned(memoryview(original))
    target = new_memory(num_bytes)
    copy_into(target, copy)
    original[:] = 0
    assert len(copy) == num_bytes
    assert b"".join(copy.pieces) == bytes(target) == expected


@few
@given(st.binary(min_size=1, max_size=50))
def test_bytes_that_nobody_may_change_can_be_copied_too(data: bytes) -> None:
    assert b"".join(owned(data).pieces) == data


@many
@given(st.binary(min_size=1, max_size=100), st.lists(st.integers(0, 30), max_size=60), st.integers(1, 20))
def test_what_is_sent_while_it_is_copied_is_as_it_was(data: bytes, script: list[int], piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "PIECE_BYTES", piece_bytes)
        users = bytearray(data)
        buffer = to_own(users)
        sent = b""
        for size in script:
            if size and not buffer.is_over:
                sent += buffer.take(size)
            elif not size:
                buffer.own_piece(nullcontext())
        while buffer.own_piece(nullcontext()):
            pass
        assert not buffer.is_foreign
        users[:] = bytes(len(users))
        while not buffer.is_over:
            sent += buffer.take(7)
        assert sent == data


def test_what_is_taken_while_a_piece_is_being_copied_is_not_sent_twice() -> None:
    class TakesMeanwhile:
        """A lock that somebody else had before, each time."""

        def __enter__(self) -> None:
            sent.append(bytes(buffer.take(3)))

        def __exit__(self, *_: object) -> None:
            pass

    sent = list[bytes]()
    buffer = to_own(b"0123456789")
    assert buffer.own_piece(TakesMeanwhile())
    assert sent == [b"012", b"345"]
    assert not buffer.is_foreign
    assert bytes(buffer.take(10)) == b"6789"
