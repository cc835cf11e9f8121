"""Values that are too large for one message, between real processes: they hold nothing up, and arrive whole."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import trio

import asyncparl
from asyncparl.runtime import node_link, ways
from asyncparl.runtime.lending import _STAYS_BYTES

LIMIT_S = 60.0
LARGE = 48 << 20
VERY_LARGE = 300 << 20
MOVES_AFTER_ALL = 64 << 20


def pattern(num_bytes: int, seed: int = 0) -> Any:
    """Bytes that show when a part is missing, or is in another place."""
    return np.arange(seed, seed + num_bytes // 8, dtype=np.int64)


def is_pattern(array: Any, num_bytes: int, seed: int = 0) -> bool:
    return bool(np.array_equal(array, pattern(num_bytes, seed)))


@asyncparl.remote_class(max_concurrency=4)
class Store:
    """Has large values, and time for small calls."""

    def __init__(self, keep: Any = None) -> None:
        self.keep = keep

    async def nothing(self) -> None:
        pass

    def pattern(self, num_bytes: int) -> Any:
        return pattern(num_bytes)

    def size_of_pattern(self, array: Any) -> int:
        assert is_pattern(array, array.nbytes)
        return int(array.nbytes)

    def patterns(self, num: int, num_bytes: int) -> Iterator[Any]:
        for number in range(num):
            yield number, pattern(num_bytes, number) if number % 3 else None

    async def echo(self, value: Any) -> Any:
        return value

    async def kept(self) -> Any:
        return self.keep

    def kept_by_a_thread(self) -> Any:
        return self.keep

    async def clear(self) -> None:
        self.keep[:] = 0

    def clear_by_a_thread(self) -> None:
        self.keep[:] = 0

    def text(self, num: int) -> str:
        return "x" * num

    def leave(self, code: int) -> None:
        sys.exit(code)

    def used_bytes(self) -> int:
        return int(psutil.Process().memory_info().rss)

    async def ask_one_of_its_own(self, num_bytes: int) -> int:
        async with store() as own:
            return len(await own.text(num_bytes))


def store() -> Any:
    """The checker sees what the class is, not what it was made."""
    return Store()


@pytest.fixture
def no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (node_link, ways):
        monkeypatch.setattr(module, "SHARED_BYTES", 0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.001)


def begins_to_arrive(actor: Any) -> bool:
    return bool(actor._handle._link.core._joiner.num_open)


async def test_a_very_large_result_arrives_whole_while_small_calls_are_answered() -> None:
    async with asyncparl.connect(preload=["numpy"]):
        actor = store()
        await actor.nothing()
        with trio.fail_after(LIMIT_S):
            large, num_answered = actor.pattern(VERY_LARGE), 0
            while not large.done():
                await actor.nothing()
                num_answered += begins_to_arrive(actor)
            assert num_answered > 3
            result = await large
            assert is_pattern(result, VERY_LARGE)
            result[0] = 1  # it is ours


async def test_a_very_large_argument_arrives_whole_and_calls_after_it_wait_their_turn() -> None:
    async with asyncparl.connect(preload=["numpy"]):
        actor = store()
        await actor.nothing()
        array = pattern(VERY_LARGE)
        with trio.fail_after(LIMIT_S):
            large, small = actor.size_of_pattern(array), actor.nothing()
            array[:] = 0  # the call has been made
            assert not small.done()
            await small
            assert await large == VERY_LARGE


@pytest.mark.usefixtures("no_shared_memory")
async def test_so_does_everything_that_goes_through_the_socket() -> None:
    async with asyncparl.connect(preload=["numpy"]):
        actor = store()
        with trio.fail_after(LIMIT_S):
            assert await actor.size_of_pattern(pattern(LARGE)) == LARGE
            assert is_pattern(await actor.pattern(LARGE), LARGE)
            assert await actor.text(LARGE) == "x" * LARGE
            async with Store(pattern(LARGE)) as other:
                assert is_pattern(await other.keep, LARGE)


@pytest.mark.parametrize("shares", [True, False])
async def test_large_bytes_and_texts_arrive_as_what_they_were(shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shares:
        for module in (node_link, ways):
            monkeypatch.setattr(module, "SHARED_BYTES", 0)
    data = bytes(range(256)) * (20 << 12)
    assert len(data) > _STAYS_BYTES
    async with asyncparl.connect(preload=["numpy"]):
        actor = store()
        with trio.fail_after(LIMIT_S):
            for value in (
                [data, {"a": (data[:100_000], "text" * (5 << 20))}],
                bytearray(data),
                {"in a pickle": {1, 2}, "data": data},
                "\u00e4" * (5 << 20),
            ):
                assert await actor.echo(value) == value


@pytest.mark.usefixtures("no_shared_memory")
@pytest.mark.parametrize("how", ["", "_by_a_thread"])
async def test_a_result_that_the_actor_goes_on_changing_arrives_as_it_was_returned(how: str) -> None:
    async with asyncparl.connect(preload=["numpy"]):
        with trio.fail_after(LIMIT_S):
            actor: Any = Store(pattern(LARGE))
            for _ in range(3):
                result, cleared = getattr(actor, "kept" + how)(), getattr(actor, "clear" + how)()
                assert is_pattern(await result, LARGE)
                await cleared
                await asyncparl.set_attribute(actor, "keep", pattern(LARGE))


@pytest.mark.usefixtures("no_shared_memory")
async def test_a_result_that_is_cancelled_on_its_way_is_forgotten_at_both_ends() -> None:
    async with asyncparl.connect(preload=["numpy"]):
        actor = store()
        await actor.pattern(1000)
        before = await actor.used_bytes()
        with trio.fail_after(LIMIT_S):
            for _ in range(3):
                large = actor.pattern(VERY_LARGE)
                await until(lambda: begins_to_arrive(actor))
                large.cancel()
                await actor.nothing()
                await until(lambda: not begins_to_arrive(actor))
            while await actor.used_bytes() > before + MOVES_AFTER_ALL:
                await trio.sleep(0.01)
            assert is_pattern(await actor.pattern(LARGE), LARGE)


@pytest.mark.usefixtures("no_shared_memory")
async def test_an_actor_that_is_killed_in_the_middle_of_its_answer_dies_like_any_other() -> None:
    async with asyncparl.connect(preload=["numpy"]):
        actor, other = store(), store()
        await actor.nothing()
        with trio.fail_after(LIMIT_S):
            large = actor.pattern(VERY_LARGE)
            await until(lambda: begins_to_arrive(actor))
            os.kill(actor._handle._process.pid, signal.SIGKILL)
            with pytest.raises(asyncparl.ActorDied, match="killed by SIGKILL"):
                await large
            assert not begins_to_arrive(actor)
            assert is_pattern(await other.pattern(LARGE), LARGE)


@pytest.mark.usefixtures("no_shared_memory")
async def test_a_large_argument_that_was_not_sent_to_its_end_has_certainly_not_run() -> None:
    async with asyncparl.connect(preload=["numpy"]):
        actor = store()
        await actor.nothing()
        with trio.fail_after(LIMIT_S):
            os.kill(actor._handle._process.pid, signal.SIGSTOP)
            large = actor.size_of_pattern(pattern(LARGE))
            os.kill(actor._handle._process.pid, signal.SIGKILL)
            with pytest.raises(asyncparl.ActorDied) as caught:
                await large
            assert caught.value.fate is asyncparl.CallFate.NEVER_STARTED


@pytest.mark.usefixtures("no_shared_memory")
async def test_closing_an_actor_loses_nothing_of_what_it_answers_before() -> None:
    async with asyncparl.connect(preload=["numpy"]):
        actor = store()
        with trio.fail_after(LIMIT_S):
            calls = [actor.pattern(LARGE), actor.text(LARGE), actor.pattern(LARGE)]
            await asyncparl.close(actor)
            assert is_pattern(await calls[0], LARGE)
            assert len(await calls[1]) == LARGE
            assert is_pattern(await calls[2], LARGE)


@pytest.mark.usefixtures("no_shared_memory")
async def test_neither_does_an_actor_that_exits() -> None:
    async with asyncparl.connect(preload=["numpy"]):
        actor = store()
        with trio.fail_after(LIMIT_S):
            calls, leaving = [actor.pattern(LARGE), actor.pattern(LARGE)], actor.leave(3)
            for call in calls:
                assert is_pattern(await call, LARGE)
            with pytest.raises(asyncparl.ActorDied, match="exited with code 3"):
                await leaving


@pytest.mark.usefixtures("no_shared_memory")
async def test_large_and_small_items_of_a_stream_keep_their_order() -> None:
    async with asyncparl.connect(preload=["numpy"]):
        actor, num = store(), 10
        with trio.fail_after(LIMIT_S):
            numbers = []
            async for number, array in actor.patterns(num, LARGE // 8):
                numbers.append(number)
                assert array is None or is_pattern(array, LARGE // 8, number)
            assert numbers == list(range(num))


# --- the limit --------------------------------------------------------------------------------------------------


async def test_a_limit_holds_for_arguments_results_and_constructors_and_the_actor_goes_on() -> None:
    async with asyncparl.connect(max_value_bytes="2MiB"):
        actor = store()
        with trio.fail_after(LIMIT_S):
            for call in (actor.size_of_pattern(pattern(3 << 20)), actor.pattern(3 << 20), actor.text(3 << 20)):
                with pytest.raises(asyncparl.MessageTooLarge, match=r"3,145,... bytes; the limit is 2,097,152 bytes"):
                    await call
            with pytest.raises(asyncparl.MessageTooLarge, match="max_value_bytes"):
                await Store(pattern(3 << 20)).nothing()
            assert await actor.size_of_pattern(pattern(1 << 20)) == 1 << 20


async def test_the_limit_of_a_program_is_that_of_the_actors_of_its_actors() -> None:
    async with asyncparl.connect(max_value_bytes=2 << 20):
        actor = store()
        with trio.fail_after(LIMIT_S):
            assert await actor.ask_one_of_its_own(1 << 20) == 1 << 20
            with pytest.raises(asyncparl.MessageTooLarge, match="the limit is 2,097,152 bytes"):
                await actor.ask_one_of_its_own(3 << 20)


@pytest.mark.parametrize(
    ("limit", "error"), [(5, ValueError), ("much", ValueError), (-1, ValueError), (1.5, TypeError)]
)
async def test_a_limit_that_makes_no_sense_is_refused(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"size|max_value_bytes"):
        async with asyncparl.connect(max_value_bytes=limit):
            pass


@pytest.mark.slow
async def test_more_than_a_gibibyte_travels() -> None:
    num_bytes = (1 << 30) + (64 << 20)
    async with asyncparl.connect(preload=["numpy"], max_value_bytes=None):
        with trio.fail_after(2 * LIMIT_S):
            assert is_pattern(await store().pattern(num_bytes), num_bytes)
