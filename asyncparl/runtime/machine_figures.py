"""What the system counts of this machine and of the workers on it, read while somebody watches."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import trio

from asyncparl.protocol.figures import GpuFigures
from asyncparl.runtime.gpus import gpu_figures
from asyncparl.runtime.memory import memory_of_groups

_MEMORY_EVERY_S = 5.0
"""Reading the memory of a process takes milliseconds of it."""
_GPUS_EVERY_S = 5.0


class ProcessFigures(NamedTuple):
    """Of a worker's process group, as the system counts them."""

    cpu_s: float
    memory_bytes: int


class MachineFigures(NamedTuple):
    """Of the machine, and of the workers by their pid."""

    cpu_share: float
    used_memory_bytes: int
    total_memory_bytes: int
    gpus: list[GpuFigures]
    processes: Mapping[int, ProcessFigures]


class MachineReader:
    """Reads what the system counts, in a thread. What is expensive is read less often."""

    def __init__(self) -> None:
        self._memory: dict[int, int] = {}
        self._memory_at = self._gpus_at = float("-inf")
        self._gpus: list[GpuFigures] = []
        self._turn = trio.Lock()
        self._cpu_times: tuple[float, float] | None = None

    async def read(self, pids: Collection[int], gpu_names: Sequence[str]) -> MachineFigures:
        """Now."""
        async with self._turn:
            return await trio.to_thread.run_sync(self._read, pids, gpu_names, abandon_on_cancel=True)

    def _read(self, pids: Collection[int], gpu_names: Sequence[str]) -> MachineFigures:
        import psutil  # only where somebody looks

        now = time.monotonic()
        if now > self._memory_at + _MEMORY_EVERY_S or not self._memory.keys() >= set(pids):
            self._memory, self._memory_at = memory_of_groups(pids), now
        if gpu_names and now > self._gpus_at + _GPUS_EVERY_S:
            self._gpus, self._gpus_at = gpu_figures(gpu_names), now
        processes = {}
        for pid in pids:
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.Error:  # it has just ended
                continue
            cpu_s = times.user + times.system + times.children_user + times.children_system
            processes[pid] = ProcessFigures(cpu_s, self._memory.get(pid, 0))
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        return MachineFigures(self._cpu_share(), used, memory.total, self._gpus, processes)

    def _cpu_share(self) -> float:
        """Of the time since the last look, or since the machine started."""
        import psutil

        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        # The time of guests is in that of users already.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        before, self._cpu_times = self._cpu_times or (0.0, 0.0), (idle, total)
        span = total - before[1]
        return min(1.0, max(0.0, 1 - (idle - before[0]) / span)) if span > 0 else 0.0
