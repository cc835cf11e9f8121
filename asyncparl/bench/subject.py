"""The actor that is measured: what all peers have, and what only asyncparl has."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil

import asyncparl
from asyncparl.bench.peers import workloads
from asyncparl.training.weight_board import BoardAddress, BoardReader


@asyncparl.remote_class
class Subject(workloads.Subject):
    """Does nothing, and has arrays."""

    async def nothing_async(self) -> None:
        """An empty call that does not wait for the one before."""

    def stream(self, num_bytes: int, num: int) -> Iterator[Any]:
        """The same array again and again."""
        for _ in range(num):
            yield self.array(num_bytes)

    def stream_in_place(self, num_bytes: int, num: int) -> Iterator[Any]:
        """A new array every time, in the memory that both sides see."""
        for i in range(num):
            array = asyncparl.empty(num_bytes, np.uint8)
            array[:: 1 << 16] = i & 0xFF
            yield array

    def open_board(self, address: BoardAddress) -> None:
        """Where new weights will be."""
        self._board = BoardReader.open(address)

    def look_at_board(self, slot: int) -> int:
        """Hold the weights there, and tell their last byte."""
        assert self._board is not None
        weights = self._board.weights(slot)
        self.set_weights(weights)
        return int(weights[-1])

    def unique_bytes(self) -> int:
        """Memory that is not shared with the process it was forked from."""
        gc.collect()
        return int(psutil.Process().memory_full_info().uss)


def new_subject() -> Any:
    """A proxy: the checker sees what the class is, not what it was made."""
    return Subject()


async def pipelined(actor: Any, num: int) -> float:
    """Empty calls a second, all made at once."""
    started = time.perf_counter()
    for call in [actor.nothing() for _ in range(num)]:
        await call
    return num / (time.perf_counter() - started)
