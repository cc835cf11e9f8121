"""Sample Factory's APPO on Pong: the same network and the same batch as ours, gymnasium's preprocessing."""

from __future__ import annotations

import itertools
import tempfile
import time
from typing import Any

import gymnasium
import gymnasium.wrappers
import numpy as np
from ale_py.env import AtariEnv
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

from .workloads import TRAINING, Emit, parse, writer

NUM_WORKERS = 2
ENVS_PER_WORKER = 16
UNROLL = 20
BATCH_STEPS = 640
WARM_UP_S = 20.0
SAMPLE_S = 10.0


def make_pong(_name: str, _config: Any, _env_config: Any, render_mode: Any = None) -> Any:
    """84 x 84, skip 4, stack 4."""
    game = AtariEnv("pong", frameskip=1, repeat_action_probability=0.0, render_mode=render_mode)
    wrappers: Any = gymnasium.wrappers  # of an older gymnasium than other programs here
    return wrappers.TransformObservation(wrappers.FrameStack(wrappers.AtariPreprocessing(game), 4), np.asarray)


class Watch(AlgoObserver):  # type: ignore[misc]
    """Keeps when how many steps had been learned, and ends the run."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._seen: list[tuple[float, int]] = []

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        self._seen.append((time.perf_counter(), runner.total_env_steps_since_resume or 0))
        if self._seen[-1][0] > self._seen[0][0] + WARM_UP_S + self._num_samples * SAMPLE_S:
            runner.cfg.train_for_env_steps = 0  # it looks at this now

    def rates(self) -> list[float]:
        """Steps a second in the stretches of the time after the warm-up."""
        times = [self._seen[0][0] + WARM_UP_S + i * SAMPLE_S for i in range(self._num_samples + 1)]
        marks = [next(seen for seen in reversed(self._seen) if seen[0] <= time_) for time_ in times]
        return [(steps - before) / (now - then) for (then, before), (now, steps) in itertools.pairwise(marks)]


def settings(folder: str) -> list[str]:
    """As a command line."""
    return [
        "--algo=APPO",
        "--env=pong",
        "--experiment=pong",
        f"--train_dir={folder}",
        "--device=cpu",
        f"--num_workers={NUM_WORKERS}",
        f"--num_envs_per_worker={ENVS_PER_WORKER}",
        "--worker_num_splits=2",
        f"--rollout={UNROLL}",
        f"--batch_size={BATCH_STEPS}",
        "--num_batches_per_epoch=1",
        "--num_epochs=1",
        "--use_rnn=False",
        "--encoder_conv_architecture=convnet_impala",
        "--encoder_conv_mlp_layers",
        "256",
        "--nonlinearity=relu",
        "--obs_scale=255",
        "--normalize_input=False",
        "--normalize_returns=False",
        "--decorrelate_experience_max_seconds=0",
        "--save_every_sec=600",
        "--experiment_summaries_interval=5",
    ]


def train(repeats: int, emit: Emit) -> None:
    """After a warm-up, the steps that were learned in each stretch of time."""
    register_env("pong", make_pong)
    with tempfile.TemporaryDirectory() as folder:
        arguments = settings(folder)
        parser, _ = parse_sf_args(arguments)
        _, runner = make_runner(parse_full_cfg(parser, arguments))
        watch = Watch(repeats)
        runner.register_observer(watch)
        runner.init()
        runner.run()
    note = f"{NUM_WORKERS} workers of {ENVS_PER_WORKER} environments, APPO, fp32"
    emit(TRAINING, "steps/s", watch.rates(), note=note)


def main() -> None:
    arguments = parse(__doc__, ["impala"])
    train(min(3, arguments.repeats), writer(arguments.output))


if __name__ == "__main__":
    main()
