"""Checkpoints: training goes on from one exactly as if it had never stopped, and a damaged one is noticed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asyncparl.algorithms import IMPALA, Rollout
from asyncparl.rl import MLP
from asyncparl.rl.checkpoint import get_random_state, set_random_state
from asyncparl.training import RunFolderError
from asyncparl.training.checkpoint import (
    Checkpoint,
    Counters,
    Score,
    list_checkpoints,
    load_checkpoint,
    load_latest,
    save_best,
    save_checkpoint,
)


def _algorithm(seed: int) -> IMPALA:
    torch.manual_seed(seed)
    return IMPALA(MLP(3, 2, hidden=(4,)), learning_rate=0.01, decay_steps=1000)


def _drawn_rollout() -> Rollout[torch.Tensor]:
    """Five steps of two environments, drawn from the global generators."""
    obs = torch.randn(5, 2, 3)
    rewards = torch.from_numpy(np.random.standard_normal((5, 2)).astype(np.float32))  # noqa: NPY002
    actions = torch.tensor([[random.randrange(2) for _ in range(2)] for _ in range(5)])
    no = torch.zeros(5, 2, dtype=torch.bool)
    log_probs = torch.full((5, 2), -0.7)
    no_steps = torch.empty(0, 2, dtype=torch.int64)
    return Rollout(obs, actions, log_probs, rewards, no, no, torch.randn(2, 3), torch.empty(0, 3), no_steps)


def _checkpoint(algorithm: IMPALA, agent_steps: int | None = None) -> Checkpoint:
    counters = Counters(agent_steps=algorithm.agent_steps if agent_steps is None else agent_steps, elapsed_s=1.5)
    return Checkpoint(counters, algorithm.state_dict(), get_random_state())


def _state(algorithm: IMPALA) -> list[bytes]:
    tensors = [*algorithm.model.state_dict().values()]
    for state in algorithm.optimizer.state_dict()["state"].values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return [tensor.numpy().tobytes() for tensor in tensors]


def test_a_resumed_run_is_bit_for_bit_the_one_that_went_on(tmp_path: Path) -> None:
    original = _algorithm(seed=1)
    for _ in range(3):
        original.learn(_drawn_rollout())
    path = save_checkpoint(_checkpoint(original), tmp_path)
    for _ in range(3):
        original.learn(_drawn_rollout())

    resumed = _algorithm(seed=2)
    checkpoint = load_checkpoint(path)
    resumed.load_state_dict(checkpoint.algorithm)
    set_random_state(checkpoint.random_state)
    for _ in range(3):
        resumed.learn(_drawn_rollout())

    assert _state(resumed) == _state(original)
    assert (resumed.agent_steps, resumed.updates) == (original.agent_steps, original.updates) == (60, 6)


def test_counters_come_back(tmp_path: Path) -> None:
    counters = Counters(agent_steps=640, updates=1, episodes=7, elapsed_s=3.25, environments_started=32)
    path = save_checkpoint(Checkpoint(counters, {}, {}), tmp_path)
    assert load_checkpoint(path).counters == counters


def test_a_checkpoint_is_a_copy(tmp_path: Path) -> None:
    algorithm = _algorithm(seed=1)
    checkpoint = _checkpoint(algorithm)
    before = _state(algorithm)
    algorithm.learn(_drawn_rollout())
    algorithm.load_state_dict(load_checkpoint(save_checkpoint(checkpoint, tmp_path)).algorithm)
    assert _state(algorithm)[: len(before)] == before


def test_the_two_newest_are_kept(tmp_path: Path) -> None:
    algorithm = _algorithm(seed=1)
    for agent_steps in (640, 9_600, 99_840, 1_000_320):
        save_checkpoint(_checkpoint(algorithm, agent_steps), tmp_path)
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "checkpoint-000000099840.pt",
        "checkpoint-000001000320.pt",
    ]


@pytest.mark.parametrize("kept_bytes", [0, 1, 1000])
def test_a_damaged_checkpoint_is_passed_over(kept_bytes: int, tmp_path: Path) -> None:
    algorithm = _algorithm(seed=1)
    save_checkpoint(_checkpoint(algorithm, 640), tmp_path)
    newest = save_checkpoint(_checkpoint(algorithm, 1280), tmp_path)
    newest.write_bytes(newest.read_bytes()[:kept_bytes])

    warnings: list[str] = []
    assert load_latest(tmp_path, warn=warnings.append).counters.agent_steps == 640
    (warning,) = warnings
    assert warning.startswith(f"checkpoint {newest} cannot be read")
    assert "\n" not in warning


def test_no_checkpoint_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no checkpoint"):
        load_latest(tmp_path, warn=pytest.fail)
    with pytest.raises(RunFolderError, match="there is no checkpoint"):
        load_latest(tmp_path / "missing", warn=pytest.fail)


def test_the_best_checkpoint_will_do_where_there_is_no_other(tmp_path: Path) -> None:
    algorithm = _algorithm(seed=1)
    save_best(_checkpoint(algorithm, 640), Score(1.0, "training"), tmp_path)
    with pytest.raises(RunFolderError, match="there is no checkpoint"):
        load_latest(tmp_path, warn=pytest.fail)
    warnings: list[str] = []
    assert load_latest(tmp_path, warn=warnings.append, or_best=True).counters.agent_steps == 640
    assert warnings == ["there is no other checkpoint, so the best one, of step 640"]
    save_checkpoint(_checkpoint(algorithm, 1280), tmp_path)
    assert load_latest(tmp_path, warn=pytest.fail, or_best=True).counters.agent_steps == 1280


def test_only_damaged_checkpoints_are_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-000000000640.pt").write_text("not one")
    with pytest.raises(RunFolderError, match=r"no checkpoint in .* can be read"):
        load_latest(tmp_path, warn=lambda _: None)


def test_a_write_that_fails_leaves_the_older_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = _algorithm(seed=1)
    save_checkpoint(_checkpoint(algorithm, 640), tmp_path)

    def full_disk(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(_checkpoint(algorithm, 1280), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000000000640.pt"]
