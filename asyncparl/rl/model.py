"""`Model`: a torch module whose weights can be taken out, put in and shipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncparl.algorithms.weights import WeightLayout, get_weights, set_weights, sync_weights


class Model(torch.nn.Module):
    """Subclass it like `torch.nn.Module`: define layers in `__init__` and write `forward`.

    For an actor-critic, `forward(obs [N, ...])` returns `(logits [N, num_actions], values [N])`. One with a memory also
    has `initial_state(num_envs)`, which returns a tensor [N, ...] or a tuple of such, and then it is
    `forward(obs, state)`, which returns `(logits, values, state)`; see `LSTMModel` for a ready one.

    "Weights" are the parameters and the persistent buffers. What is handed out is a copy: later training does not
    change it.
    """

    def get_weights(self) -> dict[str, NDArray[Any]]:
        """A copy of every weight, by name."""
        return get_weights(self)

    def set_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Copy weights into this model.

        Raises:
            ValueError: a name is missing or unknown, or a shape or kind of number differs. Nothing has changed then.
        """
        set_weights(self, weights)

    def get_flat_weights(self, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """All weights, bit for bit, in one buffer of bytes: `out`, or a new array. See `WeightLayout`."""
        return WeightLayout.of(self).pack(self, out)

    def set_flat_weights(self, buffer: NDArray[np.uint8]) -> None:
        """Copy weights from a buffer that `get_flat_weights` of an equal model filled; it may be read-only.

        Raises:
            ValueError: the buffer has another size. Nothing has changed then.
        """
        WeightLayout.of(self).unpack(buffer, self)

    def sync_weights_to(self, target: Model, decay: float = 0.0) -> None:
        """target = decay * target + (1 - decay) * self, for parameters and buffers; integer buffers are copied.

        Raises:
            ValueError: target is this model, or of another class or shape, or decay is not in [0, 1].
                Nothing has changed then.
        """
        sync_weights(self, target, decay)
