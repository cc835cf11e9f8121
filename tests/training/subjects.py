"""Environments and models that tests train with. Actors import them by name, as those of a user."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from asyncparl import Model
from asyncparl.training.environments.catch import Catch
from tests.training.programs.numbered_catch import NumberedCatch


class _Misbehaviour(gymnasium.Env[NDArray[np.float32], Any]):
    """A game, until a file says what to do in the next step; whoever reads it first removes it.

    Args:
        folder: where a file may be: `die`, `fail` or `huge`. `always`: the file stays.
    """

    def __init__(self, folder: str, always: bool = False) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._always = always

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self._is_told_to("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_told_to("fail"):
            raise LookupError("the game is lost")
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, 1e38 if self._is_told_to("huge") else reward, terminated, truncated, info

    def _is_told_to(self, what: str) -> bool:
        path = self._folder / what
        if self._always:
            return path.exists()
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True


class Misbehaving(_Misbehaviour, Catch):
    pass


class MisbehavingNumbered(_Misbehaviour, NumberedCatch):
    pass


class SeedNoting(_Misbehaviour, Catch):
    """Notes the seeds that it is given in `folder/seeds`."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        if seed is not None:
            with (self._folder / "seeds").open("a") as file:
                file.write(f"{seed}\n")
        return super().reset(seed=seed, options=options)


class FailingSeeds(Catch):
    """Fails where its seed is not below `first_seed`."""

    def __init__(self, first_seed: int) -> None:
        super().__init__()
        self._first_seed = first_seed
        self._seed = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self._seed = self._seed if seed is None else seed
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self._seed >= self._first_seed:
            raise LookupError("the game is lost")
        return super().step(action)


class HangingSeeds(Catch):
    """Hangs where its seed is not below `first_seed`; says so by the file `hangs` in the folder."""

    def __init__(self, folder: str, first_seed: int) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._first_seed = first_seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        while seed is not None and seed >= self._first_seed:
            (self._folder / "hangs").touch()
            time.sleep(0.1)
        return super().reset(seed=seed)


class Corridor(gymnasium.Env[NDArray[np.float32], Any]):
    """A user's own environment: walk right for 10 steps. The reward is how many steps were to the right."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._time += 1
        return self._obs(), float(action), False, self._time == 10, {}

    def _obs(self) -> NDArray[np.float32]:
        return np.array([1.0, self._time / 10], np.float32)


class LinearModel(Model):
    """A user's own model."""

    def __init__(self, obs_shape: Sequence[int], num_actions: int) -> None:
        super().__init__()
        self.logits = torch.nn.Linear(obs_shape[0], num_actions)
        self.value = torch.nn.Linear(obs_shape[0], 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.logits(obs), self.value(obs).squeeze(-1)


class RememberingModel(Model):
    """A user's own model with a memory, for Counter and whatever else has flat observations."""

    def __init__(self, obs_shape: Sequence[int], num_actions: int) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(math.prod(obs_shape), 8)
        self.logits = torch.nn.Linear(8, num_actions)
        self.value = torch.nn.Linear(8, 1)

    def initial_state(self, num_envs: int) -> torch.Tensor:
        return torch.zeros(num_envs, 8)

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        state = self.cell(torch.sin(obs.flatten(1)), state)
        return 3 * self.logits(state), self.value(state).squeeze(-1), state


MISBEHAVING_ID = "tests.training.subjects:Misbehaving-v0"
MISBEHAVING_NUMBERED_ID = "tests.training.subjects:MisbehavingNumbered-v0"
SEED_NOTING_ID = "tests.training.subjects:SeedNoting-v0"
HANGING_SEEDS_ID = "tests.training.subjects:HangingSeeds-v0"
FAILING_SEEDS_ID = "tests.training.subjects:FailingSeeds-v0"
CORRIDOR_ID = "tests.training.subjects:Corridor-v0"

for name in ("Misbehaving", "MisbehavingNumbered", "SeedNoting", "FailingSeeds", "HangingSeeds", "Corridor"):
    if f"{name}-v0" not in gymnasium.registry:
        entry_point = f"tests.training.subjects:{name}"
        gymnasium.register(f"{name}-v0", entry_point=entry_point, disable_env_checker=True, order_enforce=False)
