"""Counting calls where they run, so cheaply that nobody has to switch it on.

A call costs two reads of a clock and a few additions. There is no lock: each `CallFigures` is written by one thread,
and whoever reads it from another may see a call half counted, which the next look mends.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

from asyncparl.protocol.figures import NUM_BUCKETS, WorkerFigures

ASK_FIGURES = b"figures "
"""How the packet begins by which a node asks a worker. (Those that hand over a connection are msgpack maps.)"""

_LAST = NUM_BUCKETS - 1

clock_ns = time.perf_counter_ns


class CallFigures:
    """The calls that run in one thread, one after another."""

    __slots__ = ("_running", "busy_ns", "durations")

    def __init__(self) -> None:
        self.durations = [0] * NUM_BUCKETS
        self.busy_ns = 0
        self._running: tuple[str, int] | None = None

    def begin(self, name: str) -> None:
        """A method begins."""
        self._running = (name, clock_ns())

    def end(self) -> None:
        """It has ended."""
        running = self._running
        if running is not None:
            self._running = None
            spent_ns = clock_ns() - running[1]
            self.busy_ns += spent_ns
            self.durations[min((spent_ns >> 10).bit_length(), _LAST)] += 1

    def running(self) -> tuple[str, int] | None:
        """What runs, and since when."""
        return self._running


class AsyncCallFigures:
    """The calls that are tasks of one loop, several at a time. Their time is no work of a thread."""

    __slots__ = ("_running", "durations")

    def __init__(self) -> None:
        self.durations = [0] * NUM_BUCKETS
        self._running: dict[Hashable, tuple[str, int]] = {}

    def begin(self, key: Hashable, name: str) -> None:
        """A method begins."""
        self._running[key] = (name, clock_ns())

    def end(self, key: Hashable) -> None:
        """It has ended."""
        _, began_ns = self._running.pop(key)
        self.durations[min((clock_ns() - began_ns >> 10).bit_length(), _LAST)] += 1

    def running(self) -> list[tuple[str, int]]:
        """What runs, and since when; the first one for longest."""
        return list(self._running.values())


def all_running(calls: CallFigures, async_calls: AsyncCallFigures, now: int) -> list[tuple[str, float]]:
    """The methods that run, and for how many seconds: the longest first. From any thread."""
    own = calls.running()
    running = [*([] if own is None else [own]), *async_calls.running()]
    return [(name, (now - since) / 1e9) for name, since in sorted(running, key=lambda each: each[1])]


def sum_up(calls: CallFigures, async_calls: AsyncCallFigures, *, num_failed: int, num_waiting: int) -> WorkerFigures:
    """Both kinds together, now."""
    now = clock_ns()
    own = calls.running()
    running = all_running(calls, async_calls, now)
    name, running_s = running[0] if running else ("", 0.0)
    return WorkerFigures(
        num_failed=num_failed,
        busy_s=(calls.busy_ns + (now - own[1] if own is not None else 0)) / 1e9,
        num_waiting=num_waiting,
        num_running=len(running),
        running=name,
        running_s=running_s,
        durations=[one + other for one, other in zip(calls.durations, async_calls.durations, strict=True)],
    )
