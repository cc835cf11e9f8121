"""Actors that are started again when they die: what goes on, what is lost, and what ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import trio

import asyncparl
from asyncparl.errors import CallFate
from tests.proc import is_gone
from tests.runtime.actors import Broken
from tests.runtime.mortals import Bereft, Friend, Mortal, Parent, SlowlyRestored


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


def entries(diary: Path) -> list[str]:
    return diary.read_text().splitlines()


async def death_of(call: Any) -> asyncparl.ActorDied:
    with trio.fail_after(20), pytest.raises(asyncparl.ActorDied) as caught:
        await call
    return caught.value


async def until(condition: Any) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.01)


@pytest.mark.parametrize("end", [("shoot",), ("leave", 3)])
async def test_an_actor_that_dies_is_the_same_to_its_callers_again(diary: Path, end: tuple[Any, ...]) -> None:
    async with asyncparl.connect() as cluster:
        data = np.arange(3)
        mortal = Mortal.options(name="mortal")(str(diary), data)
        pid = await mortal.pid()
        data[:] = 0  # the arguments are those of the first time
        await death_of(getattr(mortal, end[0])(*end[1:]))
        assert await mortal.pid() != pid
        assert (await mortal.data).tolist() == [0, 1, 2]
        assert await asyncparl.get_actor("mortal") == mortal
        assert await mortal.restarts == 1
        assert cluster.num_actors == 1
        assert entries(diary) == ["born", "born", "restart 1"]


async def test_a_death_from_outside_is_one_too(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal(str(diary))
        for _ in range(2):
            os.kill(await mortal.pid(), signal.SIGTERM)
            await until(lambda: "restart" in repr(mortal))
        assert await mortal.restarts == 2


async def test_open_calls_fail_with_their_fate_and_later_ones_wait(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal(str(diary))
        await mortal.pid()
        dead, behind, stream = mortal.shoot(), mortal.write("never"), mortal.forever()
        error = await death_of(dead)
        assert (error.signal, error.log_tail, error.fate) == (9, ("last words",), CallFate.MAY_HAVE_RUN)
        assert error.reason == "killed by SIGKILL; asyncparl did not do it"
        later = [mortal.write("first"), mortal.write("second")]
        assert (await death_of(behind)).fate is CallFate.MAY_HAVE_RUN
        with pytest.raises(asyncparl.ActorDied):
            async for _ in stream:
                pass
        await asyncparl.gather(later)
        assert entries(diary) == ["born", "born", "restart 1", "first", "second"]


async def test_a_call_that_waits_for_the_first_process_is_never_made_twice(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal(str(diary))
        assert (await death_of(mortal.shoot_once("ran"))).fate is CallFate.MAY_HAVE_RUN
        assert await mortal.restarts == 1
        assert entries(diary) == ["born", "ran", "born", "restart 1"]


async def test_idempotent_methods_are_called_again_in_order_and_before_those_that_wait(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal(str(diary))
        await mortal.pid()
        calls = [mortal.read("one"), mortal.read_later("async"), mortal.read("shoot"), mortal.read("two")]
        lost = mortal.write("lost")
        assert await calls[0] == 0
        await death_of(lost)
        waits = mortal.write("waits")
        assert await asyncparl.gather(calls[1:]) == [1, 1, 1]
        await waits
        after = entries(diary)[entries(diary).index("restart 1") + 1 :]
        assert [entry for entry in after if entry != "async"] == ["shoot", "two", "waits"]
        assert "async" in after


async def test_an_idempotent_call_that_was_cancelled_is_not_made_again(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal(str(diary))
        await mortal.pid()
        call = mortal.read_later("async")
        await until(lambda: "async" in entries(diary))
        os.kill(await mortal.pid(), signal.SIGKILL)
        await until(lambda: "restarting" in repr(mortal))
        call.cancel()
        assert await mortal.restarts == 1
        assert entries(diary).count("async") == 1


@pytest.mark.slow
async def test_after_so_many_restarts_every_call_says_that_it_gave_up(diary: Path) -> None:
    async with asyncparl.connect() as cluster:
        mortal = Mortal.options(max_restarts=2)(str(diary))
        for _ in range(3):
            await death_of(mortal.shoot())
        error = await death_of(mortal.pid())
        assert error.reason == "gave up after 2 restarts within 60 s: killed by SIGKILL; asyncparl did not do it"
        assert (error.signal, error.fate) == (9, CallFate.NEVER_STARTED)
        assert cluster.num_actors == 0
        assert "dead" in repr(mortal)


async def test_a_constructor_that_raises_is_no_death_the_first_time(diary: Path) -> None:
    async with asyncparl.connect():
        with pytest.raises(ValueError, match="no process 0"):
            await Mortal(str(diary), fails_from=0).pid()
        with pytest.raises(RuntimeError, match="no such device"):
            async with Broken.options(max_restarts=3)():
                pass
        assert (await death_of(Bereft().get())).actor == "somebody else"
        assert entries(diary) == ["born"]


async def test_a_constructor_that_raises_in_a_restart_is_a_death(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal.options(max_restarts=2)(str(diary), fails_from=1)
        await mortal.pid()
        await death_of(mortal.shoot())
        error = await death_of(mortal.pid())
        assert "gave up after 2 restarts within 60 s: its restart failed: ValueError: no process 2" in error.reason
        assert "ValueError: no process 2" in error.log_tail
        assert entries(diary) == ["born"] * 3


async def test_a_process_that_dies_in_its_constructor_costs_no_call() -> None:
    async with asyncparl.connect():
        actor = SlowlyRestored()
        assert await actor.get() == 0
        await death_of(actor.shoot())
        assert await actor.get() == 1  # after `on_restart`, which took a while


async def test_what_ends_by_itself_is_not_started_again(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal(str(diary))
        await death_of(mortal.leave(0))
        assert (await death_of(mortal.pid())).exit_code == 0
        assert entries(diary) == ["born"]


@pytest.mark.slow
@pytest.mark.parametrize("end", [asyncparl.close, asyncparl.kill])
async def test_closing_and_killing_end_the_restarting(diary: Path, end: Any) -> None:
    async with asyncparl.connect() as cluster:
        running, between = Mortal(str(diary)), Mortal(f"{diary}-2")
        await running.pid()
        await end(running)
        for _ in range(3):
            await death_of(between.shoot())
        await until(lambda: "restarting" in repr(between))
        waiting = between.pid()
        with trio.fail_after(2):
            await end(between)
        word = "closed" if end is asyncparl.close else "killed by its owner"
        for call in (waiting, between.pid(), running.pid()):
            error = await death_of(call)
            assert error.reason == f"it was {word}"
            assert error.fate is CallFate.NEVER_STARTED
        assert cluster.num_actors == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", [asyncparl.close, asyncparl.kill])
async def test_a_restart_that_takes_long_is_ended_too(end: Any, capfd: pytest.CaptureFixture[str]) -> None:
    async with asyncparl.connect():
        actor = SlowlyRestored(600)
        await death_of(actor.shoot())
        output = ""
        with trio.fail_after(20):
            while "restart in" not in (output := output + capfd.readouterr().out):
                await trio.sleep(0.01)
            waiting = actor.get()
            await end(actor)
        pid = int(output.rpartition("restart in ")[2].split()[0])
        assert is_gone(pid)
        assert (await death_of(waiting)).fate is CallFate.NEVER_STARTED


@pytest.mark.slow
async def test_the_end_of_the_block_ends_the_restarting(diary: Path) -> None:
    start = trio.current_time()
    async with asyncparl.connect():
        mortals = [Mortal(f"{diary}-{i}") for i in range(4)]
        for mortal in mortals[1:]:
            await death_of(mortal.shoot())
        pids = [await mortals[0].pid()]
        for mortal in mortals[2:]:
            await death_of(mortal.shoot())
    assert trio.current_time() - start < 15
    assert not any(map(psutil.pid_exists, pids))


async def test_borrowers_find_the_next_process(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal(str(diary))
        friend = Friend(mortal)
        pid = await friend.ask("pid")
        with pytest.raises(asyncparl.ActorDied, match="killed by SIGKILL"):
            await friend.ask("shoot")
        again = await friend.ask("pid")
        assert again != pid
        open_calls = [friend.ask("sleep", 600), mortal.sleep(600)]
        await until(lambda: "sleep" in entries(diary))
        os.kill(again, signal.SIGKILL)
        for call in open_calls:  # when a call has failed its caller knows, so the next one waits
            await death_of(call)
        assert await friend.ask("pid") == await mortal.pid()


@pytest.mark.parametrize("how", ["kill", "close"])
async def test_a_borrower_can_end_it_for_good(diary: Path, how: str) -> None:
    async with asyncparl.connect() as cluster:
        mortal = Mortal(str(diary))
        friend = Friend(mortal)
        await friend.ask("pid")
        await getattr(friend, how)()
        await until(lambda: cluster.num_actors == 1)
        await death_of(mortal.pid())
        with pytest.raises(asyncparl.ActorDied):
            await friend.ask("pid")
        assert entries(diary) == ["born"]


@pytest.mark.slow
async def test_a_borrower_can_end_it_between_two_processes(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal(str(diary))
        friend = Friend(mortal)
        for _ in range(3):
            await death_of(mortal.shoot())
        await friend.kill()
        error = await death_of(mortal.pid())
        assert error.reason == "it cannot be started again: it was killed"
        with pytest.raises(asyncparl.ActorDied, match="it was killed"):
            await friend.ask("pid")


async def test_a_borrower_hears_at_once_that_the_owner_died_too(diary: Path) -> None:
    """Between two processes of the actor: nobody starts it again."""
    async with asyncparl.connect():
        parent = Parent(str(diary))
        child = await parent.lend()
        pids = await child.pid(), await parent.pid()
        os.kill(pids[0], signal.SIGKILL)
        await trio.sleep(0.05)
        os.kill(pids[1], signal.SIGKILL)
        with trio.fail_after(2):
            await death_of(child.pid())


async def test_what_a_process_has_exposed_is_gone_with_it(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal(str(diary))
        thing = await mortal.expose(1)
        assert await thing.value == 1
        await death_of(mortal.shoot())
        other = await mortal.expose(2)
        assert await other.value == 2
        with pytest.raises(asyncparl.ActorDied, match="not exposed any more"):
            await thing.value


async def test_what_an_actor_says_of_itself_stays_true(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal(str(diary))
        itself = await mortal.itself()
        await death_of(mortal.shoot())
        assert await itself.restarts == 1
        assert itself == mortal


async def test_without_the_option_nothing_is_started_again(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal.options(max_restarts=0)(str(diary))
        await death_of(mortal.read("shoot"))
        assert (await death_of(mortal.read("one"))).reason == "killed by SIGKILL; asyncparl did not do it"


async def test_an_actor_lost_with_the_node_of_a_private_cluster_is_lost(diary: Path) -> None:
    async with asyncparl.connect():
        mortal = Mortal(str(diary))
        pid = await mortal.pid()
        psutil.Process(pid).parent().parent().kill()
        error = await death_of(mortal.sleep(600))
        assert "node" in error.reason
        error = await death_of(mortal.pid())
        assert error.reason.startswith("it cannot be started again: there is no master")


@pytest.mark.slow
async def test_a_name_is_free_as_soon_as_its_actor_has_ended(diary: Path) -> None:
    async with asyncparl.connect():
        for options in ({"max_restarts": 0}, {"max_restarts": 1}):
            for _ in range(3):
                mortal = Mortal.options(name="mortal", **options)(str(diary))
                assert await asyncparl.get_actor("mortal") == mortal
                await mortal.pid()
                await asyncparl.close(mortal)
                with pytest.raises(LookupError):
                    await asyncparl.get_actor("mortal")


def test_generators_are_not_idempotent() -> None:
    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="is a generator: it cannot be idempotent"):
        asyncparl.idempotent(generator)
    with pytest.raises(TypeError, match="@idempotent marks methods"):
        asyncparl.idempotent(3)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_restarts": -1}, "max_restarts must be 0 or more, not -1"),
        ({"restart_window_s": 0}, "restart_window_s must be more than 0"),
        ({"max_restarts": 1, "detached": True, "name": "x"}, "detached and max_restarts exclude each other"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Mortal.options(**{"max_restarts": 0, **options})
