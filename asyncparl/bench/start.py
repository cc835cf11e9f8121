"""A warm actor: from the constructor's call to the first result."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import trio

import asyncparl
from asyncparl.bench.peers.workloads import CREATED
from asyncparl.bench.report import Emit, Row
from asyncparl.bench.subject import new_subject

FORK = "fork of a process that has loaded torch, and a byte from it"
PRELOADED = ("numpy", "torch")


def measure(repeats: int, emit: Emit) -> None:
    """With torch in every process."""
    emit(Row(FORK, "ms", _seconds_to_fork(2 * repeats)))
    trio.run(_measure, 2 * repeats, emit)


async def _measure(repeats: int, emit: Emit) -> None:
    times, unique = list[float](), list[float]()
    async with asyncparl.connect(preload=PRELOADED):
        await new_subject().nothing()
        for _ in range(repeats):
            started = time.perf_counter()
            actor = new_subject()
            await actor.nothing()
            times.append((time.perf_counter() - started) * 1e3)
            unique.append(await actor.unique_bytes() / 2**20)
            await asyncparl.close(actor)
    emit(Row(CREATED, "ms", times, target="40", limit=FORK, note="with torch"))
    emit(Row("unique memory of a warm worker", "MiB", unique, target="40"))


def _seconds_to_fork(repeats: int) -> list[float]:
    """In ms, measured in a fresh interpreter: this one has threads."""
    code = f"""
import json, {", ".join(PRELOADED)}
from asyncparl.bench.limits import seconds_to_fork
print(json.dumps([1e3 * seconds_to_fork() for _ in range({repeats})]))
"""
    result = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    times: list[float] = json.loads(result.stdout)
    return times
