"""A2C on an Atari game: all actors play with the same weights, then all wait for the learner. Top to bottom.

    python examples/a2c_atari.py                        # Pong, two actors
    python examples/a2c_atari.py --env breakout --num-actors 8 --steps 20000000

`asyncparl train a2c --env pong` does the same and adds a run folder, checkpoints, a display, and new actors for those
that die.
"""

import argparse
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
import trio

import asyncparl
from asyncparl.algorithms import A2C
from asyncparl.rl import Agent, WeightLayout, default_model
from asyncparl.training.batching import Batch, BatchAssembler
from asyncparl.training.environments import VectorEnvironment, environment_seed, make_environment
from asyncparl.training.sampler import Sample, Sampler


@dataclass
class Args:
    env: str = "pong"
    num_actors: int = 2
    envs_per_actor: int = 16  # a batch has num_actors * envs_per_actor columns
    unroll_length: int = 20  # T
    steps: int = 10_000_000  # agent steps; a frame is a quarter of one
    learning_rate: float = 6e-4
    seed: int = 1
    precision: str = "fp32"  # bf16 is 1.8 times faster where the processor has it


def make_algorithm(environment: VectorEnvironment, args: Args) -> A2C:
    model = default_model(environment.obs_shape, environment.obs_dtype, environment.num_actions)
    return A2C(model, optimizer="rmsprop", learning_rate=args.learning_rate, precision=args.precision)


@asyncparl.remote_class
class Player:
    """Plays `envs_per_actor` games at once, when it is asked to."""

    def __init__(self, args: Args, index: int) -> None:
        seed = environment_seed(args.seed, index * args.envs_per_actor)
        torch.manual_seed(seed)
        self.environment = make_environment(args.env, num_envs=args.envs_per_actor, seed=seed)
        self.algorithm = make_algorithm(self.environment, args)
        self.layout = WeightLayout.of(self.algorithm.model)
        self.sampler = Sampler(self.environment, Agent(self.algorithm).sample, num_steps=args.unroll_length)

    def play(self, version: int, packed: np.ndarray) -> Sample:
        """One rollout with these weights."""
        self.layout.unpack(packed, self.algorithm.model)
        return self.sampler.collect(version)


class Learner:
    def __init__(self, args: Args) -> None:
        environment = make_environment(args.env, num_envs=1, seed=0)  # only to ask for its shapes
        self.args = args
        self.algorithm = make_algorithm(environment, args)
        self.layout = WeightLayout.of(self.algorithm.model)
        self.assembler = BatchAssembler(
            num_steps=args.unroll_length,
            num_columns=args.num_actors * args.envs_per_actor,
            obs_shape=environment.obs_shape,
            obs_dtype=environment.obs_dtype,
        )
        environment.close()
        self.version = 0
        self.steps = 0
        self.returns: deque[float] = deque(maxlen=100)  # raw, of the last 100 episodes

    async def play(self, players: list[asyncparl.Proxy]) -> Batch:
        """One rollout of every player, with the newest weights, as one batch."""
        packed = self.layout.pack(self.algorithm.model)
        calls = [player.play(self.version, packed) for player in players]  # all play at once
        async for call in asyncparl.as_completed(calls):
            rollout, record = await call
            self.returns.extend(episode.return_ for episode in record.episodes)
            batch = self.assembler.add(rollout, record.weights_versions)
        return batch  # complete with the last of them

    async def learn(self, batch: Batch) -> None:
        """One update, in a thread, so that the event loop goes on."""
        assert (batch.policy_lag(self.version) == 0).all()  # what A2C's loss is made for
        await trio.to_thread.run_sync(self.algorithm.learn, batch.rollout)
        self.version += 1
        self.steps += batch.rollout.actions.numel()
        self.assembler.release(batch)

    async def show(self) -> None:
        """A line every ten seconds."""
        while True:
            started, steps = time.perf_counter(), self.steps
            await trio.sleep(10)
            rate = (self.steps - steps) / (time.perf_counter() - started)
            mean_return = np.mean(self.returns) if self.returns else float("nan")
            print(f"{self.steps:>10,} steps  {rate:7,.0f}/s  return {mean_return:6.2f}", flush=True)


async def main(args: Args) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    learner = Learner(args)
    async with asyncparl.connect(), trio.open_nursery() as nursery:
        players = [Player(args, index) for index in range(args.num_actors)]
        nursery.start_soon(learner.show)
        while learner.steps < args.steps:
            await learner.learn(await learner.play(players))
        nursery.cancel_scope.cancel()
    print(f"learned from {learner.steps:,} steps in {learner.version:,} updates")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in vars(Args()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    trio.run(main, Args(**vars(parser.parse_args())))
