"""New weights for sixteen actors of this machine."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

import asyncparl
from asyncparl.bench.limits import seconds_to_copy
from asyncparl.bench.peers.workloads import NUM_WEIGHT_ACTORS, WEIGHT_BYTES, WEIGHTS
from asyncparl.bench.report import Emit, Row
from asyncparl.bench.subject import new_subject
from asyncparl.training.weight_board import this_host
from asyncparl.training.weight_boards import WeightBoard, WeightBoards

COPY = "7 MB: memcpy, once"
COPIES = f"7 MB: memcpy, {NUM_WEIGHT_ACTORS} times"
AS_ARGUMENTS = f"the same, as an argument of {NUM_WEIGHT_ACTORS} calls"


def measure(repeats: int, emit: Emit) -> None:
    """As training sends them, and as an argument, in turn with bare copies."""
    trio.run(_measure, 2 * repeats, emit)


async def _measure(repeats: int, emit: Emit) -> None:
    copy_ms, ours_ms, argument_ms = list[float](), list[float](), list[float]()
    with WeightBoards(WEIGHT_BYTES, NUM_WEIGHT_ACTORS + 1) as boards:
        async with asyncparl.connect(preload=["numpy"]):
            actors = [new_subject() for _ in range(NUM_WEIGHT_ACTORS)]
            board = await boards.find(actors[0], this_host())
            assert board is not None, "there is no memory for weights"
            await asyncparl.gather([actor.open_board(board.address) for actor in actors])
            for version in range(repeats + 1):
                copy_ms.append(1e3 * seconds_to_copy(WEIGHT_BYTES, 10))
                packed = np.full(WEIGHT_BYTES, version, np.uint8)
                ours_ms.append(1e3 * await _seconds_by_board(board, version, packed, actors))
                started = time.perf_counter()
                await asyncparl.gather([actor.set_weights(packed) for actor in actors])
                argument_ms.append((time.perf_counter() - started) * 1e3)
    emit(Row(COPY, "ms", copy_ms[1:]))
    emit(Row(COPIES, "ms", [NUM_WEIGHT_ACTORS * ms for ms in copy_ms[1:]]))
    emit(Row(WEIGHTS, "ms", ours_ms[1:], limit=COPY, note="written once, in memory that all of them map"))
    emit(Row(AS_ARGUMENTS, "ms", argument_ms[1:], limit=COPIES))


async def _seconds_by_board(board: WeightBoard, version: int, packed: NDArray[np.uint8], actors: list[Any]) -> float:
    started = time.perf_counter()
    slots = [await board.lend(version, packed) for _ in actors]
    seen = await asyncparl.gather([actor.look_at_board(slot) for actor, slot in zip(actors, slots, strict=True)])
    took_s = time.perf_counter() - started
    for slot in slots:
        assert slot is not None
        board.give_back(slot)
    assert seen == [version % 256] * len(actors)
    return took_s
