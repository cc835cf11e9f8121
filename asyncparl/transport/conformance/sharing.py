"""Memory that both ends see: what is lent arrives in place, and comes back."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from asyncparl.errors import ProtocolError
from asyncparl.transport.arena import Arena
from asyncparl.transport.conformance.harness import Transport, channels, connect, expect, expect_error, pattern

_HALF = 1 << 20
_BLOCK = 1 << 16


@asynccontextmanager
async def _arenas(transport: Transport) -> AsyncIterator[list[tuple[Arena, Arena]]]:
    """Both ways: who lends, and who borrows. None where the transport has no arenas."""
    with transport.listen(1 << 20) as listener:
        dialed, accepted = await connect(transport, listener, 1 << 20, _HALF)
        with dialed, accepted:
            if dialed.arena is None or accepted.arena is None:
                yield []
            else:
                yield [(dialed.arena, accepted.arena), (accepted.arena, dialed.arena)]


def _lend(lender: Arena, data: bytes) -> int:
    offset = lender.lend(data)
    assert offset is not None, "there is room"
    return offset


def _fill(lender: Arena) -> list[int]:
    offsets = []
    while (offset := lender.lend(bytes(_BLOCK))) is not None:
        offsets.append(offset)
    return offsets


async def check_there_is_an_arena_if_the_dialer_wants_one(transport: Transport) -> None:
    async with _arenas(transport) as pairs:
        expect(bool(pairs) == transport.shares, "both ends have an arena, or none")
        expect(all(arena.num_bytes == _HALF for pair in pairs for arena in pair), "it has the size that was asked for")
    async with channels(transport) as pair:
        expect(all(channel.arena is None for channel in pair), "who asks for no arena gets none")


async def check_what_is_lent_is_seen_by_the_peer(transport: Transport) -> None:
    async with _arenas(transport) as pairs:
        for lender, borrower in pairs:
            for size in (1, 4096, 4097, 100_000):
                data = pattern(size)[:size]
                expect(borrower.borrow(_lend(lender, data), size) == data, f"{size} bytes are seen as they were lent")


async def check_what_is_lent_is_a_copy(transport: Transport) -> None:
    async with _arenas(transport) as pairs:
        for lender, borrower in pairs:
            data = bytearray(_BLOCK)
            offset = lender.lend(memoryview(data).cast("d"))  # type: ignore[arg-type]
            data[:] = b"\xff" * _BLOCK
            expect(offset is not None and borrower.borrow(offset, _BLOCK) == bytes(_BLOCK), "what was lent is a copy")


async def check_borrowed_views_are_writable_and_outlive_the_channel(transport: Transport) -> None:
    views = []
    async with _arenas(transport) as pairs:
        for lender, borrower in pairs:
            for number in range(3):
                view = borrower.borrow(_lend(lender, bytes([number]) * _BLOCK), _BLOCK)
                expect(view.format == "B" and view.ndim == 1 and not view.readonly, "a view is of bytes, and writable")
                views.append((view, number))
    del pairs
    for view, number in views:
        expect(
            view == bytes([number]) * _BLOCK, "a view lives longer than its channel, and shares memory with no other"
        )
        view[:] = b"\xee" * _BLOCK


async def check_a_block_is_returned_when_its_last_view_dies_in_any_thread(transport: Transport) -> None:
    async with _arenas(transport) as pairs:
        for lender, borrower in pairs:
            offset = _lend(lender, bytes(_BLOCK))
            kept = [memoryview(borrower.borrow(offset, _BLOCK))[10:20].cast("H")]
            gc.collect()
            expect(borrower.take_returns() == [], "what is made from a view keeps the block")
            thread = threading.Thread(target=kept.clear)
            thread.start()
            await trio.to_thread.run_sync(thread.join)
            expect(borrower.take_returns() == [offset], "the last view has died")
            expect(borrower.take_returns() == [], "a block is returned once")
            lender.take_back(offset)
            expect(lender.num_in_use == 0, "the block is free again")


async def check_a_full_arena_lends_nothing_and_waits_for_nobody(transport: Transport) -> None:
    async with _arenas(transport) as pairs:
        for lender, _ in pairs:
            offsets = _fill(lender)
            expect(len(offsets) == _HALF // _BLOCK, "all of the half can be lent")
            expect(lender.reserve(1) is None, "there is no room to make something in place, either")
            lender.take_back(offsets[3])
            expect(lender.lend(bytes(_BLOCK + 1)) is None, "what is too large for the room gets none")
            expect(lender.lend(bytes(_BLOCK)) == offsets[3], "what was taken back is used again")


async def check_what_is_not_returned_is_never_used_again(transport: Transport) -> None:
    async with _arenas(transport) as pairs:
        for lender, borrower in pairs:
            views = [borrower.borrow(offset, _BLOCK) for offset in _fill(lender)]
            for index, view in enumerate(views):
                view[:] = bytes([index]) * _BLOCK
            kept = views[::2]
            del views[1::2], view
            for offset in borrower.take_returns():
                lender.take_back(offset)
            expect(len(_fill(lender)) == len(kept), "there is room for as many as have been returned")
            expect(
                all(view == bytes([2 * index]) * _BLOCK for index, view in enumerate(kept)),
                "the others stay as they are",
            )


async def check_an_end_knows_when_there_is_much_to_return(transport: Transport) -> None:
    async with _arenas(transport) as pairs:
        for lender, borrower in pairs:
            for _ in range(3):
                small = _lend(lender, bytes(_BLOCK // 2))
                views = [borrower.borrow(small, _BLOCK // 2)]
                expect(not borrower.has_much_to_return(), "what is looked at is not to be returned")
                views.clear()
                expect(not borrower.has_much_to_return(), "little can wait for something else to tell")
                views = [borrower.borrow(offset, _BLOCK) for offset in _fill(lender)]
                expect(not borrower.has_much_to_return(), "most is looked at")
                views.clear()
                expect(borrower.has_much_to_return(), "much should be returned")
                for offset in borrower.take_returns():
                    lender.take_back(offset)
                expect(not borrower.has_much_to_return(), "all has been returned")


async def check_what_is_made_in_place_is_lent_without_a_copy(transport: Transport) -> None:
    async with _arenas(transport) as pairs:
        for lender, borrower in pairs:
            space = lender.reserve(_BLOCK + 1)
            assert space is not None, "there is room"
            view, calls = space.view, list[str]()
            space.call_when_lent(partial(calls.append, "lent"))
            view[:] = pattern(_BLOCK + 1)[: _BLOCK + 1]
            expect(lender.may_lend_in_place(view[1:]), "it is where it is to be lent from")
            expect(not lender.may_lend_in_place(bytearray(view)), "a copy of it is not")
            expect(not calls, "asking lends nothing")
            offset = lender.lend(view[1:])
            expect(offset is not None and calls == ["lent"], "it is lent, and its maker is told")
            expect(not lender.may_lend_in_place(view), "a part of it was given away")
            assert offset is not None
            seen = borrower.borrow(offset, _BLOCK)
            view[1] = 77
            expect(len(view) == _BLOCK + 1 and seen[0] == 77, "both see the same memory")
            del view, space, seen
            expect(lender.num_in_use == 1, "the peer has not returned it yet")
            [returned] = borrower.take_returns()
            lender.take_back(returned)
            expect(lender.num_in_use == 0, "the block is free again")


async def check_what_was_handed_over_is_copied_the_next_time(transport: Transport) -> None:
    async with _arenas(transport) as pairs:
        for lender, borrower in pairs:
            space = lender.reserve(3 * _BLOCK)
            assert space is not None, "there is room"
            first, second = _lend(lender, space.view[:_BLOCK]), _lend(lender, space.view[2 * _BLOCK :])  # type: ignore[arg-type]
            again = _lend(lender, space.view[_BLOCK - 1 : _BLOCK + 5])  # type: ignore[arg-type]
            expect(len({first, second, again}) == 3, "parts are lent apart")
            borrower.borrow(first, _BLOCK)[-1] = 5
            expect(borrower.borrow(again, 6)[0] == 0, "what the peer may write to already is copied")
            other = lender.reserve(100)
            expect(other is not None, "there is room")
            for offset in (first, second, again):
                lender.take_back(offset)
            del space, other
            expect(lender.num_in_use == 0, "all blocks are free again")


async def check_foreign_memory_is_refused(transport: Transport) -> None:
    async with _arenas(transport) as pairs:
        for lender, borrower in pairs:
            for offset, size in ((-1, 10), (0, 0), (0, -5), (_HALF, 1), (_HALF - 5, 6), (1 << 63, 1), (0, 1 << 63)):
                expect_error(ProtocolError, partial(borrower.borrow, offset, size))
            offset = _lend(lender, bytes(100))
            expect_error(ProtocolError, partial(lender.take_back, offset + 1))
            lender.take_back(offset)
            expect_error(ProtocolError, partial(lender.take_back, offset))


async def check_a_closed_channel_lends_and_borrows_nothing(transport: Transport) -> None:
    async with _arenas(transport) as pairs:
        pass
    for lender, borrower in pairs:
        expect(lender.lend(bytes(10)) is None and lender.reserve(10) is None, "nothing is lent any more")
        expect(not lender.may_lend_in_place(bytearray(10)), "not in place either")
        expect_error(trio.ClosedResourceError, partial(borrower.borrow, 0, 10))
