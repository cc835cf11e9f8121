"""Several learners that make one update: each learns from its share of a batch, and all descend along the same sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

AddUp = Callable[[Tensor], None]
"""Puts the sum over all learners in the place of a contiguous tensor. All of them call it in the same order."""


class Together(NamedTuple):
    """The learners that make an update together, as one of them sees them."""

    num_learners: int
    is_first: bool
    add_up: AddUp


def added_up(tensors: Sequence[Tensor], add_up: AddUp) -> list[Tensor]:
    """The sums over all learners of each of the tensors, in one operation; new memory, laid out as theirs.

    Args:
        tensors: of any shapes, which are those of the other learners too, on one device.
    """
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    add_up(flat)
    sums, start = [], 0
    for tensor in tensors:
        piece = flat[start : start + tensor.numel()]
        sums.append(torch.empty_like(tensor).copy_(piece.view(tensor.shape)))
        start += tensor.numel()
    return sums
