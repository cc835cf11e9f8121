"""Repeatable runs have the same weights bit for bit, and no environment of a run is seeded like another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio

from asyncparl.training import ConfigError, Trainer, TrainingConfig, TrainingError, TrainingResult
from asyncparl.training.checkpoint import Checkpoint, list_checkpoints, load_checkpoint
from asyncparl.training.display import SilentDisplay
from asyncparl.training.environments import CATCH_ID, EnvironmentOptions
from asyncparl.training.metrics import Report
from asyncparl.training.presets import ALGORITHM_NAMES
from tests.training.subjects import MISBEHAVING_ID, SEED_NOTING_ID

LIMIT_S = 100
SMALL: dict[str, Any] = {"envs_per_actor": 4, "unroll_length": 5, "learning_rate": 5e-3}


def _config(algorithm: Any = "impala", *, num_actors: int = 1, **settings: Any) -> TrainingConfig:
    sizes = (
        {} if algorithm in ("a2c", "ppo") else {"batch_size": 6}
    )  # a rollout is more than half of a batch, and less than one
    chosen = {"env": CATCH_ID, "algorithm": algorithm, "repeatable": True, "num_actors": num_actors, "steps": 600}
    return TrainingConfig(**(chosen | SMALL | sizes | settings))


async def _run(trainer: Trainer, display: SilentDisplay | None = None) -> TrainingResult:
    with trio.fail_after(LIMIT_S):
        return await trainer.run(display)


async def _trained(config: TrainingConfig, run_dir: Path) -> Checkpoint:
    result = await _run(Trainer(config, run_dir=run_dir))
    assert result.checkpoint is not None
    return load_checkpoint(result.checkpoint)


def _weights(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in checkpoint.algorithm["model"].items()}


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "num_actors"), [("impala", 1), ("a2c", 2), ("ppo", 2), ("ga3c", 2)])
async def test_two_runs_with_one_seed_have_the_same_weights_bit_for_bit(
    algorithm: str, num_actors: int, tmp_path: Path
) -> None:
    config = _config(algorithm, num_actors=num_actors)
    first = await _trained(config, tmp_path / "first")
    second = await _trained(config, tmp_path / "second")
    assert first.counters.updates == second.counters.updates >= 15
    assert _weights(first) == _weights(second)
    assert first.counters.episodes == second.counters.episodes
    assert not torch.are_deterministic_algorithms_enabled()  # as it was before


@pytest.mark.slow
async def test_what_is_resumed_twice_goes_the_same_way_twice(tmp_path: Path) -> None:
    begin = await _trained(_config("impala", env="CartPole-v1"), tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    ends = []
    for name in ("first", "second"):
        result = await _run(Trainer.resume(tmp_path / name, changes={"steps": 900}))
        assert result.checkpoint is not None
        ends.append(load_checkpoint(result.checkpoint))
    assert ends[0].counters.updates == 30
    assert _weights(ends[0]) == _weights(ends[1]) != _weights(begin)


@pytest.mark.slow
async def test_a_repeatable_run_ends_when_an_actor_dies(tmp_path: Path) -> None:
    options = EnvironmentOptions(arguments={"folder": str(tmp_path)})
    trainer = Trainer(_config(env=MISBEHAVING_ID, env_options=options), run_dir=tmp_path / "run")
    (tmp_path / "die").touch()
    with pytest.raises(TrainingError, match=r"^a repeatable run ends when an actor dies; RolloutActor#1 died"):
        await _run(trainer)


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
def test_what_would_not_be_repeatable_is_refused(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^learner_threads must be 1 in a repeatable run, not 2$"):
        _config(algorithm, learner_threads=2)
    with pytest.raises(ConfigError, match=r"^a repeatable run plays on this machine: cluster must not be given$"):
        _config(algorithm, cluster="host:1")
    monkeypatch.setattr("asyncparl.training.config.usable_cpus", lambda: 32)
    chosen = TrainingConfig.for_this_machine(CATCH_ID, algorithm=algorithm, repeatable=True, device="cpu")
    assert (chosen.num_actors, chosen.learner_threads, chosen.num_predictors or 1) == (1, 1, 1)


# --- seeds ----------------------------------------------------------------------------------------------------


class _Killer(SilentDisplay):
    """Lets one actor die as soon as something was learned."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done = False

    def show(self, report: Report) -> None:
        if report.agent_steps > 0 and not self._done:
            self._done = True
            (self._folder / "die").touch()


@pytest.mark.slow
async def test_no_environment_is_seeded_like_another_over_restarts_and_resumes(tmp_path: Path) -> None:
    options = EnvironmentOptions(arguments={"folder": str(tmp_path)})
    # In GA3C the environments of an actor are two groups, each with seeds of its own.
    config = _config("ga3c", env=SEED_NOTING_ID, env_options=options, repeatable=False, num_actors=2, steps=6_000)
    result = await _run(Trainer(config, run_dir=tmp_path / "run"), _Killer(tmp_path))
    assert result.report.actor_restarts == 1
    await _run(Trainer.resume(tmp_path / "run", changes={"steps": 7_000}))
    noted = [int(line) for line in (tmp_path / "seeds").read_text().split()]
    seeds = [seed for seed in noted if seed != 0]  # which a copy has that is only asked for its shapes
    assert len(seeds) == (2 + 1 + 2) * 4  # two actors, the successor of one, and two after the resume
    assert len(set(seeds)) == len(seeds)
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == 2


def test_what_users_draw_from_global_generators_is_seeded_too(tmp_path: Path) -> None:
    from asyncparl.training.build import seed_generators

    drawn = []
    for _ in range(2):
        seed_generators(2**40)
        drawn.append((float(torch.rand(1)), float(np.random.rand())))  # noqa: NPY002
    assert drawn[0] == drawn[1]
