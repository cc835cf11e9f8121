"""How well a policy plays: whole episodes apart from training, with raw rewards.

Episode i of an evaluation begins with a seed of its own, which no environment of a training run has. Episodes are
played side by side in groups of up to `GROUP`; how many actors share the groups changes nothing in the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import trio
from numpy.typing import NDArray

import asyncparl
from asyncparl.machine import usable_cpus
from asyncparl.training.build import Interface, ModelClass, make_model, seed_generators
from asyncparl.training.config import MAX_ACTORS_PER_CPU, TrainingConfig
from asyncparl.training.environments import (
    EnvironmentOptions,
    Episode,
    VectorEnvironment,
    environment_seed,
    make_environment,
)
from asyncparl.training.errors import TrainingError, unwrapped_errors
from asyncparl.training.sampler import ActorCriticPolicy, Policy, RememberingPolicy

GROUP = 8
FIRST_SEED = 900_000
"""The seeds of a run that are left to evaluations: its training starts fewer environments than that."""
MAX_EPISODES = 50_000
MAX_STEPS = 1_000_000
"""Of one episode; Atari games are cut much earlier."""

PRELOAD = ("torch", "numpy", "gymnasium", "asyncparl.training.evaluation")
"""For `asyncparl.connect`, where nothing but evaluations is wanted."""

Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes of one evaluation, in the order of their seeds."""

    episodes: tuple[Episode, ...]

    @property
    def returns(self) -> NDArray[np.float64]:
        """[N] sums of raw rewards."""
        return np.array([episode.return_ for episode in self.episodes])

    @staticmethod
    def columns() -> list[str]:
        """The header of evaluations.csv."""
        return ["agent_steps", "updates", "elapsed_s", *Evaluation((Episode(0.0, 0),)).figures()]

    def figures(self) -> dict[str, float]:
        """What is shown of it. The deviation is that of the sample, 0 for a single episode."""
        returns = self.returns
        return {
            "episodes": len(returns),
            "mean_return": float(returns.mean()),
            "median_return": float(np.median(returns)),
            "std_return": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
            "min_return": float(returns.min()),
            "max_return": float(returns.max()),
            "mean_length": float(np.mean([episode.length for episode in self.episodes])),
        }


@dataclass(frozen=True, slots=True)
class EvaluationSetup:
    """Who plays what."""

    config: TrainingConfig
    model_class: ModelClass | None
    deterministic: bool = False
    """Whether the most probable action is taken; else actions are drawn, as in training."""
    seed: int | None = None
    """None: that of the run."""

    def seed_of(self, episode: int) -> int:
        """What an episode begins with."""
        return environment_seed(self.config.seed if self.seed is None else self.seed, FIRST_SEED + episode)

    def options(self) -> EnvironmentOptions:
        """Those of training, but that rewards are raw and an episode is a whole game."""
        return replace(self.config.env_options or EnvironmentOptions(), clip_rewards=False, episodic_life=False)

    def make_environment(self, first_episode: int, num_envs: int, *, filmed: bool = False) -> VectorEnvironment:
        """One environment for each episode from the first one on."""
        seed = self.seed_of(first_episode)
        return make_environment(self.config.env, num_envs=num_envs, seed=seed, options=self.options(), filmed=filmed)

    def make_policy(self, environment: VectorEnvironment, weights: Weights, first_episode: int) -> Policy:
        """The policy that these weights are of.

        Raises:
            ValueError: they are of another model.
        """
        seed = self.seed_of(first_episode)
        seed_generators(seed)
        model = make_model(Interface.of(environment), self.model_class, lstm=self.config.lstm)
        model.set_weights(weights)
        policy = ActorCriticPolicy(model, precision=self.config.precision, seed=seed, deterministic=self.deterministic)
        state = policy.initial_state(environment.num_envs)
        return policy if state is None else RememberingPolicy(policy, state)


def play_episodes(
    environment: VectorEnvironment, policy: Policy, *, on_step: Callable[[], object] = lambda: None
) -> list[Episode]:
    """One episode in every sub-environment, from its reset to its end, whatever the others do.

    Args:
        environment: its rewards are raw, and what it calls an episode is one.
        on_step: called after the reset and after every step.

    Raises:
        TrainingError: an episode does not end.
    """
    obs = environment.reset()
    returns, lengths = np.zeros(environment.num_envs), np.zeros(environment.num_envs, np.int64)
    is_open = np.ones(environment.num_envs, np.bool_)
    on_step()
    for _ in range(MAX_STEPS):
        actions, _ = policy(obs)
        transition = environment.step(actions)
        obs = transition.next_obs
        returns[is_open] += transition.rewards[is_open]
        lengths[is_open] += 1
        is_open &= ~(transition.terminated | transition.truncated)
        if not is_open.any():
            return [Episode(float(each), int(length)) for each, length in zip(returns, lengths, strict=True)]
        on_step()
    raise TrainingError(
        f"an episode has not ended after {MAX_STEPS:,} steps: give the environment a limit, "
        "such as --env-option max_episode_steps=1000 when the run is trained"
    )


@asyncparl.remote_class(num_cpus=0)
class EvaluationActor:
    """Plays groups of episodes in a process of its own."""

    def __init__(self, setup: EvaluationSetup) -> None:
        torch.set_num_threads(1)
        self._setup = setup

    def play(self, weights: dict[str, NDArray[Any]], first_episode: int, num_episodes: int) -> list[Episode]:
        """That many episodes at once, from the first one on.

        Raises:
            ValueError: the weights are of another model.
            TrainingError: an episode does not end.
        """
        environment = self._setup.make_environment(first_episode, num_episodes)
        try:
            return play_episodes(environment, self._setup.make_policy(environment, weights, first_episode))
        finally:
            environment.close()


class Evaluator:
    """So many actors that evaluate; made inside `asyncparl.connect()`, which also ends them."""

    def __init__(self, setup: EvaluationSetup, num_actors: int = 1) -> None:
        self._actors = [EvaluationActor(setup) for _ in range(num_actors)]

    async def evaluate(
        self,
        weights: Weights,
        num_episodes: int,
        *,
        on_played: Callable[[Evaluation], object] = lambda so_far: None,
    ) -> Evaluation:
        """Play that many episodes with these weights.

        Args:
            on_played: called when all episodes of a group have ended, with those of all such groups so far: short
                episodes end first, and are no fair sample of a group that is still played.

        Raises:
            ValueError: the weights are of another model.
            TrainingError: an episode does not end.
            ActorDied, Exception: what happened to an actor, or what its environment raised.
        """
        waiting = iter(range(0, num_episodes, GROUP))
        played: dict[int, list[Episode]] = {}

        def so_far() -> Evaluation:
            return Evaluation(tuple(episode for _, group in sorted(played.items()) for episode in group))

        async def play_groups(actor: asyncparl.Proxy) -> None:
            for first in waiting:
                played[first] = await actor.play(dict(weights), first, min(GROUP, num_episodes - first))
                on_played(so_far())

        with unwrapped_errors():
            async with trio.open_nursery() as nursery:
                for actor in self._actors:
                    nursery.start_soon(play_groups, actor)
        return so_far()


def check_num_episodes(number: int) -> None:
    """Raise ValueError if an evaluation cannot have so many."""
    if not 1 <= number <= MAX_EPISODES:
        raise ValueError(f"an evaluation has from 1 to {MAX_EPISODES:,} episodes, not {number}")


def useful_actors(number: int, num_episodes: int) -> int:
    """Of so many actors, for how many there is a group of episodes.

    Raises:
        ValueError: they are too many for this machine.
    """
    number = min(number, -(-num_episodes // GROUP))
    if number > MAX_ACTORS_PER_CPU * usable_cpus():
        raise ValueError(
            f"{number} actors are too many for {usable_cpus()} CPUs: at most {MAX_ACTORS_PER_CPU} for each"
        )
    return number
