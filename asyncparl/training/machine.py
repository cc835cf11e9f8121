"""What this process may use of the machine that it runs on. Nothing here is guessed from the machine's size."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_CPU_INFO = Path("/proc/cpuinfo")
_FAST_BF16_FLAGS = {"amx_bf16", "avx512_bf16"}


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, and the quota of its container if that is less."""
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(num_cpus, _cgroup_cpus() or num_cpus))


def has_fast_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 matrices in hardware. Without that, bfloat16 is slower than float32."""
    try:
        text = _CPU_INFO.read_text()
    except OSError:
        return False
    flags = next((line.split(":", 1)[1].split() for line in text.splitlines() if line.startswith("flags")), [])
    return bool(_FAST_BF16_FLAGS.intersection(flags))


def has_cuda() -> bool:
    """Whether torch sees a CUDA device. Imports torch."""
    import torch

    return torch.cuda.is_available()


def _cgroup_cpus() -> int | None:
    """The CPU quota of the control group, rounded up; None if there is none."""
    try:
        quota, period = _CGROUP_LIMIT.read_text().split()
        return None if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None
