"""Which arrays are too small to go through shared memory: that is `MIN_LENT_BYTES` of `asyncparl/runtime/lending.py`.

    python benchmarks/arrays.py

What larger arrays cost is measured by `asyncparl bench arrays`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import trio

import asyncparl
from asyncparl.bench.peers import workloads
from asyncparl.bench.peers.workloads import num_arrays
from asyncparl.bench.report import Row, report
from asyncparl.runtime import lending

THRESHOLD_SIZES = [1 << n for n in range(12, 19)]


@asyncparl.remote_class
class Source(workloads.Subject):
    """Has arrays, and a threshold that can be set."""

    def cpu_seconds(self) -> float:
        return time.process_time()

    def lend_from(self, num_bytes: int) -> None:
        """The threshold of this process."""
        lending.MIN_LENT_BYTES = num_bytes


async def cpu_seconds_a_call(source: Any, num_bytes: int) -> float:
    """Of both processes together: it does not depend on who else uses the machine."""
    count = 2 * num_arrays(num_bytes)
    before = await source.cpu_seconds() + time.process_time()
    for _ in range(count):
        await source.array(num_bytes)
    num_seconds: float = await source.cpu_seconds() + time.process_time() - before
    return num_seconds / count


async def threshold_rows(repeats: int) -> list[Row]:
    """Calls with arrays of one size that go through shared memory, beside calls with the same arrays in the message."""
    shared: dict[int, list[float]] = {size: [] for size in THRESHOLD_SIZES}
    inside: dict[int, list[float]] = {size: [] for size in THRESHOLD_SIZES}
    async with asyncparl.connect(preload=["numpy"]):
        source = Source()
        for _ in range(repeats):
            for size in THRESHOLD_SIZES:
                for threshold, samples in ((0, shared), (1 << 40, inside)):
                    await source.lend_from(threshold)
                    samples[size].append(await cpu_seconds_a_call(source, size) * 1e6)
    rows = []
    for size in THRESHOLD_SIZES:
        ratio = [a / b for a, b in zip(shared[size], inside[size], strict=True)]
        note = (
            f"{statistics.median(shared[size]):.0f} us of CPU, {statistics.median(inside[size]):.0f} us in the message"
        )
        rows.append(Row(f"{size // 1024} KiB: shared memory, in times of the message", "x", ratio, note=note))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="samples of each row (default 7)")
    report("Which arrays are worth sharing", trio.run(threshold_rows, parser.parse_args().repeats), save_as=None)


if __name__ == "__main__":
    main()
