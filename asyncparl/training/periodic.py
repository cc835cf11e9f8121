"""Evaluations during training: by an actor of their own, with copies of the weights, so that training is not disturbed.

Results go to evaluations.csv and to TensorBoard, never into the figures of training. An evaluation that takes longer
than `evaluate_every` steps is followed at once by the next one, of what was learned meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from asyncparl.errors import ActorDied
from asyncparl.training.best import BestCheckpoint
from asyncparl.training.checkpoint import Checkpoint
from asyncparl.training.config import TrainingConfig
from asyncparl.training.evaluation import Evaluation, EvaluationSetup, Evaluator
from asyncparl.training.prepare import PreparedRun

TakeCheckpoint = Callable[[], Awaitable[Checkpoint]]
WaitForSteps = Callable[[int], Awaitable[None]]


class PeriodicEvaluation:
    """See the top of this file.

    Args:
        run: whose settings say how often.
        best: gets every checkpoint that has played better than all before.
        say: told of every result, one line each.
    """

    def __init__(self, run: PreparedRun, best: BestCheckpoint, *, say: Callable[[str], None]) -> None:
        assert run.config.evaluate_every is not None
        self._interval = run.config.evaluate_every
        self._run = run
        self._best = best
        self._say = say
        self._setup = EvaluationSetup(run.config, run.model_class)
        self._evaluator: Evaluator | None = None
        self.ended = trio.Event()
        """The policy after the last step of the run was evaluated."""

    async def run(self, wait_for_steps: WaitForSteps, take_checkpoint: TakeCheckpoint) -> None:
        """Evaluate whenever the interval is over, and at the end of the run."""
        done = self._run.counters.agent_steps
        while done < self._config.steps:
            await wait_for_steps(min(self._config.steps, (done // self._interval + 1) * self._interval))
            checkpoint = await take_checkpoint()
            done = checkpoint.counters.agent_steps
            await self._evaluate(checkpoint)
        self.ended.set()

    @property
    def _config(self) -> TrainingConfig:
        return self._run.config

    async def _evaluate(self, checkpoint: Checkpoint) -> None:
        self._evaluator = self._evaluator or Evaluator(self._setup)
        try:
            evaluation = await self._evaluator.evaluate(checkpoint.model_weights(), self._config.evaluation_episodes)
        except ActorDied as death:
            self._evaluator = None  # a new one next time
            self._say(f"no evaluation: {death}")
            return
        self._report(checkpoint, evaluation)
        await self._best.offer(checkpoint, evaluation.figures()["mean_return"])

    def _report(self, checkpoint: Checkpoint, evaluation: Evaluation) -> None:
        counters, figures = checkpoint.counters, evaluation.figures()
        row = {"agent_steps": counters.agent_steps, "updates": counters.updates, "elapsed_s": counters.elapsed_s}
        scalars = {f"evaluation/{name}": value for name, value in figures.items() if name != "episodes"}
        self._say(
            f"evaluation after {counters.agent_steps:,} steps: mean return {figures['mean_return']:.2f}, "
            f"median {figures['median_return']:.2f}, deviation {figures['std_return']:.2f}, "
            f"{figures['episodes']} episodes"
        )
        try:
            self._run.folder.report_evaluation({**row, **figures}, scalars, step=counters.agent_steps)
        except OSError as error:
            self._say(f"{self._run.folder.path} could not be written: {error}")
