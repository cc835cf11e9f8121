"""Whether anything grows: a million calls and ten thousand actors, in one program, with what its processes hold.

    python benchmarks/soak.py --save

Each round makes calls of every kind (plain, async, with a time limit, with small and large arrays, streams left half
way, cancelled, raising, through a proxy that was passed on) and creates, uses, closes and kills actors. After each of
them the program, its cluster, the zygote and one long-lived actor are looked at: memory of their own, open descriptors,
threads; and the files and shared-memory segments of the machine. The first two rounds warm up; growth is from then to
the end.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import trio

import asyncparl
from asyncparl.bench.report import Row, report

RESULTS = Path(__file__).parent / "results"
WARM_UP_ROUNDS = 2
BATCH = 500


@asyncparl.remote_class(max_concurrency=64)
class Subject:
    """What is called."""

    def nothing(self) -> None:
        pass

    async def nothing_async(self) -> None:
        await trio.lowlevel.checkpoint()

    def same(self, array: np.ndarray) -> np.ndarray:
        return array

    def numbers(self, n: int) -> Iterator[int]:
        yield from range(n)

    def fail(self) -> None:
        raise ValueError("on purpose")

    async def sleep(self) -> None:
        await trio.sleep(60)

    async def through(self, other: asyncparl.Proxy) -> None:
        await other.nothing_async()


async def make_calls(subject: asyncparl.Proxy, other: asyncparl.Proxy, num_calls: int) -> int:
    """That many calls and a few more; how many."""
    array, large = np.zeros(4096, np.uint8), np.zeros(1 << 18, np.uint8)  # the large ones go through shared memory
    num_made = 0
    while num_made < num_calls:
        await asyncparl.gather([subject.nothing() for _ in range(BATCH)])
        await asyncparl.gather([subject.nothing_async() for _ in range(BATCH // 2)])
        await asyncparl.gather([subject.same(array) for _ in range(BATCH // 10)])
        await asyncparl.gather([subject.same(large) for _ in range(BATCH // 50)])
        await asyncparl.gather([subject.nothing.options(timeout_s=60)() for _ in range(BATCH // 10)])
        await asyncparl.gather([subject.through(other) for _ in range(BATCH // 10)])
        for call in [subject.fail() for _ in range(BATCH // 10)]:
            try:
                await call
            except ValueError:
                pass
        for call in [subject.sleep() for _ in range(BATCH // 10)]:
            call.cancel()
        for _ in range(BATCH // 50):
            async for number in subject.numbers(10):
                if number == 5:
                    break
        num_made += BATCH + BATCH // 2 + 5 * (BATCH // 10) + 2 * (BATCH // 50)
    return num_made


async def live_and_die(num_actors: int) -> None:
    """Actors that are made, called, and ended in every way."""

    async def one(number: int) -> None:
        actor = Subject()
        await actor.nothing()
        if number % 3 == 0:
            await asyncparl.kill(actor)
        else:
            await asyncparl.close(actor)

    for start in range(0, num_actors, 8):
        async with trio.open_nursery() as nursery:
            for number in range(start, min(start + 8, num_actors)):
                nursery.start_soon(one, number)


class Books:
    """What the processes hold, after each round."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in processes.items()}
        self.samples: dict[str, list[float]] = {}

    def look(self) -> None:
        """One more sample of everything."""
        gc.collect()
        for name, process in self._processes.items():
            self._add(f"{name}: memory, MiB", process.memory_full_info().uss / 2**20)
            self._add(f"{name}: descriptors", process.num_fds())
            self._add(f"{name}: threads", process.num_threads())
        self._add("processes", len(psutil.Process().children(recursive=True)))
        self._add("files in the temporary folder", sum(len(files) for _, _, files in os.walk(tempfile.gettempdir())))
        self._add("segments in /dev/shm", len(list(Path("/dev/shm").iterdir())))

    def _add(self, what: str, number: float) -> None:
        self.samples.setdefault(what, []).append(number)

    def rows(self) -> list[Row]:
        """How much each has grown since the warm-up."""
        return [
            Row(
                f"growth of {what}",
                "",
                [samples[-1] - samples[WARM_UP_ROUNDS - 1]],
                "0",
                f"at the end {samples[-1]:.4g}",
            )
            for what, samples in self.samples.items()
        ]


async def main(num_calls: int, num_actors: int, num_rounds: int, save: bool) -> None:
    """All rounds."""
    started = time.monotonic()
    num_made = 0
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # nothing of others is counted
        async with asyncparl.connect():
            subject, other = Subject(), Subject()
            await asyncparl.gather([subject.nothing(), other.nothing()])
            cluster, zygote, *_ = psutil.Process().children(recursive=True)
            actor_pid = max(process.pid for process in psutil.Process().children(recursive=True))
            books = Books({"program": os.getpid(), "cluster": cluster.pid, "zygote": zygote.pid, "an actor": actor_pid})
            for number in range(num_rounds):
                num_made += await make_calls(subject, other, num_calls // num_rounds)
                await live_and_die(num_actors // num_rounds)
                await trio.sleep(1)  # what ends has ended
                books.look()
                print(f"round {number + 1} of {num_rounds}: {num_made:,} calls, {time.monotonic() - started:.0f} s")
    title = f"Soak: {num_made:,} calls and {num_actors:,} actors in {time.monotonic() - started:.0f} s"
    report(title, books.rows(), save_as=RESULTS / "soak" if save else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--actors", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--save", action="store_true", help="keep the table under results/")
    arguments = parser.parse_args()
    trio.run(main, arguments.calls, arguments.actors, arguments.rounds, arguments.save)
