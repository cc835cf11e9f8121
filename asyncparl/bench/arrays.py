"""What it costs to get an array from an actor to its caller on one host, beside its limits.

The limits are a `memcpy` of the same size, for one copy is made; and a bare NNG socket between two processes, which is
the way that arrays would take without shared memory.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import trio

import asyncparl
from asyncparl.bench.limits import BareSocket, seconds_to_copy
from asyncparl.bench.peers.workloads import ARRAY, ARRAYS, SIZES, num_arrays
from asyncparl.bench.report import Emit, Row
from asyncparl.bench.subject import new_subject
from asyncparl.runtime import node_link

TARGETS = {"64 KB": ("0.57", ""), "1 MB": ("0.93", "4.5"), "8 MB": ("1.4", "8")}  # one at a time, as a stream


def measure(repeats: int, emit: Emit) -> None:
    """Everything in turn, so that all of it sees the same moods of the machine."""
    with BareSocket.running() as bare:
        trio.run(_measure, bare, repeats, emit)


async def _measure(bare: BareSocket, repeats: int, emit: Emit) -> None:
    samples = {name: _Samples() for name in SIZES}
    async with asyncparl.connect(preload=["numpy"]):
        through_socket = await _without_shared_memory()
        source = new_subject()
        for _ in range(repeats):
            for name, num_bytes in SIZES.items():
                await samples[name].add(num_bytes, bare, source, through_socket)
    for name, num_bytes in SIZES.items():
        samples[name].tell(name, num_bytes, emit)


async def _without_shared_memory() -> Any:
    place: Any = node_link  # the links that it makes have as much
    before, place.SHARED_BYTES = place.SHARED_BYTES, 0
    actor = new_subject()
    await actor.nothing()
    place.SHARED_BYTES = before
    return actor


class _Samples:
    """Of one size: seconds for an array."""

    def __init__(self) -> None:
        self._copy: list[float] = []
        self._bare: list[float] = []
        self._result: list[float] = []
        self._result_by_socket: list[float] = []
        self._argument: list[float] = []
        self._stream: list[float] = []
        self._stream_in_place: list[float] = []
        self._stream_by_socket: list[float] = []

    async def add(self, num_bytes: int, bare: BareSocket, source: Any, through_socket: Any) -> None:
        """One of each."""
        num = num_arrays(num_bytes)
        self._copy.append(seconds_to_copy(num_bytes, num))
        self._bare.append(bare.seconds_a_message(num_bytes, num))
        self._result.append(await _seconds_a_result(source, num_bytes, num))
        self._result_by_socket.append(await _seconds_a_result(through_socket, num_bytes, num))
        self._argument.append(await _seconds_an_argument(source, num_bytes, num))
        self._stream.append(await _seconds_an_item(source.stream, num_bytes, num))
        self._stream_in_place.append(await _seconds_an_item(source.stream_in_place, num_bytes, num))
        self._stream_by_socket.append(await _seconds_an_item(through_socket.stream, num_bytes, num))

    def tell(self, name: str, num_bytes: int, emit: Emit) -> None:
        """All of them."""

        def rates(seconds: list[float]) -> list[float]:
            return [num_bytes / each / 1e9 for each in seconds]

        def ms(seconds: list[float]) -> list[float]:
            return [1e3 * each for each in seconds]

        one, streaming = TARGETS[name]
        copy, copy_ms = f"{name}: memcpy", f"{name}: memcpy, time"
        emit(Row(copy, "GB/s", rates(self._copy)))
        emit(Row(copy_ms, "ms", ms(self._copy)))
        emit(Row(f"{name}: bare NNG socket", "GB/s", rates(self._bare)))
        emit(Row(ARRAY.format(name), "ms", ms(self._result), target=one, limit=copy_ms))
        emit(Row(f"{name}: the same through the socket", "ms", ms(self._result_by_socket), limit=copy_ms))
        emit(Row(f"{name}: argument of a call, one at a time", "ms", ms(self._argument), limit=copy_ms))
        stream = ARRAYS.format(name)
        emit(Row(stream, "GB/s", rates(self._stream), target=streaming, limit=copy, note="items of a stream"))
        emit(Row(f"{name}: the same, made in place", "GB/s", rates(self._stream_in_place), limit=copy))
        emit(Row(f"{name}: a stream through the socket", "GB/s", rates(self._stream_by_socket), limit=copy))


async def _seconds_a_result(source: Any, num_bytes: int, num: int) -> float:
    for _ in range(5):
        await source.array(num_bytes)
    started = time.perf_counter()
    for _ in range(num):
        await source.array(num_bytes)
    return (time.perf_counter() - started) / num


async def _seconds_an_argument(source: Any, num_bytes: int, num: int) -> float:
    array = np.ones(num_bytes, np.uint8)
    for _ in range(5):
        await source.set_weights(array)
    started = time.perf_counter()
    for _ in range(num):
        await source.set_weights(array)
    return (time.perf_counter() - started) / num


async def _seconds_an_item(stream: Any, num_bytes: int, num: int) -> float:
    async for _ in stream(num_bytes, 10):
        pass
    started = time.perf_counter()
    async for _ in stream(num_bytes, num):
        pass
    return (time.perf_counter() - started) / num
