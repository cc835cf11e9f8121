"""Groups: who is started again with whom, how often, and how a failure climbs out of the block."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

import asyncparl
from tests.runtime.actors import AsyncEcho, Echo
from tests.runtime.mortals import Mortal


async def _pids(actors: list[Any]) -> list[int]:
    with trio.fail_after(20):
        return await asyncparl.gather([actor.pid() for actor in actors])


async def _die(actor: Any) -> None:
    with trio.fail_after(20), pytest.raises(asyncparl.ActorDied):
        await actor.shoot()


def _changed(before: list[int], after: list[int]) -> str:
    return "".join("x" if old != new else "." for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("strategy", "changed"), [("one_for_one", ".x.."), ("one_for_all", "xxxx"), ("rest_for_one", ".xxx")]
)
async def test_who_is_started_again_with_one_that_died(strategy: Any, changed: str) -> None:
    async with asyncparl.connect(), asyncparl.supervise(strategy) as group:
        actors = [group.add(Echo, i) for i in range(4)]
        before = await _pids(actors)
        await _die(actors[1])
        assert _changed(before, await _pids(actors)) == changed
        assert [await actor.total for actor in actors] == [0, 1, 2, 3]
        assert group.num_actors == 4
        left = [pid for pid, mark in zip(before, changed, strict=True) if mark == "."]
        assert [pid for pid in before if psutil.pid_exists(pid)] == left


async def test_calls_of_those_that_are_started_again_with_it_say_why(tmp_path: Path) -> None:
    async with asyncparl.connect(), asyncparl.supervise("one_for_all") as group:
        one, other = group.add(Mortal, str(tmp_path / "one")), group.add(Mortal, str(tmp_path / "other"))
        await _pids([one, other])
        lost, again = other.sleep(600), other.read("again")
        await _die(one)
        with pytest.raises(asyncparl.ActorDied, match="it is started again, because Mortal#1 has died"):
            await lost
        assert await again == 1


async def test_nobody_starts_before_all_have_ended(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    async with asyncparl.connect(), asyncparl.supervise("one_for_all", max_restarts=1) as group:
        actors = [group.add(Mortal, str(diary)) for _ in range(3)]
        before = await _pids(actors)
        waiting = [actor.pid() for actor in actors[1:]]
        await asyncparl.gather(waiting)
        await _die(actors[0])
        await _pids(actors)
        assert not any(map(psutil.pid_exists, before))
        assert diary.read_text().split("restart 1")[0].count("born") >= 4


async def test_two_deaths_at_once_are_one_restart_of_all() -> None:
    async with asyncparl.connect(), asyncparl.supervise("one_for_all", max_restarts=2) as group:
        actors = [group.add(Echo) for _ in range(3)]
        before = await _pids(actors)
        for pid in before[:2]:
            os.kill(pid, signal.SIGKILL)
        with trio.fail_after(20):
            while _changed(before, await _pids_now(actors, before)) != "xxx":
                await trio.sleep(0.05)


async def _pids_now(actors: list[Any], before: list[int]) -> list[int]:
    """Those of the dead are the old ones."""
    pids = []
    for actor, pid in zip(actors, before, strict=True):
        try:
            pids.append(await actor.pid())
        except asyncparl.ActorDied:
            pids.append(pid)
    return pids


async def test_a_group_that_is_spent_cancels_its_block_and_raises_the_last_death() -> None:
    async with asyncparl.connect() as cluster:
        pids: list[int] = []
        with trio.fail_after(20), pytest.raises(asyncparl.ActorDied) as caught:
            async with asyncparl.supervise(max_restarts=2) as group:
                actors = [group.add(Echo) for _ in range(2)]
                await _die(actors[0])
                await _die(actors[1])
                pids += await _pids(actors)
                os.kill(pids[1], signal.SIGKILL)
                await trio.sleep_forever()
        error = caught.value
        assert error.actor == "Echo#2"
        assert error.reason == (
            "its group gave up after 2 restarts within 60 s: killed by SIGKILL; asyncparl did not do it"
        )
        assert (error.signal, error.fate) == (9, None)
        assert not any(map(psutil.pid_exists, pids))
        assert cluster.num_actors == 0
        with pytest.raises(asyncparl.ActorDied, match="its group gave up"):
            await actors[1].pid()


async def test_the_last_death_is_raised_in_no_group_also_if_the_block_has_failed_by_it() -> None:
    async with asyncparl.connect():
        with trio.fail_after(20), pytest.raises(asyncparl.ActorDied) as caught:
            async with asyncparl.supervise(max_restarts=0) as group, trio.open_nursery() as nursery:
                actor = group.add(Echo)
                nursery.start_soon(trio.sleep_forever)
                with trio.CancelScope(shield=True):  # so that it is not the cancellation that ends the call
                    await actor.shoot()
        assert caught.value.fate is None
        assert caught.value.log_tail == ("last words",)
        assert isinstance(caught.value.__cause__, BaseExceptionGroup)


async def test_an_error_of_the_block_itself_leaves_it_as_it_is() -> None:
    async with asyncparl.connect() as cluster:
        with pytest.raises(LookupError, match="mine"):
            async with asyncparl.supervise() as group:
                await group.add(Echo).pid()
                raise LookupError("mine")
        assert cluster.num_actors == 0


@pytest.mark.parametrize("block", ["waits", "calls it", "ends at once"])
async def test_an_actor_that_cannot_be_made_fails_the_block_with_what_its_constructor_raised(
    block: str, tmp_path: Path
) -> None:
    async with asyncparl.connect() as cluster:
        with trio.fail_after(20), pytest.raises(ValueError, match="no process 0") as caught:
            async with asyncparl.supervise() as group:
                await group.add(Echo).pid()
                bad = group.add(Mortal, str(tmp_path / "diary"), fails_from=0)
                if block == "calls it":
                    await bad.pid()
                elif block == "waits":
                    await trio.sleep_forever()
        assert "in __init__" in str(caught.value.__cause__)
        assert (tmp_path / "diary").read_text().count("born") == 1
        assert cluster.num_actors == 0


async def test_an_actor_whose_arguments_cannot_travel_fails_the_block() -> None:
    async with asyncparl.connect():
        with trio.fail_after(20), pytest.raises(asyncparl.SerializationError, match="Echo"):
            async with asyncparl.supervise() as group:
                group.add(Echo, threading.Lock())
                await trio.sleep_forever()


async def test_an_inner_group_that_is_spent_fails_the_block_of_the_outer_one() -> None:
    async with asyncparl.connect() as cluster:
        with trio.fail_after(20), pytest.raises(asyncparl.ActorDied, match=r"Echo#2 died: killed by SIGKILL"):
            async with asyncparl.supervise() as outer:
                pid = await outer.add(Echo).pid()
                async with asyncparl.supervise(max_restarts=0) as inner:
                    await inner.add(Echo).shoot()
        assert not psutil.pid_exists(pid)
        assert cluster.num_actors == 0


async def test_what_an_inner_group_repairs_concerns_nobody() -> None:
    async with asyncparl.connect(), asyncparl.supervise(max_restarts=0) as outer:
        other = outer.add(Echo)
        async with asyncparl.supervise(max_restarts=1) as inner:
            actor = inner.add(Echo)
            await _die(actor)
            assert await actor.add(1) == 1
        assert await other.add(1) == 1


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one"])
async def test_the_end_of_the_block_closes_its_actors(strategy: Any) -> None:
    async with asyncparl.connect() as cluster:
        async with asyncparl.supervise(strategy) as group:
            actors = [group.add(Echo) for _ in range(3)]
            calls = [actor.sleep(0.1) for actor in actors]
        assert await asyncparl.gather(calls) == ["slept"] * 3
        assert cluster.num_actors == 0
        with pytest.raises(asyncparl.ActorDied, match="it was closed"):
            await actors[0].pid()
        with pytest.raises(RuntimeError, match="the block of this group has ended"):
            group.add(Echo)


@pytest.mark.slow
async def test_the_end_of_the_block_waits_for_no_method_that_does_not_end() -> None:
    async with asyncparl.connect():
        start = trio.current_time()
        async with asyncparl.supervise() as group:
            call = group.add(AsyncEcho).wait_for_event()
            await trio.sleep(0.2)
        with pytest.raises(asyncparl.ActorDied, match="it was closed"):
            await call
        assert 4 < trio.current_time() - start < 10


async def test_an_actor_that_was_closed_is_no_member_any_more() -> None:
    async with asyncparl.connect(), asyncparl.supervise("one_for_all") as group:
        actors = [group.add(Echo) for _ in range(3)]
        before = await _pids(actors)
        await asyncparl.close(actors[0])
        assert group.num_actors == 2
        await _die(actors[1])
        assert _changed(before[1:], await _pids(actors[1:])) == "xx"
        with pytest.raises(asyncparl.ActorDied, match="it was closed"):
            await actors[0].pid()


async def test_a_group_may_outlive_its_cluster() -> None:
    async with asyncparl.supervise() as group:
        async with asyncparl.connect():
            actor = group.add(Echo)
            await actor.pid()
        assert group.num_actors == 0


@asyncparl.remote_class
class Boss:
    async def run(self) -> int:
        async with asyncparl.supervise() as group:
            worker = group.add(Echo, 3)
            try:
                await worker.shoot()
            except asyncparl.ActorDied:
                return await worker.add(1)  # type: ignore[no-any-return]
        raise AssertionError("not reached")


async def test_actors_have_groups_of_their_own() -> None:
    async with asyncparl.connect():
        with trio.fail_after(20):
            assert await Boss().run() == 4


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"strategy": "all"}, ValueError, "strategy must be one of one_for_one, one_for_all, rest_for_one, not 'all'"),
        ({"max_restarts": -1}, ValueError, "max_restarts must be 0 or more"),
        ({"restart_window_s": 0}, ValueError, "restart_window_s must be more than 0"),
    ],
)
async def test_groups_that_make_no_sense_are_refused(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        async with asyncparl.supervise(**arguments):
            pass


async def test_what_cannot_belong_to_a_group_is_refused() -> None:
    async with asyncparl.connect(), asyncparl.supervise() as group:
        with pytest.raises(TypeError, match="a group has actors of remote classes"):
            group.add(Echo.__wrapped__)
        with pytest.raises(ValueError, match="Echo is detached"):
            group.add(Echo.options(detached=True, name="x"))
