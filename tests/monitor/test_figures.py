"""What nodes and workers tell of themselves, on a real private cluster."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psutil
import pytest
import trio

import asyncparl
from asyncparl.monitor.cluster_source import ClusterSource, open_source
from asyncparl.monitor.observer import Observer
from asyncparl.monitor.picture import ActorRow, Picture
from asyncparl.runtime.current import current_session
from tests.monitor.fakes import get

pytestmark = pytest.mark.slow

MIB = 1 << 20


@asyncparl.remote_class(max_concurrency=4)
class Worker:
    def __init__(self) -> None:
        self.ballast = b""

    def add(self, one: int, other: int) -> int:
        return one + other

    def fail(self) -> None:
        raise ValueError("on purpose")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def doze(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def numbers(self, num: int) -> Iterator[int]:
        yield from range(num)

    def grow(self, num_bytes: int) -> None:
        self.ballast = os.urandom(num_bytes)

    def pid(self) -> int:
        return os.getpid()

    def burn(self, seconds: float) -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass


class Looker:
    def __init__(self, source: ClusterSource) -> None:
        self.source = source
        self.observer = Observer()

    async def look(self) -> Picture:
        await trio.sleep(0.6)  # longer than figures are kept
        sight = await self.source.look(closely=True)
        return self.observer.observe(sight, now=trio.current_time(), wall_time=time.time())

    async def row(self, name: str) -> ActorRow:
        picture = await self.look()
        return next(row for row in picture.all_actors.values() if row.name == name)


@asynccontextmanager
async def private_cluster() -> AsyncIterator[Looker]:
    """As `connect()` makes one, and somebody who looks at it."""
    async with asyncparl.connect(), open_source(current_session("a test")._master_address, None) as source:
        await source.wait_joined()
        yield Looker(source)


async def test_calls_are_counted_and_none_is_lost() -> None:
    async with private_cluster() as looker:
        worker = Worker()
        await worker.add(1, 2)
        before = await looker.row("Worker#1")
        await asyncparl.gather([worker.add(n, n) for n in range(200)])
        for _ in range(3):
            with pytest.raises(ValueError, match="on purpose"):
                await worker.fail()
        assert [n async for n in worker.numbers(10)] == list(range(10))
        await worker.doze(0.01)
        after = await looker.row("Worker#1")
        assert before.num_calls is not None and after.num_calls is not None
        # A stream is a call, its items, and the look for one more.
        assert after.num_calls - before.num_calls == 200 + 3 + (1 + 10 + 1) + 1
        assert (after.num_failed, after.num_waiting) == (3, 0)
        assert after.calls_per_s is not None and after.calls_per_s > 20
        assert (after.class_name, after.state, after.pid) == ("Worker", "running", await worker.pid())
        assert after.p50_s is not None and after.p50_s < 0.05


async def test_what_runs_and_what_waits_is_seen_while_it_does() -> None:
    async with private_cluster() as looker:
        worker = Worker()
        await worker.pid()
        calls = [worker.sleep(1.5), worker.add(1, 1), worker.add(2, 2)]
        row = await looker.row("Worker#1")
        assert (row.doing, row.num_waiting) == ("runs sleep", 2)
        assert row.doing_s is not None and row.doing_s > 0.4
        await asyncparl.gather(calls)
        dozing = [worker.doze(2), worker.doze(2)]
        row = await looker.row("Worker#1")
        assert row.doing == "runs doze and 1 more"
        await asyncparl.gather(dozing)
        assert (await looker.row("Worker#1")).doing == "waits for calls"


async def test_memory_and_cpu_are_an_actors_own() -> None:
    async with private_cluster() as looker:
        workers = [Worker(), Worker()]
        await asyncparl.gather([workers[0].grow(100 * MIB), workers[1].pid()])
        await looker.look()
        burning = workers[1].burn(0.5)
        await burning
        picture = await looker.look()
        large, small = sorted(picture.actors.values(), key=lambda row: row.name)
        assert large.memory_bytes is not None and 100 * MIB < large.memory_bytes < 150 * MIB
        assert small.memory_bytes is not None and small.memory_bytes < 50 * MIB
        assert small.cpu_share is not None and large.cpu_share is not None and small.cpu_share > large.cpu_share
        (node,) = picture.nodes.values()
        assert node.total_memory_bytes == psutil.virtual_memory().total
        assert node.num_cpus == os.cpu_count()
        assert node.cpu_share is not None and 0 < node.cpu_share <= 1


async def test_a_worker_that_is_stopped_is_silent_and_the_others_are_not_kept_waiting() -> None:
    async with private_cluster() as looker:
        workers = [Worker(), Worker()]
        pids = await asyncparl.gather([worker.pid() for worker in workers])
        os.kill(pids[0], signal.SIGSTOP)
        try:
            began = trio.current_time()
            picture = await looker.look()
            assert trio.current_time() - began < 3
            states = {row.name: row.state for row in picture.actors.values()}
            assert states == {"Worker#1": "silent", "Worker#2": "running"}
            (alarm,) = picture.alarms
            assert alarm.text == (
                f"Worker#1 is silent (pid {pids[0]} on {picture.actors[alarm.link.rpartition('/')[2]].node}): "
                "stopped (SIGSTOP)"
            )
        finally:
            os.kill(pids[0], signal.SIGCONT)
        # What it said too late is not taken for the next answer.
        assert (await looker.row("Worker#1")).state == "running"


async def test_an_actor_whose_process_cannot_be_started_says_what_it_waits_for() -> None:
    async with private_cluster() as looker:
        worker = Worker()
        zygote = psutil.Process(await worker.pid()).parent()
        zygote.suspend()
        try:
            other = Worker()
            while not (row := await looker.row("Worker#2")).doing_s:
                await trio.sleep(0.1)
            assert row.state == "starting"
            reason = f"the process that starts workers (pid {zygote.pid}) is stopped (SIGSTOP)"
            assert row.doing == f"its process is being started: {reason}"
        finally:
            zygote.resume()
        await other.pid()
        assert (await looker.row("Worker#2")).doing == "waits for calls"


async def test_deaths_are_remembered_with_their_last_words() -> None:
    async with private_cluster() as looker:
        worker, closed = Worker(), Worker()
        pid = await worker.pid()
        await closed.pid()
        await looker.look()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(asyncparl.ActorDied):
            await worker.pid()
        await asyncparl.close(closed)
        killed, ended = await looker.row("Worker#1"), await looker.row("Worker#2")
        assert (killed.state, killed.is_failed) == ("ended", True)
        assert (ended.state, ended.is_failed) == ("ended", False)
        death = await looker.source.read_death(killed.node_id, killed.actor_id)
        assert death is not None and death.signal == signal.SIGKILL
        assert await looker.source.read_death(killed.node_id, "nobody") is None


async def test_reports_reach_the_monitor_and_large_ones_are_refused() -> None:
    async with asyncparl.connect() as cluster, open_source(current_session("a test")._master_address, None) as source:
        await source.wait_joined()
        looker = Looker(source)
        cluster.report(agent_steps=5, mean_return=float("nan"), losses={"entropy": 1.5})
        await trio.to_thread.run_sync(lambda: cluster.report(agent_steps=6, title="mine"))
        (run,) = (await looker.look()).runs.values()
        assert run.values == {"agent_steps": 6, "title": "mine"}
        with pytest.raises(ValueError, match="the limit is 16,384"):
            cluster.report(text="x" * 20_000)
        with pytest.raises(TypeError):
            cluster.report(thing=object())


async def test_connect_serves_a_monitor_with_logs(capfd: pytest.CaptureFixture[str]) -> None:
    async with asyncparl.connect(monitor="0") as cluster:
        assert cluster.monitor_url.startswith("http://127.0.0.1:")
        worker = Worker()
        await worker.pid()
        assert 'asyncparl_actors{state="running"} 1.0' in (await get(cluster.monitor_url, "/metrics")).body
        answer = await get(cluster.monitor_url, "/actors")
        assert answer.status == 200
        (row,) = [row async for row in _actors()]
        log = await get(cluster.monitor_url, f"/actors/{row}/log")
        assert log.status == 200
    assert f"asyncparl monitor: {cluster.monitor_url}" in capfd.readouterr().err


async def _actors() -> AsyncIterator[str]:
    for actor in (await current_session("a test").describe()).actors:
        yield actor.actor_id


async def test_what_the_block_raises_leaves_a_monitored_block_unchanged() -> None:
    with pytest.raises(KeyError, match="ours"):
        async with asyncparl.connect(monitor="0"):
            raise KeyError("ours")


async def test_a_port_that_is_taken_is_named_and_the_default_makes_room(capfd: pytest.CaptureFixture[str]) -> None:
    async with asyncparl.connect(monitor="0") as cluster:
        port = cluster.monitor_url.rstrip("/").rpartition(":")[2]
        with pytest.raises(asyncparl.ResourceError, match=port):
            async with asyncparl.connect(monitor=port):
                pass
        async with asyncparl.connect(monitor=True) as one, asyncparl.connect(monitor=True) as other:
            assert one.monitor_url != other.monitor_url


async def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("asyncparl.monitor.server", "hypercorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypercorn", None)
    with pytest.raises(asyncparl.ResourceError, match=r"pip install 'asyncparl\[monitor\]'"):
        async with asyncparl.connect(monitor=True):
            pass
