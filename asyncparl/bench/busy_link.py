"""How long a small call takes while a large result comes over the same link."""

from __future__ import annotations

import time
from typing import Any

import trio

import asyncparl
from asyncparl.bench.peers.workloads import (
    BUSY_BYTES,
    BUSY_P50,
    BUSY_P99,
    NUM_ONE_AT_A_TIME,
    NUM_TRANSFERS,
    PAUSE_S,
    quantile,
)
from asyncparl.bench.report import Emit, Row
from asyncparl.bench.subject import new_subject

IDLE_P50 = "empty call over an idle link, one every 5 ms, p50"
IDLE_P99 = "empty call over an idle link, one every 5 ms, p99"
NUM_IDLE_CALLS = 100


def measure(repeats: int, emit: Emit) -> None:
    """In turn with the same over an idle link."""
    trio.run(_measure, repeats, emit)


async def _measure(repeats: int, emit: Emit) -> None:
    samples: dict[str, list[float]] = {IDLE_P50: [], IDLE_P99: [], BUSY_P50: [], BUSY_P99: []}
    async with asyncparl.connect(preload=["numpy"]):
        actor = new_subject()
        await actor.array(BUSY_BYTES)
        for _ in range(NUM_ONE_AT_A_TIME):
            await actor.nothing_async()
        for _ in range(repeats):
            idle = [await _delay_ms(actor) for _ in range(NUM_IDLE_CALLS)]
            busy = [delay for _ in range(NUM_TRANSFERS) for delay in await _delays_during_transfer(actor)]
            for name, delays, share in (
                (IDLE_P50, idle, 0.5), (IDLE_P99, idle, 0.99), (BUSY_P50, busy, 0.5), (BUSY_P99, busy, 0.99)
            ):  # fmt: skip
                samples[name].append(quantile(delays, share))
    emit(Row(IDLE_P50, "ms", samples[IDLE_P50]))
    emit(Row(IDLE_P99, "ms", samples[IDLE_P99]))
    emit(Row(BUSY_P50, "ms", samples[BUSY_P50], limit=IDLE_P50))
    emit(Row(BUSY_P99, "ms", samples[BUSY_P99], target="20", limit=IDLE_P99))


async def _delays_during_transfer(actor: Any) -> list[float]:
    delays: list[float] = []
    is_done = False

    async def take_all() -> None:
        nonlocal is_done
        await actor.array(BUSY_BYTES)
        is_done = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_all)
        while not is_done:
            delays.append(await _delay_ms(actor))
    return delays


async def _delay_ms(actor: Any) -> float:
    await trio.sleep(PAUSE_S)
    started = time.perf_counter()
    await actor.nothing_async()
    return (time.perf_counter() - started) * 1e3
