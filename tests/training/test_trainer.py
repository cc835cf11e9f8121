"""Whole runs, on real remote actors: they learn, go on, and survive what happens to actors."""

from __future__ import annotations

import csv
import errno
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from asyncparl.training import (
    ConfigError,
    RunFolderError,
    Trainer,
    TrainingConfig,
    TrainingError,
    TrainingResult,
    run_lock,
)
from asyncparl.training.checkpoint import list_checkpoints, load_checkpoint
from asyncparl.training.compression import CompressedRollout
from asyncparl.training.display import SilentDisplay
from asyncparl.training.environments import CATCH_ID, EnvironmentOptions
from asyncparl.training.frames import FrameRollout
from asyncparl.training.metrics import Report
from asyncparl.training.pipeline import Pipeline
from asyncparl.training.sending import SentSample
from tests.training.subjects import CORRIDOR_ID, MISBEHAVING_ID, LinearModel

LIMIT_S = 150

pytestmark = pytest.mark.slow


class Watcher(SilentDisplay):
    """Keeps what is said, and does something when a report first fits."""

    def __init__(self, when: Callable[[Report], bool], then: Callable[[], object]) -> None:
        self.lines: list[str] = []
        self._when = when
        self._then: Callable[[], object] | None = then

    def show(self, report: Report) -> None:
        if self._then is not None and self._when(report):
            then, self._then = self._then, None
            then()

    def say(self, line: str) -> None:
        self.lines.append(line)


def _config(env: str = CATCH_ID, **settings: Any) -> TrainingConfig:
    small = {"steps": 8_000, "num_actors": 2, "envs_per_actor": 8, "batch_size": 16, "learning_rate": 5e-3}
    return TrainingConfig(**{"env": env, "seed": 1, **small, **settings})


def _misbehaving(tmp_path: Path, *, always: bool = False, **settings: Any) -> TrainingConfig:
    options = EnvironmentOptions(arguments={"folder": str(tmp_path), "always": always})
    return _config(MISBEHAVING_ID, env_options=options, **settings)


async def _run(trainer: Trainer, display: SilentDisplay | None = None) -> TrainingResult:
    with trio.fail_after(LIMIT_S):
        return await trainer.run(display)


def _rows(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


async def test_catch_is_learned(tmp_path: Path) -> None:
    # Nearly always 60,000 steps are enough. Which weights play when depends on timing, and a bad start takes longer.
    config = _config(steps=400_000, envs_per_actor=16, batch_size=32)
    trainer = Trainer(config, run_dir=tmp_path / "run")
    display = Watcher(lambda report: report.mean_return >= 0.95, lambda: trainer.stop("learned"))
    result = await _run(trainer, display)
    assert result.mean_return >= 0.95
    assert 0 < result.report.mean_lag < 6
    assert 0 < result.report.policy_delay_s <= result.report.max_policy_delay_s < result.report.elapsed_s


async def test_a_run_ends_with_the_batch_that_has_its_last_step(tmp_path: Path) -> None:
    config = _config(steps=6_000, envs_per_actor=16, batch_size=32, unroll_length=20)
    result = await _run(Trainer(config, run_dir=tmp_path / "run"))
    assert result.stop_reason is None
    assert result.agent_steps == 6_400  # whole batches of 640
    assert result.checkpoint is not None
    assert load_checkpoint(result.checkpoint).counters.agent_steps == 6_400
    assert _rows(tmp_path / "run")[-1]["agent_steps"] == "6400"


@pytest.mark.parametrize(("algorithm", "compress"), [("impala", False), ("impala", True), ("ga3c", True)])
async def test_single_frames_arrive_and_may_be_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: Any, compress: bool
) -> None:
    arrived: list[SentSample] = []
    take = Pipeline._take
    monkeypatch.setattr(Pipeline, "_take", lambda self, sample: arrived.append(sample) or take(self, sample))
    config = TrainingConfig(
        env="pong", algorithm=algorithm, steps=200, envs_per_actor=2, batch_size=4, unroll_length=5,
        compress_rollouts=compress,
    )  # fmt: skip
    result = await _run(Trainer(config, run_dir=tmp_path / "run"))
    assert result.agent_steps == 200
    assert {type(rollout) for rollout, _ in arrived} == {CompressedRollout if compress else FrameRollout}
    assert all(math.isfinite(loss) for loss in result.report.losses.values())


async def test_cartpole_is_learned(tmp_path: Path) -> None:
    config = _config(
        "CartPole-v1", steps=800_000, envs_per_actor=16, batch_size=32, learning_rate=3e-3, value_cost=0.1,
        max_grad_norm=10.0,
    )  # fmt: skip
    trainer = Trainer(config, run_dir=tmp_path)
    display = Watcher(lambda report: report.mean_return >= 450, lambda: trainer.stop("learned"))
    result = await _run(trainer, display)
    assert result.mean_return >= 450
    assert result.stop_reason == "learned"


async def test_a_model_class_and_an_environment_id_are_enough(tmp_path: Path) -> None:
    result = await _run(Trainer(_config(CORRIDOR_ID, steps=20_000), model=LinearModel, run_dir=tmp_path))
    assert result.mean_return > 9
    # ... and it is known by name to whoever resumes the run.
    resumed = Trainer.resume(tmp_path, changes={"steps": 20_800})
    assert (await _run(resumed)).mean_return > 9


async def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    first = await _run(Trainer(_config(steps=3_200, report_interval_s=0.1), run_dir=tmp_path))
    rows = _rows(tmp_path)
    trainer = Trainer.resume(tmp_path, changes={"steps": 6_400})
    second = await _run(trainer)

    assert (first.agent_steps, second.agent_steps) == (3_200, 6_400)
    assert second.report.updates == 2 * first.report.updates
    assert second.report.episodes > first.report.episodes
    assert second.report.elapsed_s > first.report.elapsed_s
    assert second.checkpoint is not None
    assert load_checkpoint(second.checkpoint).counters.environments_started == 4 * 8  # none with an old seed
    assert _rows(tmp_path)[: len(rows)] == rows
    steps = [int(row["agent_steps"]) for row in _rows(tmp_path)]
    assert steps == sorted(steps)
    assert steps[-1] == 6_400


async def test_a_run_that_is_done_cannot_be_resumed(tmp_path: Path) -> None:
    await _run(Trainer(_config(steps=320), run_dir=tmp_path))
    with pytest.raises(ConfigError, match="the run has 320 of 320 steps"):
        Trainer.resume(tmp_path)
    with pytest.raises(ConfigError, match="seed cannot be changed when a run is resumed"):
        Trainer.resume(tmp_path, changes={"seed": 2})


async def test_an_actor_that_is_killed_is_replaced(tmp_path: Path) -> None:
    trainer = Trainer(_misbehaving(tmp_path, steps=60_000), run_dir=tmp_path / "run")
    display = Watcher(lambda report: report.agent_steps > 0, (tmp_path / "die").touch)
    result = await _run(trainer, display)
    assert result.agent_steps >= 60_000
    assert result.report.actor_restarts == 1
    (line,) = display.lines
    assert "RolloutActor#" in line
    assert "SIGKILL" in line
    assert "it is replaced (1 of at most 3 times)" in line
    assert result.checkpoint is not None
    assert load_checkpoint(result.checkpoint).counters.environments_started == 3 * 8  # the new one has seeds of its own


async def test_training_ends_when_no_actor_is_left(tmp_path: Path) -> None:
    trainer = Trainer(_misbehaving(tmp_path, always=True, max_actor_restarts=1), run_dir=tmp_path / "run")
    (tmp_path / "die").touch()
    display = Watcher(lambda _: False, lambda: None)
    with pytest.raises(TrainingError, match=r"no actor is left; the last one that died: RolloutActor#\d died"):
        await _run(trainer, display)
    assert sum("it is not replaced, after 2 deaths" in line for line in display.lines) == 2


async def test_what_the_environment_raises_is_raised_with_its_remote_traceback(tmp_path: Path) -> None:
    trainer = Trainer(_misbehaving(tmp_path), run_dir=tmp_path / "run")
    (tmp_path / "fail").touch()
    with pytest.raises(LookupError, match="the game is lost") as caught:
        await _run(trainer)
    assert "subjects.py" in str(caught.value.__cause__)


async def test_divergence_is_reported_and_not_saved(tmp_path: Path) -> None:
    trainer = Trainer(_misbehaving(tmp_path, steps=10**9), run_dir=tmp_path / "run")
    display = Watcher(lambda report: report.updates > 0, (tmp_path / "huge").touch)
    with pytest.raises(TrainingError, match=r"training diverged in update \d+"):
        await _run(trainer, display)
    assert list_checkpoints(tmp_path / "run" / "checkpoints") == []


async def test_cancellation_saves_what_was_learned(tmp_path: Path) -> None:
    trainer = Trainer(_config(steps=10**9), run_dir=tmp_path)
    with trio.CancelScope() as scope:
        await _run(trainer, Watcher(lambda report: report.updates > 0, scope.cancel))
    assert scope.cancelled_caught
    (path,) = list_checkpoints(tmp_path / "checkpoints")
    assert load_checkpoint(path).counters.updates > 0


async def test_where_there_are_no_locks_a_run_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_file: object, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(run_lock, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=0, LOCK_NB=0))
    display = Watcher(lambda _: False, lambda: None)
    result = await _run(Trainer(_config(steps=320), run_dir=tmp_path), display)
    assert result.agent_steps == 320
    (line,) = display.lines
    assert line.startswith(f"warning: {tmp_path} is in a file system without locks")


async def test_a_run_that_was_refused_or_has_failed_leaves_its_folder_to_others(tmp_path: Path) -> None:
    trainer = Trainer(_misbehaving(tmp_path), run_dir=tmp_path / "run")
    with pytest.raises(RunFolderError, match="is in use by"):
        Trainer.resume(tmp_path / "run")
    (tmp_path / "fail").touch()
    with pytest.raises(LookupError):
        await _run(trainer)
    assert (await _run(Trainer.resume(tmp_path / "run", changes={"steps": 320}))).agent_steps == 320


@pytest.mark.parametrize(("algorithm", "learners"), [("impala", 1), ("impala", 2), ("a2c", 1), ("ga3c", 1)])
async def test_a_run_that_is_stopped_before_it_begins_ends_well(algorithm: Any, learners: int, tmp_path: Path) -> None:
    trainer = Trainer(_config(algorithm=algorithm, num_learners=learners), run_dir=tmp_path)
    assert not trainer.has_learned
    trainer.stop("at once")
    result = await _run(trainer)
    assert (result.agent_steps, result.stop_reason, result.checkpoint) == (0, "at once", None)


async def test_checkpoints_come_at_intervals(tmp_path: Path) -> None:
    trainer = Trainer(_config(steps=10**9, checkpoint_interval_s=0.05), run_dir=tmp_path)
    are_there = lambda _: len(list_checkpoints(tmp_path / "checkpoints")) == 2  # noqa: E731
    result = await _run(trainer, Watcher(are_there, lambda: trainer.stop("enough")))
    assert result.stop_reason == "enough"
    assert list_checkpoints(tmp_path / "checkpoints")[-1] == result.checkpoint


def test_wrong_settings_leave_no_folder(tmp_path: Path) -> None:
    for config, line in (
        (_config("pon"), "no environment is called 'pon'; did you mean pong"),
        (_config(device="gpu"), "device 'gpu' cannot be used"),
        (_config(model="nowhere:Model"), "No module named 'nowhere'"),
        (_config(model="tests.training.subjects:Linear"), "has no Linear"),
        (_config(model="tests.training.subjects:Corridor"), "is no subclass of asyncparl.Model"),
    ):
        with pytest.raises(ConfigError, match=line):
            Trainer(config, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
