"""`asyncparl.empty`: arrays that are made in the memory that the caller sees."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import asyncparl
from asyncparl.runtime.lending import MIN_LENT_BYTES
from tests.runtime.shared_memory import LARGE, arenas, is_shared, settled

SHAPE = (4, 256, 1024)


@asyncparl.remote_class
class Painter:
    """Makes its results in place."""

    def __init__(self) -> None:
        self.early = asyncparl.empty(LARGE, np.uint8)
        self.early[:] = 6
        self.last: Any = None
        self.kept: list[Any] = []

    def paint(self, fill: float, dtype: Any = np.float32) -> Any:
        self.last = asyncparl.empty(SHAPE, dtype)
        self.last[:] = fill
        return self.last

    def paint_early(self) -> Any:
        return {"early": self.early}

    def is_in_place(self) -> bool:
        return is_shared(asyncparl.empty(LARGE, np.uint8))

    def state_of_last(self) -> tuple[bool, float]:
        return bool(self.last.flags.writeable), float(self.last.flat[0])

    def paint_again(self) -> str:
        try:
            self.last[:] = 0
        except ValueError as error:
            return str(error)
        return "painted"

    def last_again(self) -> Any:
        return self.last

    def parts(self) -> Any:
        whole = asyncparl.empty((4, LARGE), np.uint8)
        for index, row in enumerate(whole):
            row[:] = index
        return [whole[2], (whole[0], 5, whole[1, : LARGE // 2]), whole[0]]

    def rows(self, count: int) -> Iterator[Any]:
        for i in range(count):
            row = asyncparl.empty(LARGE, np.uint8)
            row[:] = i % 251
            yield row

    async def rows_async(self, count: int) -> AsyncIterator[Any]:
        for i in range(count):
            row = asyncparl.empty(LARGE, np.uint8)
            row[:] = i % 251
            yield row

    async def paint_async(self) -> Any:
        row = asyncparl.empty(LARGE, np.uint8)
        row[:] = 9
        return row

    def keep_some(self, count: int) -> int:
        self.kept = [asyncparl.empty(LARGE, np.uint8) for _ in range(count)]
        return sum(map(is_shared, self.kept))

    def watched_rows(self) -> Iterator[Any]:
        self.kept = []
        while True:
            row = asyncparl.empty(LARGE, np.uint8)
            row[:] = 1
            yield row
            self.kept.append(not row.flags.writeable)

    def num_given_away(self) -> tuple[int, int]:
        return sum(self.kept), len(self.kept)

    async def disturb(self, other: Any) -> None:
        await other.sum_of(1)

    async def paint_for(self, other: Any) -> float:
        row = asyncparl.empty(LARGE, np.uint8)
        row[:] = 3
        total = await other.sum_of(row)
        row[:] = 4  # it was not the caller who got it
        return total + float(row[0])

    def sum_of(self, value: Any) -> float:
        return float(np.sum(value))

    def num_in_use(self) -> int:
        self.last = self.early = None
        return sum(arena.num_in_use for arena in arenas())


async def test_a_result_made_in_place_is_the_very_memory_that_the_caller_gets() -> None:
    async with asyncparl.connect():
        painter = Painter()
        assert await painter.is_in_place()
        value = await painter.paint(2.5)
        assert (value.shape, value.dtype) == (SHAPE, np.float32)
        assert (value == 2.5).all()
        value[:] = 7
        assert await painter.state_of_last() == (False, 7.0)
        del value
        assert await settled(painter) == 0


async def test_what_was_given_away_is_read_only_and_copied_the_next_time() -> None:
    async with asyncparl.connect():
        painter = Painter()
        value = await painter.paint(1)
        assert "read-only" in await painter.paint_again()
        again = await painter.last_again()
        again[:] = 5
        assert (value == 1).all()
        del value, again
        assert await settled(painter) == 0


async def test_parts_may_be_given_away_each_once() -> None:
    async with asyncparl.connect():
        painter = Painter()
        await painter.paint(1)
        third, (first, five, second), first_again = await painter.parts()
        first[:] = 9
        assert [int(part[0]) for part in (first, second, third, first_again)] == [9, 1, 2, 0]
        assert five == 5
        assert len(second) == LARGE // 2
        del first, second, third, first_again
        assert await settled(painter) == 0


async def test_streams_and_async_methods_work_in_place() -> None:
    async with asyncparl.connect():
        painter = Painter()
        assert (await painter.paint_async() == 9).all()
        for stream in (painter.rows(300), painter.rows_async(300)):
            kept = []
            async for row in stream:
                kept.append(row)
                if len(kept) > 3:
                    kept.pop(0)
            assert [set(row.tolist()) for row in kept] == [{i % 251} for i in range(297, 300)]
        del kept, row, stream
        assert await settled(painter) == 0


async def test_a_stream_is_made_for_its_caller_whoever_else_calls_meanwhile() -> None:
    async with asyncparl.connect():
        painter, other = Painter(), Painter()
        await other.disturb(painter)
        rows = painter.watched_rows()
        for _ in range(20):
            assert (await anext(rows) == 1).all()
            await other.disturb(painter)
        rows.cancel()
        num, of = await painter.num_given_away()
        assert num == of >= 19


async def test_what_the_constructor_made_in_place_may_be_sent_later() -> None:
    async with asyncparl.connect():
        painter = Painter()
        value = await painter.paint_early()
        assert value["early"].sum() == 6 * LARGE


async def test_what_goes_to_somebody_else_is_copied_and_stays_writable() -> None:
    async with asyncparl.connect():
        one, other = Painter(), Painter()
        assert await one.paint_for(other) == 3 * LARGE + 4


@pytest.mark.usefixtures("little_memory")
async def test_where_there_is_no_room_it_is_an_array_like_others() -> None:
    async with asyncparl.connect():
        painter = Painter()
        assert await painter.keep_some(10) <= 4
        assert (await painter.paint(3) == 3).all()
        assert await painter.keep_some(0) == 0
        assert await settled(painter) == 0


def test_outside_of_a_call_it_is_an_array_like_others() -> None:
    for shape, dtype in ((5, np.int8), ((2, 3), "f4"), ((), float), ((0, 7), np.int64), (10**6, object)):
        value = asyncparl.empty(shape, dtype)
        expected = np.empty(shape, dtype)
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
        assert value.flags.writeable
        assert not is_shared(value)


@asyncparl.remote_class
class Clumsy:
    """Asks for what there cannot be."""

    def make(self, shape: Any, dtype: Any) -> Any:
        return asyncparl.empty(shape, dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((-1, 5), float, ValueError),
        ((-1, -MIN_LENT_BYTES), float, ValueError),
        (-5, float, ValueError),
        (5, "no such dtype", TypeError),
    ],
)
async def test_an_impossible_array_is_an_error_of_the_call(shape: Any, dtype: Any, kind: type[Exception]) -> None:
    async with asyncparl.connect():
        clumsy = Clumsy()
        await clumsy.make(1, float)
        with pytest.raises(kind):
            await clumsy.make(shape, dtype)
