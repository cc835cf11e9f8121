"""`max_memory`: what counts, what happens to who takes more, and what is said of who was killed by others."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import asyncparl
from asyncparl import machine
from asyncparl.protocol.node_messages import ActorExited, Job
from asyncparl.runtime import workers, zygote
from asyncparl.runtime.memory import memory_of_groups
from asyncparl.runtime.worker_pass import WorkerPass
from asyncparl.runtime.worker_process import WorkerSpec
from asyncparl.runtime.workers import WorkerPool
from asyncparl.runtime.zygote_client import ZygoteKind
from tests.proc import is_gone
from tests.runtime.mortals import Hog

MIB = 1 << 20


@pytest.mark.slow
async def test_an_actor_that_takes_more_than_its_memory_is_killed_and_it_says_so() -> None:
    async with asyncparl.connect():
        hog, other = Hog(), Hog()
        await hog.take(16 * MIB)
        assert await hog.sleep(2.5) == "slept"
        with trio.fail_after(10), pytest.raises(asyncparl.ActorDied) as caught:
            await hog.take(128 * MIB)
            await hog.sleep(600)
        death = caught.value
        assert death.signal == signal.SIGKILL
        used = death.reason.removeprefix("it used ").removesuffix(" MiB of memory; its max_memory is 64 MiB")
        assert 64 < float(used) < 300
        assert await other.sleep(0) == "slept"


@pytest.mark.slow
async def test_its_constructor_and_its_grandchildren_count_too() -> None:
    async with asyncparl.connect():
        hogs = [Hog(128 * MIB), Hog()]
        grandchild = await hogs[1].take_in_grandchild(128 * MIB)
        for hog in hogs:
            with trio.fail_after(10), pytest.raises(asyncparl.ActorDied, match="its max_memory is 64 MiB"):
                await hog.sleep(600)
        with trio.fail_after(5):
            while not is_gone(grandchild):
                await trio.sleep(0.01)


@pytest.mark.slow
async def test_what_all_workers_share_does_not_count() -> None:
    async with asyncparl.connect(preload=["tests.runtime.ballast"]):
        hog = Hog()
        assert await hog.sleep(2.5) == "slept"


@pytest.mark.slow
@pytest.mark.parametrize("is_orphan", [False, True])
async def test_processes_in_sessions_of_their_own_count_too(is_orphan: bool) -> None:
    async with asyncparl.connect():
        hog = Hog()
        await hog.take_in_session(128 * MIB, is_orphan=is_orphan)
        with trio.fail_after(10), pytest.raises(asyncparl.ActorDied, match="its max_memory is 64 MiB"):
            await hog.sleep(600)


@pytest.mark.slow
async def test_one_that_was_killed_for_its_memory_is_started_again() -> None:
    async with asyncparl.connect():
        hog = Hog.options(max_restarts=1)()
        with trio.fail_after(10), pytest.raises(asyncparl.ActorDied, match="its max_memory is 64 MiB"):
            await hog.take(128 * MIB)
            await hog.sleep(600)
        assert await hog.sleep(0) == "slept"


def test_memory_is_added_up_by_process_group() -> None:
    group_id = os.getpgid(0)
    used = memory_of_groups([group_id, 1 << 30])
    assert used[group_id] > 5 * MIB
    assert used[1 << 30] == 0


async def _death(kill: Callable[[int], object], folder: Path) -> ActorExited:
    """How a worker's end is reported that somebody else has killed."""
    reports: list[ActorExited] = []
    reported = trio.Event()

    def on_exit(report: ActorExited) -> None:
        reports.append(report)
        reported.set()

    kind = ZygoteKind("fork", (), tuple(sys.path))
    setup = zygote.WorkerSetup(str(folder), sys.path, [], None, None, "")
    job = Job([], [], None, None, [], "fork")
    spec = WorkerSpec("a1", "Actor#1", 1, kind, setup, 1, {}, WorkerPass("", "", b"", "", ("", ""), job))
    async with trio.open_nursery() as nursery:
        pool = WorkerPool(nursery)
        nursery.start_soon(pool.run)
        try:
            kill((await pool.start(spec, lambda _: None, on_exit)).pid)
            await reported.wait()
        finally:
            nursery.cancel_scope.cancel()
            pool.close()
    return reports[0]


async def test_a_death_by_want_of_memory_is_told_from_one_by_somebody_elses_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    counter = [7]
    monkeypatch.setattr(workers, "num_oom_kills", lambda: counter[0])
    folder = tmp_path_factory.getbasetemp()

    def kernel(pid: int) -> None:
        counter[0] += 1
        os.kill(pid, signal.SIGKILL)

    report = await _death(kernel, folder)
    assert (report.reason, report.signal) == ("killed by the kernel: there was no memory left", 9)
    report = await _death(lambda pid: os.kill(pid, signal.SIGKILL), folder)
    assert report.reason == "killed by SIGKILL; asyncparl did not do it"
    report = await _death(lambda pid: os.kill(pid, signal.SIGSEGV), folder)
    assert report.reason == "killed by SIGSEGV"


@pytest.mark.parametrize(
    ("groups", "counter"),
    [
        ("0::/job\n", "memory.events"),
        ("4:memory:/job\n1:cpu:/\n0::/other\n", "memory.oom_control"),
        ("", "vmstat"),
    ],
)
def test_the_kernels_own_count_is_found(
    groups: str, counter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "memory.events": tmp_path / "sys/fs/cgroup/job/memory.events",
        "memory.oom_control": tmp_path / "sys/fs/cgroup/memory/job/memory.oom_control",
        "vmstat": tmp_path / "proc/vmstat",
    }
    for number, (name, file) in enumerate(files.items()):
        file.parent.mkdir(parents=True, exist_ok=True)
        if name in (counter, "vmstat"):
            file.write_text(f"oom 100\noom_kill {number}\nother 3\n")
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text(groups)
    monkeypatch.setattr(machine, "Path", lambda path: tmp_path / str(path).removeprefix("/"))
    assert machine.num_oom_kills() == list(files).index(counter)
