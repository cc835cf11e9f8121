"""Large arrays between processes of one host: seen in place, returned when nobody looks any more."""

from __future__ import annotations

import array
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import trio

import asyncparl
import asyncparl.blocking
from tests.runtime.shared_memory import LARGE, arenas, is_shared, mappings, settled

SMALL = 1 << 10
LIMIT_S = 60.0


@dataclass
class Rollout:
    obs: Any
    rewards: Any
    actor: Any = None


@asyncparl.remote_class(max_restarts=1)
class Source:
    """Makes arrays, takes arrays, and tells of the memory of its process."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.other: Any = None

    def make(self, num_bytes: int, fill: int = 1) -> Any:
        return np.full(num_bytes, fill, np.uint8)

    def make_one_again(self, fill: int) -> Any:
        if not self.kept:
            self.kept.append(np.zeros(LARGE, np.uint8))
        self.kept[0][:] = fill
        return self.kept[0]

    def stream(self, num_bytes: int, count: int = 1 << 30) -> Iterator[Any]:
        for i in range(count):
            yield np.full(num_bytes, i % 251, np.uint8)

    async def stream_async(self, num_bytes: int) -> AsyncIterator[Any]:
        for i in range(1 << 30):
            yield np.full(num_bytes, i % 251, np.uint8)

    def echo(self, value: Any) -> Any:
        return value

    def keep(self, value: Any) -> bool:
        self.kept.append(value)
        return is_shared(value)

    def forget(self) -> None:
        self.kept.clear()

    def kept_sums(self) -> list[int]:
        return [int(value[::4096].sum()) for value in self.kept]

    def wait_and_make(self, seconds: float) -> Any:
        threading.Event().wait(seconds)
        return np.ones(LARGE, np.uint8)

    def fail_with(self, num_bytes: int) -> None:
        raise ValueError(np.full(num_bytes, 7, np.uint8))

    def take(self, value: Any) -> None:
        pass

    async def num_seen(self) -> int:
        return sum(hold() is not None for arena in arenas() for hold in list(arena._holds))

    def num_in_use(self) -> int:
        return sum(arena.num_in_use for arena in arenas())

    def num_mappings(self) -> int:
        return len(mappings())

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def fetch_from(self, other: Any) -> tuple[bool, int]:
        value = await other.make(LARGE, 3)
        return is_shared(value), int(value[::4096].sum())

    def fork_and_look(self, value: Any) -> bool:
        """Whether a child of the actor sees what the actor saw, whatever happens to that since."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(writing)
                os.read(reading, 1)
                os._exit(0 if np.all(value == 9) else 1)
            finally:
                os._exit(2)
        os.close(reading)
        self.kept = [(pid, writing)]
        return True

    def child_saw_it(self) -> bool:
        pid, writing = self.kept.pop()
        os.write(writing, b"x")
        os.close(writing)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def test_large_arrays_are_in_shared_memory_both_ways_and_small_ones_are_not() -> None:
    async with asyncparl.connect():
        source = Source()
        assert await source.echo(1) == 1  # the link is open
        for num_bytes, expected in ((SMALL, False), (LARGE, True)):
            value = await source.make(num_bytes, 5)
            assert value.sum() == 5 * num_bytes
            assert is_shared(value) is expected
            assert await source.keep(value) is expected


async def test_received_arrays_are_writable_and_belong_to_the_receiver() -> None:
    async with asyncparl.connect():
        source = Source()
        first = await source.make_one_again(1)
        second = await source.make_one_again(2)
        assert is_shared(first)
        first += 10
        second += 20
        again = await source.make_one_again(3)
        assert [set(value.tolist()) for value in (first, second, again)] == [{11}, {22}, {3}]


async def test_values_of_all_kinds_arrive_as_they_were() -> None:
    torch = pytest.importorskip("torch")
    async with asyncparl.connect():
        source, other = Source(), Source()
        await other.make(1)
        big = np.arange(LARGE, dtype=np.float64).reshape(1024, -1)
        values = [
            {"a": [big, (big[:2], 3)], "b": "text"},
            np.asfortranarray(big),
            big[::2, ::3],
            big.astype(">f4"),
            np.array(["x" * 50, "y"] * 5000),
            np.arange(100_000).astype("M8[s]"),
        ]
        for value in values:
            np.testing.assert_equal(await source.echo(value), value)
        for tensor in (torch.arange(LARGE), torch.ones(LARGE, dtype=torch.bfloat16), torch.ones(512, 512)[:, ::2]):
            got = await source.echo(tensor)
            assert got.dtype == tensor.dtype
            assert torch.equal(got, tensor)
        got = await source.echo(Rollout(big, big[0], other))
        assert is_shared(got.obs)
        assert await got.actor.echo(5) == 5
        np.testing.assert_equal(got.obs, big)
        numbers = await source.echo(array.array("d", [1.5]) * LARGE)
        assert numbers == array.array("d", [1.5]) * LARGE


async def test_an_exception_may_carry_large_arrays() -> None:
    async with asyncparl.connect():
        source = Source()
        with pytest.raises(ValueError, match="7") as caught:
            await source.fail_with(LARGE)
        assert is_shared(caught.value.args[0])
        assert caught.value.args[0].sum() == 7 * LARGE
        del caught
        assert await settled(source) == 0


async def test_blocks_come_back_when_the_last_view_dies() -> None:
    async with asyncparl.connect():
        source = Source()
        value = await source.make(LARGE)
        part = value[100:200].reshape(10, 10).T
        del value
        assert await source.num_in_use() == 1
        thread = threading.Thread(target=lambda holder=[part]: holder.clear())
        del part
        thread.start()
        await trio.to_thread.run_sync(thread.join)
        del thread
        assert await settled(source) == 0


async def test_an_argument_comes_back_when_its_call_has_ended() -> None:
    async with asyncparl.connect():
        source = Source()
        await source.take(np.ones(LARGE, np.uint8))
        with trio.fail_after(LIMIT_S):
            while await source.num_seen():
                await trio.sleep(0.01)
        [arena] = arenas()
        assert arena.num_in_use == 0


async def test_one_array_after_the_other_uses_the_same_memory() -> None:
    async with asyncparl.connect():
        source = Source()
        for i in range(300):
            value = await source.make(LARGE, i % 251)
            assert value[-1] == i % 251
        assert await source.num_in_use() <= 2
        async for value in source.stream(LARGE, 300):
            assert value[0] == value[-1]
        [arena] = arenas()
        assert arena._seen_end <= 16 * LARGE


@pytest.mark.usefixtures("little_memory")
async def test_who_keeps_more_than_there_is_room_for_gets_the_rest_through_the_socket() -> None:
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            source = Source()
            kept = [await source.make(LARGE, i) for i in range(20)]
            assert [is_shared(value) for value in kept] == [True] * 4 + [False] * 16
            assert [set(value.tolist()) for value in kept] == [{i} for i in range(20)]
            del kept[1:3]
            await source.echo(None)
            assert is_shared(await source.make(LARGE))
            assert not is_shared(await source.make(5 * LARGE))  # more than there will ever be
            for i in range(20):
                assert await source.keep(np.full(LARGE, i, np.uint8)) is (i < 4)
            assert await source.kept_sums() == [256 * i for i in range(20)]


@pytest.mark.usefixtures("little_memory")
async def test_calls_made_all_at_once_do_not_wait_for_room() -> None:
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            source = Source()
            results = await asyncparl.gather([source.make(LARGE, i) for i in range(100)])
            assert [value[7] for value in results] == list(range(100))
            values = [np.full(LARGE, i, np.uint8) for i in range(100)]
            assert [value[7] for value in await asyncparl.gather(map(source.echo, values))] == list(range(100))
            del results
            assert await settled(source) <= 4


async def test_the_result_of_a_cancelled_call_comes_back() -> None:
    async with asyncparl.connect():
        source = Source()
        for _ in range(5):
            with trio.move_on_after(0.05):
                await source.wait_and_make(0.1)
        call = source.make(LARGE)
        await source.echo(None)
        call.cancel()  # too late
        del call
        assert await settled(source) == 0


async def test_a_result_that_nobody_looks_at_comes_back() -> None:
    async with asyncparl.connect():
        source = Source()
        for _ in range(5):
            source.make(LARGE)
        call = source.make(LARGE)
        await source.echo(None)
        assert await source.num_in_use() >= 1
        del call
        assert await settled(source) == 0


async def test_a_stream_that_is_left_gives_everything_back() -> None:
    async with asyncparl.connect():
        source = Source()
        for stream in (source.stream(LARGE), source.stream_async(LARGE)):
            async with aclosing(stream) as items:
                async for value in items:
                    if value[0] == 5:
                        break
        del value, stream, items
        assert await settled(source) == 0


async def test_views_outlive_their_actor_and_the_cluster_and_then_nothing_is_left() -> None:
    before = mappings()
    async with asyncparl.connect():
        source = Source.options(max_restarts=0)()
        killed = await source.make(LARGE, 8)
        other = Source()
        ended = await other.make(LARGE, 9)
        with pytest.raises(asyncparl.ActorDied):
            await source.die()
        killed += 1
    ended += 1
    assert [int(value[::4096].sum()) for value in (killed, ended)] == [9 * 256, 10 * 256]
    del killed, ended
    gc.collect()
    assert mappings() == before


async def test_each_process_of_an_actor_has_memory_of_its_own() -> None:
    before = len(mappings())
    async with asyncparl.connect():
        source = Source()
        kept = await source.make(LARGE, 8)
        with pytest.raises(asyncparl.ActorDied):
            await source.die()
        again = await source.make(LARGE, 9)
        assert is_shared(again)
        assert len(mappings()) == before + 2
        kept[:] = 1
        assert again.sum() == 9 * LARGE
        del kept
        gc.collect()
        assert len(mappings()) == before + 1
        assert await source.num_mappings() == 1


async def test_actors_of_one_host_share_memory_with_each_other() -> None:
    async with asyncparl.connect():
        one, other = Source(), Source()
        await one.fetch_from(other)
        assert await one.fetch_from(other) == (True, 3 * 256)
        value = await one.make(LARGE, 4)
        assert await other.echo(await one.echo(value)) is not None  # from one link to another: by a copy
        assert value.sum() == 4 * LARGE


async def test_a_fork_of_an_actor_keeps_what_it_sees() -> None:
    async with asyncparl.connect():
        source = Source()
        await source.echo(None)
        assert await source.fork_and_look(np.full(LARGE, 9, np.uint8))
        for _ in range(5):
            await source.echo(np.full(LARGE, 1, np.uint8))
        assert await source.child_saw_it()


def test_arrays_are_shared_without_async_too() -> None:
    with asyncparl.blocking.connect():
        source = asyncparl.blocking.remote_class(Source.__wrapped__)()
        value = source.make(LARGE, 3).result()
        assert is_shared(value)
        assert sum(int(item[0]) for item in source.stream(LARGE, 20)) == sum(range(20))
        threads = [threading.Thread(target=lambda: source.make(LARGE).result()) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del value
        assert source.num_in_use().result() <= 2
