"""How actors, their processes and their clusters end. Whatever happens, nothing is left and nothing hangs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

import asyncparl
from asyncparl.errors import CallFate
from asyncparl.runtime.worker_pass import CANNOT_START
from asyncparl.runtime.worker_process import Worker
from tests.proc import is_gone
from tests.runtime.actors import AsyncEcho, Echo
from tests.runtime.cluster_process import new_actors_are_refused

REPOSITORY = Path(__file__).parents[2]


async def _gone(pid: int) -> None:
    with trio.fail_after(5):
        while not is_gone(pid):
            await trio.sleep(0.01)


async def test_leaving_the_block_ends_every_process() -> None:
    async with asyncparl.connect() as cluster:
        pids = await asyncparl.gather([Echo().pid() for _ in range(4)])
        assert cluster.num_actors == 4
    for pid in pids:
        assert not psutil.pid_exists(pid)


async def test_close_lets_earlier_calls_finish() -> None:
    async with asyncparl.connect():
        echo = Echo()
        pid = await echo.pid()
        calls = [echo.sleep(0.1), echo.add(1)]
        await asyncparl.close(echo)
        assert await asyncparl.gather(calls) == ["slept", 1]
        assert not psutil.pid_exists(pid)
        await asyncparl.close(echo)
        with pytest.raises(asyncparl.ActorDied, match="Echo#1 died: it was closed; the call was never started"):
            await echo.add(1)


async def test_close_waits_for_async_methods_and_cuts_streams() -> None:
    async with asyncparl.connect():
        actor = AsyncEcho()
        stream, nap = actor.count(1000), actor.nap(0.3)
        assert await anext(stream) == 0
        with trio.fail_after(5):
            await asyncparl.close(actor)
            assert await nap == "rested"
            with pytest.raises(asyncparl.ActorDied, match="it was closed"):
                async for _ in stream:
                    pass


async def test_an_actor_can_be_killed_at_any_moment_of_its_start() -> None:
    async with asyncparl.connect() as cluster:
        for i in range(20):
            echo = Echo()
            call = echo.sleep(600)
            await trio.sleep(0.002 * i)
            with trio.fail_after(5):
                await asyncparl.kill(echo)
                with pytest.raises(asyncparl.ActorDied, match="killed by its owner"):
                    await call
        assert cluster.num_actors == 0
    await asyncparl.kill(echo)


async def test_kill_ends_a_busy_actor_at_once() -> None:
    async with asyncparl.connect():
        echo = Echo()
        pid = await echo.pid()
        busy = echo.sleep(600)
        with trio.fail_after(3):
            await asyncparl.kill(echo)
            with pytest.raises(asyncparl.ActorDied, match="killed by its owner") as caught:
                await busy
        assert caught.value.fate is CallFate.MAY_HAVE_RUN
        assert not psutil.pid_exists(pid)


async def test_an_actor_as_context_manager_ends_with_its_block() -> None:
    async with asyncparl.connect():
        async with Echo() as echo:
            pid = await echo.pid()
        assert not psutil.pid_exists(pid)
        with pytest.raises(ZeroDivisionError):
            async with Echo() as echo:
                pid = await echo.pid()
                busy = echo.sleep(600)
                raise ZeroDivisionError
        assert not psutil.pid_exists(pid)
        assert busy.done()


async def test_a_killed_worker_fails_its_calls_with_a_death_report() -> None:
    async with asyncparl.connect():
        echo = Echo()
        await echo.echo()
        calls = [echo.shoot(), echo.add(1)]
        for call in calls:
            with pytest.raises(asyncparl.ActorDied) as caught:
                await call
            assert caught.value.signal == signal.SIGKILL
            assert caught.value.log_tail == ("last words",)
            assert caught.value.fate is CallFate.MAY_HAVE_RUN
        with pytest.raises(asyncparl.ActorDied) as caught:
            await echo.add(1)
        assert caught.value.fate is CallFate.NEVER_STARTED
        assert await Echo().add(1) == 1


async def test_an_actor_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    async with asyncparl.connect():
        echo = Echo()
        assert await echo.add(1) == 1
        folder.rmdir()
        reason = rf"^Echo#2 died: .*it cannot start: .*No such file or directory: '{folder}'; the call was never"
        with pytest.raises(asyncparl.ActorDied, match=reason):
            await Echo().add(1)
        assert await echo.add(1) == 2


async def test_a_worker_that_exits_reports_its_code() -> None:
    async with asyncparl.connect():
        with pytest.raises(asyncparl.ActorDied, match="exited with code 7") as caught:
            await Echo().leave(7)
        assert caught.value.exit_code == 7


async def test_a_death_ends_streams_and_waiting_calls_everywhere() -> None:
    async with asyncparl.connect():
        actor = AsyncEcho()
        echo = Echo()
        stream, waiting = echo.forever(), actor.wait_for_event()
        assert await anext(stream) == 0
        os.kill(await echo.pid(), signal.SIGKILL)
        with pytest.raises(asyncparl.ActorDied):
            async for _ in stream:
                pass
        await actor.set_event()
        assert await waiting == "woken"


@asyncparl.remote_class
class Starter:
    """Starts programs that want to be sessions of their own, as browsers and game servers do."""

    def start(self) -> list[int]:
        command = "sleep 600 & setsid sleep 600 & echo $! $(jobs -p | head -1); wait"
        shell = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert shell.stdout is not None
        return [shell.pid, *map(int, shell.stdout.readline().split())]

    def start_server(self) -> int:
        """Its launcher has ended, and was the leader of its group."""
        command = ["sh", "-c", "setsid sh -c 'sleep 600 > /dev/null & echo $!' & wait"]
        return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)

    def start_daemon(self) -> int:
        """The process between it and us has ended."""
        command = ["sh", "-c", "setsid sleep 600 > /dev/null & echo $!"]
        return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)

    def pid(self) -> int:
        return os.getpid()


@pytest.mark.parametrize("end", ["close", "kill", "SIGKILL", "the block"])
async def test_what_an_actor_started_ends_with_it_also_in_a_session_of_its_own(end: str) -> None:
    async with asyncparl.connect():
        actor, other = Starter(), Starter()
        started = [*await actor.start(), await actor.start_daemon(), await actor.start_server()]
        kept = [*await other.start(), await other.start_daemon(), await other.start_server()]
        await trio.sleep(0.2)
        assert all(psutil.Process(pid).status() == psutil.STATUS_SLEEPING for pid in started)
        if end == "SIGKILL":
            os.kill(await actor.pid(), signal.SIGKILL)
        elif end != "the block":
            await {"close": asyncparl.close, "kill": asyncparl.kill}[end](actor)
        if end != "the block":
            for pid in started:
                await _gone(pid)
            assert all(psutil.Process(pid).status() == psutil.STATUS_SLEEPING for pid in kept)
    for pid in started + kept:
        await _gone(pid)


@asyncparl.remote_class
class Sharer:
    """Has what only the resource tracker of multiprocessing removes if it does not."""

    def make(self) -> list[str]:
        before = set(os.listdir("/dev/shm"))
        self.memory = SharedMemory(create=True, size=1000)
        self.queue = multiprocessing.get_context("spawn").Queue()
        made = "from multiprocessing.shared_memory import SharedMemory as S; m = S(create=True, size=9); print(m.name)"
        command = [sys.executable, "-c", f"{made}; import sys, time; sys.stdout.flush(); time.sleep(600)"]
        self.script = subprocess.Popen(command, stdout=subprocess.PIPE)  # has a tracker of its own
        assert self.script.stdout is not None and self.script.stdout.readline()
        return sorted(set(os.listdir("/dev/shm")) - before)

    def keep_tracker(self) -> tuple[int, int]:
        """Who has its pipe outlives us: it has no variable that says where it came from."""
        command, fd = ["sleep", "600"], resource_tracker.getfd()
        keeper = subprocess.Popen(command, pass_fds=[fd], env={}, start_new_session=True)
        return keeper.pid, resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]

    def pid(self) -> int:
        return os.getpid()


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("end", ["close", "kill", "SIGKILL", "the block"])
async def test_shared_memory_and_semaphores_that_an_actor_made_go_with_it(end: str, start_method: str) -> None:
    async with asyncparl.connect(start_method=start_method):
        actor = Sharer()
        made = await actor.make()
        assert len(made) >= 5
        if end == "SIGKILL":
            os.kill(await actor.pid(), signal.SIGKILL)
            with pytest.raises(asyncparl.ActorDied):
                await actor.pid()
        elif end != "the block":
            await {"close": asyncparl.close, "kill": asyncparl.kill}[end](actor)
        if end != "the block":
            assert not set(made) & set(os.listdir("/dev/shm"))
    assert not set(made) & set(os.listdir("/dev/shm"))


async def test_a_tracker_that_does_not_end_is_ended() -> None:
    async with asyncparl.connect():
        actor = Sharer()
        keeper, tracker = await actor.keep_tracker()
        with trio.fail_after(6):
            await asyncparl.close(actor)
            await _gone(tracker)
        assert not is_gone(keeper)
        os.kill(keeper, signal.SIGKILL)
        async with Echo() as echo:
            assert await echo.add(1) == 1


async def test_grandchildren_end_with_their_actor() -> None:
    async with asyncparl.connect():
        echo = Echo()
        grandchild = await echo.spawn_grandchild()
        await asyncparl.kill(echo)
        await _gone(grandchild)


async def test_output_reaches_the_driver_with_the_name_of_the_actor(capfd: pytest.CaptureFixture[str]) -> None:
    async with asyncparl.connect():
        echo = Echo()
        await asyncparl.gather([echo.say("to standard output"), echo.complain("to standard error")])
        await asyncparl.close(echo)
    out, err = capfd.readouterr()
    assert "[Echo#1] to standard output\n" in out
    assert "[Echo#1] to standard error\n" in err


async def test_an_error_in_the_block_arrives_as_it_is() -> None:
    with pytest.raises(LookupError, match="mine"):
        async with asyncparl.connect():
            await Echo().pid()
            raise LookupError("mine")


async def test_cancelling_the_block_ends_its_processes(capfd: pytest.CaptureFixture[str]) -> None:
    pids: list[int] = []
    with trio.fail_after(8), trio.CancelScope() as scope:  # far below the limits that end what does not end by itself
        async with asyncparl.connect():
            echo = Echo()
            pids.append(await echo.pid())
            scope.cancel()
            await echo.sleep(600)
    assert scope.cancelled_caught
    assert not psutil.pid_exists(pids[0])
    assert capfd.readouterr().err == ""


async def test_clusters_can_follow_and_contain_one_another() -> None:
    for _ in range(2):
        async with asyncparl.connect():
            outer = Echo()
            async with asyncparl.connect() as inner:
                assert await Echo().add(1) == 1
                assert inner.num_actors == 1
            assert await outer.add(2) == 2


async def test_spawned_workers_behave_like_forked_ones(capfd: pytest.CaptureFixture[str]) -> None:
    async with asyncparl.connect(start_method="spawn"):
        echo = Echo(3)
        assert await echo.add(1) == 4
        await echo.say("spawned")
        pid = await echo.pid()
        with pytest.raises(asyncparl.ActorDied, match="SIGKILL"):
            await echo.shoot()
        await _gone(pid)
    assert "[Echo#1] spawned" in capfd.readouterr().out


async def test_a_node_that_dies_takes_its_actors_along_and_nothing_hangs() -> None:
    async with asyncparl.connect():
        echo = Echo()
        pid = await echo.pid()
        node = psutil.Process(pid).parent().parent()
        busy = echo.sleep(600)
        node.kill()
        with trio.fail_after(5):
            with pytest.raises(asyncparl.ActorDied, match="node"):
                await busy
            await _gone(pid)
        await new_actors_are_refused("node of this cluster is gone")


async def test_a_zygote_that_dies_takes_its_actors_along_and_is_replaced() -> None:
    async with asyncparl.connect():
        echo = Echo()
        pid = await echo.pid()
        busy = echo.sleep(600)
        psutil.Process(pid).parent().kill()
        with trio.fail_after(5):
            with pytest.raises(asyncparl.ActorDied):
                await busy
            await _gone(pid)
        assert await Echo().pid() != pid


UNGUARDED = """
    import trio, asyncparl

    @asyncparl.remote_class
    class Doubler:
        def double(self, x):
            return 2 * x

    async def main():
        async with asyncparl.connect():
            print(await Doubler().double(21))

    trio.run(main)
"""

PROGRAM = """
    import os, sys, trio, asyncparl

    @asyncparl.remote_class
    class Sleeper:
        def pid(self):
            return os.getpid()
        def sleep(self):
            import time
            time.sleep(600)

    class Result:
        def __init__(self, value): self.value = value

    @asyncparl.remote_class
    class Maker:
        def make(self, value): return Result(value.value + 1)

    async def main():
        async with asyncparl.connect():
            sleepers = [Sleeper() for _ in range(2)]
            print(*[await sleeper.pid() for sleeper in sleepers], flush=True)
            result = await Maker().make(Result(1))
            print(type(result) is Result, result.value, flush=True)
            {end}

    if __name__ == "__main__":
        trio.run(main)
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def _start(scripts: list[subprocess.Popen[str]], folder: Path, end: str) -> tuple[subprocess.Popen[str], list[int]]:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(PROGRAM).format(end=end))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    scripts.append(process)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2, process.communicate()
    assert process.stdout.readline() == "True 2\n"
    return process, pids


async def test_classes_of_the_main_script_keep_their_identity(
    scripts: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    process, pids = _start(scripts, tmp_path, "pass")
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    for pid in pids:
        await _gone(pid)


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(UNGUARDED))
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environ, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("42\n", "")


def test_classes_without_a_file_travel_by_value_and_keep_their_identity() -> None:
    program = """
import trio, asyncparl
class Point:
    def __init__(self, x): self.x = x
@asyncparl.remote_class
class Mover:
    def move(self, point): return Point(point.x + 1)
async def main():
    async with asyncparl.connect():
        moved = await Mover().move(Point(6))
        print(moved.x, type(moved) is Point)
trio.run(main)
"""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("7 True\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
async def test_a_driver_that_is_interrupted_or_killed_leaves_nothing(
    number: signal.Signals, scripts: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    folders = set(Path(tempfile.gettempdir()).glob("asyncparl-*"))
    process, pids = _start(scripts, tmp_path, "await sleepers[0].sleep()")
    tree = [psutil.Process(pids[0]).parent(), psutil.Process(pids[0]).parent().parent()]
    process.send_signal(number)
    _, err = process.communicate(timeout=10)
    if number == signal.SIGINT:
        assert err.strip().endswith("KeyboardInterrupt")
    for pid in [*pids, *(parent.pid for parent in tree)]:
        await _gone(pid)
    with trio.fail_after(5):
        while set(Path(tempfile.gettempdir()).glob("asyncparl-*")) - folders:
            await trio.sleep(0.01)


async def test_a_death_by_a_real_time_signal_is_reported_like_any(capfd: pytest.CaptureFixture[str]) -> None:
    async with asyncparl.connect():
        echo, other = Echo(), Echo()
        os.kill(await echo.pid(), signal.SIGRTMIN + 6)
        with trio.fail_after(5), pytest.raises(asyncparl.ActorDied, match=f"killed by signal {signal.SIGRTMIN + 6}"):
            await echo.sleep(600)
        assert await other.add(1) == 1


async def test_what_a_worker_said_is_heard_although_it_ended_without_having_read_what_it_was_told() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    missing: Any = None
    worker = Worker(missing, missing, missing, ours, missing, missing)
    with ours:
        ours.send(b"a pass")
        theirs.send(CANNOT_START + b"the disk is full")
        theirs.close()
        assert await worker.read_address() == ""
    assert worker.failure == "it cannot start: the disk is full"
