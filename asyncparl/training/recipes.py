"""The algorithms that can be trained, and all in which they differ.

| algorithm | learns with | actors, weights and batches | settings            |
|-----------|-------------|-----------------------------|---------------------|
| impala    | `IMPALA`    | `Streams`                   | the tables in       |
| a2c       | `A2C`       | `Rounds`                    | `presets.py`, which |
| ppo       | `PPO`       | `Rounds`                    | need no torch       |
| ga3c      | `GA3C`      | `Predicted`                 |                     |

In a repeatable run actors and learner take turns instead; see `turns.py`.

Everything else in this package is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from asyncparl.algorithms import A2C, GA3C, IMPALA, PPO, ActorCritic
from asyncparl.rl import Model
from asyncparl.training.config import TrainingConfig
from asyncparl.training.exchange import Exchange, ExchangeSetup, Predicted, Rounds, Streams
from asyncparl.training.presets import AlgorithmName
from asyncparl.training.schedules import set_schedules
from asyncparl.training.turns import PredictedTurns, RolloutTurns


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is particular to one algorithm."""

    make_algorithm: Callable[[Model, TrainingConfig], ActorCritic]
    exchange: Callable[[ExchangeSetup], Exchange]
    repeatable_exchange: Callable[[ExchangeSetup], Exchange]


def make_algorithm(model: Model, config: TrainingConfig) -> ActorCritic:
    """The algorithm that the settings name, on the device of the model."""
    algorithm = RECIPES[config.algorithm].make_algorithm(model, config)
    set_schedules(algorithm, config)
    return algorithm


def make_exchange(setup: ExchangeSetup) -> Exchange:
    """How actors and learner work together in the run that the settings describe."""
    recipe = RECIPES[setup.config.algorithm]
    return recipe.repeatable_exchange(setup) if setup.config.repeatable else recipe.exchange(setup)


def _impala(model: Model, config: TrainingConfig) -> IMPALA:
    return IMPALA(model, **_common(config))


def _a2c(model: Model, config: TrainingConfig) -> A2C:
    return A2C(model, normalise_advantages=bool(config.normalise_advantages), **_common(config))


def _ga3c(model: Model, config: TrainingConfig) -> GA3C:
    assert config.log_epsilon is not None
    normalise = bool(config.normalise_advantages)
    return GA3C(model, normalise_advantages=normalise, log_epsilon=config.log_epsilon, **_common(config))


def _ppo(model: Model, config: TrainingConfig) -> PPO:
    assert config.num_epochs is not None and config.num_minibatches is not None and config.clip_range is not None
    return PPO(
        model,
        num_epochs=config.num_epochs,
        num_minibatches=config.num_minibatches,
        clip_range=config.clip_range,
        seed=config.seed,
        normalise_advantages=bool(config.normalise_advantages),
        **_common(config),
    )


def _common(config: TrainingConfig) -> dict[str, Any]:
    return {
        "discount": config.discount,
        "lambda_": config.lambda_,
        "value_cost": config.value_cost,
        "entropy_cost": config.entropy_cost,
        "optimizer": config.optimizer,
        "learning_rate": config.learning_rate,
        "rms_epsilon": config.rms_epsilon,
        "max_grad_norm": config.max_grad_norm,
        "precision": config.precision,
    }


RECIPES: Mapping[AlgorithmName, Recipe] = {
    "impala": Recipe(_impala, Streams, RolloutTurns),
    "a2c": Recipe(_a2c, Rounds, RolloutTurns),
    "ppo": Recipe(_ppo, Rounds, RolloutTurns),
    "ga3c": Recipe(_ga3c, Predicted, PredictedTurns),
}
