"""PPO against hand-worked cases, against A2C where they are the same, and against plain loops."""

from __future__ import annotations

import copy
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncparl.algorithms import A2C, PPO, Rollout, to_torch
from asyncparl.algorithms.losses import clipped_policy_gradient_loss
from asyncparl.rl import MLPLSTM
from tests.algorithms.models import Table, make_model, slow_advantages
from tests.algorithms.rollouts import make_rollout

ENDS: dict[str, Any] = {"terminated": ((1, 0), (4, 2)), "truncated": ((0, 1), (3, 0))}
NUM_STEPS, NUM_ENVS = 5, 3


def on_policy(algorithm: PPO, seed: int = 0) -> Rollout[Tensor]:
    """A rollout that the algorithm's own weights have played."""
    rollout = to_torch(make_rollout(NUM_STEPS, NUM_ENVS, seed=seed, **ENDS))
    actions, log_probs = algorithm.sample(rollout.obs.flatten(0, 1))
    shape = (NUM_STEPS, NUM_ENVS)
    return rollout._replace(actions=actions.view(shape), behaviour_log_probs=log_probs.view(shape))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.05, 2.0, -2.1, -2.1),
        (1.5, 2.0, -2.2, 0.0),  # has gained enough
        (0.5, 2.0, -1.0, -1.0),  # has moved the wrong way, and may come back
        (1.5, -2.0, 3.0, 3.0),
        (0.5, -2.0, 1.8, 0.0),
    ],
)
def test_the_loss_by_hand(ratio: float, advantage: float, loss: float, slope: float) -> None:
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    total = clipped_policy_gradient_loss(log_ratio, torch.tensor([advantage]), clip_range=0.1)
    assert total.item() == pytest.approx(loss)
    total.backward()  # d ratio / d log ratio = ratio
    assert log_ratio.grad is not None and log_ratio.grad.item() == pytest.approx(slope)


def test_an_update_by_hand() -> None:
    # As in test_a2c.py: V = 0.5, gamma = 0.5, lambda = 1: the advantages are 1.5, 1.5 and 3.75. The policy that acted
    # gave the three actions half, double and equal probability: ratios of 2, 0.5 and 1.
    rollout = make_rollout(3, 1, num_actions=2, terminated=((1, 0),))
    rollout = rollout._replace(
        actions=np.array([[0], [1], [1]]),
        rewards=np.array([[1.0], [2.0], [4.0]], np.float32),
        behaviour_log_probs=np.log(np.array([[0.25], [1.0], [0.5]], np.float32)),
    )
    model = Table(value=0.5)
    algorithm = PPO(
        model, num_epochs=1, num_minibatches=1, discount=0.5, lambda_=1.0, normalise_advantages=False, clip_range=0.2,
        max_grad_norm=math.inf, value_cost=0.5,
    )  # fmt: skip
    metrics = algorithm.learn(to_torch(rollout))
    assert metrics["pg_loss"].item() == pytest.approx(-(1.2 * 1.5 + 0.5 * 1.5 + 1.0 * 3.75) / 3)
    assert metrics["value_loss"].item() == pytest.approx(0.5 * (1.5**2 + 1.5**2 + 3.75**2) / 3)
    assert metrics["entropy"].item() == pytest.approx(math.log(2.0))
    assert metrics["clip_fraction"].item() == pytest.approx(2 / 3)
    assert metrics["mean_abs_log_rho"].item() == pytest.approx(2 * math.log(2.0) / 3)
    # d/d(logit 1): ratio * A * (a - 1/2); the first is clipped. The entropy is flat at its top.
    assert model.logits.grad is not None and model.value.grad is not None
    assert model.logits.grad[1].item() == pytest.approx(-(0.5 * 1.5 * 0.5 + 1.0 * 3.75 * 0.5) / 3)
    assert model.value.grad.item() == pytest.approx(-0.5 * (1.5 + 1.5 + 3.75) / 3)


@pytest.mark.parametrize("normalise", [False, True])
def test_one_update_from_fresh_experience_is_that_of_a2c_but_a_mean(normalise: bool) -> None:
    settings: dict[str, Any] = {"normalise_advantages": normalise, "lambda_": 0.9, "max_grad_norm": math.inf}
    ppo = PPO(make_model(), num_epochs=1, num_minibatches=1, value_cost=0.5, **settings)
    a2c = A2C(make_model(), value_cost=0.5, **settings)
    rollout = on_policy(ppo)
    ours, theirs = ppo.learn(rollout), a2c.learn(rollout)
    for one, other in zip(ppo.model.parameters(), a2c.model.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad * NUM_STEPS * NUM_ENVS, other.grad, rtol=1e-4, atol=1e-5)
    assert ours["value_loss"].item() == pytest.approx(theirs["value_loss"].item() / (NUM_STEPS * NUM_ENVS))
    assert ours["clip_fraction"].item() == 0


def slow_learn(model: nn.Module, rollout: Rollout[Tensor], order: torch.Generator, **settings: Any) -> None:
    """What PPO does to a model, with loops over the steps. Adam, three epochs of four minibatches."""
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"])
    advantages = slow_advantages(model, rollout, discount=0.99, lambda_=0.95)
    with torch.no_grad():
        targets = advantages + model(rollout.obs.flatten(0, 1))[1].view(NUM_STEPS, NUM_ENVS)
    weights = (advantages - advantages.mean()) / advantages.std(unbiased=False)
    for _ in range(3):
        shuffled = torch.randperm(NUM_STEPS * NUM_ENVS, generator=order).tolist()
        for start, stop in ((0, 4), (4, 8), (8, 12), (12, 15)):
            losses = []
            for t, b in (divmod(index, NUM_ENVS) for index in shuffled[start:stop]):
                logits, values = model(rollout.obs[t, b][None])
                log_probs = logits[0].log_softmax(0)
                ratio = (log_probs[rollout.actions[t, b]] - rollout.behaviour_log_probs[t, b]).exp()
                weight = float(weights[t, b])
                gain = min(ratio * weight, ratio.clamp(0.9, 1.1) * weight)
                entropy = -(log_probs.exp() * log_probs).sum()
                losses.append(-gain + (values[0] - float(targets[t, b])) ** 2 - 0.01 * entropy)  # eq. 9
            optimizer.zero_grad()
            torch.stack(losses).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
            optimizer.step()


def test_all_updates_are_those_of_a_slow_implementation() -> None:
    settings: dict[str, Any] = {"learning_rate": 0.02, "max_grad_norm": 0.5}
    algorithm, slow = PPO(make_model(), seed=7, **settings), make_model()
    rollout = on_policy(algorithm)
    before = copy.deepcopy(slow.state_dict())
    metrics = algorithm.learn(rollout)
    slow_learn(slow, rollout, torch.Generator().manual_seed(7), **settings)
    for name, theirs in slow.state_dict().items():
        assert not torch.allclose(theirs, before[name], atol=0.01)
        torch.testing.assert_close(algorithm.model.state_dict()[name], theirs, rtol=1e-3, atol=1e-4)
    assert (algorithm.updates, algorithm.agent_steps) == (12, 15)
    assert metrics["clip_fraction"] > 0


def test_parts_of_a_minibatch_in_threads_make_the_same_updates() -> None:
    whole, split = PPO(make_model()), PPO(make_model())
    rollout = on_policy(whole)
    with ThreadPoolExecutor(3) as pool:
        split.use_threads(pool.map, 3)
        expected, metrics = whole.learn(rollout), split.learn(rollout)
    for name, value in expected.items():
        torch.testing.assert_close(metrics[name], value, rtol=1e-4, atol=1e-5)
    for one, other in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_a_copy_goes_on_in_the_same_order() -> None:
    first = PPO(make_model(), seed=1)
    first.learn(on_policy(first))
    second = PPO(make_model(5), seed=2)
    second.load_state_dict(first.state_dict())
    rollout = on_policy(first, seed=1)
    for algorithm in (first, second):
        algorithm.learn(rollout)
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_it_cannot_learn_from_is_refused() -> None:
    with pytest.raises(ValueError, match="MLPLSTM has a memory, and PPO learns from single steps in any order"):
        PPO(MLPLSTM(4, 3))
    algorithm = PPO(make_model(), num_minibatches=16)
    before = copy.deepcopy(algorithm.model.state_dict())
    with pytest.raises(ValueError, match="15 steps cannot be cut into 16 minibatches"):
        algorithm.learn(to_torch(make_rollout(NUM_STEPS, NUM_ENVS, **ENDS)))
    assert all(torch.equal(value, before[name]) for name, value in algorithm.model.state_dict().items())
    assert (algorithm.updates, algorithm.agent_steps) == (0, 0)
