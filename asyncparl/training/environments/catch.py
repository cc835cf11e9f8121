"""Catch, as in bsuite (Osband et al. 2020, arXiv:1908.03568): a ball falls, a paddle at the bottom should catch it.

The only reward is on the last of an episode's 9 steps, so a learner that loses the terminal transition learns nothing.
Registered with gymnasium as `asyncparl/Catch-v0` when `asyncparl.training.environments` is imported.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

CATCH_ID = "asyncparl/Catch-v0"


class Catch(gymnasium.Env[NDArray[np.float32], np.int64]):
    """A board of 10 rows and 5 columns: 1.0 where the ball or the paddle is. Actions: left, stay, right."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, num_rows: int = 10, num_columns: int = 5, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (num_rows, num_columns), np.float32)
        self.action_space = spaces.Discrete(3)
        self._num_rows = num_rows
        self._num_columns = num_columns
        self._ball_row = 0
        self._ball_column = 0
        self._paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._ball_row = 0
        self._ball_column = int(self.np_random.integers(self._num_columns))
        self._paddle = self._num_columns // 2
        return self._board(), {}

    def step(self, action: int | np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self._num_columns - 1)
        self._ball_row += 1
        landed = self._ball_row == self._num_rows - 1
        reward = 0.0
        if landed:
            reward = 1.0 if self._ball_column == self._paddle else -1.0
        return self._board(), reward, landed, False, {}

    def render(self) -> NDArray[np.uint8]:
        """uint8[num_rows, num_columns, 3]"""
        return np.repeat((255 * self._board()).astype(np.uint8)[:, :, None], 3, axis=2)

    def _board(self) -> NDArray[np.float32]:
        board = np.zeros((self._num_rows, self._num_columns), np.float32)
        board[self._ball_row, self._ball_column] = 1.0
        board[self._num_rows - 1, self._paddle] = 1.0
        return board


def register_catch() -> None:
    """Tell gymnasium about Catch; nothing happens the second time."""
    if CATCH_ID not in gymnasium.registry:
        gymnasium.register(CATCH_ID, f"{__name__}:Catch", order_enforce=False, disable_env_checker=True)
