"""What watching costs: the same work, watched and not, in turns.

    python benchmarks/monitor.py --save

The cluster has its monitor all the time. It looks only while somebody watches: here a client that follows the streams
of the overview and of the actors, as two open browser windows do, without drawing them. In the other half of the time
nobody does. Work: small calls to busy actors, then IMPALA on Pong; and many idle actors, of which the CPU time of
their cluster is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import trio

import asyncparl
from asyncparl.bench.report import Row, report

RESULTS = Path(__file__).parent / "results"
VIEWS = ("overview", "actors")
CALLS_AT_ONCE = 64
NUM_BUSY_ACTORS = 2
_SETTLE_S = 3.0
_VIEWER = """
import sys, urllib.request
for line in urllib.request.urlopen(sys.argv[1]):
    if line.startswith(b"data:"):
        print(line[:40], flush=True)
        break
for line in urllib.request.urlopen(sys.argv[1]):
    pass
"""
_WARM_UP_S = 20.0


@asyncparl.remote_class
class Worker:
    """An actor that answers at once."""

    def ping(self) -> None:
        pass


class Viewer:
    """A process that follows one stream of events, and says so when the first one has come."""

    def __init__(self, url: str, view: str) -> None:
        command = [sys.executable, "-c", _VIEWER, f"{url.rstrip('/')}/stream/{view}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def stop(self) -> None:
        """Hang up."""
        self._process.kill()
        said, _ = self._process.communicate()
        if not said:
            raise RuntimeError("the monitor has sent nothing")


@contextlib.contextmanager
def watching(url: str) -> Iterator[None]:
    """Two browser windows."""
    viewers = [Viewer(url, view) for view in VIEWS]
    try:
        yield
    finally:
        for viewer in viewers:
            viewer.stop()


async def busy_rows(repeats: int, window_s: float) -> list[Row]:
    """Small calls to busy actors."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    async with asyncparl.connect(monitor="0") as cluster:
        workers: list[Any] = [Worker() for _ in range(NUM_BUSY_ACTORS)]
        await calls_per_s(workers, window_s)
        for turn in range(2 * repeats):
            is_watched = turn % 2 == 1
            with watching(cluster.monitor_url) if is_watched else contextlib.nullcontext():
                await trio.sleep(_SETTLE_S)
                rates[is_watched].append(await calls_per_s(workers, window_s))
    return pair("calls to two busy actors", "/s", rates)


async def calls_per_s(workers: list[Any], window_s: float) -> float:
    """With as many under way as each worker likes."""
    num_calls = 0
    end = time.perf_counter() + window_s

    async def keep_busy(worker: Any) -> None:
        nonlocal num_calls
        while time.perf_counter() < end:
            await asyncparl.gather([worker.ping() for _ in range(CALLS_AT_ONCE)])
            num_calls += CALLS_AT_ONCE

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for worker in workers:
            nursery.start_soon(keep_busy, worker)
    return num_calls / (time.perf_counter() - began)


def training_rows(repeats: int, window_s: float) -> list[Row]:
    """IMPALA on Pong, as its command runs it."""
    with tempfile.TemporaryDirectory(prefix="asyncparl-bench-") as folder:
        run_dir = Path(folder, "run")
        # fmt: off
        command = [
            sys.executable, "-m", "asyncparl.cli", "train", "impala", "--env", "pong", "--seed", "1",
            "--run-dir", str(run_dir), "--monitor", "0", "--report-interval", "1",
        ]
        # fmt: on
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as training:
            try:
                url = monitor_url(training)
                rates = training_rates(url, run_dir / "progress.csv", repeats, window_s)
            finally:
                training.terminate()
                training.communicate(timeout=60)
    return pair("IMPALA on Pong", "agent steps/s", rates)


def monitor_url(training: subprocess.Popen[str]) -> str:
    """What the run says of its monitor."""
    assert training.stderr is not None
    for line in training.stderr:
        if "http://" in line:
            return line[line.index("http://") :].split()[0]
    raise RuntimeError("the training has no monitor")


def training_rates(url: str, progress: Path, repeats: int, window_s: float) -> dict[bool, list[float]]:
    """Agent steps per second, in turns."""
    time.sleep(_WARM_UP_S)
    rates: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * repeats):
        is_watched = turn % 2 == 1
        with watching(url) if is_watched else contextlib.nullcontext():
            time.sleep(_SETTLE_S)
            began = last_row(progress)
            time.sleep(window_s)
            ended = last_row(progress)
        rates[is_watched].append((ended[1] - began[1]) / (ended[0] - began[0]))
    return rates


def last_row(progress: Path) -> tuple[float, float]:
    """Seconds and agent steps of the newest line: both were taken at the same moment."""
    with progress.open() as file:
        row = list(csv.DictReader(file))[-1]
    return float(row["elapsed_s"]), float(row["agent_steps"])


async def idle_rows(repeats: int, window_s: float, num_actors: int) -> list[Row]:
    """Many actors that do nothing: the CPU time of all processes of the cluster and of this one."""
    shares: dict[bool, list[float]] = {False: [], True: []}
    async with asyncparl.connect(monitor="0") as cluster:
        workers: list[Any] = [Worker() for _ in range(num_actors)]
        await asyncparl.gather([worker.ping() for worker in workers])
        for turn in range(2 * repeats):
            is_watched = turn % 2 == 1
            with watching(cluster.monitor_url) if is_watched else contextlib.nullcontext():
                await trio.sleep(_SETTLE_S)
                before = cpu_seconds()
                await trio.sleep(window_s)
                shares[is_watched].append(100 * (cpu_seconds() - before) / window_s)
    name = f"{num_actors:,} idle actors"
    return [Row(f"{name}, {'watched' if key else 'not watched'}", "% of a core", shares[key]) for key in (False, True)]


def cpu_seconds() -> float:
    """Of this process and all that it has started."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def pair(name: str, unit: str, rates: dict[bool, list[float]]) -> list[Row]:
    """Both rows, and by how much the watched one is slower, turn by turn."""
    costs = [100 * (1 - watched / alone) for alone, watched in zip(rates[False], rates[True], strict=True)]
    return [
        Row(f"{name}, not watched", unit, rates[False]),
        Row(f"{name}, watched", unit, rates[True]),
        Row(f"{name}: what watching costs", "%", costs, target="2"),
    ]


def main() -> None:
    """All rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS}/monitor.md and .json")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--window-s", type=float, default=6.0)
    parser.add_argument("--actors", type=int, default=300, help="how many idle ones; each takes about 11 MB")
    options = parser.parse_args()
    rows = trio.run(busy_rows, options.repeats, options.window_s)
    rows += trio.run(idle_rows, min(3, options.repeats), options.window_s, options.actors)
    rows += training_rows(options.repeats, 2 * options.window_s)
    report("What watching costs", rows, save_as=RESULTS / "monitor" if options.save else None)


if __name__ == "__main__":
    main()
