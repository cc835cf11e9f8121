"""Catch, whose observations tell which copy of the game made them, and in which of its steps.

A module of its own, so that it has to be sent to nodes on other hosts.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from asyncparl.training.environments.catch import Catch

SCALE = 1 << 24
"""Whole numbers below this are exact in float32, and so are they divided by it: too little for a network to see."""


class NumberedCatch(Catch):
    """One row more than Catch has: it begins with the seed and the number of the step, by SCALE."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, 1.0, (self._num_rows + 1, self._num_columns), np.float32)
        self._seed = 0
        self._num_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self._seed = self._seed if seed is None else seed  # episodes after the first go on with the same one
        board, info = super().reset(seed=seed, options=options)
        return self._numbered(board), info

    def step(self, action: int | np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        board, reward, terminated, truncated, info = super().step(action)
        return self._numbered(board), reward, terminated, truncated, info

    def _numbered(self, board: NDArray[np.float32]) -> NDArray[np.float32]:
        row = np.zeros((1, self._num_columns), np.float32)
        row[0, :2] = self._seed / SCALE, self._num_steps / SCALE
        return np.concatenate([board, row])


gymnasium.register(
    "NumberedCatch-v0", entry_point=f"{__name__}:NumberedCatch", disable_env_checker=True, order_enforce=False
)
