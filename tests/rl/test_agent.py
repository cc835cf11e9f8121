from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncparl.algorithms import IMPALA, to_torch
from asyncparl.rl import MLP, Agent, Model
from tests.algorithms.rollouts import make_rollout

OBS = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


def make_agent(seed: int = 0, hidden: int = 8) -> Agent:
    torch.manual_seed(seed)
    return Agent(IMPALA(MLP(4, 3, hidden=(hidden,)), decay_steps=1000, momentum=0.5))


def learn(agent: Agent, seeds: range) -> None:
    for seed in seeds:
        agent.learn(make_rollout(5, 3, seed=seed, truncated=((2, 1),)))


def draws(agent: Agent) -> list[float]:
    """One number from each generator that a training run may use."""
    return [*agent.sample(OBS)[0].tolist(), torch.rand(()).item(), np.random.random(), random.random()]  # noqa: NPY002


def assert_equal_weights(one: Agent, other: Agent) -> None:
    for (name, array), (other_name, other_array) in zip(
        one.get_weights().items(), other.get_weights().items(), strict=True
    ):
        assert name == other_name
        np.testing.assert_array_equal(array, other_array)


def test_arrays_go_in_and_come_out() -> None:
    agent = make_agent()
    actions, log_probs = agent.sample(OBS)
    assert actions.shape == log_probs.shape == (6,)
    assert str(actions.dtype) == "int64"
    assert str(log_probs.dtype) == "float32"
    best = agent.predict(OBS)
    logits, _ = agent.algorithm.model(torch.from_numpy(OBS))
    np.testing.assert_array_equal(best, logits.argmax(-1))
    assert best.dtype == np.int64


def test_read_only_observations_are_taken() -> None:
    obs = OBS.copy()
    obs.flags.writeable = False
    assert make_agent().predict(obs).shape == (6,)


def test_learning_from_arrays_is_learning_from_tensors() -> None:
    one, other = make_agent(), make_agent()
    rollout = make_rollout(5, 3)
    metrics = one.learn(rollout)
    assert torch.equal(metrics["total_loss"], other.learn(to_torch(rollout))["total_loss"])
    assert_equal_weights(one, other)


def test_restoring_continues_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "agent.pt"
    agent = make_agent()
    learn(agent, range(3))
    agent.save(path)
    learn(agent, range(3, 6))
    expected = draws(agent)

    other = make_agent(seed=5)
    torch.rand(100), np.random.random(100), random.random()  # noqa: NPY002
    other.restore(path)
    assert (other.algorithm.updates, other.algorithm.agent_steps) == (3, 45)
    learn(other, range(3, 6))
    assert_equal_weights(other, agent)
    assert draws(other) == expected


def test_a_file_holds_no_code(tmp_path: Path) -> None:
    agent = make_agent()
    learn(agent, range(1))
    agent.save(tmp_path / "agent.pt")
    state = torch.load(tmp_path / "agent.pt", weights_only=True)
    assert state["learner"]["updates"] == 1


def test_what_was_saved_does_not_change_with_further_learning(tmp_path: Path) -> None:
    agent = make_agent()
    state = agent.algorithm.state_dict()
    before = state["model"]["policy.0.weight"].clone()
    learn(agent, range(1))
    assert torch.equal(state["model"]["policy.0.weight"], before)


def test_a_save_that_fails_leaves_the_former_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.pt"
    agent = make_agent()
    agent.save(path)
    before = path.read_bytes()
    learn(agent, range(1))

    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        agent.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_saving_again_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.pt"
    agent = make_agent()
    agent.save(path)
    learn(agent, range(2))
    agent.save(str(path))
    other = make_agent()
    other.restore(str(path))
    assert other.algorithm.updates == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent.pt"
    with pytest.raises(FileNotFoundError, match=f"^no checkpoint at {path}$"):
        make_agent().restore(path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 cut off", b"\x80\x02}q\x00."])
def test_a_file_that_is_no_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path} is not an asyncparl checkpoint$"):
        make_agent().restore(path)


def test_a_truncated_checkpoint_and_other_torch_files_are_named(tmp_path: Path) -> None:
    whole, cut, weights = (tmp_path / name for name in ("whole.pt", "cut.pt", "weights.pt"))
    agent = make_agent()
    agent.save(whole)
    cut.write_bytes(whole.read_bytes()[:-100])
    torch.save(agent.algorithm.model.state_dict(), weights)
    for path in (cut, weights):
        with pytest.raises(ValueError, match=f"^{path} is not an asyncparl checkpoint$"):
            agent.restore(path)


def test_a_checkpoint_of_another_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.pt"
    torch.save({"format_version": 99}, path)
    with pytest.raises(ValueError, match=rf"^{path} has format 99, expected 1$"):
        make_agent().restore(path)


def test_a_checkpoint_of_another_model_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent.pt"
    wide = make_agent(hidden=16)
    learn(wide, range(1))
    wide.save(path)
    agent, twin = make_agent(), make_agent()
    torch.manual_seed(3)
    with pytest.raises(ValueError, match=rf"^{path} cannot be restored: weights do not fit: 'policy\.0\.weight' has"):
        agent.restore(path)
    assert_equal_weights(agent, twin)
    assert agent.algorithm.updates == 0
    after = torch.rand(())
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(()))


class Dropping(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.dropout(self.layer(obs))
        return logits, logits.sum(-1)


def test_train_and_eval_reach_every_layer() -> None:
    agent = Agent(IMPALA(Dropping()))
    obs = torch.ones(100, 4)

    def is_random() -> bool:
        return not torch.equal(agent.algorithm.model(obs)[1], agent.algorithm.model(obs)[1])

    assert (agent.training, is_random()) == (True, True)
    agent.eval()
    assert (agent.training, is_random()) == (False, False)
    agent.train()
    assert (agent.training, is_random()) == (True, True)


def test_weights_move_between_agents() -> None:
    one, other = make_agent(0), make_agent(1)
    other.set_weights(one.get_weights())
    assert_equal_weights(one, other)
    with pytest.raises(ValueError, match=r"^weights do not fit: missing"):
        other.set_weights({})
