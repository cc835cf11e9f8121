"""The weights of any torch module as numpy arrays, or as one buffer of bytes to ship.

"Weights" are what `state_dict()` holds: parameters and persistent buffers. What is handed out is always a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module

from asyncparl.algorithms.arrays import as_tensor, copy_array

ALIGNMENT_BYTES = 64  # a cache line, so that every tensor of a buffer is aligned for any dtype


def get_weights(module: Module) -> dict[str, NDArray[Any]]:
    """A copy of every parameter and buffer, by name. bfloat16 becomes float32, other dtypes are kept."""
    return {name: copy_array(tensor) for name, tensor in module.state_dict().items()}


@torch.no_grad()
def set_weights(module: Module, weights: Mapping[str, NDArray[Any]]) -> None:
    """Copy the weights into the module.

    Raises:
        ValueError: a name is missing or unknown, or a shape or kind of number differs. Nothing has changed then.
    """
    own = module.state_dict()
    arrays = {name: np.asarray(array) for name, array in weights.items()}
    check_fit(own, arrays)
    for name, array in arrays.items():
        if not _same_kind(own[name], array):
            raise ValueError(f"weights do not fit: {name!r} is {array.dtype}, expected {_dtype_name(own[name].dtype)}")
    for name, array in arrays.items():
        own[name].copy_(as_tensor(array))


def check_fit(own: Mapping[str, Tensor], given: Mapping[str, Any]) -> None:
    """Raise ValueError, naming every difference, unless both have the same names with the same shapes."""
    problems = [f"missing {name!r}" for name in own if name not in given]
    problems += [f"unknown {name!r}" for name in given if name not in own]
    problems += [
        f"{name!r} has shape {list(given[name].shape)}, expected {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in given and tuple(given[name].shape) != tuple(tensor.shape)
    ]
    if problems:
        raise ValueError("weights do not fit: " + "; ".join(problems))


@torch.no_grad()
def sync_weights(source: Module, target: Module, decay: float = 0.0) -> None:
    """target = decay * target + (1 - decay) * source, for parameters and buffers; integer buffers are copied.

    Raises:
        ValueError: both are the same object, or of different classes or shapes, or decay is not in [0, 1].
            Nothing has changed then.
    """
    if source is target:
        raise ValueError("cannot sync the weights of a model to itself")
    if type(source) is not type(target):
        raise ValueError(f"cannot sync a {type(source).__name__} to a {type(target).__name__}")
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"decay is {decay}, expected a number from 0 to 1")
    new, old = dict(_tensors(source)), dict(_tensors(target))
    check_fit(old, new)
    for name, tensor in old.items():
        if decay and tensor.is_floating_point():
            tensor.lerp_(new[name].to(tensor), 1.0 - decay)
        else:
            tensor.copy_(new[name])


def _tensors(module: Module) -> Iterator[tuple[str, Tensor]]:
    """Each parameter and buffer once, even where two names share one: it must not decay twice."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def _same_kind(tensor: Tensor, array: NDArray[Any]) -> bool:
    return array.dtype.kind in ("f" if tensor.is_floating_point() else "iub")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """Where one tensor lies in the buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """How the weights of a model lie in one contiguous buffer, so that one version of them is one message.

    Every dtype is kept bit for bit. Two models fit each other exactly if their layouts are equal.
    """

    slots: tuple[WeightSlot, ...]
    num_bytes: int

    @classmethod
    def of(cls, module: Module) -> WeightLayout:
        """The layout of this module's weights, in the order of its `state_dict()`."""
        slots = []
        start = 0
        for name, tensor in module.state_dict().items():
            slots.append(WeightSlot(name, tuple(tensor.shape), _dtype_name(tensor.dtype), start, tensor.nbytes))
            start += -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return cls(tuple(slots), start)

    @torch.no_grad()
    def pack(self, module: Module, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Write the module's weights into `out` (uint8, `num_bytes` long), or into a new array, and return it.

        Raises:
            ValueError: `out` has another size, or the module another layout.
        """
        buffer: NDArray[np.uint8] = np.zeros(self.num_bytes, np.uint8) if out is None else out
        for tensor, view in self._views(module, buffer):
            view.copy_(tensor)
        return buffer

    @torch.no_grad()
    def unpack(self, buffer: NDArray[np.uint8], module: Module) -> None:
        """Copy the weights from the buffer, which may be read-only, into the module.

        Raises:
            ValueError: the buffer has another size, or the module another layout. Nothing has changed then.
        """
        for tensor, view in self._views(module, buffer):
            tensor.copy_(view)

    def _views(self, module: Module, buffer: NDArray[np.uint8]) -> list[tuple[Tensor, Tensor]]:
        if self != WeightLayout.of(module):
            raise ValueError(f"the layout of the weights is not that of this {type(module).__name__}")
        if buffer.dtype != np.uint8 or buffer.shape != (self.num_bytes,):
            raise ValueError(f"the buffer is {buffer.dtype} {list(buffer.shape)}, expected uint8 [{self.num_bytes}]")
        own = module.state_dict()
        return [(own[slot.name], _view(buffer, slot)) for slot in self.slots]


def _view(buffer: NDArray[np.uint8], slot: WeightSlot) -> Tensor:
    raw = as_tensor(buffer[slot.start : slot.start + slot.num_bytes])
    return raw.view(getattr(torch, slot.dtype)).view(slot.shape)
