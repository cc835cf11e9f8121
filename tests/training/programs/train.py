"""Trains on a cluster until its input ends. Its arguments: the address of the master, and the folder of the run.

A line that begins with "@" is a report, as JSON; others are what the trainer says. What each update learned from is in
updates.npz in the end: when it was done, the version of its weights, all steps until then, and of each column of its
batch the seed of the game and the numbers of its steps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import trio
from numbered_catch import SCALE  # type: ignore[import-not-found]  # it lies beside this script

from asyncparl.training import Trainer, TrainingConfig, pipeline
from asyncparl.training.display import SilentDisplay
from asyncparl.training.learner import Learner, Update
from asyncparl.training.metrics import Report

UNROLL, COLUMNS, ENVS, ACTORS = 20, 12, 8, 3  # a batch takes one and a half rollouts: some are split

updates: dict[str, list[Any]] = {"times": [], "versions": [], "agent_steps": [], "seeds": [], "steps": []}


class NotingLearner(Learner):
    """Notes every update before the pipeline hears of it, and gives the batch's memory back."""

    def __init__(self, *args: Any, on_update: Callable[[Update], None], **options: Any) -> None:
        def noted(update: Update) -> None:
            note(update)
            on_update(update)

        super().__init__(*args, on_update=noted, **options)


def note(update: Update) -> None:
    seeds, steps = (update.batch.rollout.obs[:, :, -1, :2].numpy() * SCALE).astype(np.int64).transpose(2, 0, 1)
    assert (seeds == seeds[0]).all()
    values = (time.monotonic(), update.version, update.agent_steps, seeds[0], steps)
    for column, value in zip(updates.values(), values, strict=True):
        column.append(value)


class Talking(SilentDisplay):
    """For the test that reads it."""

    def show(self, report: Report) -> None:
        print(f"@{json.dumps({'updates': report.updates, 'actors': report.actors})}", flush=True)

    def say(self, line: str) -> None:
        print(line, flush=True)


async def stop_at_end_of_input(trainer: Trainer) -> None:
    await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    trainer.stop("told to")


async def main() -> None:
    config = TrainingConfig(
        env="numbered_catch:NumberedCatch-v0",
        cluster=sys.argv[1],
        steps=10**9,
        num_actors=ACTORS,
        envs_per_actor=ENVS,
        unroll_length=UNROLL,
        batch_size=COLUMNS,
        learning_rate=5e-3,
        max_actor_restarts=0,  # a machine that goes is no death
        report_interval_s=0.5,
    )
    folder = Path(sys.argv[2])
    trainer = Trainer(config, run_dir=folder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_at_end_of_input, trainer)
        await trainer.run(Talking())
    np.savez(folder / "updates.npz", **{name: np.array(values) for name, values in updates.items()})  # type: ignore[arg-type]


pipeline.Learner = NotingLearner  # type: ignore[attr-defined]
trio.run(main)
