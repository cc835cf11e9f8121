"""Empty calls to one actor."""

from __future__ import annotations

import time
from typing import Any

import trio

import asyncparl
from asyncparl.bench.limits import BLOCKING_NNG, PIPELINED_NNG, TRIO_SOCKETS, BlockingNng, TrioSockets
from asyncparl.bench.peers.workloads import NUM_ONE_AT_A_TIME, NUM_PIPELINED, ONE_AT_A_TIME, PIPELINED
from asyncparl.bench.report import Emit, Row
from asyncparl.bench.subject import new_subject, pipelined


def measure(repeats: int, emit: Emit) -> None:
    """Calls and bare round trips in turn, so that both see the machine in the same mood."""
    with BlockingNng.running() as nng, TrioSockets.running() as sockets:
        trio.run(_measure, nng, sockets, repeats, emit)


async def _measure(nng: BlockingNng, sockets: TrioSockets, repeats: int, emit: Emit) -> None:
    nng_s, sockets_s, ours_s = list[float](), list[float](), list[float]()
    nng_rates, rates = list[float](), list[float]()
    async with asyncparl.connect():
        actor = new_subject()
        await one_at_a_time(actor, NUM_ONE_AT_A_TIME)
        nng.round_trips(NUM_ONE_AT_A_TIME)
        await sockets.round_trips(NUM_ONE_AT_A_TIME)
        for _ in range(repeats):
            nng_s.append(1e6 * nng.round_trips(NUM_ONE_AT_A_TIME))
            sockets_s.append(1e6 * await sockets.round_trips(NUM_ONE_AT_A_TIME))
            ours_s.append(1e6 * await one_at_a_time(actor, NUM_ONE_AT_A_TIME))
        emit(Row(BLOCKING_NNG, "us", nng_s))
        emit(Row(TRIO_SOCKETS, "us", sockets_s))
        emit(Row(ONE_AT_A_TIME, "us", ours_s, limit=BLOCKING_NNG, note="target: 1.5x its limit"))
        for _ in range(repeats):
            nng_rates.append(nng.pipelined(NUM_PIPELINED))
            rates.append(await pipelined(actor, NUM_PIPELINED))
        emit(Row(PIPELINED_NNG, "/s", nng_rates))
        emit(Row(PIPELINED, "/s", rates, target="20,000", limit=PIPELINED_NNG))


async def one_at_a_time(actor: Any, num: int) -> float:
    """Seconds that each takes."""
    started = time.perf_counter()
    for _ in range(num):
        await actor.nothing()
    return (time.perf_counter() - started) / num
