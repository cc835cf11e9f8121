"""The model that is used where the user names none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from asyncparl.rl.model import Model
from asyncparl.rl.nets import MLP, SHALLOW_MIN_SIDE, AtariShallow
from asyncparl.rl.recurrent import MLPLSTM, AtariShallowLSTM

MAX_COLOURS = 4


def default_model(obs_shape: Sequence[int], obs_dtype: DTypeLike, num_actions: int, *, lstm: bool = False) -> Model:
    """`AtariShallow` for uint8 images [C, H, W] large enough for it, `MLP` for everything else.

    Args:
        lstm: `AtariShallowLSTM` and `MLPLSTM` instead.

    Raises:
        ValueError: for large images with the colours last, [H, W, C], which neither would learn from.
    """
    is_pixels = len(obs_shape) == 3 and np.dtype(obs_dtype) == np.uint8
    if is_pixels and min(obs_shape[1:]) >= SHALLOW_MIN_SIDE:
        return AtariShallowLSTM(num_actions, obs_shape) if lstm else AtariShallow(num_actions, obs_shape)
    if is_pixels and min(obs_shape[:2]) >= SHALLOW_MIN_SIDE and obs_shape[2] <= MAX_COLOURS:
        raise ValueError(f"no default model for images of shape {list(obs_shape)}: give [C, H, W], or your own model")
    obs_size = math.prod(obs_shape)
    return MLPLSTM(obs_size, num_actions) if lstm else MLP(obs_size, num_actions)
