"""IMPALA on an Atari game: actors play, one learner trains, all in one event loop. The whole of it, top to bottom.

    python examples/impala_atari.py                        # Pong, two actors
    python examples/impala_atari.py --env breakout --num-actors 8 --steps 20000000

On two cores it makes about 2,500 agent steps a second, and Pong's mean return passes 0 within the hour; the run that
`benchmarks/results/` shows was made by `asyncparl train impala --env pong`, which does the same and adds a run folder,
checkpoints and a display.
"""

import argparse
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import trio

import asyncparl
from asyncparl.algorithms import IMPALA
from asyncparl.rl import Agent, WeightLayout, default_model
from asyncparl.training.batching import Batch, BatchAssembler
from asyncparl.training.environments import VectorEnvironment, environment_seed, make_environment
from asyncparl.training.sampler import Sample, Sampler


@dataclass
class Args:
    env: str = "pong"
    num_actors: int = 2
    envs_per_actor: int = 16
    unroll_length: int = 20  # T
    batch_columns: int = 32  # B, each the unroll of one environment
    steps: int = 10_000_000  # agent steps; a frame is a quarter of one
    seed: int = 1
    precision: str = "fp32"  # bf16 is 1.8 times faster where the processor has it


def make_algorithm(environment: VectorEnvironment, precision: str) -> IMPALA:
    model = default_model(environment.obs_shape, environment.obs_dtype, environment.num_actions)
    return IMPALA(model, precision=precision)


@asyncparl.remote_class
class Player:
    """Plays `envs_per_actor` games at once, with the weights that it was sent last."""

    def __init__(self, args: Args, index: int) -> None:
        seed = environment_seed(args.seed, index * args.envs_per_actor)
        torch.manual_seed(seed)
        self.environment = make_environment(args.env, num_envs=args.envs_per_actor, seed=seed)
        self.algorithm = make_algorithm(self.environment, args.precision)
        self.layout = WeightLayout.of(self.algorithm.model)
        self.sampler = Sampler(self.environment, Agent(self.algorithm).sample, num_steps=args.unroll_length)
        self.version = 0

    def set_weights(self, version: int, packed: np.ndarray) -> None:
        self.layout.unpack(packed, self.algorithm.model)
        self.version = version

    def rollouts(self) -> Iterator[Sample]:
        while True:  # calls to this actor, such as set_weights, run between two items
            yield self.sampler.collect(self.version)


class Learner:
    """What the tasks below share."""

    def __init__(self, args: Args) -> None:
        environment = make_environment(args.env, num_envs=1, seed=0)  # only to ask for its shapes
        self.args = args
        self.algorithm = make_algorithm(environment, args.precision)
        self.layout = WeightLayout.of(self.algorithm.model)
        self.version, self.packed = 0, self.layout.pack(self.algorithm.model)
        self.assembler = BatchAssembler(
            num_steps=args.unroll_length,
            num_columns=args.batch_columns,
            obs_shape=environment.obs_shape,
            obs_dtype=environment.obs_dtype,
        )
        environment.close()
        self.send_batch, self.batches = trio.open_memory_channel[Batch](1)
        self.room = trio.lowlevel.ParkingLot()
        self.returns: deque[float] = deque(maxlen=100)  # raw, of the last 100 episodes
        self.lags: deque[float] = deque(maxlen=100)  # learner updates between playing and learning
        self.steps = 0

    async def follow(self, player: asyncparl.Proxy) -> None:
        """Take one player's rollouts. While there is no room for more, the stream's credit brings it to rest."""
        await player.set_weights(self.version, self.packed)
        sent = self.version
        async for rollout, record in player.rollouts():
            self.returns.extend(episode.return_ for episode in record.episodes)
            while not self.assembler.has_room(rollout.actions.shape[1]):
                await self.room.park()
            batch = self.assembler.add(rollout, record.weights_versions)
            if batch is not None:
                await self.send_batch.send(batch)
            if self.version > sent:
                sent = self.version
                await player.set_weights(sent, self.packed)

    async def learn(self) -> None:
        """Train on each batch, in a thread, so that the event loop goes on serving the players."""
        while self.steps < self.args.steps:
            batch = await self.batches.receive()
            self.lags.append(float(np.mean(batch.policy_lag(self.version))))
            await trio.to_thread.run_sync(self.algorithm.learn, batch.rollout)
            self.packed = self.layout.pack(self.algorithm.model)  # a copy: the learner goes on changing its own
            self.version += 1
            self.steps += batch.rollout.actions.numel()
            self.assembler.release(batch)
            self.room.unpark_all()

    async def show(self) -> None:
        """A line every ten seconds."""
        while True:
            started, steps = time.perf_counter(), self.steps
            await trio.sleep(10)
            rate = (self.steps - steps) / (time.perf_counter() - started)
            mean_return = np.mean(self.returns) if self.returns else float("nan")
            lag = np.mean(self.lags) if self.lags else float("nan")
            figures = f"{self.steps:>10,} steps  {rate:7,.0f}/s  return {mean_return:6.2f}  policy lag {lag:.1f}"
            print(figures, flush=True)


async def main(args: Args) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    learner = Learner(args)
    async with asyncparl.connect(), trio.open_nursery() as nursery:
        for index in range(args.num_actors):
            nursery.start_soon(learner.follow, Player(args, index))
        nursery.start_soon(learner.show)
        await learner.learn()
        nursery.cancel_scope.cancel()
    print(f"learned from {learner.steps:,} steps in {learner.version:,} updates")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in vars(Args()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    trio.run(main, Args(**vars(parser.parse_args())))
