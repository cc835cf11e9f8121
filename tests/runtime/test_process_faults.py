"""The processes behind the actors die or stand still: the node of a private cluster, the zygote, the program itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import trio

import asyncparl
from asyncparl.runtime import session
from tests.proc import is_gone
from tests.runtime.actors import AsyncEcho, Echo, Recorder
from tests.runtime.cluster_process import new_actors_are_refused, node_process
from tests.runtime.mortals import Friend

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 30.0
SILENCE_S = 8.0
"""Longer than anybody may be silent."""
NUM_WAITING = 300

either_process = pytest.mark.parametrize("which", ["node", "zygote"])


class Scene(NamedTuple):
    """A cluster in which everything goes on at once."""

    calls: dict[str, asyncparl.Call[Any]]
    """That will not end by themselves."""
    stream: asyncparl.Call[int]
    closing: asyncparl.Proxy
    """Its close waits for a call."""
    pids: list[int]
    """Of actors, and of what they have started."""
    processes: dict[str, psutil.Process]

    async def goes_on(self) -> None:
        """Nobody has noticed anything."""
        item = await anext(self.stream)
        assert await anext(self.stream) == item + 1
        assert not any(call.done() for call in self.calls.values())


async def make_scene() -> Scene:
    busy, resting, streaming, closing = Echo(), AsyncEcho(), Echo(), Echo()
    pids = [await each.pid() for each in (busy, streaming, closing)]
    pids.append(await streaming.spawn_grandchild())
    zygote = psutil.Process(pids[0]).parent()
    node = zygote.parent()
    stream = streaming.forever()
    assert await anext(stream) == 0
    constructing = Recorder(600)
    calls = {
        "in a method": busy.sleep(600),
        "in an async method": resting.wait_for_event(),
        "in a method of an actor that is closed": closing.sleep(600),
        "in the constructor": constructing.draw(),
    }
    calls |= {f"waiting {number}": busy.add(number) for number in range(NUM_WAITING)}
    while "starting" in repr(constructing):
        await trio.sleep(0.01)
    assert await resting.cancelled == 0  # what was called before has arrived
    return Scene(calls, stream, closing, pids, {"node": node, "zygote": zygote})


async def gone(pids: list[int]) -> None:
    for pid in pids:
        while not is_gone(pid):
            await trio.sleep(0.01)


async def test_what_actors_wait_for_that_cannot_start_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    said = ""
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect(), Echo() as first:
            zygote = psutil.Process(await first.pid()).parent()
            zygote.suspend()
            try:
                others = [Echo(), Echo()]
                while not said:
                    await trio.sleep(0.1)
                    said += capfd.readouterr().err
                await trio.sleep(1.0)  # for the second one to say the same
            finally:
                zygote.resume()
            assert await asyncparl.gather([other.add(1) for other in others]) == [1, 1]
    said += capfd.readouterr().err
    reason = f"the process that starts workers (pid {zygote.pid}) is stopped (SIGSTOP)"
    assert said in (f"asyncparl: Echo#{number} waits: {reason}\n" for number in (2, 3))


async def test_that_the_master_does_not_answer_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    said = ""
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            (node := node_process()).suspend()
            echo = Echo()
            while not said:
                await trio.sleep(0.1)
                said += capfd.readouterr().err
            node.resume()
            assert await echo.add(1) == 1
    assert said == "asyncparl: Echo#1 waits: the master does not answer\n"


@either_process
async def test_when_a_process_behind_the_actors_is_killed_every_call_settles_at_once(which: str) -> None:
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect() as cluster, trio.open_nursery() as nursery:
            scene = await make_scene()
            nursery.start_soon(asyncparl.close, scene.closing)
            scene.processes[which].kill()
            starting = Echo()
            with trio.fail_after(5):
                for call in scene.calls.values():
                    with pytest.raises(asyncparl.ActorDied):
                        await call
                with pytest.raises(asyncparl.ActorDied):
                    async for _ in scene.stream:
                        pass
            if which == "zygote":
                with contextlib.suppress(asyncparl.ActorDied):  # or the next zygote has started it
                    assert await starting.add(1) == 1
                async with Echo() as echo:
                    assert await echo.add(1) == 1
            else:
                with pytest.raises((asyncparl.ActorDied, asyncparl.ResourceError)):
                    await starting.add(1)
                await new_actors_are_refused("node of this cluster is gone")
            await gone(scene.pids)
            await asyncparl.kill(starting)
            while cluster.num_actors:
                await trio.sleep(0.01)


@either_process
async def test_when_a_process_behind_the_actors_stands_still_for_a_moment_nothing_is_lost(which: str) -> None:
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            scene = await make_scene()
            scene.processes[which].suspend()
            try:
                late = Echo().add(1)
                await scene.goes_on()  # actors are called directly
                assert not late.done()
            finally:
                scene.processes[which].resume()
            assert await late == 1
            await scene.goes_on()
            for call in scene.calls.values():
                call.cancel()
            scene.stream.cancel()


@pytest.mark.slow
async def test_the_actors_of_a_node_that_is_silent_for_long_are_given_up_and_it_takes_new_ones() -> None:
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            scene = await make_scene()
            scene.processes["node"].suspend()
            try:
                with trio.fail_after(SILENCE_S):
                    for call in scene.calls.values():
                        with pytest.raises(asyncparl.ActorDied, match="silent"):
                            await call
                    with pytest.raises(asyncparl.ActorDied, match="silent"):
                        async for _ in scene.stream:
                            pass
            finally:
                scene.processes["node"].resume()
            await gone(scene.pids)
            assert await Echo().add(1) == 1


async def test_an_actor_is_ended_although_the_zygote_stands_still_and_the_others_go_on() -> None:
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            scene = await make_scene()
            actors = [Echo() for _ in range(2)]
            pids = await asyncparl.gather([actor.pid() for actor in actors])
            busy = actors[0].sleep(600)
            for end, actor in zip((asyncparl.kill, close_impatiently), actors, strict=True):
                scene.processes["zygote"].suspend()
                with trio.fail_after(5):
                    await end(actor)
            with pytest.raises(asyncparl.ActorDied, match="it was killed by its owner"):
                await busy
            await gone(pids)
            scene.processes["zygote"].suspend()
            starting = Echo()
            await trio.sleep(0.2)
            with trio.fail_after(5):
                await asyncparl.kill(starting)
            await scene.goes_on()
            for call in scene.calls.values():
                call.cancel()
            scene.stream.cancel()


async def close_impatiently(actor: asyncparl.Proxy) -> None:
    busy = actor.sleep(600)
    with trio.move_on_after(0.1):
        await asyncparl.close(actor)
    with pytest.raises(asyncparl.ActorDied):
        await busy


@pytest.mark.slow
@pytest.mark.parametrize("which", ["node", "zygote", "node and zygote"])
async def test_a_process_that_stands_still_for_good_does_not_keep_the_block_open(which: str) -> None:
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            scene = await make_scene()
            for name in which.split(" and "):
                scene.processes[name].suspend()
            late = Echo().add(1)
        for call in [*scene.calls.values(), late]:
            with pytest.raises(asyncparl.ActorDied):
                await call
        await gone([*scene.pids, *(process.pid for process in scene.processes.values())])


PROGRAM = """
    import os, trio, asyncparl
    from tests.runtime.actors import Echo

    async def main():
        async with asyncparl.connect():
            echo, other = Echo(), Echo()
            print(await echo.pid(), await other.pid(), await echo.spawn_grandchild(), flush=True)
            slow = other.sleep(1)
            async for number in echo.forever():
                await echo.add(1)
                if number == 3000:
                    break
            print(await slow, flush=True)

    if __name__ == "__main__":
        trio.run(main)
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that does something for a few seconds, and has started."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    yield process
    process.kill()
    process.communicate()


def pids_of(program: subprocess.Popen[str]) -> list[int]:
    assert program.stdout is not None
    pids = [int(pid) for pid in program.stdout.readline().split()]
    assert len(pids) == 3
    return pids


@pytest.mark.slow
def test_a_program_that_stands_still_for_long_loses_nothing(program: subprocess.Popen[str]) -> None:
    pids_of(program)
    program.send_signal(signal.SIGSTOP)
    time.sleep(SILENCE_S)
    program.send_signal(signal.SIGCONT)
    assert program.communicate(timeout=LIMIT_S) == ("slept\n", "")
    assert program.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("which", ["node", "zygote", "node and zygote"])
async def test_what_stands_still_when_the_program_ends_ends_with_it(
    which: str, number: signal.Signals, program: subprocess.Popen[str]
) -> None:
    pids = pids_of(program)
    zygote = psutil.Process(pids[0]).parent()
    processes = {"node": zygote.parent(), "zygote": zygote}
    for name in which.split(" and "):
        processes[name].suspend()
    program.send_signal(number)
    with trio.fail_after(10):
        await gone([*pids, *(process.pid for process in processes.values())])


async def test_what_the_actors_of_a_killed_program_have_started_ends_with_it(program: subprocess.Popen[str]) -> None:
    pids = pids_of(program)
    program.kill()
    with trio.fail_after(10):
        await gone(pids)


async def test_that_the_master_does_not_answer_is_said_to_who_looks_for_a_name(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_SILENT_AFTER_S", 0.5)
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            (node := node_process()).suspend()
            with trio.move_on_after(1.5):
                await asyncparl.get_actor("nobody")
            node.resume()
            monkeypatch.undo()
            with pytest.raises(LookupError):
                await asyncparl.get_actor("nobody")
    assert capfd.readouterr().err == "asyncparl: get_actor('nobody') waits: the master does not answer\n"


async def test_the_folder_of_a_private_cluster_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tempfile.mkdtemp(prefix="f-", dir="/tmp")  # a short path
    monkeypatch.setattr(tempfile, "tempdir", folder)
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            echo = Echo()
            assert await echo.add(1) == 1
            (ours,) = Path(folder).iterdir()
            shutil.rmtree(ours)
            async with Echo() as another:
                assert await another.add(1) == 1
            while not (ours / "master").exists() or not (ours / "node").exists():
                await trio.sleep(0.01)
            friend = Friend(echo)  # who dials both
            assert await friend.ask("add", 1) == 2
    assert os.listdir(folder) == []
    os.rmdir(folder)
