"""Training on Pong: agent steps a second with everything included, beside the bound of this machine.

    python benchmarks/impala.py --save                       # IMPALA
    python benchmarks/impala.py --algorithm a2c --save
    python benchmarks/impala.py --algorithm ga3c --save

The bound is what the machine could do if it did nothing but play, infer and learn: each stage is timed alone, on one
thread, and the seconds of one agent step are summed and divided by the number of cores. Stages and training runs
alternate, so that both see the machine in the same mood. Each stage handles as much at once as it does in training.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Self

import numpy as np
import torch
import trio
from _report import Row, report

from asyncparl.algorithms import Rollout
from asyncparl.rl import AtariShallow, keep_freed_memory
from asyncparl.training import Trainer, TrainingConfig
from asyncparl.training.environments import make_environment
from asyncparl.training.metrics import Report
from asyncparl.training.presets import ALGORITHM_NAMES, DEFAULTS
from asyncparl.training.recipes import make_algorithm
from asyncparl.training.sampler import ActorCriticPolicy

TARGETS = {  # of steps a second, and of the bound in percent
    "impala": ("2,400", ""),
    "a2c": ("", "70"),
    "ga3c": ("", "70"),
}


class Recorder:
    """A display that keeps the steady part of a run: the steps between two moments."""

    def __init__(self, warm_up_steps: int) -> None:
        self._warm_up_steps = warm_up_steps
        self.first: tuple[float, int] | None = None
        self.last: tuple[float, int] = (0.0, 0)
        self.report: Report | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        print(text)

    def show(self, figures: Report) -> None:
        if self.first is None and figures.agent_steps >= self._warm_up_steps:
            self.first = (time.perf_counter(), figures.agent_steps)
        if self.first is None or figures.agent_steps > self.last[1]:
            self.last = (time.perf_counter(), figures.agent_steps)
        self.report = figures

    def steps_per_s(self) -> float:
        assert self.first is not None
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])


def envs_at_once(config: TrainingConfig) -> int:
    """Environments that an actor steps, and asks actions for, at once: in GA3C half of its."""
    return -(-config.envs_per_actor // 2) if config.algorithm == "ga3c" else config.envs_per_actor


def environment_rate(num_envs: int, num_steps: int = 200) -> float:
    """Agent steps a second of the environments alone."""
    environment = make_environment("pong", num_envs=num_envs, seed=1)
    environment.reset()
    actions = np.zeros(num_envs, np.int64)
    started = time.perf_counter()
    for _ in range(num_steps):
        environment.step(actions)
    rate = num_steps * num_envs / (time.perf_counter() - started)
    environment.close()
    return rate


def inference_rate(num_envs: int, config: TrainingConfig, num_steps: int = 200) -> float:
    """Observations a second of the policy alone, as an actor asks it, or a predictor is asked by one actor."""
    policy = ActorCriticPolicy(AtariShallow(6), precision=config.precision)
    obs = np.random.default_rng(0).integers(0, 255, (num_envs, 4, 84, 84), np.uint8)
    policy(obs)
    started = time.perf_counter()
    for _ in range(num_steps):
        policy(obs)
    return num_steps * num_envs / (time.perf_counter() - started)


def learning_rate(config: TrainingConfig, num_updates: int = 12) -> float:
    """Agent steps a second of the learner alone."""
    algorithm = make_algorithm(AtariShallow(6), config)
    rng = np.random.default_rng(0)
    shape = num_steps, num_columns = config.unroll_length, config.batch_size
    rollout = Rollout(
        obs=torch.from_numpy(rng.integers(0, 255, (*shape, 4, 84, 84), np.uint8)),
        actions=torch.from_numpy(rng.integers(0, 6, shape)),
        behaviour_log_probs=torch.full(shape, -np.log(6)),
        rewards=torch.zeros(shape),
        terminated=torch.zeros(shape, dtype=torch.bool),
        truncated=torch.zeros(shape, dtype=torch.bool),
        bootstrap_obs=torch.from_numpy(rng.integers(0, 255, (num_columns, 4, 84, 84), np.uint8)),
        final_obs=torch.zeros((0, 4, 84, 84), dtype=torch.uint8),
        final_steps=torch.zeros((0, 2), dtype=torch.int64),
    )
    for _ in range(3):
        algorithm.learn(rollout)
    started = time.perf_counter()
    for _ in range(num_updates):
        algorithm.learn(rollout)
    return num_updates * num_steps * num_columns / (time.perf_counter() - started)


def training_run(config: TrainingConfig) -> Recorder:
    """A short training run, past its warm-up."""
    recorder = Recorder(warm_up_steps=20_000)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, run_dir=Path(folder) / "run")
        trio.run(trainer.run, recorder)
    return recorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=ALGORITHM_NAMES, default="impala", help="(default impala)")
    parser.add_argument("--repeats", type=int, default=3, help="samples of each row (default 3)")
    parser.add_argument("--steps", type=int, default=120_000, help="agent steps of one run (default 120,000)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/ALGORITHM.{md,json}")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    config = TrainingConfig.for_this_machine("pong", algorithm=arguments.algorithm, steps=arguments.steps)
    num_envs = envs_at_once(config)
    stages: dict[str, list[float]] = {"environment": [], "inference": [], "learning": [], "bound": []}
    trained, ratios, lags = [], [], []
    for _ in range(arguments.repeats):
        rates = [environment_rate(num_envs), inference_rate(num_envs, config), learning_rate(config)]
        bound = cores / sum(1 / rate for rate in rates)
        for values, value in zip(stages.values(), [*rates, bound], strict=True):
            values.append(value)
        recorder = training_run(config)
        trained.append(recorder.steps_per_s())
        ratios.append(100 * trained[-1] / bound)
        assert recorder.report is not None
        lags.append(recorder.report.mean_lag)
    rows = [
        Row("environments alone, one thread", "steps/s", stages["environment"]),
        Row(f"policy alone, batch {num_envs}, one thread", "steps/s", stages["inference"]),
        Row("learner alone, one thread", "steps/s", stages["learning"]),
        Row(f"bound of {cores} cores", "steps/s", stages["bound"]),
        Row("training, everything included", "steps/s", trained, target=TARGETS[arguments.algorithm][0]),
        Row("training, of the bound", "%", ratios, target=TARGETS[arguments.algorithm][1]),
        Row("policy lag, mean", "updates", lags),
    ]
    title = (
        f"{DEFAULTS[config.algorithm].title} on Pong: shallow net, {config.precision}, "
        f"{config.num_actors} actors of {config.envs_per_actor} environments"
    )
    report(title, rows, save_as=arguments.algorithm if arguments.save else None)


if __name__ == "__main__":
    main()
