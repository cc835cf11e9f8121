"""An environment and a network of one's own: a forager on a grid, seen as an image with three channels.

    python examples/own_environment.py                    # a mean return of 12, and rising, after 2 minutes
    asyncparl train a2c --env own_environment:Forager-v0 --model own_environment:GridNetwork     # in this folder

An untrained walker gets about 1. The names of the environment and of the network say where they are: they are imported
from this file in every process that needs them, on other machines too.
"""

import argparse
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
import trio
from gymnasium import spaces
from torch import Tensor, nn

import asyncparl
from asyncparl.training import TrainingConfig, train

ENV_ID = "own_environment:Forager-v0"
SIDE = 8
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


class Forager(gymnasium.Env):
    """Walk over a grid and eat: a berry is worth 1, and grows again elsewhere; stepping on a thorn ends the episode.

    Draw from `self.np_random`, which gymnasium seeds: every copy of a run has a seed of its own. Say `terminated` when
    the episode really ends; time limits are `truncated`, and come from `max_episode_steps` below.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 8}

    def __init__(self, num_berries: int = 4, num_thorns: int = 4, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(0, 255, (3, SIDE, SIDE), np.uint8)  # channels first: me, berries, thorns
        self.action_space = spaces.Discrete(len(MOVES))
        self.render_mode = render_mode
        self._numbers = (1, num_berries, num_thorns)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        cells = self.np_random.permutation(SIDE * SIDE)
        self._board = np.zeros((3, SIDE * SIDE), np.uint8)
        start = 0
        for channel, number in enumerate(self._numbers):
            self._board[channel, cells[start : start + number]] = 255
            start += number
        return self._obs(), {}

    def step(self, action):
        row, column = divmod(int(self._board[0].argmax()), SIDE)
        down, right = MOVES[action]
        here = (row + down) % SIDE * SIDE + (column + right) % SIDE
        self._board[0] = 0
        self._board[0, here] = 255
        reward = 0.0
        if self._board[1, here]:
            reward = 1.0
            self._board[1, here] = 0
            self._board[1, self.np_random.choice(np.flatnonzero(self._board.max(0) == 0))] = 255
        return self._obs(), reward, bool(self._board[2, here]), False, {}

    def render(self):
        return self._obs().transpose(1, 2, 0)  # for films: colours last

    def _obs(self):
        return self._board.reshape(3, SIDE, SIDE).copy()


# This file may be imported twice: as the script that runs, and by the name in ENV_ID.
if "Forager-v0" not in gymnasium.registry:
    gymnasium.register("Forager-v0", entry_point="own_environment:Forager", max_episode_steps=100)


class GridNetwork(asyncparl.Model):
    """Convolutions that keep the size of the grid, and wrap around it as the walk does."""

    def __init__(self, obs_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        channels, height, width = obs_shape
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1, padding_mode="circular"),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular"),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * height * width, 128),
            nn.ReLU(),
        )
        self.policy = nn.Linear(128, num_actions)
        self.value = nn.Linear(128, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """obs uint8[N, 3, 8, 8] -> logits [N, num_actions], values [N]."""
        features = self.body(obs.float() / 255)
        return self.policy(features), self.value(features).squeeze(-1)


async def main(args: argparse.Namespace) -> None:
    config = TrainingConfig.for_this_machine(
        ENV_ID,
        algorithm=args.algorithm,
        steps=args.steps,
        seed=args.seed,
        num_actors=args.num_actors,
        optimizer="adam",
        learning_rate=1e-3,
    )
    result = await train(config, model=GridNetwork, run_dir=args.run_dir)
    print(f"mean return {result.mean_return:.1f} after {result.agent_steps:,} steps; see {result.run_dir}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="impala", choices=("impala", "a2c", "ga3c"))
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-actors", type=int)  # by the machine
    parser.add_argument("--run-dir", type=Path)
    trio.run(main, parser.parse_args())
