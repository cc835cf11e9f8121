"""Between numpy and torch, without a copy where that is safe."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def as_tensor(array: NDArray[Any] | Tensor) -> Tensor:
    """A CPU tensor that shares the array's memory. A read-only array is copied: torch has no read-only tensors."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def as_array(tensor: Tensor) -> NDArray[Any]:
    """A numpy array with the tensor's values; shares its memory if the tensor lies on the CPU.

    numpy has no bfloat16, so such a tensor becomes float32, which holds its values exactly.
    """
    tensor = tensor.detach().cpu()
    array: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def copy_array(tensor: Tensor) -> NDArray[Any]:
    """Like `as_array`, but the memory is always the caller's own, in C order."""
    return np.array(as_array(tensor), order="C")
