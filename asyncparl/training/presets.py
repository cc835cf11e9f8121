"""What each algorithm is trained with unless something else is said: a table for each, a row for each preset.

    ours     suits Pong on a machine with a few cores; the one that is used if none is named
    paper    the paper's settings for Atari
    parl     those of PARL's examples

docs/algorithms.md says where each number comes from, and where a preset can only come near to its source. This module
imports nothing heavy, so that `--help` can show the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

AlgorithmName = Literal["impala", "a2c", "ppo", "ga3c"]
PresetName = Literal["ours", "paper", "parl"]
PRESET_NAMES: tuple[PresetName, ...] = get_args(PresetName)

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What is known of an algorithm before anything heavy is imported."""

    title: str
    presets: Mapping[PresetName, Settings]
    threads: Callable[[int, bool], dict[str, int]]
    """By the number of CPUs, and whether the learner computes on them: how they are shared."""
    is_synchronous: bool = False
    """A batch is one rollout of every actor, so that its size is no setting of its own."""


_USUAL: Settings = {
    "entropy_cost": 0.01,
    "value_cost": 0.5,
    "discount": 0.99,
    "lambda_": 1.0,
    "max_grad_norm": 40.0,
    "rms_epsilon": 0.01,
    "anneal_learning_rate": False,
}
_A2C: Settings = {**_USUAL, "normalise_advantages": False}
_PPO: Settings = {
    **_A2C,
    "lambda_": 0.95,
    "normalise_advantages": True,
    "optimizer": "adam",
    "max_grad_norm": 0.5,
    "num_epochs": 3,
    "clip_range": 0.1,
}
_GA3C: Settings = {**_A2C, "unroll_length": 5, "log_epsilon": 1e-6, "num_predictors": 1}


def _impala_threads(num_cpus: int, learner_on_cpu: bool) -> dict[str, int]:
    """A core plays about 2,700 Atari steps a second with the policy included, and learns from 4,800 in bf16: without a
    GPU the learner needs a third of the cores. On two of them, two actors and one learner thread leave none idle.
    """
    learner = max(1, num_cpus // 3) if learner_on_cpu else 1
    return {"learner_threads": learner, "num_actors": max(1, min(num_cpus, 2), num_cpus - learner)}


def _a2c_threads(num_cpus: int, learner_on_cpu: bool) -> dict[str, int]:
    """Actors and learner take turns, so that each may have every core."""
    return {"learner_threads": num_cpus if learner_on_cpu else 1, "num_actors": num_cpus}


def _ga3c_threads(num_cpus: int, learner_on_cpu: bool) -> dict[str, int]:
    """As for IMPALA, but that the policy, an eighth of all work, is computed by predictors instead of by the actors."""
    learner = max(1, num_cpus // 3) if learner_on_cpu else 1
    predictors = max(1, num_cpus // 8) if learner_on_cpu else 1
    actors = max(1, min(num_cpus, 2), num_cpus - learner - predictors)
    return {"learner_threads": learner, "num_predictors": predictors, "num_actors": actors}


# fmt: off
DEFAULTS: Mapping[AlgorithmName, Defaults] = {
    "impala": Defaults("IMPALA", threads=_impala_threads, presets={
        "ours": {
            **_USUAL, "envs_per_actor": 16, "unroll_length": 10, "batch_size": 16,
            "optimizer": "rmsprop", "learning_rate": 6e-4,
        },
        "paper": {
            **_USUAL, "envs_per_actor": 16, "unroll_length": 20, "batch_size": 32,
            "optimizer": "rmsprop_tf", "learning_rate": 6e-4, "anneal_learning_rate": True,
        },
        "parl": {
            **_USUAL, "envs_per_actor": 5, "unroll_length": 50, "batch_size": 20,
            "optimizer": "adam", "learning_rate": 1e-3,
        },
    }),
    "a2c": Defaults("A2C", threads=_a2c_threads, is_synchronous=True, presets={
        "ours": {
            **_A2C, "envs_per_actor": 16, "unroll_length": 20,
            "optimizer": "rmsprop", "learning_rate": 6e-4,
        },
        "paper": {
            **_A2C, "num_actors": 2, "envs_per_actor": 8, "unroll_length": 5,
            "optimizer": "rmsprop_tf", "rms_epsilon": 0.1, "learning_rate": 7e-4, "anneal_learning_rate": True,
        },
        "parl": {
            **_A2C, "num_actors": 5, "envs_per_actor": 5, "unroll_length": 20,
            "optimizer": "adam", "learning_rate": 1e-3, "anneal_learning_rate": True,
        },
    }),
    "ppo": Defaults("PPO", threads=_a2c_threads, is_synchronous=True, presets={
        "ours": {
            **_PPO, "envs_per_actor": 16, "unroll_length": 64, "num_minibatches": 8, "learning_rate": 5e-4,
        },
        "paper": {
            **_PPO, "num_actors": 2, "envs_per_actor": 4, "unroll_length": 128, "num_minibatches": 4,
            "learning_rate": 2.5e-4, "anneal_learning_rate": True, "value_cost": 2.0,
        },
        "parl": {
            **_PPO, "num_actors": 2, "envs_per_actor": 4, "unroll_length": 128, "num_minibatches": 4, "num_epochs": 4,
            "learning_rate": 2.5e-4, "anneal_learning_rate": True,
        },
    }),
    "ga3c": Defaults("GA3C", threads=_ga3c_threads, presets={
        "ours": {
            **_GA3C, "envs_per_actor": 64, "batch_size": 128, "prediction_batch_size": 128,
            "optimizer": "rmsprop", "learning_rate": 6e-4,
        },
        "paper": {
            **_GA3C, "envs_per_actor": 16, "batch_size": 32, "prediction_batch_size": 128, "num_predictors": 2,
            "optimizer": "rmsprop_tf", "rms_epsilon": 0.1, "learning_rate": 3e-4, "value_cost": 1.0,
            "max_grad_norm": math.inf,
        },
        "parl": {
            **_GA3C, "envs_per_actor": 12, "batch_size": 26, "prediction_batch_size": 16, "num_predictors": 2,
            "optimizer": "adam", "learning_rate": 5e-4,
        },
    }),
}
# fmt: on

ALGORITHM_NAMES: tuple[AlgorithmName, ...] = get_args(AlgorithmName)
_SOME_HAVE = frozenset(name for each in DEFAULTS.values() for name in each.presets["ours"])


def concerns(setting: str, algorithm: AlgorithmName) -> bool:
    """Whether the algorithm has this setting; most are of the trainer, and so of all."""
    return setting not in _SOME_HAVE or setting == "batch_size" or setting in DEFAULTS[algorithm].presets["ours"]


def algorithms_with(setting: str) -> list[AlgorithmName]:
    """Those that a setting concerns."""
    return [algorithm for algorithm in ALGORITHM_NAMES if concerns(setting, algorithm)]
