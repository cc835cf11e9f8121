"""Counter: an environment in which every number can be predicted, to test whatever carries observations and rewards.

Registered with gymnasium as `asyncparl/Counter-v0`, with a limit of 5 steps, when `asyncparl.training.environments` is
imported.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

COUNTER_ID = "asyncparl/Counter-v0"
TIME_LIMIT = 5


class Counter(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Observes its seed, the episode it is in and the steps taken in that; the reward depends on the action alone.

    Episode k of a copy with seed s ends after `counter_length(s, k)` steps. Some would outlast the time limit, and
    one in five ends at the very step at which the limit cuts it. The one observation array is overwritten by every
    step, as the buffers of real simulators are.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._obs = np.array([0, -1, 0], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        if seed is not None:
            self._obs[:] = seed, -1, 0
        self._obs[1] += 1
        self._obs[2] = 0
        return self._obs, {}

    def step(self, action: int | np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._obs[2] += 1
        seed, episode, step = self._obs.astype(int).tolist()
        return self._obs, counter_reward(int(action)), step == counter_length(seed, episode), False, {}


def counter_reward(action: int) -> float:
    """What every action is worth: 0.5, 1.5, 4.5 or 9.5."""
    return action**2 + 0.5


def counter_length(seed: int, episode: int) -> int:
    """Steps until an episode ends by itself: 3 to 7."""
    return 3 + (seed + episode) % 5


def register_counter() -> None:
    """Tell gymnasium about Counter; nothing happens the second time."""
    if COUNTER_ID not in gymnasium.registry:
        gymnasium.register(COUNTER_ID, f"{__name__}:Counter", max_episode_steps=TIME_LIMIT, disable_env_checker=True)
