"""Several learners of one run, in processes of their own: they learn as one, and none is missed for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray
from torch.distributed import TCPStore

import asyncparl
from asyncparl.training import ConfigError, Trainer, TrainingConfig, TrainingError
from asyncparl.training.checkpoint import list_checkpoints, load_checkpoint
from asyncparl.training.environments import CATCH_ID, EnvironmentOptions, environment_seed
from asyncparl.training.learners import Learners
from asyncparl.training.prepare import prepare_new_run
from asyncparl.training.presets import ALGORITHM_NAMES
from tests.training.subjects import FAILING_SEEDS_ID, MISBEHAVING_ID, SEED_NOTING_ID
from tests.training.telling_learner import TellingLearner
from tests.training.test_cluster import a_master, own_state, start_node  # noqa: F401 - a fixture
from tests.training.test_trainer import LIMIT_S, Watcher, _run

pytestmark = pytest.mark.slow

# When it is first used, it opens a pipe that this process keeps.
TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _config(algorithm: Any = "impala", **settings: Any) -> TrainingConfig:
    sizes = {} if algorithm in ("a2c", "ppo") else {"batch_size": 16, "unroll_length": 5 if algorithm == "ga3c" else 20}
    small = {
        "env": CATCH_ID,
        "algorithm": algorithm,
        "num_learners": 2,
        "num_actors": 2,
        "envs_per_actor": 8,
        "seed": 1,
    }
    return TrainingConfig(**{**small, "steps": 3_200, "learning_rate": 5e-3, **sizes, **settings})


def _with_folder(folder: Path, env: str, **settings: Any) -> TrainingConfig:
    return _config(env=env, env_options=EnvironmentOptions(arguments={"folder": str(folder)}), **settings)


async def _weights(
    config: TrainingConfig, cluster: asyncparl.Cluster, run_dir: Path
) -> tuple[NDArray[np.uint8], tuple[int, float]]:
    """What both learners have learned, which is the same; episodes and mean return of both."""
    run = prepare_new_run(config, run_dir=run_dir, model=None)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            learners = Learners(run, say=print)
            nursery.start_soon(learners.run, cluster)
            await learners.pipeline.complete.wait()
            mine, (version, packed) = learners.pipeline.newest, await learners.others[0].weights()
            while version < mine.version:  # it is not behind by more than its last step
                version, packed = await learners.others[0].weights()
            nursery.cancel_scope.cancel()
    run.folder.close()
    assert version == mine.version == run.algorithm.updates >= 10
    num_batches = version // ((config.num_epochs or 1) * (config.num_minibatches or 1))
    assert run.algorithm.agent_steps == num_batches * config.batch_size * config.unroll_length
    assert np.array_equal(packed, mine.packed)
    report = learners.pipeline.report()
    return mine.packed, (report.episodes, report.mean_return)


async def test_all_learners_have_the_same_weights_and_repeatable_runs_have_them_again(tmp_path: Path) -> None:
    async with asyncparl.connect(preload=["torch", "gymnasium", "asyncparl.training.learner_actor"]) as cluster:
        for algorithm in ALGORITHM_NAMES:
            await _weights(_config(algorithm), cluster, tmp_path / algorithm)
        in_turns = _config(repeatable=True, envs_per_actor=4, unroll_length=9, batch_size=8, steps=720)
        runs = [await _weights(in_turns, cluster, tmp_path / name) for name in ("first", "second", "third")]
        for weights, figures in runs[1:]:
            assert np.array_equal(weights, runs[0][0])
            assert figures == runs[0][1]
        assert runs[0][1][0] >= 80  # each 9 steps of an environment are an episode; none of the last ones is missing


async def test_catch_is_learned(tmp_path: Path) -> None:
    trainer = Trainer(_config(steps=400_000, envs_per_actor=16, batch_size=32), run_dir=tmp_path)
    display = Watcher(lambda report: report.mean_return >= 0.95, lambda: trainer.stop("learned"))
    result = await _run(trainer, display)
    assert result.mean_return >= 0.95
    assert 0 < result.report.mean_lag < 10
    assert result.report.actors == 2
    assert result.checkpoint is not None
    assert load_checkpoint(result.checkpoint).counters.agent_steps == result.agent_steps == 640 * result.report.updates


async def test_a_run_is_resumed_with_another_number_of_learners(tmp_path: Path) -> None:
    first = await _run(Trainer(_with_folder(tmp_path, SEED_NOTING_ID), run_dir=tmp_path / "run"))
    second = await _run(Trainer.resume(tmp_path / "run", changes={"steps": 6_400, "num_learners": 1}))
    assert [each.report.updates for each in (first, second)] == [10, 20]
    assert [each.agent_steps for each in (first, second)] == [3_200, 6_400]
    assert first.report.episodes < second.report.episodes
    # No environment of any of them was seeded like another.
    seeds = [int(line) for line in (tmp_path / "seeds").read_text().split() if line != "0"]
    assert len(seeds) == len(set(seeds)) == 2 * 2 * 8
    assert second.checkpoint is not None
    assert load_checkpoint(second.checkpoint).counters.environments_started == 2 * 2 * 8


async def test_a_learner_that_is_killed_ends_the_run_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncparl.training.learners.LearnerActor", TellingLearner)
    config = _with_folder(tmp_path, MISBEHAVING_ID, steps=10**9, num_learners=2)
    trainer = Trainer(config, run_dir=tmp_path / "run")
    kill = lambda: os.kill(int((tmp_path / "learner-1").read_text()), signal.SIGKILL)  # noqa: E731
    display = Watcher(lambda report: report.updates > 20, kill)
    with pytest.raises(TrainingError, match=r"^learner 2 of 2 died: killed by SIGKILL"):
        await _run(trainer, display)
    (path,) = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert load_checkpoint(path).counters.updates > 20  # what was learned until then


async def test_a_run_is_stopped_while_another_learner_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncparl.training.learners.LearnerActor", TellingLearner)
    trainer = Trainer(_with_folder(tmp_path, MISBEHAVING_ID, steps=10**9), run_dir=tmp_path / "run")

    def hang() -> None:
        os.kill(int((tmp_path / "learner-1").read_text()), signal.SIGSTOP)
        trainer.stop("enough")

    result = await _run(trainer, Watcher(lambda report: report.updates > 20, hang))
    assert result.stop_reason == "enough"
    assert result.checkpoint is not None
    assert load_checkpoint(result.checkpoint).counters.updates == result.report.updates > 20


async def test_what_happens_to_an_actor_of_another_learner_is_raised_here(tmp_path: Path) -> None:
    # Those of the first learner have the first eight seeds.
    options = EnvironmentOptions(arguments={"first_seed": environment_seed(1, 8)})
    config = _config(env=FAILING_SEEDS_ID, env_options=options, steps=10**9)
    with pytest.raises(LookupError, match="the game is lost") as caught:
        await _run(Trainer(config, run_dir=tmp_path / "run"))
    assert "subjects.py" in str(caught.value.__cause__)


async def test_divergence_is_reported_once(tmp_path: Path) -> None:
    trainer = Trainer(_with_folder(tmp_path, MISBEHAVING_ID, steps=10**9), run_dir=tmp_path / "run")
    display = Watcher(lambda report: report.updates > 0, (tmp_path / "huge").touch)
    with pytest.raises(TrainingError, match=r"^(learner 2 of 2: )?training diverged in update \d+"):
        await _run(trainer, display)
    assert list_checkpoints(tmp_path / "run" / "checkpoints") == []


async def test_a_run_can_be_stopped_before_the_learners_have_met(tmp_path: Path) -> None:
    trainer = Trainer(_config(steps=10**9), run_dir=tmp_path)
    trainer.stop("at once")
    result = await _run(trainer)
    assert (result.stop_reason, result.agent_steps, result.checkpoint) == ("at once", 0, None)


def test_one_learner_needs_nothing_of_it() -> None:
    program = """
import sys
import asyncparl.training.trainer
modules = ("learner_group", "learner_actor", "learners")
assert not [name for name in modules if f"asyncparl.training.{name}" in sys.modules]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# --- on a cluster ---------------------------------------------------------------------------------------------


async def test_learners_have_places_on_a_cluster_that_has_enough(tmp_path: Path) -> None:
    async with a_master() as (master, nodes):
        await start_node(master, nodes, "only", cpus=3)
        too_many = _config(cluster=str(master), num_learners=4, num_actors=4, envs_per_actor=4)
        with pytest.raises(ConfigError, match=r"^4 learners are too many for this cluster, which has 3 CPUs: "):
            await _run(Trainer(too_many, run_dir=tmp_path / "first"))
        result = await _run(Trainer(_config(cluster=str(master)), run_dir=tmp_path / "second"))
        assert (result.agent_steps, result.report.updates, result.report.actors) == (3_200, 10, 2)
