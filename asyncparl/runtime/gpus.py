"""What the GPUs of this machine do, as NVIDIA's own program tells."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from asyncparl.protocol.figures import GpuFigures

_QUERY = "index,uuid,name,utilization.gpu,memory.used,memory.total"
_LIMIT_S = 3.0


def gpu_figures(names: Sequence[str]) -> list[GpuFigures]:
    """Of those that are named, by index or UUID as in `CUDA_VISIBLE_DEVICES`. None where that program is not there."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_gpus(done.stdout, names)


def parse_gpus(text: str, names: Sequence[str]) -> list[GpuFigures]:
    """The lines of that program, in the order of the names. What it does not know ("[N/A]") counts as nothing."""
    known: dict[str, GpuFigures] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != _QUERY.count(",") + 1:
            continue
        index, uuid, name, busy, used, total = fields
        figures = GpuFigures(name, _number(busy) / 100, int(_number(used)) << 20, int(_number(total)) << 20)
        known[index] = known[uuid] = figures
    return [known[name] for name in names if name in known]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
