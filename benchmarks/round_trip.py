"""Where the time of one empty call goes, from the caller's `await` to its answer, stage by stage.

    python benchmarks/round_trip.py --save

Moments are noted in both processes by the clock that they share, which itself takes about a microsecond a stage.
"""

from __future__ import annotations

import argparse
import bisect
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import trio

import asyncparl
from asyncparl.bench.report import Row, report
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.host import ActorHost
from asyncparl.runtime.link import Link
from asyncparl.transport.unix import UnixChannel

RESULTS = Path(__file__).parent / "results" / "round-trip"
WARM_UP_CALLS = 300
GROUP = 100
STAGES = [  # what begins at a moment, and in which process
    ("caller: the proxy, and its arguments", "caller", "begin"),
    ("caller: the link's core, a frame", "caller", "call begins"),
    ("caller: into the socket; the worker is woken", "caller", "send begins"),
    ("worker: out of the socket", "worker", "read begins"),
    ("worker: the frame, the link's core", "worker", "read ends"),
    ("worker: the thread of its methods is woken", "worker", "submit begins"),
    ("worker: the method, its answer, a frame", "worker", "job begins"),
    ("worker: into the socket; the caller is woken", "worker", "send begins"),
    ("caller: out of the socket", "caller", "read begins"),
    ("caller: the frame, the core, the task that waits", "caller", "read ends"),
]

_moments: list[tuple[str, int]] = []


def note_moments() -> None:
    """From now on this process notes when it does what."""
    for cls, method, what in (
        (Link, "call", "call"),
        (UnixChannel, "send_nowait", "send"),
        (UnixChannel, "_read", "read"),
        (Executor, "submit", "submit"),
        (ActorHost, "_run", "job"),
    ):
        setattr(cls, method, _noting(getattr(cls, method), what))


def _noting(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    begins, ends = f"{what} begins", f"{what} ends"

    def noted(*arguments: Any, **options: Any) -> Any:
        _moments.append((begins, time.perf_counter_ns()))
        try:
            return function(*arguments, **options)
        finally:
            _moments.append((ends, time.perf_counter_ns()))

    return noted


@asyncparl.remote_class
class Subject:
    """What is called."""

    def __init__(self) -> None:
        note_moments()

    def nothing(self) -> None:
        """An empty call."""

    def moments(self) -> list[tuple[str, int]]:
        """What was noted."""
        return list(_moments)


def by_call(moments: Sequence[tuple[str, int]], begins: Sequence[int]) -> list[dict[str, int]]:
    """When each thing happened first in each call."""
    calls: list[dict[str, int]] = [{} for _ in begins]
    for what, at in moments:
        if (number := bisect.bisect_right(begins, at) - 1) >= 0:
            calls[number].setdefault(what, at)
    return calls


async def stage_times(num_calls: int) -> tuple[list[list[float]], list[float]]:
    """Microseconds of each stage of each call; and of the same calls in all."""
    note_moments()
    begins, ends = list[int](), list[int]()
    async with asyncparl.connect():
        subject: Any = Subject()
        for _ in range(WARM_UP_CALLS):
            await subject.nothing()
        for _ in range(num_calls):
            begins.append(time.perf_counter_ns())
            await subject.nothing()
            ends.append(time.perf_counter_ns())
        here, there = by_call(_moments, begins), by_call(await subject.moments(), begins)
    stages: list[list[float]] = [[] for _ in STAGES]
    for caller, worker, begin, end in zip(here, there, begins, ends, strict=True):
        times = [{**caller, "begin": begin}[what] if where == "caller" else worker[what] for _, where, what in STAGES]
        for stage, first, then in zip(stages, times, [*times[1:], end], strict=True):
            stage.append((then - first) / 1e3)
    return stages, [(end - begin) / 1e3 for begin, end in zip(begins, ends, strict=True)]


def rows_of(stages: Sequence[list[float]], totals: list[float]) -> list[Row]:
    """A row for each stage, and one for all of it; a sample is the median of a hundred calls."""
    rows = [Row(name, "us", medians(times)) for (name, _, _), times in zip(STAGES, stages, strict=True)]
    return [*rows, Row("all of it", "us", medians(totals))]


def medians(times: Sequence[float]) -> list[float]:
    """Of each group of calls."""
    return [statistics.median(times[first : first + GROUP]) for first in range(0, len(times), GROUP)]


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description="Where the time of one empty call goes.")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results")
    options = parser.parse_args()
    rows = rows_of(*trio.run(stage_times, options.calls))
    report("One empty call, stage by stage", rows, save_as=RESULTS if options.save else None)


if __name__ == "__main__":
    main()
