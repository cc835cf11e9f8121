from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncparl.algorithms import A2C, IMPALA, Rollout, to_torch
from tests.algorithms.models import Table, make_model, slow_loss
from tests.algorithms.rollouts import make_rollout

ENDS: dict[str, Any] = {"terminated": ((1, 0), (4, 2)), "truncated": ((0, 1), (3, 0))}


def hand_rollout() -> Rollout[Tensor]:
    """Three steps of one environment: rewards 1, 2, 4; the episode ends for real after the second."""
    rollout = make_rollout(3, 1, num_actions=2, terminated=((1, 0),))
    actions, rewards = np.array([[0], [1], [1]]), np.array([[1.0], [2.0], [4.0]], np.float32)
    return to_torch(rollout._replace(actions=actions, rewards=rewards))


def test_an_update_by_hand() -> None:
    # V = 0.5 everywhere, gamma = 0.5, lambda = 1:
    #   step 2: 4 + 0.5 * 0.5 - 0.5 = 3.75        (bootstrap)
    #   step 1: 2 + 0 - 0.5 = 1.5                 (terminated: nothing follows, nothing is carried)
    #   step 0: 1 + 0.5 * 2 - 0.5 = 1.5           (to the end of the episode)
    model = Table(value=0.5)
    metrics = A2C(model, discount=0.5).learn(hand_rollout())
    log_2 = math.log(2.0)
    assert metrics["pg_loss"].item() == pytest.approx(log_2 * (3.75 + 1.5 + 1.5))
    assert metrics["value_loss"].item() == pytest.approx(0.5 * (3.75**2 + 1.5**2 + 1.5**2))
    assert metrics["entropy_loss"].item() == pytest.approx(-3 * log_2)
    # d/d(logit 1) of -sum(A * log pi(a)) = -sum(A * (a - 1/2)); the entropy is flat at its top.
    assert model.logits.grad is not None and model.value.grad is not None
    assert model.logits.grad[1].item() == pytest.approx(-(-0.5 * 1.5 + 0.5 * 1.5 + 0.5 * 3.75))
    assert model.value.grad.item() == pytest.approx(-0.5 * (3.75 + 1.5 + 1.5))


def test_a_truncated_episode_is_worth_its_last_observation_and_a_terminated_one_nothing() -> None:
    class Reading(Table):
        """The value is the first number of the observation."""

        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            return self.logits.expand(len(obs), -1), obs[:, 0] + 0.0 * self.value

    rollout = to_torch(make_rollout(2, 2, (1,), num_actions=2, truncated=((0, 0),), terminated=((0, 1),)))
    rollout = rollout._replace(
        obs=torch.tensor([[[1.0], [2.0]], [[10.0], [20.0]]]),
        bootstrap_obs=torch.tensor([[100.0], [200.0]]),
        final_obs=torch.tensor([[5.0]]),
        rewards=torch.zeros(2, 2),
    )
    model = Reading()
    metrics = A2C(model, discount=0.5).learn(rollout)
    # Targets: 0.5 * 5 and 0 where an episode ends, 50 and 100 from the bootstrap.
    errors = [2.5 - 1.0, 0.0 - 2.0, 50.0 - 10.0, 100.0 - 20.0]
    assert metrics["value_loss"].item() == pytest.approx(0.5 * sum(error**2 for error in errors))


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("lambda_", [1.0, 0.7, 0.0])
def test_loss_and_gradients_are_those_of_a_slow_implementation(lambda_: float, normalise: bool) -> None:
    rollout = to_torch(make_rollout(5, 3, **ENDS))
    model, twin = make_model(), make_model()
    algorithm = A2C(model, discount=0.9, lambda_=lambda_, normalise_advantages=normalise, max_grad_norm=math.inf)
    metrics = algorithm.learn(rollout)
    loss = slow_loss(twin, rollout, discount=0.9, lambda_=lambda_, value_cost=0.5, normalise=normalise)
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    torch.testing.assert_close(metrics["total_loss"], loss.detach(), rtol=1e-4, atol=1e-4)
    for new, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new.grad, gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("optimizer", "settings", "step"),
    [
        ("adam", {}, lambda g: g / (g.abs() + 1e-8)),
        ("rmsprop", {"rms_epsilon": 0.1}, lambda g: g / ((0.01 * g.square()).sqrt() + 0.1)),
        ("rmsprop_tf", {"rms_epsilon": 0.1}, lambda g: g / (0.01 * g.square() + 0.1).sqrt()),
    ],
)
def test_one_update_is_one_step_of_the_optimizer(optimizer: Any, settings: dict[str, Any], step: Any) -> None:
    rollout = to_torch(make_rollout(5, 3, **ENDS))
    model, twin = make_model(), make_model()
    A2C(model, optimizer=optimizer, learning_rate=0.01, max_grad_norm=0.5, **settings).learn(rollout)
    for old, new in zip(twin.parameters(), model.parameters(), strict=True):
        assert new.grad is not None  # clipped
        torch.testing.assert_close(new.detach(), (old - 0.01 * step(new.grad)).detach(), rtol=1e-4, atol=1e-6)


def on_policy(algorithm: A2C | IMPALA, seed: int = 0) -> Rollout[Tensor]:
    """A rollout that the algorithm's own weights have played."""
    rollout = to_torch(make_rollout(5, 3, seed=seed, **ENDS))
    actions, log_probs = algorithm.sample(rollout.obs.flatten(0, 1))
    return rollout._replace(actions=actions.view(5, 3), behaviour_log_probs=log_probs.view(5, 3))


def test_without_lag_it_is_impala() -> None:
    a2c, impala = (kind(make_model(), optimizer="rmsprop", learning_rate=0.01) for kind in (A2C, IMPALA))
    for seed in range(3):
        rollout = on_policy(a2c, seed)
        ours, theirs = a2c.learn(rollout), impala.learn(rollout)
        torch.testing.assert_close(ours["total_loss"], theirs["total_loss"], rtol=1e-5, atol=1e-4)
    for name, array in a2c.get_weights().items():
        np.testing.assert_allclose(array, impala.get_weights()[name], rtol=1e-4, atol=1e-5)


def test_the_lag_that_it_does_not_correct_is_told() -> None:
    algorithm = A2C(make_model())
    assert algorithm.learn(on_policy(algorithm))["mean_abs_log_rho"] < 1e-6
    rollout = on_policy(algorithm)
    algorithm.learn(rollout)
    assert algorithm.learn(rollout)["mean_abs_log_rho"] > 1e-4


def test_the_probabilities_of_the_past_do_not_count() -> None:
    rollout = to_torch(make_rollout(5, 3, **ENDS))
    models = [make_model(), make_model()]
    for model, shift in zip(models, (0.0, -3.0), strict=True):
        A2C(model).learn(rollout._replace(behaviour_log_probs=rollout.behaviour_log_probs + shift))
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_a_reward_is_credited_to_the_action_at_its_own_index(shift: int) -> None:
    rollout = make_rollout(num_steps=64, num_envs=8, num_actions=2)
    rewards = np.roll(np.where(rollout.actions == 1, 1.0, -1.0).astype(np.float32), shift, axis=0)
    model = Table()
    A2C(model, discount=0.0, entropy_cost=0.0, max_grad_norm=math.inf).learn(
        to_torch(rollout._replace(rewards=rewards))
    )
    assert model.logits.grad is not None
    slope = float(model.logits.grad[1])
    assert slope == -256.0 if shift == 0 else abs(slope) < 64.0


def test_normalised_advantages_change_the_policy_gradient_only() -> None:
    rollout = to_torch(make_rollout(5, 3, **ENDS))
    plain, normalised = (A2C(make_model(), normalise_advantages=on).learn(rollout) for on in (False, True))
    assert torch.equal(plain["value_loss"], normalised["value_loss"])
    assert not torch.isclose(plain["pg_loss"], normalised["pg_loss"])


def test_metrics_say_what_they_are_called() -> None:
    rollout = to_torch(make_rollout(5, 3, **ENDS))
    model = make_model()
    with torch.no_grad():
        logits, values = model(rollout.obs.flatten(0, 1))
    log_probs = logits.view(5, 3, 3).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    log_rhos = log_probs.gather(-1, rollout.actions[..., None])[..., 0] - rollout.behaviour_log_probs
    metrics = A2C(model, learning_rate=0.25, value_cost=0.3, entropy_cost=0.2).learn(rollout)
    torch.testing.assert_close(metrics["entropy"], entropy.mean())
    torch.testing.assert_close(metrics["entropy_loss"], -entropy.sum())
    torch.testing.assert_close(metrics["mean_abs_log_rho"], log_rhos.abs().mean())
    torch.testing.assert_close(metrics["mean_value"], values.mean())
    assert metrics["learning_rate"] == 0.25
    total = metrics["pg_loss"] + 0.3 * metrics["value_loss"] + 0.2 * metrics["entropy_loss"]
    torch.testing.assert_close(metrics["total_loss"], total)
    assert all(tensor.shape == () and not tensor.requires_grad for tensor in metrics.values())


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "rmsprop_tf"])
def test_a_state_continues_learning_bit_for_bit(optimizer: Any) -> None:
    rollouts = [to_torch(make_rollout(5, 3, seed=seed, **ENDS)) for seed in range(4)]
    algorithm = A2C(make_model(), optimizer=optimizer, decay_steps=1000)
    for rollout in rollouts[:2]:
        algorithm.learn(rollout)
    state = algorithm.state_dict()
    for rollout in rollouts[2:]:
        algorithm.learn(rollout)

    other = A2C(make_model(seed=9), optimizer=optimizer, learning_rate=1.0)
    other.load_state_dict(state)
    for rollout in rollouts[2:]:
        other.learn(rollout)
    for name, array in algorithm.get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], array)


def test_a_state_of_another_algorithm_or_optimizer_is_refused() -> None:
    algorithm = A2C(make_model())
    with pytest.raises(ValueError, match=r"^the state is of IMPALA, not of A2C$"):
        algorithm.load_state_dict(IMPALA(make_model()).state_dict())
    with pytest.raises(ValueError, match=r"^the state is of another optimizer than Adam$"):
        algorithm.load_state_dict(A2C(make_model(), optimizer="rmsprop").state_dict())
    assert algorithm.updates == 0


def test_a_rollout_of_the_wrong_shape_is_refused_before_anything_changes() -> None:
    algorithm = A2C(make_model())
    rollout = to_torch(make_rollout(5, 5))
    with pytest.raises(ValueError, match=r"^rollout\.rewards is float32 \[5, 4\], expected float32 \[5, 5\]$"):
        algorithm.learn(rollout._replace(rewards=rollout.rewards[:, :4]))
    assert algorithm.updates == 0
