"""Calls and streams used in every odd way: many, twice, cancelled by those that resist, ended from inside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio
import trio.lowlevel

import asyncparl

LIMIT_S = 30.0


@asyncparl.remote_class(max_concurrency=50)
class Worker:
    def __init__(self) -> None:
        self.log: list[str] = []

    def echo(self, value: Any = None) -> Any:
        return value

    def count(self, num: int) -> Iterator[int]:
        yield from range(num)

    def stubborn(self) -> Iterator[int]:
        while True:
            try:
                yield 1
            except GeneratorExit:
                yield 2

    def fails_to_clean_up(self) -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            raise ValueError("in the cleanup")

    async def cleans_up(self) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            self.log.append("cleaned up")

    async def waits_first(self) -> AsyncIterator[int]:
        try:
            await trio.sleep_forever()
            yield 1
        finally:
            self.log.append("given up")

    async def shields(self) -> str:
        self.log.append("begun")
        with trio.CancelScope(shield=True):
            await trio.sleep(0.2)
        self.log.append("shielded")
        return "shielded"

    async def swallows(self) -> str:
        self.log.append("begun")
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.log.append("swallowed")
            return "swallowed"

    async def raises_instead(self) -> None:
        self.log.append("begun")
        try:
            await trio.sleep_forever()
        finally:
            self.log.append("raised")
            raise ValueError("instead")

    async def raises_an_old_cancellation(self) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                kept = error
                raise
        raise kept

    async def cancels_itself(self) -> str:
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.sleep_forever()
        return "went on"

    async def fails_in_a_nursery(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise ValueError("in the nursery")

    def iterator(self) -> Iterator[int]:
        return iter([1, 2, 3])

    def expression(self) -> Iterator[int]:
        return (number for number in range(3))

    def streams_in_a_stream(self) -> Iterator[Iterator[int]]:
        yield self.expression()


async def items_of(stream: Any, num: int | None = None) -> list[Any]:
    items: list[Any] = []
    async for item in stream:
        items.append(item)
        if len(items) == num:
            break
    return items


async def until_logged(worker: Any, *texts: str) -> None:
    with trio.fail_after(LIMIT_S):
        while not set(texts) <= set(await worker.log):
            await trio.sleep(0.01)


async def test_the_same_call_may_be_gathered_several_times() -> None:
    async with asyncparl.connect():
        worker = Worker()
        call, other = worker.echo(3), worker.echo(2)
        assert await asyncparl.gather([call, other, call]) == [3, 2, 3]
        assert sorted([await each async for each in asyncparl.as_completed([call, other, call])]) == [2, 3, 3]
        assert await asyncparl.gather([]) == []


async def test_tasks_that_iterate_over_one_stream_share_its_items() -> None:
    async with asyncparl.connect():
        stream = Worker().count(200)
        shares: list[list[int]] = []

        async def take() -> None:
            shares.append(await items_of(stream))

        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(take)
        assert sorted(item for share in shares for item in share) == list(range(200))
        assert await items_of(stream) == []


async def test_hundreds_of_streams_of_one_actor_run_at_once() -> None:
    async with asyncparl.connect():
        worker = Worker()
        streams = [worker.count(5) for _ in range(300)]
        with trio.fail_after(LIMIT_S):
            for stream in reversed(streams):
                assert await items_of(stream) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", ["stubborn", "fails_to_clean_up", "cleans_up"])
async def test_a_generator_that_does_not_end_well_harms_nobody(method: str) -> None:
    async with asyncparl.connect():
        worker = Worker()
        with trio.fail_after(LIMIT_S):
            assert await items_of(getattr(worker, method)(), 3) == [1, 1, 1]
            assert await worker.echo("alive") == "alive"
            if method == "cleans_up":
                await until_logged(worker, "cleaned up")
            stream = getattr(worker, method)()
            assert await anext(stream) == 1
            await asyncparl.close(worker)


@pytest.mark.parametrize(
    ("method", "end"), [("shields", "shielded"), ("swallows", "swallowed"), ("raises_instead", "raised")]
)
async def test_a_method_that_resists_its_cancellation_is_cancelled_for_its_caller(method: str, end: str) -> None:
    async with asyncparl.connect():
        worker = Worker()
        call = getattr(worker, method)()
        await until_logged(worker, "begun")
        call.cancel()
        with pytest.raises(asyncparl.CallCancelled):
            await call
        await until_logged(worker, end)
        assert await worker.echo("alive") == "alive"


async def test_cancellation_and_nurseries_inside_of_a_method_are_its_own() -> None:
    async with asyncparl.connect():
        worker = Worker()
        assert await worker.cancels_itself() == "went on"
        with pytest.raises(ExceptionGroup) as caught:
            await worker.fails_in_a_nursery()
        assert [str(part) for part in caught.value.exceptions] == ["in the nursery"]
        assert await worker.echo("alive") == "alive"


async def test_a_stream_that_is_left_before_its_first_item_is_cancelled() -> None:
    async with asyncparl.connect():
        worker = Worker()
        await worker.echo()
        with trio.move_on_after(0.3):
            async for _ in worker.waits_first():
                pass
        await until_logged(worker, "given up")


async def test_a_cancellation_that_was_kept_and_raised_again_is_an_error_of_that_call_only() -> None:
    async with asyncparl.connect():
        worker = Worker()
        with trio.fail_after(LIMIT_S), pytest.raises(RuntimeError, match=r"raised a trio\.Cancelled"):
            await worker.raises_an_old_cancellation()
        assert await worker.echo("alive") == "alive"


async def test_only_generators_stream() -> None:
    async with asyncparl.connect():
        worker = Worker()
        assert list(await worker.iterator()) == [1, 2, 3]
        assert await items_of(worker.expression()) == [0, 1, 2]
        with pytest.raises(TypeError, match="does not stream"):
            await items_of(worker.iterator())
        with pytest.raises(asyncparl.SerializationError, match="generator"):
            await items_of(worker.streams_in_a_stream())


@pytest.mark.parametrize(
    ("end", "reason"), [(asyncparl.kill, "killed by its owner"), (asyncparl.close, "it was closed")]
)
async def test_an_actor_may_be_ended_in_the_middle_of_its_own_stream(end: Any, reason: str) -> None:
    async with asyncparl.connect():
        worker = Worker()
        items = []
        with trio.fail_after(LIMIT_S), pytest.raises(asyncparl.ActorDied, match=reason):
            async for item in worker.count(1_000_000):
                items.append(item)
                if item == 5:
                    await end(worker)
        assert items[:6] == [0, 1, 2, 3, 4, 5]


async def test_of_thousands_of_calls_every_other_one_is_cancelled_and_the_rest_is_answered() -> None:
    async with asyncparl.connect():
        worker = Worker()
        with trio.fail_after(LIMIT_S):
            calls = [worker.echo(number) for number in range(3000)]
            for call in calls[::2]:
                call.cancel()
            assert await asyncparl.gather(calls[1::2]) == list(range(1, 3000, 2))
            for call in calls[::2]:
                with pytest.raises(asyncparl.CallCancelled):
                    await call


async def test_timeouts_at_every_moment_of_a_call_leave_the_actor_usable() -> None:
    async with asyncparl.connect():
        worker = Worker()
        answers: list[int] = []

        async def ask(number: int) -> None:
            with trio.move_on_after(0.0005 * number):
                assert await worker.echo(number) == number
                answers.append(number)

        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                for number in range(300):
                    nursery.start_soon(ask, number)
            assert await worker.echo("alive") == "alive"


async def test_actors_may_have_any_name() -> None:
    async with asyncparl.connect():
        for name in ("a/b", "größe", " ", "x" * 200, "../../up", "%s {0}"):
            worker = Worker.options(name=name)()
            assert await worker.echo(1) == 1
            assert await asyncparl.get_actor(name) == worker
