"""A training run from its settings to its result: `train`, or a `Trainer` where one wants a hand in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

import asyncparl
from asyncparl.training.best import BestCheckpoint
from asyncparl.training.build import ModelClass
from asyncparl.training.checkpoint import Checkpoint
from asyncparl.training.config import TrainingConfig
from asyncparl.training.display import Display, SilentDisplay
from asyncparl.training.errors import ConfigError, RunFolderError, TrainingError, unwrapped_errors
from asyncparl.training.metrics import Report, monitor_values
from asyncparl.training.periodic import PeriodicEvaluation
from asyncparl.training.pipeline import Pipeline
from asyncparl.training.prepare import PreparedRun, prepare_new_run, prepare_resumed_run
from asyncparl.training.turns import deterministic_torch

SHOW_INTERVAL_S = 0.5
BEST_INTERVAL_S = 10.0
_PRELOAD = ("torch", "numpy", "gymnasium", "asyncparl.training.actor", "asyncparl.training.evaluation")
_PRELOAD_LEARNER = "asyncparl.training.learner_actor"


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a run ended."""

    run_dir: Path
    checkpoint: Path | None  # the last one; None if the run learned nothing
    best_checkpoint: Path | None  # the one that played best; None if there were too few episodes to tell
    report: Report  # the last figures
    stop_reason: str | None  # None: all steps are done

    @property
    def agent_steps(self) -> int:
        """Learned from, since the run began."""
        return self.report.agent_steps

    @property
    def mean_return(self) -> float:
        """Raw, of the last 100 episodes."""
        return self.report.mean_return


async def train(
    config: TrainingConfig, *, model: ModelClass | None = None, run_dir: Path | None = None
) -> TrainingResult:
    """Train until all steps are done, without showing anything; see `Trainer`."""
    return await Trainer(config, model=model, run_dir=run_dir).run()


class Trainer:
    """One run; `run` it once.

    Making it already finds what is wrong with the settings, and makes the run folder.

    Args:
        config: the settings.
        model: the network's class, called as `model(obs_shape=..., num_actions=...)`; None: that of the settings.
        run_dir: a new or empty folder; None: one in `runs/`, named after environment, date and seed.

    Raises:
        ConfigError: the environment, the model or the device is not to be had.
        RunFolderError: the folder cannot be written, is in use, or holds a run.
    """

    def __init__(self, config: TrainingConfig, *, model: ModelClass | None = None, run_dir: Path | None = None) -> None:
        self._adopt(prepare_new_run(config, model=model, run_dir=run_dir))

    @classmethod
    def resume(
        cls,
        run_dir: Path,
        *,
        changes: dict[str, Any] | None = None,
        model: ModelClass | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> Trainer:
        """Go on with an earlier run, in its folder, from its last checkpoint; from the start, if it has none yet.

        Args:
            changes: settings that differ from now on; only those that do not make it another run.
            model: as for a new run.
            warn: told of checkpoints that cannot be read, and that there is none.

        Raises:
            ConfigError, RunFolderError: it cannot go on, such as because it is still running.
        """
        trainer = cls.__new__(cls)
        trainer._adopt(prepare_resumed_run(run_dir, changes or {}, model=model, warn=warn))
        return trainer

    def _adopt(self, run: PreparedRun) -> None:
        self.config = run.config
        self.run_dir = run.folder.path
        self._run = run
        self._stopping = trio.Event()
        self._stop_reason: str | None = None
        self._last_saved: Path | None = None
        self._saved_updates = run.counters.updates
        self._reported_at = run.counters.elapsed_s
        self._cluster: asyncparl.Cluster | None = None
        self._pipeline: Pipeline | None = None

    @property
    def has_learned(self) -> bool:
        """Whether there is anything that the next checkpoint would have and the last one has not."""
        return self._pipeline is not None and self._pipeline.counters().updates > self._saved_updates

    def stop(self, reason: str) -> None:
        """End the run as if its steps were done: after the update under way, with a checkpoint if it `has_learned`.

        From its event loop.
        """
        self._stop_reason = self._stop_reason or reason
        self._stopping.set()

    async def run(self, display: Display | None = None, *, monitor: bool | str = False) -> TrainingResult:
        """Train until all steps are done or `stop` is called, on the cluster of the settings or on a private one.

        Args:
            display: what to show it on.
            monitor: see `asyncparl.connect`.

        Cancellation and errors: actors and learner are ended, and what was learned is saved, unless the learner itself
        has failed: then the last checkpoint stays the last.

        Raises:
            ConfigError: the cluster's address is none.
            TrainingError: the learner diverged or is stuck, or no actor is left.
            AuthenticationError, ResourceError: the cluster cannot be joined.
            RunFolderError: the run folder has gone, or the end of the run could not be written to it.
            Exception: what the code of environment or model raised.
        """
        display = display or SilentDisplay()
        with self._run.folder.closed_on_error(), display, unwrapped_errors(), self._arithmetic():
            if self._run.folder.lock_problem is not None:
                display.say(f"warning: {self._run.folder.lock_problem}")
            pipeline, learn = self._make_pipeline(display)
            self._pipeline = pipeline
            kind = "training" if self.config.evaluate_every is None else "evaluation"
            self._best = BestCheckpoint(self._run.folder, kind, say=display.say)
            try:
                preload = _PRELOAD if self.config.num_learners == 1 else (*_PRELOAD, _PRELOAD_LEARNER)
                async with AsyncExitStack() as stack:
                    connecting = asyncparl.connect(self.config.cluster, preload=preload, monitor=monitor)
                    try:
                        self._cluster = await stack.enter_async_context(connecting)
                    except ValueError as error:
                        raise ConfigError(f"the cluster cannot be joined: {error}") from error
                    self._tell_monitors(pipeline.report())
                    await self._train(pipeline, partial(learn, self._cluster), display)
            finally:
                with trio.CancelScope(shield=True):
                    await self._finish(pipeline, display)
        self._run.folder.close()
        best = self._best.path if self._best.path.exists() else None
        return TrainingResult(self.run_dir, self._last_saved, best, pipeline.report(), self._stop_reason)

    def _arithmetic(self) -> AbstractContextManager[None]:
        return deterministic_torch(self.config.device) if self.config.repeatable else nullcontext()

    def _make_pipeline(self, display: Display) -> tuple[Pipeline, Callable[[asyncparl.Cluster], Awaitable[None]]]:
        """The pipeline, and what has it run: by itself, or as one of several learners."""
        if self.config.num_learners == 1:
            pipeline = Pipeline(self._run, say=display.say)
            return pipeline, lambda _: pipeline.run()
        from asyncparl.training.learners import Learners  # torch.distributed takes its time

        learners = Learners(self._run, say=display.say)
        return learners.pipeline, learners.run

    async def _train(self, pipeline: Pipeline, learn: Callable[[], Awaitable[None]], display: Display) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(learn)
            nursery.start_soon(self._report_regularly, pipeline, display)
            nursery.start_soon(self._save_regularly, pipeline, display)
            if self.config.evaluate_every is None:
                nursery.start_soon(self._keep_best_regularly, pipeline)
                nursery.start_soon(self._stop_when, pipeline.complete)
            else:
                evaluation = PeriodicEvaluation(self._run, self._best, say=display.say)
                nursery.start_soon(evaluation.run, pipeline.wait_for_steps, partial(self._checkpoint, pipeline))
                nursery.start_soon(self._stop_when, evaluation.ended)
            await self._stopping.wait()
            pipeline.about_to_end()
            self._tell_monitors(pipeline.report())
            nursery.cancel_scope.cancel()

    async def _stop_when(self, event: trio.Event) -> None:
        await event.wait()
        self._stopping.set()

    async def _report_regularly(self, pipeline: Pipeline, display: Display) -> None:
        while True:
            report = pipeline.report()
            display.show(report)
            if report.elapsed_s - self._reported_at >= self.config.report_interval_s:
                self._write_report(report, display)
            await trio.sleep(SHOW_INTERVAL_S)

    async def _save_regularly(self, pipeline: Pipeline, display: Display) -> None:
        while True:
            await trio.sleep(self.config.checkpoint_interval_s)
            if self.has_learned:
                try:
                    await self._save(await self._checkpoint(pipeline))
                except OSError as error:  # a full disk may have room again later
                    display.say(f"the checkpoint could not be written: {error}")

    async def _keep_best_regularly(self, pipeline: Pipeline) -> None:
        while True:
            await trio.sleep(BEST_INTERVAL_S)
            mean_return = pipeline.settled_return
            if mean_return is not None and self._best.is_beaten_by(mean_return):
                await self._best.offer(await self._checkpoint(pipeline), mean_return)

    @staticmethod
    async def _checkpoint(pipeline: Pipeline) -> Checkpoint:
        try:
            return await pipeline.checkpoint()
        except TrainingError:  # the learner has ended, and the pipeline is about to say why
            await trio.sleep_forever()

    async def _save(self, checkpoint: Checkpoint) -> None:
        # In a thread: writing and syncing take as long as the disk pleases.
        self._last_saved = await trio.to_thread.run_sync(self._run.folder.save_checkpoint, checkpoint)
        self._saved_updates = checkpoint.counters.updates

    async def _finish(self, pipeline: Pipeline, display: Display) -> None:
        report = pipeline.report()
        try:
            self._write_report(report, display)
            last = pipeline.last_checkpoint()
            if last is not None:
                await self._save(last)
                mean_return = pipeline.settled_return
                if mean_return is not None and self.config.evaluate_every is None:
                    await self._best.offer(last, mean_return)
        except OSError as error:
            newest = f"; {self._last_saved} is the newest one" if self._last_saved is not None else ""
            raise RunFolderError(f"the last checkpoint could not be written: {error}{newest}") from error
        display.show(report)

    def _write_report(self, report: Report, display: Display) -> None:
        self._reported_at = report.elapsed_s
        self._tell_monitors(report)
        try:
            self._run.folder.report(report.row(), report.scalars(), step=report.agent_steps)
        except OSError as error:
            display.say(f"{self.run_dir} could not be written: {error}")

    def _tell_monitors(self, report: Report) -> None:
        if self._cluster is not None:
            title = f"{self.config.algorithm.upper()} on {self.config.env}"
            self._cluster.report(**monitor_values(report, title, self.config.steps, str(self.run_dir)))
