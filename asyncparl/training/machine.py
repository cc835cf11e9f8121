"""What the machine computes fast. Nothing here is guessed from its size."""

from __future__ import annotations

from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_FAST_BF16_FLAGS = {"amx_bf16", "avx512_bf16"}


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
