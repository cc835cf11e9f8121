"""What importing costs, and whether memory grows with calls."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import trio

import asyncparl
from asyncparl.bench.peers.workloads import own_mib
from asyncparl.bench.report import Emit, Row
from asyncparl.bench.subject import new_subject, pipelined

NUM_CALLS = 100_000
IMPORT_TRIO = "import trio"


def measure(repeats: int, emit: Emit) -> None:
    """Fresh interpreters, then one long-lived actor."""
    emit(Row(IMPORT_TRIO, "ms", _import_ms("trio", repeats)))
    emit(Row("import asyncparl", "ms", _import_ms("asyncparl", repeats), target="250", limit=IMPORT_TRIO))
    trio.run(_measure_growth, emit)


async def _measure_growth(emit: Emit) -> None:
    """Memory of both sides over many calls."""
    async with asyncparl.connect():
        actor = new_subject()
        await pipelined(actor, 10_000)
        gc.collect()
        here, there = own_mib(), await actor.unique_bytes()
        for _ in range(NUM_CALLS // 10_000):
            await pipelined(actor, 10_000)
        gc.collect()
        grown_here, grown_there = own_mib() - here, (await actor.unique_bytes() - there) / 2**20
    emit(Row(f"caller's growth over {NUM_CALLS:,} calls", "MiB", [grown_here], target="0"))
    emit(Row(f"worker's growth over {NUM_CALLS:,} calls", "MiB", [grown_there], target="0"))


def _import_ms(package: str, repeats: int) -> list[float]:
    """Of a fresh interpreter that imports the package, less one that imports nothing."""
    # With the compiled files that an installed package has, and one that is worked on has after its first use.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def seconds(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        return time.perf_counter() - started

    seconds(f"import {package}")
    return [(seconds(f"import {package}") - seconds("pass")) * 1e3 for _ in range(repeats)]
