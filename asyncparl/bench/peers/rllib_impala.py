"""RLlib's IMPALA on Pong: the same network and the same batch as ours, gymnasium's preprocessing."""

from __future__ import annotations

import logging
import time
from typing import Any

import ale_py
import gymnasium
import numpy as np
import ray
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformObservation
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

from .workloads import TRAINING, Emit, parse, writer

NUM_RUNNERS = 2
ENVS_PER_RUNNER = 16
UNROLL = 20
BATCH_STEPS = 640
WARM_UP_S = 20.0
SAMPLE_S = 10.0


def make_pong(_: Any) -> gymnasium.Env[Any, Any]:
    """84 x 84, skip 4, stack 4, the channels last, as its networks want them."""
    gymnasium.register_envs(ale_py)
    skipping = AtariPreprocessing(gymnasium.make("PongNoFrameskip-v4"), grayscale_newaxis=False)
    space = gymnasium.spaces.Box(0, 1, (84, 84, 4), np.float32)
    return TransformObservation(FrameStackObservation(skipping, 4), _scaled, space)


def _scaled(obs: Any) -> Any:
    return (np.moveaxis(np.asarray(obs), 0, -1) / 255).astype(np.float32)


def train(repeats: int, emit: Emit) -> None:
    """After a warm-up, the steps that were sampled in each stretch of time."""
    register_env("pong", make_pong)
    network = DefaultModelConfig(
        conv_filters=[[16, 8, 4], [32, 4, 2]], conv_activation="relu", head_fcnet_hiddens=[256], vf_share_layers=True
    )
    config = (
        IMPALAConfig()
        .environment("pong")
        .env_runners(
            num_env_runners=NUM_RUNNERS, num_envs_per_env_runner=ENVS_PER_RUNNER, rollout_fragment_length=UNROLL
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=BATCH_STEPS)
        .rl_module(model_config=network)
        .reporting(min_time_s_per_iteration=SAMPLE_S)
    )
    algorithm = config.build_algo()
    _steps_until(algorithm, time.perf_counter() + WARM_UP_S)
    samples = []
    steps, since = _steps_until(algorithm, 0.0), time.perf_counter()
    for _ in range(repeats):
        now_steps, now = _steps_until(algorithm, 0.0), time.perf_counter()
        samples.append((now_steps - steps) / (now - since))
        steps, since = now_steps, now
    algorithm.stop()
    emit(TRAINING, "steps/s", samples, note=f"{NUM_RUNNERS} runners of {ENVS_PER_RUNNER} environments, fp32")


def _steps_until(algorithm: Any, end: float) -> int:
    """Train, at least once; all steps that were sampled so far."""
    while True:
        steps = int(algorithm.train().get("num_env_steps_sampled_lifetime", 0))
        if time.perf_counter() >= end:
            return steps


def main() -> None:
    arguments = parse(__doc__, ["impala"])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    train(min(3, arguments.repeats), writer(arguments.output))
    ray.shutdown()


if __name__ == "__main__":
    main()
