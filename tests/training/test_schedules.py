"""What changes over a run: where it stands follows from the agent steps, and a resumed run goes on exactly there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncparl.algorithms import ActorCritic, Rollout
from asyncparl.rl import MLP
from asyncparl.training import TrainingConfig
from asyncparl.training.build import restore_algorithm
from asyncparl.training.presets import ALGORITHM_NAMES
from asyncparl.training.recipes import make_algorithm

STEPS = 10  # of one update


def _config(algorithm: Any = "impala", **settings: Any) -> TrainingConfig:
    return TrainingConfig(**({"env": "CartPole-v1", "algorithm": algorithm, "steps": 100} | settings))


def _algorithm(config: TrainingConfig) -> ActorCritic:
    torch.manual_seed(1)
    return make_algorithm(MLP(3, 2, hidden=(4,)), config)


def _rollout(number: int) -> Rollout[torch.Tensor]:
    """Five steps of two environments."""
    generator = torch.Generator().manual_seed(number)
    obs = torch.randn(5, 2, 3, generator=generator)
    actions = torch.randint(2, (5, 2), generator=generator)
    rewards = torch.randn(5, 2, generator=generator)
    no = torch.zeros(5, 2, dtype=torch.bool)
    no_steps = torch.empty(0, 2, dtype=torch.int64)
    return Rollout(obs, actions, torch.full((5, 2), -0.7), rewards, no, no, obs[-1], torch.empty(0, 3), no_steps)


def _learn(algorithm: ActorCritic, numbers: range) -> list[tuple[float, float]]:
    """The learning rate and the weight of the entropy in each update."""
    updates = [algorithm.learn(_rollout(number)) for number in numbers]
    return [(float(metrics["learning_rate"]), float(metrics["entropy_cost"])) for metrics in updates]


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
def test_both_go_in_a_line_by_agent_steps_and_stay_at_the_end(algorithm: str) -> None:
    config = _config(
        algorithm, learning_rate=0.1, anneal_learning_rate=True, final_learning_rate=0.02, entropy_cost=0.04,
        final_entropy_cost=0.0, schedule_steps=4 * STEPS,
    )  # fmt: skip
    used = _learn(_algorithm(config), range(6))
    expected = [(0.1, 0.04), (0.08, 0.03), (0.06, 0.02), (0.04, 0.01), (0.02, 0.0), (0.02, 0.0)]
    assert used == [pytest.approx(pair, abs=1e-7) for pair in expected]


def test_without_a_word_they_are_constant_or_end_with_the_run() -> None:
    assert (
        _learn(_algorithm(_config(learning_rate=0.1, entropy_cost=0.04)), range(2)) == [pytest.approx((0.1, 0.04))] * 2
    )
    annealed = _config(learning_rate=0.1, anneal_learning_rate=True, entropy_cost=0.04)
    assert _learn(_algorithm(annealed), range(2))[1] == pytest.approx((0.09, 0.04))


def test_the_weight_of_the_entropy_is_that_in_the_loss() -> None:
    algorithm = _algorithm(_config(entropy_cost=0.5, final_entropy_cost=0.1, schedule_steps=2 * STEPS))
    for weight in (0.5, 0.3, 0.1):
        metrics = algorithm.learn(_rollout(1))
        parts = metrics["pg_loss"] + 0.5 * metrics["value_loss"] + weight * metrics["entropy_loss"]
        torch.testing.assert_close(metrics["total_loss"], parts)


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
def test_a_resumed_run_is_bit_for_bit_the_one_that_went_on(algorithm: str) -> None:
    config = _config(algorithm, anneal_learning_rate=True, final_learning_rate=1e-5, final_entropy_cost=0.001)
    config = TrainingConfig.from_json(config.to_json())  # as it is saved
    whole = _algorithm(config)
    used = _learn(whole, range(8))
    first = _algorithm(config)
    _learn(first, range(5))
    second = _algorithm(config)
    restore_algorithm(second, first.state_dict(), config)
    assert _learn(second, range(5, 8)) == used[5:]
    assert all((second.get_weights()[name] == each).all() for name, each in whole.get_weights().items())


def test_a_state_from_before_there_were_such_schedules_is_taken() -> None:
    algorithm = _algorithm(_config(entropy_cost=0.04))
    state = algorithm.state_dict()
    del state["entropy_schedule"], state["schedule"]["end"]
    algorithm.load_state_dict(state)
    assert algorithm.entropy_cost == 0.04


def test_a_final_learning_rate_means_that_it_is_annealed() -> None:
    assert TrainingConfig.for_this_machine("CartPole-v1", device="cpu", final_learning_rate=1e-5).anneal_learning_rate
