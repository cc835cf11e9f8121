"""The actor: plays a number of environments with the weights that it was sent last, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import asyncparl
from asyncparl.rl import WeightLayout, keep_freed_memory
from asyncparl.training.build import Interface, ModelClass, make_model
from asyncparl.training.config import TrainingConfig
from asyncparl.training.environments import environment_seed, make_environment
from asyncparl.training.sampler import ActorCriticPolicy, Sample, Sampler


@dataclass(frozen=True, slots=True)
class ActorSetup:
    """What an actor is made from."""

    config: TrainingConfig
    model_class: ModelClass | None
    first_environment: int
    """How many environments the run has started before these; their seeds follow from it."""


@asyncparl.remote_class
class RolloutActor:
    """Streams rollouts for ever.

    Calls run between two rollouts, in the order in which they were made, so that all steps of a rollout are played
    with one version of the weights.
    """

    def __init__(self, setup: ActorSetup) -> None:
        keep_freed_memory()  # a rollout is allocated every time, filled, and sent away
        config = setup.config
        seed = environment_seed(config.seed, setup.first_environment)
        torch.set_num_threads(1)  # an actor is a core's worth of work
        torch.manual_seed(seed)  # for what the user's model may draw
        environment = make_environment(
            config.env, num_envs=config.envs_per_actor, seed=seed, options=config.env_options
        )
        model = make_model(Interface.of(environment), setup.model_class)
        self._model = model
        self._layout = WeightLayout.of(model)
        policy = ActorCriticPolicy(model, precision=config.precision, seed=seed)
        self._sampler = Sampler(environment, policy, num_steps=config.unroll_length)
        self._version = -1
        self._num_rollouts = 0

    def set_weights(self, version: int, packed: NDArray[np.uint8]) -> None:
        """Act with these weights from the next rollout on.

        Raises:
            ValueError: they are of another model.
        """
        self._layout.unpack(packed, self._model)
        self._version = version

    def rollouts(self) -> Iterator[Sample]:
        """One rollout after the other. Weights have to be set before."""
        if self._version < 0:
            raise RuntimeError("set_weights() comes before rollouts()")
        while True:
            yield self._sampler.collect(self._version)
            self._num_rollouts += 1

    def statistics(self) -> dict[str, Any]:
        """What it has done so far."""
        return {"weights_version": self._version, "rollouts": self._num_rollouts}
