"""The work that every system does alike, as a program without `async` would write it, and the names of the rows.

This is imported where asyncparl is not installed: it needs the standard library, numpy and psutil.
"""

from __future__ import annotations

import argparse
import json
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ONE_AT_A_TIME = "empty call, one at a time"
PIPELINED = "empty calls to one actor, all at once"
CREATED = "warm actor, from its creation to its first answer"
MANY_PIPELINED = "empty calls over many actors, all at once"
MANY_MEMORY = "the caller's memory for an actor"
IDLE_CPU = "CPU of an idle cluster of 100 actors, all processes"
SIZES = {"64 KB": 1 << 16, "1 MB": 1 << 20, "8 MB": 8 << 20}
ARRAY = "{}: result of a call, one at a time"
ARRAYS = "{}: many results, as fast as they come"
WEIGHTS = "7 MB of weights, until 16 actors have them"
BUSY_P50 = "empty call while 500 MB come over the link, p50"
BUSY_P99 = "empty call while 500 MB come over the link, p99"
TRAINING = "training, everything included"

NUM_ONE_AT_A_TIME = 1000
NUM_PIPELINED = 5000
NUM_IDLE_ACTORS = 100
IDLE_S = 5.0
SETTLE_S = 2.0
NUM_WEIGHT_ACTORS = 16
WEIGHT_BYTES = 7 << 20
BUSY_BYTES = 500 << 20
NUM_TRANSFERS = 2
PAUSE_S = 0.005
BYTES_PER_SAMPLE = 1 << 28

Emit = Callable[..., None]
"""Called with name, unit and samples of a row, and `note=` if something must be said about it."""


class Subject:
    """What an actor is."""

    def __init__(self) -> None:
        self._arrays: dict[int, Any] = {}
        self._weights: Any = None

    def nothing(self) -> None:
        """An empty call."""

    def array(self, num_bytes: int) -> Any:
        """The same every time."""
        if num_bytes not in self._arrays:
            self._arrays[num_bytes] = np.ones(num_bytes, np.uint8)
        return self._arrays[num_bytes]

    def set_weights(self, weights: Any) -> None:
        """Hold them."""
        self._weights = weights


class System(AbstractContextManager["System"], ABC):
    """A peer, while it runs."""

    @abstractmethod
    def create(self, num: int, *, num_threads: int = 1) -> list[Any]:
        """Actors that have answered once."""

    @abstractmethod
    def end(self, actors: Sequence[Any]) -> None:
        """Their processes end; not waited for."""

    @abstractmethod
    def call(self, actor: Any, method: str, *arguments: Any) -> Any:
        """The result."""

    @abstractmethod
    def start(self, actor: Any, method: str, *arguments: Any) -> Any:
        """A call whose result can be waited for."""

    @abstractmethod
    def is_done(self, call: Any) -> bool:
        """Whether its result is here."""

    @abstractmethod
    def wait(self, calls: Sequence[Any]) -> list[Any]:
        """Their results."""

    def share(self, value: Any) -> Any:
        """What to give to many actors in place of the value, if the system has something for that."""
        return value

    def note(self, row: str) -> str:
        """What must be known about how this system does a row."""
        return ""


def seconds(work: Callable[[], object]) -> float:
    """That it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def num_arrays(num_bytes: int) -> int:
    """In one sample."""
    return max(20, min(1000, BYTES_PER_SAMPLE // num_bytes))


def cpu_seconds() -> float:
    """That this process and all below it have used."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def own_mib() -> float:
    """Memory that this process alone has."""
    return float(psutil.Process().memory_full_info().uss) / 2**20


def calls(system: System, repeats: int, emit: Emit) -> None:
    """One actor."""
    (actor,) = system.create(1)

    def one_at_a_time() -> None:
        for _ in range(NUM_ONE_AT_A_TIME):
            system.call(actor, "nothing")

    def pipelined() -> None:
        system.wait([system.start(actor, "nothing") for _ in range(NUM_PIPELINED)])

    one_at_a_time()
    emit(ONE_AT_A_TIME, "us", [seconds(one_at_a_time) / NUM_ONE_AT_A_TIME * 1e6 for _ in range(repeats)])
    emit(PIPELINED, "/s", [NUM_PIPELINED / seconds(pipelined) for _ in range(repeats)], note=system.note(PIPELINED))


def start(system: System, repeats: int, emit: Emit) -> None:
    """An actor after the other."""
    system.end(system.create(1))
    samples = []
    for _ in range(2 * repeats):
        started = time.perf_counter()
        actors = system.create(1)
        samples.append((time.perf_counter() - started) * 1e3)
        system.end(actors)
    emit(CREATED, "ms", samples, note=system.note(CREATED))


def many(system: System, repeats: int, emit: Emit) -> None:
    """A hundred actors, each with a process that shares no memory, or with a thread here: more are not feasible."""
    before = own_mib()
    actors = system.create(NUM_IDLE_ACTORS)

    def pipelined() -> None:
        system.wait([system.start(actor, "nothing") for _ in range(num_each) for actor in actors])

    num_each = NUM_PIPELINED // len(actors)
    note = f"{len(actors)} actors, {threading.active_count()} Python threads at the caller"
    emit(MANY_PIPELINED, "/s", [NUM_PIPELINED / seconds(pipelined) for _ in range(repeats)], note=note)
    emit(MANY_MEMORY, "KiB", [1024 * (own_mib() - before) / len(actors)], note=note)
    emit(IDLE_CPU, "% of a core", idle_percent(repeats))


def idle_percent(repeats: int) -> list[float]:
    """CPU of everything while nothing is done."""
    time.sleep(SETTLE_S)  # until what is left of the work is done
    samples = []
    for _ in range(min(3, repeats)):
        before, started = cpu_seconds(), time.perf_counter()
        time.sleep(IDLE_S)
        samples.append(100 * max(0.0, cpu_seconds() - before) / (time.perf_counter() - started))
    return samples


def arrays(system: System, repeats: int, emit: Emit) -> None:
    """From an actor to the caller."""
    (actor,) = system.create(1)
    for name, num_bytes in SIZES.items():
        num = num_arrays(num_bytes)

        def one_at_a_time(num_bytes: int = num_bytes, num: int = num) -> None:
            for _ in range(num):
                system.call(actor, "array", num_bytes)

        def many_at_once(num_bytes: int = num_bytes, num: int = num) -> None:
            ahead = [system.start(actor, "array", num_bytes) for _ in range(2)]
            for _ in range(num - 2):
                system.wait([ahead.pop(0)])
                ahead.append(system.start(actor, "array", num_bytes))
            system.wait(ahead)

        one_at_a_time()
        emit(ARRAY.format(name), "ms", [seconds(one_at_a_time) / num * 1e3 for _ in range(repeats)])
        emit(ARRAYS.format(name), "GB/s", [num * num_bytes / seconds(many_at_once) / 1e9 for _ in range(repeats)])


def weights(system: System, repeats: int, emit: Emit) -> None:
    """New ones every time."""
    actors = system.create(NUM_WEIGHT_ACTORS)
    samples = []
    for version in range(2 * repeats + 1):
        packed = np.full(WEIGHT_BYTES, version, np.uint8)
        started = time.perf_counter()
        shared = system.share(packed)
        system.wait([system.start(actor, "set_weights", shared) for actor in actors])
        samples.append((time.perf_counter() - started) * 1e3)
    emit(WEIGHTS, "ms", samples[1:], note=system.note(WEIGHTS))


def busy_link(system: System, repeats: int, emit: Emit) -> None:
    """How long a small call takes, one every 5 ms, while a large result is on its way."""
    (actor,) = system.create(1, num_threads=2)
    system.call(actor, "array", BUSY_BYTES)
    p50, p99 = [], []
    for _ in range(repeats):
        delays: list[float] = []
        for _ in range(NUM_TRANSFERS):
            large = system.start(actor, "array", BUSY_BYTES)
            is_done = False
            while not is_done:
                time.sleep(PAUSE_S)
                delays.append(seconds(lambda: system.call(actor, "nothing")) * 1e3)
                is_done = system.is_done(large)
            system.wait([large])
        p50.append(quantile(delays, 0.5))
        p99.append(quantile(delays, 0.99))
    emit(BUSY_P50, "ms", p50, note=system.note(BUSY_P50))
    emit(BUSY_P99, "ms", p99)


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least this share of all is not above."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


PARTS = {
    "calls": calls,
    "start": start,
    "many": many,
    "arrays": arrays,
    "weights": weights,
    "busy-link": busy_link,
}


def parse(description: str | None, parts: Sequence[str]) -> argparse.Namespace:
    """The command line that all of these programs have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True, help="gets a line of JSON for each row")
    return parser.parse_args()


def writer(path: Path) -> Emit:
    """Writes rows to a file, each as soon as it is there."""

    def emit(name: str, unit: str, samples: Sequence[float], *, note: str = "") -> None:
        with path.open("a") as file:
            file.write(json.dumps({"name": name, "unit": unit, "samples": list(samples), "note": note}) + "\n")

    return emit


def main(system: Callable[[], System], description: str | None) -> None:
    """Do one part with a peer."""
    arguments = parse(description, list(PARTS))
    with system() as running:
        PARTS[arguments.part](running, arguments.repeats, writer(arguments.output))
