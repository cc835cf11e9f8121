"""New weights for sixteen actors of this machine."""

from __future__ import annotations

import time

import numpy as np
import trio

import asyncparl
from asyncparl.bench.limits import seconds_to_copy
from asyncparl.bench.peers.workloads import NUM_WEIGHT_ACTORS, WEIGHT_BYTES, WEIGHTS
from asyncparl.bench.report import Emit, Row
from asyncparl.bench.subject import new_subject

COPY = "7 MB: memcpy, once"
COPIES = f"7 MB: memcpy, {NUM_WEIGHT_ACTORS} times"


def measure(repeats: int, emit: Emit) -> None:
    """In turn with bare copies."""
    trio.run(_measure, 2 * repeats, emit)


async def _measure(repeats: int, emit: Emit) -> None:
    copy_ms, ours_ms = list[float](), list[float]()
    async with asyncparl.connect(preload=["numpy"]):
        actors = [new_subject() for _ in range(NUM_WEIGHT_ACTORS)]
        await asyncparl.gather([actor.nothing() for actor in actors])
        for version in range(repeats + 1):
            copy_ms.append(1e3 * seconds_to_copy(WEIGHT_BYTES, 10))
            packed = np.full(WEIGHT_BYTES, version, np.uint8)
            started = time.perf_counter()
            await asyncparl.gather([actor.set_weights(packed) for actor in actors])
            ours_ms.append((time.perf_counter() - started) * 1e3)
    emit(Row(COPY, "ms", copy_ms[1:]))
    emit(Row(COPIES, "ms", [NUM_WEIGHT_ACTORS * ms for ms in copy_ms[1:]]))
    emit(Row(WEIGHTS, "ms", ours_ms[1:], limit=COPIES))
