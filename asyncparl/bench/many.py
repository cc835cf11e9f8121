"""A thousand actors of one program, and what a hundred cost that do nothing."""

from __future__ import annotations

import time

import trio

import asyncparl
from asyncparl.bench.limits import PIPELINED_NNG, BlockingNng
from asyncparl.bench.peers.workloads import (
    IDLE_CPU,
    MANY_MEMORY,
    MANY_PIPELINED,
    NUM_IDLE_ACTORS,
    NUM_PIPELINED,
    idle_percent,
    own_mib,
)
from asyncparl.bench.report import Emit, Row
from asyncparl.bench.subject import new_subject

NUM_ACTORS = 1000


def measure(repeats: int, emit: Emit) -> None:
    """The idle ones first: they are fewer."""
    trio.run(_measure_idle, repeats, emit)
    with BlockingNng.running() as nng:
        trio.run(_measure_calls, nng, repeats, emit)


async def _measure_idle(repeats: int, emit: Emit) -> None:
    async with asyncparl.connect():
        await asyncparl.gather([new_subject().nothing() for _ in range(NUM_IDLE_ACTORS)])
        # In a thread that sleeps, so that this loop has nothing to do.
        emit(Row(IDLE_CPU, "% of a core", await trio.to_thread.run_sync(idle_percent, repeats)))


async def _measure_calls(nng: BlockingNng, repeats: int, emit: Emit) -> None:
    limits, rates = list[float](), list[float]()
    async with asyncparl.connect():
        await new_subject().nothing()
        before, started = own_mib(), time.perf_counter()
        actors = [new_subject() for _ in range(NUM_ACTORS)]
        await asyncparl.gather([actor.nothing() for actor in actors])
        created_s = time.perf_counter() - started
        for _ in range(repeats):
            limits.append(nng.pipelined(NUM_PIPELINED))
            started = time.perf_counter()
            calls = [actor.nothing() for _ in range(NUM_PIPELINED // NUM_ACTORS) for actor in actors]
            for call in calls:
                await call
            rates.append(NUM_PIPELINED / (time.perf_counter() - started))
        kib_each = 1024 * (own_mib() - before) / NUM_ACTORS
    note = f"{NUM_ACTORS:,} actors"
    emit(Row(PIPELINED_NNG, "/s", limits, note="to one process"))
    emit(Row(MANY_PIPELINED, "/s", rates, limit=PIPELINED_NNG, note=note))
    emit(Row(MANY_MEMORY, "KiB", [kib_each], note=note))
    emit(Row(f"{note}, until all have answered", "s", [created_s]))
