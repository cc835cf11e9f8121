"""Calls to actors: real processes, real sockets."""

from __future__ import annotations

import os

import numpy as np
import pytest
import trio

import asyncparl
from asyncparl.errors import RemoteTraceback
from tests.runtime.actors import AsyncEcho, Broken, Echo, Recorder


async def test_a_call_runs_in_another_process() -> None:
    async with asyncparl.connect():
        assert await Echo().pid() != os.getpid()


async def test_calls_to_one_actor_run_in_order_and_in_its_main_thread() -> None:
    async with asyncparl.connect():
        echo = Echo(5)
        calls = [echo.add(i) for i in range(200)]
        assert await asyncparl.gather(calls) == [5 + sum(range(i + 1)) for i in range(200)]
        assert await echo.seen == list(range(200))
        assert await echo.is_main_thread()
        assert await echo.thread() == await echo.thread()


async def test_a_call_starts_when_it_is_made() -> None:
    async with asyncparl.connect():
        echo = Echo()
        echo.add(7)
        assert await echo.total == 7


async def test_a_call_can_be_awaited_by_several_tasks_and_again() -> None:
    async with asyncparl.connect():
        call = Echo().echo([1, 2])
        results = []

        async def await_it() -> None:
            results.append(await call)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(await_it)
        assert results == [[1, 2]] * 3
        assert await call == [1, 2]


async def test_arguments_travel_as_they_were_when_the_call_was_made() -> None:
    async with asyncparl.connect():
        echo = Echo()
        array = np.arange(100_000)
        calls = []
        for i in range(20):  # the first ones wait for the process, so they are not sent at once
            array[0] = i
            calls.append(echo.echo(array))
        array[:] = -1
        assert [int(result[0]) for result in await asyncparl.gather(calls)] == list(range(20))


async def test_received_arrays_are_writable() -> None:
    async with asyncparl.connect():
        for size in (3, 1_000_000):
            array = await Echo().echo(np.zeros(size))
            array += 1
            assert array.sum() == size


async def test_an_exception_arrives_as_its_own_type_and_the_actor_lives_on() -> None:
    async with asyncparl.connect():
        echo = Echo()
        with pytest.raises(ValueError, match="bad input") as caught:
            await echo.fail("bad input")
        assert caught.value.args == ("bad input",)
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "in fail" in str(caught.value.__cause__)
        assert "Echo#1" in caught.value.__notes__[0]
        assert await echo.add(1) == 1


async def test_an_exception_that_cannot_be_rebuilt_is_a_remote_error() -> None:
    async with asyncparl.connect():
        with pytest.raises(asyncparl.RemoteError, match="TwoArgumentError: one and two") as caught:
            await Echo().fail_oddly()
        assert "in fail_oddly" in caught.value.traceback


async def test_values_that_cannot_travel_fail_their_call_only() -> None:
    async with asyncparl.connect():
        echo = Echo()
        with pytest.raises(asyncparl.SerializationError, match="generator"):
            await echo.echo(i for i in range(3))
        with pytest.raises(asyncparl.SerializationError, match="lock"):
            await echo.unpicklable()
        assert await echo.add(1) == 1


async def test_unknown_and_private_names() -> None:
    async with asyncparl.connect():
        echo = Echo()
        with pytest.raises(AttributeError, match="no_such_method"):
            await echo.no_such_method()
        with pytest.raises(AttributeError, match="private"):
            echo._secret  # noqa: B018
        with pytest.raises(TypeError, match="positional argument"):
            await echo.echo(1, 2, 3)


async def test_attributes_are_read_and_set_in_order_with_calls() -> None:
    async with asyncparl.connect():
        echo = Echo()
        await asyncparl.set_attribute(echo, "total", 40)
        assert await echo.add(2) == 42
        assert await echo.total == 42
        with pytest.raises(TypeError, match="is a method"):
            await echo.add
        with pytest.raises(AttributeError, match="set_attribute"):
            echo.total = 1


async def test_cancelling_an_await_leaves_the_actor_usable() -> None:
    async with asyncparl.connect():
        echo = Echo()
        await echo.echo()
        slow = echo.sleep(0.3)
        never = echo.add(100)
        with trio.move_on_after(0.05):
            await slow
        never.cancel()
        with pytest.raises(asyncparl.CallCancelled):
            await never
        assert await echo.add(1) == 1  # the cancelled call never started


async def test_async_methods_interleave_and_are_cancelled_over_there() -> None:
    async with asyncparl.connect():
        actor = AsyncEcho()
        waiting = actor.wait_for_event()
        assert await actor.cancelled == 0  # it has started, so that the cancel reaches a running method
        with trio.move_on_after(0.2):
            await actor.wait_for_event()
        while not await actor.cancelled:
            await trio.sleep(0.01)
        await actor.set_event()
        assert await waiting == "woken"
        with pytest.raises(LookupError, match="async"):
            await actor.fail()


async def test_async_methods_run_while_a_plain_one_is_busy() -> None:
    async with asyncparl.connect():
        actor = AsyncEcho()
        busy = actor.busy(0.5)
        await actor.set_event()
        assert await actor.wait_for_event() == "woken"
        assert not busy.done()
        assert await busy == "done"


async def test_gather_cancels_the_rest_at_the_first_error() -> None:
    async with asyncparl.connect():
        echo, other = Echo(), AsyncEcho()
        waiting = other.wait_for_event()
        with pytest.raises(ValueError, match="first"):
            await asyncparl.gather([waiting, echo.fail("first")])
        with pytest.raises(asyncparl.CallCancelled):
            await waiting


async def test_as_completed_gives_the_fast_ones_first() -> None:
    async with asyncparl.connect():
        slow, fast = Echo(), Echo()
        await asyncparl.gather([slow.echo(), fast.echo()])
        calls = [slow.sleep(0.3), fast.echo("fast")]
        assert [await call async for call in asyncparl.as_completed(calls)] == ["fast", "slept"]


async def test_a_constructor_that_raises_fails_every_call_with_its_exception() -> None:
    async with asyncparl.connect() as cluster:
        broken = Broken()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no such device"):
                await broken.work()
        with pytest.raises(RuntimeError, match="no such device"):
            async with Broken():
                pass
        with trio.fail_after(5):
            while cluster.num_actors:
                await trio.sleep(0.01)
        with pytest.raises(RuntimeError, match="no such device"):
            await broken.work()


async def test_thousands_of_calls_at_once_are_all_answered() -> None:
    async with asyncparl.connect():
        echo = Echo()
        assert await asyncparl.gather([echo.echo(i) for i in range(5000)]) == list(range(5000))


def test_an_actor_needs_a_cluster() -> None:
    with pytest.raises(asyncparl.NotConnectedError, match="connect"):
        Echo()


async def test_a_proxy_outlives_its_block_only_as_a_dead_actor() -> None:
    async with asyncparl.connect():
        echo = Echo()
        await echo.echo()
    with pytest.raises(asyncparl.ActorDied, match="session has ended"):
        await echo.echo()
    with pytest.raises(asyncparl.NotConnectedError):
        Echo()


async def test_async_methods_begin_in_the_order_of_their_calls() -> None:
    async with asyncparl.connect():
        recorder = Recorder()
        await asyncparl.gather([recorder.record(i) for i in range(200)])
        assert await recorder.order == list(range(200))


async def test_an_async_call_that_is_cancelled_during_the_constructor_never_starts() -> None:
    async with asyncparl.connect():
        recorder = Recorder(0.4)
        call = recorder.forever()
        await trio.sleep(0.2)  # so that it has been sent
        call.cancel()
        with trio.fail_after(5):
            await recorder.record(1)
        assert await recorder.order == [1]


async def test_a_constructor_argument_that_cannot_travel_fails_every_call() -> None:
    async with asyncparl.connect() as cluster:
        echo = Echo(i for i in range(3))
        with trio.fail_after(5):
            for _ in range(2):
                with pytest.raises(asyncparl.SerializationError, match=r"^argument 1 of Echo#1.__init__: .*generator"):
                    await echo.add(1)
            while cluster.num_actors:
                await trio.sleep(0.01)


async def test_actors_draw_different_random_numbers() -> None:
    async with asyncparl.connect():
        draws = await asyncparl.gather([Recorder().draw() for _ in range(4)])
        assert len(set(draws)) == 4
