"""Training on Pong: agent steps a second with everything included, beside the bound of this machine.

The bound is what the machine could do if it did nothing but play, infer and learn: each stage is timed alone, on one
thread, and the seconds of one agent step are summed and divided by the number of cores. Stages and training runs
alternate, so that both see the machine in the same mood. Each stage handles as much at once as it does in training.

IMPALA is measured with the batches of its paper, which the peers have too, and once more with those that we train with.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import trio

from asyncparl.algorithms import Rollout
from asyncparl.bench.peers.workloads import TRAINING
from asyncparl.bench.report import Emit, Row
from asyncparl.rl import AtariShallow, keep_freed_memory
from asyncparl.training import Trainer, TrainingConfig
from asyncparl.training.display import SilentDisplay
from asyncparl.training.environments import make_environment
from asyncparl.training.metrics import Report
from asyncparl.training.presets import AlgorithmName, PresetName
from asyncparl.training.recipes import make_algorithm
from asyncparl.training.sampler import ActorCriticPolicy

MAX_RUNS = 3
PRESETS: dict[AlgorithmName, PresetName] = {"impala": "paper", "a2c": "ours", "ga3c": "ours"}
NUM_STEPS = 120_000
WARM_UP_STEPS = 20_000
PROBE_EVERY_S = 0.02
TARGETS = {  # of steps a second, and of the bound in percent
    "impala": ("2,400", ""),
    "a2c": ("", "70"),
    "ga3c": ("", "70"),
}


def measure(repeats: int, emit: Emit, *, algorithm: AlgorithmName) -> None:
    """At most three runs: each takes half a minute."""
    keep_freed_memory()
    torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    config = TrainingConfig.for_this_machine("pong", algorithm=algorithm, preset=PRESETS[algorithm], steps=NUM_STEPS)
    num_envs = envs_at_once(config)
    stages: dict[str, list[float]] = {"environment": [], "inference": [], "learning": [], "bound": []}
    trained, percents, lags = list[float](), list[float](), list[float]()
    late: dict[int, list[float]] = {50: [], 99: []}
    for _ in range(min(MAX_RUNS, repeats)):
        rates = [environment_rate(num_envs), inference_rate(num_envs, config), learning_rate(config)]
        bound = cores / sum(1 / rate for rate in rates)
        for values, value in zip(stages.values(), [*rates, bound], strict=True):
            values.append(value)
        recorder = training_run(config)
        trained.append(recorder.steps_per_s())
        percents.append(100 * trained[-1] / bound)
        lags.append(recorder.mean_lag())
        for percentile, values in late.items():
            values.append(recorder.late_ms(percentile))
    bound_name = f"bound of {cores} cores"
    setting = (
        f"{config.num_actors} actors of {config.envs_per_actor} environments, {_batches(config)}, {config.precision}"
    )
    steps_target, percent_target = TARGETS[algorithm]
    emit(Row("environments alone, one thread", "steps/s", stages["environment"]))
    emit(Row(f"policy alone, batch {num_envs}, one thread", "steps/s", stages["inference"]))
    emit(Row("learner alone, one thread", "steps/s", stages["learning"]))
    emit(Row(bound_name, "steps/s", stages["bound"]))
    emit(Row(TRAINING, "steps/s", trained, target=steps_target, limit=bound_name, note=setting))
    emit(Row("training, of the bound", "%", percents, target=percent_target))
    emit(Row("policy lag, mean", "updates", lags))
    for percentile, values in late.items():
        emit(Row(f"how late the learner's event loop wakes a task, p{percentile}", "ms", values))
    if PRESETS[algorithm] != "ours":
        _measure_ours(len(trained), emit, algorithm)


def _measure_ours(num_runs: int, emit: Emit, algorithm: AlgorithmName) -> None:
    config = TrainingConfig.for_this_machine("pong", algorithm=algorithm, steps=NUM_STEPS)
    runs = [training_run(config) for _ in range(num_runs)]
    name = "training with our preset"
    emit(
        Row(
            name,
            "steps/s",
            [run.steps_per_s() for run in runs],
            note=_batches(config),
        )
    )
    emit(Row(f"{name}, policy lag, mean", "updates", [run.mean_lag() for run in runs]))


def _batches(config: TrainingConfig) -> str:
    return f"batches of {config.unroll_length * config.batch_size} steps"


class Recorder(SilentDisplay):
    """A display that keeps the steady part of a run: the steps between two moments."""

    def __init__(self, warm_up_steps: int) -> None:
        self._warm_up_steps = warm_up_steps
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)
        self._report: Report | None = None
        self._late_s: list[float] = []

    def show(self, figures: Report) -> None:
        if self._first is None and figures.agent_steps >= self._warm_up_steps:
            self._first = (time.perf_counter(), figures.agent_steps)
        if self._first is None or figures.agent_steps > self._last[1]:
            self._last = (time.perf_counter(), figures.agent_steps)
        self._report = figures

    def steps_per_s(self) -> float:
        """Of the steady part."""
        if self._first is None or self._last[1] <= self._first[1]:
            raise RuntimeError(f"a run of {self._last[1]} steps has no part after its warm-up")
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])

    async def probe(self) -> None:
        """Note how late this task is woken, for ever."""
        while True:
            due = time.perf_counter() + PROBE_EVERY_S
            await trio.sleep(PROBE_EVERY_S)
            if self._first is not None:
                self._late_s.append(time.perf_counter() - due)

    def late_ms(self, percentile: float) -> float:
        """How late a task was woken, in the steady part."""
        return float(np.percentile(self._late_s, percentile)) * 1e3 if self._late_s else float("nan")

    def mean_lag(self) -> float:
        """Of the last report."""
        return self._report.mean_lag if self._report else float("nan")


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
    recorder = Recorder(WARM_UP_STEPS)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, run_dir=Path(folder) / "run")
        trio.run(_train, trainer, recorder)
    return recorder


async def _train(trainer: Trainer, recorder: Recorder) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.probe)
        await trainer.run(recorder)
        nursery.cancel_scope.cancel()
