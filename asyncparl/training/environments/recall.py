"""Recall: a cue is shown once, and asked for some steps later. Without a memory there is nothing to do but guess.

Registered with gymnasium as `asyncparl/Recall-v0` when `asyncparl.training.environments` is imported.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

RECALL_ID = "asyncparl/Recall-v0"


class Recall(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Observes one of the cues, then nothing, then that the answer is due.

    The action of the last step is the answer: the reward is 1 if it is the number of the cue, else 0. Those before
    count for nothing. A guess is worth 1 / num_cues.

    Args:
        num_cues: as many cues and actions.
        delay: steps between the cue and the answer.
    """

    def __init__(self, num_cues: int = 3, delay: int = 4) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (num_cues + 1,), np.float32)
        self.action_space = spaces.Discrete(num_cues)
        self._num_cues = num_cues
        self._last_step = delay + 1
        self._cue = 0
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self._num_cues))
        self._step = 0
        return self._obs(), {}

    def step(self, action: int | np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        is_answer = self._step == self._last_step
        self._step += 1
        return self._obs(), float(is_answer and int(action) == self._cue), is_answer, False, {}

    def _obs(self) -> NDArray[np.float32]:
        obs = np.zeros(self._num_cues + 1, np.float32)
        if self._step == 0:
            obs[self._cue] = 1.0
        obs[self._num_cues] = float(self._step == self._last_step)
        return obs


def register_recall() -> None:
    """Tell gymnasium about Recall; nothing happens the second time."""
    if RECALL_ID not in gymnasium.registry:
        gymnasium.register(RECALL_ID, f"{__name__}:Recall", order_enforce=False, disable_env_checker=True)
