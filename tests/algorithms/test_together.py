"""Learners that learn together from shares of a batch: the same updates as one learner makes with all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncparl.algorithms import A2C, GA3C, IMPALA, PPO, ActorCritic, Rollout, Together, to_torch
from asyncparl.algorithms.rollout import split_columns
from asyncparl.rl import MLPLSTM
from tests.algorithms.models import make_model
from tests.algorithms.rollouts import make_rollout

LIMIT_S = 30
ENDS: dict[str, Any] = {"terminated": ((1, 0), (4, 2)), "truncated": ((0, 1), (3, 0), (2, 4))}
CLIPPED = 0.05
NUM_UPDATES = 4


class Meeting:
    """Adds up between threads, in the order of the learners."""

    def __init__(self, num_learners: int) -> None:
        self._barrier = threading.Barrier(num_learners, timeout=LIMIT_S)
        self._given: list[Tensor] = [torch.empty(0)] * num_learners
        self.sizes: list[int] = []
        """Of what the first learner has added up."""

    def adder(self, index: int) -> Callable[[Tensor], None]:
        def add_up(tensor: Tensor) -> None:
            assert tensor.is_contiguous()
            if index == 0:
                self.sizes.append(tensor.numel())
            self._given[index] = tensor.clone()
            self._barrier.wait()
            total = torch.stack(self._given).sum(0)
            self._barrier.wait()
            tensor.copy_(total)

        return add_up


def learn_together(
    learners: Sequence[ActorCritic], rollouts: Sequence[Rollout[Tensor]]
) -> list[list[dict[str, Tensor]]]:
    """Every learner learns from its columns of each rollout. The metrics of each."""
    num_learners, meeting = len(learners), Meeting(len(learners))

    def learn(index: int) -> list[dict[str, Tensor]]:
        torch.set_num_threads(1)
        learners[index].learn_together(Together(num_learners, index == 0, meeting.adder(index)))
        return [learners[index].learn(split_columns(rollout, num_learners)[index]) for rollout in rollouts]

    with ThreadPoolExecutor(num_learners) as pool:
        return list(pool.map(learn, range(num_learners)))


def batches(num_envs: int = 6, **options: Any) -> list[Rollout[Tensor]]:
    return [to_torch(make_rollout(5, num_envs, seed=seed, **{**ENDS, **options})) for seed in range(NUM_UPDATES)]


def assert_all_learn_what_one_learns(
    make: Callable[[], ActorCritic], num_learners: int, rollouts: Sequence[Rollout[Tensor]]
) -> list[dict[str, Tensor]]:
    """The metrics of the one."""
    alone, together = make(), [make() for _ in range(num_learners)]
    expected = [alone.learn(rollout) for rollout in rollouts]
    for found in learn_together(together, rollouts):
        for one, other in zip(expected, found, strict=True):
            assert one.keys() == other.keys()
            for name in one:
                torch.testing.assert_close(other[name], one[name], rtol=1e-4, atol=1e-4, msg=name)
    first = together[0].model.state_dict()
    for each in together:
        assert (each.agent_steps, each.updates) == (alone.agent_steps, alone.updates)
        for name, tensor in each.model.state_dict().items():
            assert torch.equal(tensor, first[name])  # bit for bit
            torch.testing.assert_close(tensor, alone.model.state_dict()[name], rtol=1e-4, atol=1e-6)
    return expected


@pytest.mark.parametrize("num_learners", [2, 3])
@pytest.mark.parametrize("optimizer", ["rmsprop", "rmsprop_tf", "adam"])
@pytest.mark.parametrize("kind", [IMPALA, A2C, GA3C])
def test_the_updates_are_those_of_one_learner_with_the_whole_batch(
    kind: Any, optimizer: str, num_learners: int
) -> None:
    # The learning rate depends on the steps of all.
    make = lambda: kind(make_model(), optimizer=optimizer, max_grad_norm=CLIPPED, decay_steps=1000)  # noqa: E731
    metrics = assert_all_learn_what_one_learns(make, num_learners, batches())
    assert all(each["grad_norm"] > 10 * CLIPPED for each in metrics)
    assert len({float(each["learning_rate"]) for each in metrics}) == NUM_UPDATES


@pytest.mark.parametrize("kind", [A2C, GA3C])
def test_advantages_are_normalised_over_the_batches_of_all(kind: Any) -> None:
    make = lambda: kind(make_model(), normalise_advantages=True, max_grad_norm=CLIPPED)  # noqa: E731
    assert_all_learn_what_one_learns(make, 3, batches())


def test_ppo_makes_its_updates_together_too() -> None:
    make = lambda: PPO(make_model(), num_minibatches=1, max_grad_norm=CLIPPED, decay_steps=1000)  # noqa: E731
    assert_all_learn_what_one_learns(make, 3, batches())


def test_minibatches_are_of_every_share_and_all_learners_stay_equal() -> None:
    learners = [PPO(make_model(), num_minibatches=4) for _ in range(3)]
    learn_together(learners, batches())
    assert {(each.updates, each.agent_steps) for each in learners} == {(NUM_UPDATES * 12, NUM_UPDATES * 30)}
    for each in learners[1:]:
        for one, other in zip(learners[0].model.parameters(), each.model.parameters(), strict=True):
            assert torch.equal(one, other)


def test_a_policy_with_a_memory_learns_together_as_well() -> None:
    def make() -> IMPALA:
        torch.manual_seed(0)
        return IMPALA(MLPLSTM(obs_size=4, num_actions=3, num_units=8), max_grad_norm=CLIPPED)

    assert_all_learn_what_one_learns(make, 2, batches(state_size=16))


def test_each_may_learn_from_parts_at_the_same_time() -> None:
    def make() -> IMPALA:
        algorithm = IMPALA(make_model())
        algorithm.use_threads(map, 2)
        return algorithm

    assert_all_learn_what_one_learns(make, 2, batches())


def test_a_parameter_that_only_one_learner_needs_is_learned_by_all() -> None:
    class Switched(torch.nn.Module):
        """Where the first observation is large, the policy has a bonus."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = make_model()
            self.bonus = torch.nn.Parameter(torch.ones(3))
            self.unused = torch.nn.Parameter(torch.ones(3))

        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            logits, values = self.inner(obs)
            return (logits + self.bonus if float(obs[0, 0]) > 100 else logits), values

    rollout = to_torch(make_rollout(5, 4))
    rollout.obs[:, 2, 0] = 1000.0  # in the share of the second
    learners = [IMPALA(Switched()) for _ in range(2)]
    learn_together(learners, [rollout])
    for learner in learners:
        weights = learner.model.state_dict()
        assert not torch.equal(weights["bonus"], torch.ones(3))
        assert learner.model.get_parameter("unused").grad is None
    assert torch.equal(*(learner.model.state_dict()["bonus"] for learner in learners))


def test_what_a_model_keeps_in_buffers_is_that_of_the_first_learner() -> None:
    class Normalising(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4)
            self.inner = make_model()

        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            logits, values = self.inner(self.norm(obs))
            return logits, values

    learners = [IMPALA(Normalising()) for _ in range(2)]
    learn_together(learners, batches())
    means = [learner.model.get_buffer("norm.running_mean") for learner in learners]
    assert torch.equal(*means)
    assert not torch.equal(means[0], torch.zeros(4))


def test_one_operation_adds_up_a_whole_update() -> None:
    meeting, algorithm = Meeting(1), IMPALA(make_model())
    algorithm.learn_together(Together(1, True, meeting.adder(0)))
    algorithm.learn(batches()[0])
    (size,) = meeting.sizes
    assert size >= sum(parameter.numel() for parameter in algorithm.model.parameters())


def test_a_learner_that_could_not_add_up_is_as_it_was() -> None:
    def fail(_: Tensor) -> None:
        raise ConnectionError("they are gone")

    algorithm = IMPALA(make_model())
    algorithm.learn_together(Together(2, False, fail))
    before = algorithm.get_weights()
    with pytest.raises(ConnectionError):
        algorithm.learn(batches()[0])
    assert algorithm.updates == 0
    assert all((weights == before[name]).all() for name, weights in algorithm.get_weights().items())
    algorithm.learn_together(None)  # and it can go on alone
    algorithm.learn(batches()[0])
    assert algorithm.updates == 1
