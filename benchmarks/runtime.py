"""What the runtime costs: calls, actors, memory, import. Each beside its limit, measured in the same run.

    python benchmarks/runtime.py --save

The limit of a call is a blocking NNG round trip between two processes: no event loop, no encoding, no threads. Runs
alternate between the two, and the table shows the ratio; absolute times depend on the machine's mood.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil
import pynng
import trio
from _report import Row, report

import asyncparl


@asyncparl.remote_class
class Empty:
    """An actor that does nothing."""

    def nothing(self) -> None:
        pass

    def unique_bytes(self) -> int:
        """Memory that is not shared with the process it was forked from."""
        gc.collect()
        return int(psutil.Process().memory_full_info().uss)


def _echo_server(url: str) -> None:
    with pynng.Pair1(listen=url) as socket:
        while (message := socket.recv()) != b"quit":
            socket.send(message)


class BlockingNng:
    """The limit: two processes, one socket, blocking calls."""

    def __init__(self, folder: str) -> None:
        url = f"ipc://{folder}/echo"
        self._process = multiprocessing.get_context("spawn").Process(target=_echo_server, args=(url,))
        self._process.start()
        self._socket = pynng.Pair1()
        for _ in range(100):
            try:
                self._socket.dial(url, block=True)
                break
            except pynng.ConnectionRefused:
                time.sleep(0.05)

    def round_trips(self, n: int) -> float:
        """Seconds a round trip."""
        started = time.perf_counter()
        for _ in range(n):
            self._socket.send(b"x" * 64)
            self._socket.recv()
        return (time.perf_counter() - started) / n

    def close(self) -> None:
        self._socket.send(b"quit")
        self._process.join()
        self._socket.close()


async def _calls_one_by_one(actor: Any, n: int) -> float:
    started = time.perf_counter()
    for _ in range(n):
        await actor.nothing()
    return (time.perf_counter() - started) / n


async def _calls_pipelined(actor: Any, n: int) -> float:
    started = time.perf_counter()
    calls = [actor.nothing() for _ in range(n)]
    for call in calls:
        await call
    return n / (time.perf_counter() - started)


async def call_rows(repeats: int) -> list[Row]:
    """Round trips beside the limit, then pipelined calls."""
    with tempfile.TemporaryDirectory() as folder:
        limit = BlockingNng(folder)
        async with asyncparl.connect():
            actor = Empty()
            await _calls_one_by_one(actor, 500)
            limit.round_trips(500)
            ours, theirs = [], []
            for _ in range(repeats):
                theirs.append(limit.round_trips(2000) * 1e6)
                ours.append(await _calls_one_by_one(actor, 2000) * 1e6)
            rates = [await _calls_pipelined(actor, 10_000) for _ in range(repeats)]
        limit.close()
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return [
        Row("blocking NNG round trip (the limit)", "us", theirs),
        Row("empty call, one at a time", "us", ours),
        Row("ratio to the limit", "x", ratios, target="1.5"),
        Row("empty calls, pipelined, one actor", "/s", rates, target="20,000"),
    ]


async def spawn_rows(repeats: int) -> list[Row]:
    """A warm actor: from the constructor's call to the first result."""
    async with asyncparl.connect(preload=["numpy", "torch"]):
        await Empty().nothing()
        times, unique = [], []
        for _ in range(repeats):
            started = time.perf_counter()
            actor = Empty()
            await actor.nothing()
            times.append((time.perf_counter() - started) * 1e3)
            unique.append(await actor.unique_bytes() / 2**20)
            await asyncparl.close(actor)
    return [
        Row("warm actor to its first result, torch preloaded", "ms", times, target="40"),
        Row("unique memory of a warm worker", "MiB", unique, target="40"),
    ]


async def growth_rows(num_calls: int) -> list[Row]:
    """Memory of both sides over many calls."""
    async with asyncparl.connect():
        actor = Empty()
        await _calls_pipelined(actor, 10_000)
        gc.collect()
        here, there = psutil.Process().memory_full_info().uss, await actor.unique_bytes()
        for _ in range(num_calls // 10_000):
            await _calls_pipelined(actor, 10_000)
        gc.collect()
        grown_here = (psutil.Process().memory_full_info().uss - here) / 2**20
        grown_there = (await actor.unique_bytes() - there) / 2**20
    return [
        Row(f"caller's growth over {num_calls:,} calls", "MiB", [grown_here], target="0"),
        Row(f"worker's growth over {num_calls:,} calls", "MiB", [grown_there], target="0"),
    ]


def import_rows(repeats: int) -> list[Row]:
    """A fresh interpreter that imports the package, less one that imports nothing."""

    def seconds(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - started

    seconds("import asyncparl")
    times = [(seconds("import asyncparl") - seconds("pass")) * 1e3 for _ in range(repeats)]
    trio_times = [(seconds("import trio") - seconds("pass")) * 1e3 for _ in range(repeats)]
    return [Row("import trio", "ms", trio_times), Row("import asyncparl", "ms", times, target="250")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="samples of each row (default 7)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/runtime.{md,json}")
    arguments = parser.parse_args()
    rows = trio.run(call_rows, arguments.repeats)
    rows += trio.run(spawn_rows, 3 * arguments.repeats)
    rows += trio.run(growth_rows, 100_000)
    rows += import_rows(arguments.repeats)
    report("The runtime, side by side with its limits", rows, save_as="runtime" if arguments.save else None)


if __name__ == "__main__":
    main()
