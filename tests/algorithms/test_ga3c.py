from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from asyncparl.algorithms import A2C, GA3C, to_torch
from tests.algorithms.models import Table, make_model, slow_advantages, slow_loss
from tests.algorithms.rollouts import make_rollout

ENDS: dict[str, Any] = {"terminated": ((1, 0), (4, 2)), "truncated": ((0, 1), (3, 0))}


@pytest.mark.parametrize("log_epsilon", [0.0, 1e-6, 0.3])
def test_loss_and_gradients_are_those_of_a_slow_implementation(log_epsilon: float) -> None:
    rollout = to_torch(make_rollout(5, 3, **ENDS))
    model, twin = make_model(), make_model()
    metrics = GA3C(model, discount=0.9, log_epsilon=log_epsilon).learn(rollout)
    loss = slow_loss(twin, rollout, discount=0.9, lambda_=1.0, value_cost=1.0, log_epsilon=log_epsilon)
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    torch.testing.assert_close(metrics["total_loss"], loss.detach(), rtol=1e-4, atol=1e-4)
    for old, new, gradient in zip(twin.parameters(), model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new.grad, gradient, rtol=1e-3, atol=1e-4)  # not clipped
        expected = old - 3e-4 * gradient / (0.01 * gradient.square() + 0.1).sqrt()
        torch.testing.assert_close(new.detach(), expected.detach(), rtol=1e-4, atol=1e-6)


def test_advantages_are_the_backward_recursion_of_a3c() -> None:
    # R <- 0 after a termination, V(what follows) after a truncation and at the end; then R <- r + gamma * R, backwards.
    rollout = to_torch(make_rollout(5, 3, **ENDS))
    model = make_model()
    advantages = slow_advantages(model, rollout, discount=0.9, lambda_=1.0)
    with torch.no_grad():
        values = model(rollout.obs.flatten(0, 1))[1].view(5, 3)
        bootstrap, final = model(rollout.bootstrap_obs)[1], model(rollout.final_obs)[1]
    final_values = {tuple(step): value for step, value in zip(rollout.final_steps.tolist(), final, strict=True)}
    for b in range(3):
        total = bootstrap[b]
        for t in reversed(range(5)):
            if rollout.terminated[t, b]:
                total = torch.zeros(())
            total = rollout.rewards[t, b] + 0.9 * final_values.get((t, b), total)
            assert total - values[t, b] == pytest.approx(float(advantages[t, b]), abs=1e-5)


def slope_of_an_action_that_became_impossible(log_epsilon: float, logit: float) -> float:
    """d(loss) / d(its logit), for one step with advantage 1."""
    model = Table((0.0, logit))
    rollout = make_rollout(1, 1, num_actions=2, terminated=((0, 0),))
    rollout.actions[:], rollout.rewards[:] = 1, 1.0
    GA3C(model, log_epsilon=log_epsilon, entropy_cost=0.0).learn(to_torch(rollout))
    assert model.logits.grad is not None
    return float(model.logits.grad[1])


def test_an_action_that_became_impossible_pulls_no_more() -> None:
    # d(-log(pi + e)) / d(logit) = -pi * (1 - pi) / (pi + e), with pi = sigmoid(logit).
    for logit in (0.0, -5.0, -13.8, -50.0, -200.0):
        pi = 1.0 / (1.0 + math.exp(-logit))
        slope = slope_of_an_action_that_became_impossible(1e-6, logit)
        assert slope == pytest.approx(-pi * (1.0 - pi) / (pi + 1e-6), rel=1e-4, abs=1e-12)
    assert slope_of_an_action_that_became_impossible(0.0, -200.0) == pytest.approx(-1.0)


def test_without_its_epsilon_it_is_a2c() -> None:
    rollout = to_torch(make_rollout(5, 3, **ENDS))
    settings: dict[str, Any] = {"optimizer": "adam", "value_cost": 0.5, "learning_rate": 0.01, "max_grad_norm": 40.0}
    one, other = GA3C(make_model(), log_epsilon=0.0, **settings), A2C(make_model(), **settings)
    for _ in range(3):
        one.learn(rollout)
        other.learn(rollout)
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("log_epsilon", [-0.1, 1.0, math.nan])
def test_an_epsilon_that_is_no_small_number_is_refused(log_epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"^log_epsilon is .*, expected a number from 0 to less than 1$"):
        GA3C(make_model(), log_epsilon=log_epsilon)


def test_a_state_of_a2c_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^the state is of A2C, not of GA3C$"):
        GA3C(make_model()).load_state_dict(A2C(make_model()).state_dict())
