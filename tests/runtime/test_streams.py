"""Generator methods: streamed, a few items ahead, ended where the loop ends."""

from __future__ import annotations

import pytest
import trio

import asyncparl
from asyncparl.runtime.call import STREAM_CREDIT
from tests.runtime.actors import AsyncEcho, Echo


async def _until_total_is(echo: asyncparl.Proxy, expected: int) -> None:
    with trio.fail_after(5):
        while await echo.total != expected:
            await trio.sleep(0.01)


async def test_a_generator_method_streams_its_items() -> None:
    async with asyncparl.connect():
        assert [item async for item in Echo().count(100)] == list(range(100))
        assert [item async for item in Echo().count(0)] == []
        assert [item async for item in AsyncEcho().count(50)] == list(range(50))


async def test_a_stream_is_only_a_few_items_ahead() -> None:
    async with asyncparl.connect():
        echo = Echo()
        stream = echo.forever()
        for expected in range(5):
            assert await anext(stream) == expected
        await _until_total_is(echo, 5 + STREAM_CREDIT)
        for _ in range(3):  # other calls run meanwhile, and no further item is made
            assert await echo.total == 5 + STREAM_CREDIT
        await stream.aclose()


async def test_leaving_the_loop_ends_the_remote_generator() -> None:
    async with asyncparl.connect():
        echo = Echo()
        async for item in echo.forever():
            if item == 3:
                break
        await _until_total_is(echo, -1)


async def test_a_stream_that_is_never_used_is_ended_too() -> None:
    async with asyncparl.connect():
        echo = Echo()
        echo.forever()
        await _until_total_is(echo, -1)


async def test_an_error_half_way_arrives_after_the_items() -> None:
    async with asyncparl.connect():
        items = []
        with pytest.raises(KeyError, match="half-way"):
            async for item in Echo().fail_halfway():
                items += [item]
        assert items == [1]


async def test_an_error_that_means_the_end_of_a_loop_does_not_end_it_silently() -> None:
    async with asyncparl.connect():
        items = []
        with pytest.raises(RuntimeError, match=r"Echo#1\.stop_halfway raised StopAsyncIteration"):
            async for item in Echo().stop_halfway():
                items += [item]
        assert items == [1]


async def test_an_item_is_what_it_was_when_it_was_yielded() -> None:
    async with asyncparl.connect():
        sums = [(int(array.min()), int(array.max())) async for array in Echo().same_array(30)]
        assert sums == [(i, i) for i in range(30)]


async def test_calls_run_between_two_items() -> None:
    async with asyncparl.connect():
        echo = Echo()
        async for item in echo.forever():
            await echo.echo(item)
            if item == 20:
                break


async def test_a_stream_cannot_be_awaited_nor_a_plain_call_iterated() -> None:
    async with asyncparl.connect():
        echo = Echo()
        with pytest.raises(TypeError, match="async for"):
            await echo.forever()
        await _until_total_is(echo, -1)
        with pytest.raises(TypeError, match="await it"):
            async for _ in echo.echo(1):
                pass


async def test_a_cancelled_wait_for_an_item_loses_none() -> None:
    async with asyncparl.connect():
        stream = Echo().count(10)
        items = []
        while len(items) < 10:
            with trio.move_on_after(0.001):
                items.append(await anext(stream))
        assert items == list(range(10))


async def test_two_streams_of_one_actor_take_turns() -> None:
    async with asyncparl.connect():
        echo = Echo()
        first, second = echo.forever(), echo.forever()
        for i in range(10):
            assert await anext(first) == await anext(second) == i
        first.cancel()
        second.cancel()


async def test_awaiting_a_stream_whose_items_are_here_already_is_refused_too() -> None:
    async with asyncparl.connect():
        echo = Echo()
        streams = [echo.forever() for _ in range(3)]
        await _until_total_is(echo, STREAM_CREDIT)
        await echo.echo()
        with trio.fail_after(5):
            with pytest.raises(TypeError, match="async for"):
                await streams[0]
            with pytest.raises(TypeError, match="async for"):
                await asyncparl.gather([streams[1]])
            with pytest.raises(TypeError, match="async for"):
                await asyncparl.gather([echo.count(3)])
