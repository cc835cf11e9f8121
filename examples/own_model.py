"""IMPALA on a gymnasium environment that is no Atari game: a model class and the environment's id are all it takes.

    python examples/own_model.py                          # CartPole: about 480 after half a minute on two cores
    python examples/own_model.py --env Acrobot-v1 --algorithm a2c

The run folder that it prints is like any other: `asyncparl evaluate`, `plot` and `train impala --resume` work on it,
called in the folder of this script, where its model is found.
"""

import argparse
from pathlib import Path

import torch
import trio
from torch import Tensor, nn

import asyncparl
from asyncparl.training import TrainingConfig, train


class Network(asyncparl.Model):
    """Two layers that policy and value share. Made with what the environment has; called with what it observes."""

    def __init__(self, obs_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        (num_numbers,) = obs_shape  # this network is for vectors
        self.body = nn.Sequential(nn.Linear(num_numbers, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.policy = nn.Linear(128, num_actions)
        self.value = nn.Linear(128, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """obs [N, numbers] -> logits [N, num_actions], values [N]."""
        features = self.body(torch.tanh(obs))  # speeds may be large
        return self.policy(features), self.value(features).squeeze(-1)


async def main(args: argparse.Namespace) -> None:
    config = TrainingConfig.for_this_machine(
        args.env,
        algorithm=args.algorithm,
        steps=args.steps,
        seed=args.seed,
        num_actors=args.num_actors,
        learning_rate=2e-3,
        final_learning_rate=0.0,
        value_cost=0.1,  # values of up to 100 are far off at the start
        max_grad_norm=10.0,
    )
    result = await train(config, model=Network, run_dir=args.run_dir)
    print(f"mean return {result.mean_return:.1f} after {result.agent_steps:,} steps; see {result.run_dir}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--algorithm", default="impala", choices=("impala", "a2c", "ga3c"))
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-actors", type=int)  # by the machine
    parser.add_argument("--run-dir", type=Path)
    trio.run(main, parser.parse_args())
