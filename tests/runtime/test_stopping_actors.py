"""The ladder of `runtime/stopping.py`, rung by rung: who does not end when asked, ends by SIGTERM, else by SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
import trio

import asyncparl
from tests.proc import is_gone
from tests.runtime.mortals import Stubborn

End = Callable[[asyncparl.Proxy], Awaitable[None]]


async def close_impatiently(actor: asyncparl.Proxy) -> None:
    with trio.move_on_after(0.3):
        await asyncparl.close(actor)


async def wait_gone(*pids: int, within_s: float = 5.0) -> float:
    """Until these processes have ended; how many seconds that took."""
    start = trio.current_time()
    with trio.fail_after(within_s):
        while not all(map(is_gone, pids)):
            await trio.sleep(0.01)
    return trio.current_time() - start


async def test_asking_lets_a_method_finish() -> None:
    async with asyncparl.connect():
        actor = Stubborn()
        call = actor.sleep(0.2, os.devnull)
        await asyncparl.close(actor)
        assert await call is None


@pytest.mark.parametrize("end", [asyncparl.close, asyncparl.kill])
async def test_what_is_called_after_the_end_was_asked_for_never_runs(end: End, tmp_path: Path) -> None:
    async with asyncparl.connect(), trio.open_nursery() as nursery:
        actor = Stubborn()
        await actor.pid()
        call = actor.sleep(0.3, str(tmp_path / "before"))
        nursery.start_soon(end, actor)
        await trio.sleep(0.05)
        for number in range(4):
            with pytest.raises(asyncparl.ActorDied, match=r"it was (closed|killed by its owner); the call was never"):
                await actor.sleep(0, str(tmp_path / f"after-{number}"))
        if end is asyncparl.close:
            assert await call is None
            assert os.listdir(tmp_path) == ["before"]


async def test_one_that_does_not_hear_because_a_method_runs_gets_sigterm(tmp_path: Path) -> None:
    """Which the method sees: its `finally` runs."""
    async with asyncparl.connect():
        actor = Stubborn()
        pid = await actor.pid()
        call = actor.sleep(600, str(tmp_path / "done"))
        await close_impatiently(actor)
        await wait_gone(pid)
        with pytest.raises(asyncparl.ActorDied, match="it was closed") as caught:
            await call
        assert caught.value.exit_code == 128 + signal.SIGTERM
        assert (tmp_path / "done").read_text() == "finally"


@pytest.mark.parametrize("method", ["clean_up_slowly", "flush_slowly"])
async def test_a_second_sigterm_interrupts_nothing_that_the_first_has_begun(method: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    async with asyncparl.connect():
        actor = Stubborn()
        pid = await actor.pid()
        call = getattr(actor, method)(str(path))
        await trio.sleep(0.2)
        os.kill(pid, signal.SIGTERM)
        with trio.fail_after(5):
            while not path.exists():
                await trio.sleep(0.001)
        os.kill(pid, signal.SIGTERM)
        with pytest.raises(asyncparl.ActorDied) as caught:
            await call
        assert (caught.value.exit_code, caught.value.log_tail) == (128 + signal.SIGTERM, ())
        assert caught.value.reason == "ended by SIGTERM; asyncparl did not send it"
        assert path.read_text() == "done"


async def test_a_burst_of_sigterms_ends_an_actor_like_one() -> None:
    async with asyncparl.connect():
        for pause_s in (0.0, 1e-5, 1e-4, 1e-3):
            actor = Stubborn()
            pid = await actor.pid()
            call = actor.sleep(600, os.devnull)
            await trio.sleep(0.1)
            with contextlib.suppress(ProcessLookupError):  # it was fast
                for _ in range(10):
                    os.kill(pid, signal.SIGTERM)
                    time.sleep(pause_s)  # noqa: ASYNC251  # Trio's would take longer
            with pytest.raises(asyncparl.ActorDied) as caught:
                await call
            assert (caught.value.exit_code, caught.value.log_tail) == (128 + signal.SIGTERM, ())


@pytest.mark.slow
async def test_one_that_ignores_sigterm_gets_sigkill(tmp_path: Path) -> None:
    async with asyncparl.connect():
        actor = Stubborn()
        pid = await actor.pid()
        await actor.ignore_sigterm()
        call = actor.sleep(600, str(tmp_path / "done"))
        await close_impatiently(actor)
        assert await wait_gone(pid) > 0.9
        with pytest.raises(asyncparl.ActorDied, match="it was closed") as caught:
            await call
        assert caught.value.signal == signal.SIGKILL
        assert not (tmp_path / "done").exists()


@pytest.mark.slow
async def test_one_that_has_answered_and_does_not_exit_gets_sigterm() -> None:
    async with asyncparl.connect():
        actor = Stubborn()
        pid = await actor.pid()
        await actor.exit_slowly(600)
        start = trio.current_time()
        with trio.fail_after(10):
            await asyncparl.close(actor)
        assert trio.current_time() - start > 4.9
        await wait_gone(pid)


@pytest.mark.slow
@pytest.mark.parametrize("end", [close_impatiently, asyncparl.kill])
async def test_one_that_was_stopped_is_killed(end: End) -> None:
    async with asyncparl.connect():
        actor = Stubborn()
        pid = await actor.pid()
        os.kill(pid, signal.SIGSTOP)
        await end(actor)
        took_s = await wait_gone(pid)
        assert (took_s > 0.9) == (end is close_impatiently)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ignores SIGTERM", "was stopped", "runs a method"])
async def test_the_end_of_the_block_goes_down_the_ladder_too(how: str, tmp_path: Path) -> None:
    async with asyncparl.connect():
        actor = Stubborn()
        pid = await actor.pid()
        if how == "was stopped":
            os.kill(pid, signal.SIGSTOP)
        elif how == "ignores SIGTERM":
            await actor.ignore_sigterm()
        actor.sleep(600, str(tmp_path / "done"))
        await trio.sleep(0.2)
        start = trio.current_time()
    took_s = trio.current_time() - start
    assert took_s < 5
    assert (took_s > 0.9) == (how != "runs a method")
    assert (tmp_path / "done").exists() == (how == "runs a method")
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("end", [asyncparl.close, close_impatiently, asyncparl.kill])
async def test_grandchildren_end_with_it_however_it_ends(end: End) -> None:
    async with asyncparl.connect():
        actor = Stubborn()
        pids = [await actor.spawn_grandchild(), await actor.pid()]
        if end is close_impatiently:
            actor.sleep(600, os.devnull)
        await end(actor)
        await wait_gone(*pids)


async def test_grandchildren_end_with_one_that_crashes() -> None:
    async with asyncparl.connect():
        actor = Stubborn()
        grandchild = await actor.spawn_grandchild()
        os.kill(await actor.pid(), signal.SIGSEGV)
        await wait_gone(grandchild)


@pytest.mark.slow
async def test_a_node_ends_its_actors_in_the_same_way(tmp_path: Path) -> None:
    """Also the ones that were not started, or not closed, when their program was killed: here its link is cut."""
    async with asyncparl.connect():
        actor, busy = Stubborn(), Stubborn()
        pids = [await actor.pid(), await busy.pid()]
        await actor.ignore_sigterm()
        actor.sleep(600, str(tmp_path / "ignored"))
        busy.sleep(600, str(tmp_path / "heard"))
        await trio.sleep(0.2)
        busy._handle.node.close()  # type: ignore[attr-defined]
        await wait_gone(*pids)
    assert (tmp_path / "heard").exists()
    assert not (tmp_path / "ignored").exists()
