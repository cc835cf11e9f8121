"""GA3C on an Atari game: actors hold games and no network; one predictor chooses all actions. Top to bottom.

    python examples/ga3c_atari.py                        # Pong, two actors
    python examples/ga3c_atari.py --env breakout --num-actors 8 --steps 20000000

Three things happen at once in this process: the event loop carries observations, actions and rollouts, one thread
predicts, another one learns. `asyncparl train ga3c --env pong` does the same and adds a run folder, checkpoints, a
display, and new actors for those that die.
"""

import argparse
import copy
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import trio

import asyncparl
from asyncparl.algorithms import GA3C
from asyncparl.rl import WeightLayout, default_model
from asyncparl.training.batching import Batch, BatchAssembler
from asyncparl.training.environments import VectorEnvironment, environment_seed, make_environment
from asyncparl.training.sampler import ActorCriticPolicy, Sample, Unroller


@dataclass
class Args:
    env: str = "pong"
    num_actors: int = 2
    envs_per_group: int = 32  # every actor has two groups of games
    unroll_length: int = 5  # t_max
    batch_columns: int = 128  # B, each the unroll of one environment
    steps: int = 10_000_000  # agent steps; a frame is a quarter of one
    learning_rate: float = 6e-4
    seed: int = 1
    precision: str = "fp32"  # bf16 is 1.8 times faster where the processor has it


@asyncparl.remote_class
class Player:
    """Plays two groups of games in turn: one takes its step while the actions of the other are on their way."""

    def __init__(self, args: Args, index: int, predictor: asyncparl.Proxy) -> None:
        self.predictor = predictor
        self.groups = [
            Unroller(self.make_games(args, 2 * index + group), num_steps=args.unroll_length) for group in range(2)
        ]

    def make_games(self, args: Args, group: int) -> VectorEnvironment:
        seed = environment_seed(args.seed, group * args.envs_per_group)
        return make_environment(args.env, num_envs=args.envs_per_group, seed=seed)

    def rollouts(self) -> Iterator[Sample]:
        actions = [self.predictor.predict(group.obs) for group in self.groups]
        while True:
            for i, group in enumerate(self.groups):
                chosen, log_probs, version = actions[i].result()  # this is a thread: it may wait
                sample = group.step(chosen, log_probs, weights_version=version)
                actions[i] = self.predictor.predict(group.obs)
                if sample is not None:
                    yield sample


class Predictor:
    """Takes all observations that wait, from whomever, and answers them together."""

    def __init__(self, model: torch.nn.Module, args: Args) -> None:
        self.model = copy.deepcopy(model)  # the learner may change its own at any time
        self.layout = WeightLayout.of(self.model)
        self.policy = ActorCriticPolicy(self.model, precision=args.precision, seed=args.seed)
        self.newest = self.layout.pack(model)
        self.version = self.newest_version = 0
        self.waiting: list[tuple[np.ndarray, trio.Event, list]] = []
        self.news = trio.Event()

    async def predict(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Called by the actors: actions, their log-probabilities, and which weights chose them."""
        request = (obs, trio.Event(), [])
        self.waiting.append(request)
        self.news.set()
        await request[1].wait()
        return request[2][0]

    async def run(self) -> None:
        while True:
            await self.news.wait()
            self.news = trio.Event()
            requests, self.waiting = self.waiting, []
            if self.version < self.newest_version:
                self.layout.unpack(self.newest, self.model)
                self.version = self.newest_version
            obs = np.concatenate([obs for obs, _, _ in requests])
            actions, log_probs = await trio.to_thread.run_sync(self.policy, obs)
            start = 0
            for request_obs, answered, answer in requests:
                mine = slice(start, start + len(request_obs))
                answer.append((actions[mine], log_probs[mine], self.version))
                answered.set()
                start = mine.stop


class Learner:
    """What the tasks below share."""

    def __init__(self, args: Args) -> None:
        environment = make_environment(args.env, num_envs=1, seed=0)  # only to ask for its shapes
        self.args = args
        model = default_model(environment.obs_shape, environment.obs_dtype, environment.num_actions)
        self.algorithm = GA3C(
            model,
            optimizer="rmsprop",
            rms_epsilon=0.01,
            learning_rate=args.learning_rate,
            value_cost=0.5,
            max_grad_norm=40.0,
            precision=args.precision,
        )
        self.predictor = Predictor(model, args)
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
        self.version = 0
        self.steps = 0

    async def follow(self, player: asyncparl.Proxy) -> None:
        """Take one player's rollouts. While there is no room for more, the stream's credit brings it to rest."""
        async for rollout, record in player.rollouts():
            self.returns.extend(episode.return_ for episode in record.episodes)
            while not self.assembler.has_room(rollout.actions.shape[1]):
                await self.room.park()
            batch = self.assembler.add(rollout, record.weights_versions)
            if batch is not None:
                await self.send_batch.send(batch)

    async def learn(self) -> None:
        """Train on each batch, in a thread, and hand the new weights to the predictor."""
        while self.steps < self.args.steps:
            batch = await self.batches.receive()
            self.lags.append(float(np.mean(batch.policy_lag(self.version))))
            await trio.to_thread.run_sync(self.algorithm.learn, batch.rollout)
            self.version += 1
            self.predictor.newest = self.predictor.layout.pack(self.algorithm.model)
            self.predictor.newest_version = self.version
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
        predictor = asyncparl.expose(learner.predictor, max_concurrency=1000)  # as many requests as may wait at once
        for index in range(args.num_actors):
            nursery.start_soon(learner.follow, Player(args, index, predictor))
        nursery.start_soon(learner.predictor.run)
        nursery.start_soon(learner.show)
        await learner.learn()
        nursery.cancel_scope.cancel()
    print(f"learned from {learner.steps:,} steps in {learner.version:,} updates")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in vars(Args()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    trio.run(main, Args(**vars(parser.parse_args())))
