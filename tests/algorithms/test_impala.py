from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncparl.algorithms import IMPALA, Rollout, to_torch
from asyncparl.rl.nets import MLP, AtariShallow
from tests.algorithms.models import Table, make_model
from tests.algorithms.rollouts import make_rollout, slow_vtrace

ENDS: dict[str, Any] = {"terminated": ((1, 0), (4, 2)), "truncated": ((0, 1), (3, 0))}


def plain_loss(model: nn.Module, rollout: Rollout[Tensor], discount: float) -> Tensor:
    """The loss of the paper, step by step, with the default costs and bounds."""
    num_steps, num_envs = rollout.rewards.shape
    final_obs = {tuple(step): obs for step, obs in zip(rollout.final_steps.tolist(), rollout.final_obs, strict=True)}
    log_probs, values = {}, {}
    log_rhos, old_values, next_values = (np.zeros((num_steps, num_envs)) for _ in range(3))
    entropy = torch.zeros(())
    for t in range(num_steps):
        for b in range(num_envs):
            logits, value = model(rollout.obs[t, b][None])
            probabilities = logits[0].softmax(0)
            entropy = entropy - (probabilities * probabilities.log()).sum()
            log_probs[t, b], values[t, b] = probabilities[rollout.actions[t, b]].log(), value[0]
            following = rollout.obs[t + 1, b] if t + 1 < num_steps else rollout.bootstrap_obs[b]
            following = final_obs.get((t, b), following)
            next_values[t, b] = model(following[None])[1].item()
            old_values[t, b] = value.item()
            log_rhos[t, b] = log_probs[t, b].item() - rollout.behaviour_log_probs[t, b].item()
    vs, advantages = slow_vtrace(
        log_rhos,
        discount * (1.0 - rollout.terminated.double().numpy()),
        rollout.rewards.double().numpy(),
        old_values,
        next_values,
        (rollout.terminated | rollout.truncated).numpy(),
    )
    total = -0.01 * entropy
    for step, log_prob in log_probs.items():
        total = total - log_prob * advantages[step] + 0.5 * 0.5 * (vs[step] - values[step]) ** 2
    return total


def test_one_update_is_rmsprop_on_the_plain_loss() -> None:
    rollout = to_torch(make_rollout(5, 3, **ENDS))
    model, twin = make_model(), make_model()
    metrics = IMPALA(model, discount=0.9, learning_rate=0.01).learn(rollout)

    loss = plain_loss(twin, rollout, discount=0.9)
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    torch.testing.assert_close(metrics["total_loss"], loss.detach(), rtol=1e-4, atol=1e-4)
    for old, new, gradient in zip(twin.parameters(), model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new.grad, gradient, rtol=1e-3, atol=1e-4)
        expected = old - 0.01 * gradient / ((0.01 * gradient.square()).sqrt() + 0.01)
        torch.testing.assert_close(new.detach(), expected.detach(), rtol=1e-3, atol=1e-4)


def test_the_gradient_is_clipped_by_its_global_norm() -> None:
    rollout = to_torch(make_rollout(5, 3))
    free, clipped = make_model(), make_model()
    norm = IMPALA(free).learn(rollout)["grad_norm"]
    metrics = IMPALA(clipped, max_grad_norm=0.5).learn(rollout)
    assert norm > 1.0
    torch.testing.assert_close(metrics["grad_norm"], norm)  # reported as it was before
    for one, other in zip(free.parameters(), clipped.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(other.grad, one.grad * 0.5 / norm, rtol=1e-4, atol=1e-6)


def test_metrics_say_what_they_are_called() -> None:
    rollout = to_torch(make_rollout(5, 3, **ENDS))
    model = make_model()
    with torch.no_grad():
        logits, values = model(rollout.obs.flatten(0, 1))
    log_probs = logits.view(5, 3, 3).softmax(-1).log()
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    log_rhos = log_probs.gather(-1, rollout.actions[..., None])[..., 0] - rollout.behaviour_log_probs
    metrics = IMPALA(model, rho_bar=1.2, learning_rate=0.25).learn(rollout)
    torch.testing.assert_close(metrics["entropy"], entropy.mean())
    torch.testing.assert_close(metrics["entropy_loss"], -entropy.sum())
    torch.testing.assert_close(metrics["mean_abs_log_rho"], log_rhos.abs().mean())
    torch.testing.assert_close(metrics["rho_clip_fraction"], (log_rhos.exp() > 1.2).float().mean())
    assert 0.0 < metrics["rho_clip_fraction"] < 1.0
    torch.testing.assert_close(metrics["mean_value"], values.mean())
    assert metrics["learning_rate"] == 0.25
    total = metrics["pg_loss"] + 0.5 * metrics["value_loss"] + 0.01 * metrics["entropy_loss"]
    torch.testing.assert_close(metrics["total_loss"], total)
    assert all(tensor.shape == () and not tensor.requires_grad for tensor in metrics.values())


def test_on_policy_rollouts_have_rho_one() -> None:
    algorithm = IMPALA(make_model())
    rollout = to_torch(make_rollout(5, 3))
    actions, log_probs = algorithm.sample(rollout.obs.flatten(0, 1))
    own = rollout._replace(actions=actions.view(5, 3), behaviour_log_probs=log_probs.view(5, 3))
    metrics = algorithm.learn(own)
    assert metrics["mean_abs_log_rho"] < 1e-6
    assert metrics["rho_clip_fraction"] < 0.5  # rounding decides on which side of 1 each lies


def rollout_paid_for_action_one(shift: int = 0) -> Rollout[Tensor]:
    """Reward 1 for action 1 and -1 for action 0, received at the very step; or `shift` steps later."""
    rollout = make_rollout(num_steps=64, num_envs=8, num_actions=2)
    rewards = np.roll(np.where(rollout.actions == 1, 1.0, -1.0).astype(np.float32), shift, axis=0)
    log_probs = np.full((64, 8), -math.log(2.0), np.float32)
    return to_torch(rollout._replace(rewards=rewards, behaviour_log_probs=log_probs))


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_a_reward_is_credited_to_the_action_at_its_own_index(shift: int) -> None:
    model = Table()
    rollout = rollout_paid_for_action_one(shift)
    IMPALA(model, discount=0.0, entropy_cost=0.0, max_grad_norm=math.inf).learn(rollout)
    # With V = 0 and gamma = 0, d(loss)/d(logit 1) = -sum(reward * (a - 1/2)): every reward counts in full towards
    # its own action, so the sum is T * B / 2; a reward that belongs to a neighbour's action pulls either way.
    assert model.logits.grad is not None
    slope = float(model.logits.grad[1])
    assert slope == pytest.approx(-float((rollout.rewards * (rollout.actions - 0.5)).sum()))
    assert slope == -256.0 if shift == 0 else abs(slope) < 64.0


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 1e-2)])
def test_actor_and_learner_agree_on_log_probs_when_weights_are_equal(precision: Any, tolerance: float) -> None:
    torch.manual_seed(0)
    model = AtariShallow(6)
    nn.init.orthogonal_(model.head.policy.weight, 1.0)  # a policy as sharp as one in training
    algorithm = IMPALA(model, precision=precision, learning_rate=0.0)
    obs = torch.randint(0, 256, (7, 8, 4, 84, 84), dtype=torch.uint8)
    acted = [algorithm.sample(step) for step in obs]
    rollout = to_torch(make_rollout(6, 8))._replace(
        obs=obs[:6],
        bootstrap_obs=obs[6],
        final_obs=obs[0, :0],
        actions=torch.stack([actions for actions, _ in acted])[:6],
        behaviour_log_probs=torch.stack([log_probs for _, log_probs in acted])[:6],
    )
    logits, _ = algorithm.forward(obs[:6].flatten(0, 1))
    learner = logits.log_softmax(-1).gather(-1, rollout.actions.flatten()[:, None])[:, 0]
    assert logits.std() > 0.1
    assert (learner - rollout.behaviour_log_probs.flatten()).abs().max() < tolerance
    assert algorithm.learn(rollout)["mean_abs_log_rho"] < tolerance


def dtype_of(out: Tensor | tuple[Tensor, Tensor]) -> torch.dtype:
    return out[0].dtype if isinstance(out, tuple) else out.dtype


def test_bf16_runs_the_trunk_in_bfloat16_and_keeps_the_rest_in_float32() -> None:
    model = AtariShallow(6)
    seen: dict[str, torch.dtype] = {}
    for name in ("conv2", "fc", "head"):
        module = getattr(model, name)
        module.register_forward_hook(lambda _m, _i, out, name=name: seen.update({name: dtype_of(out)}))
    algorithm = IMPALA(model, precision="bf16")
    logits, values = algorithm.forward(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
    assert seen == {"conv2": torch.bfloat16, "fc": torch.bfloat16, "head": torch.float32}
    assert logits.dtype == values.dtype == torch.float32
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_fp32_computes_nothing_in_bfloat16() -> None:
    model = AtariShallow(6)
    dtypes: list[torch.dtype] = []
    model.fc.register_forward_hook(lambda _m, _i, out: dtypes.append(out.dtype))
    IMPALA(model).forward(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
    assert dtypes == [torch.float32]


def test_predict_takes_the_best_action_and_sample_draws() -> None:
    model = Table()
    with torch.no_grad():
        model.logits.copy_(torch.tensor([0.0, 1.0]))
    algorithm = IMPALA(model)
    obs = torch.zeros(2000, 4)
    assert (algorithm.predict(obs) == 1).all()
    torch.manual_seed(0)
    actions, log_probs = algorithm.sample(obs)
    assert 0.69 < actions.float().mean() < 0.77  # sigmoid(1) = 0.731
    expected = torch.tensor([0.0, 1.0]).log_softmax(0)[actions]
    torch.testing.assert_close(log_probs, expected)


def test_the_learning_rate_falls_with_agent_steps() -> None:
    algorithm = IMPALA(make_model(), learning_rate=0.1, decay_steps=40)
    rollout = to_torch(make_rollout(5, 4))
    rates = [algorithm.learn(rollout)["learning_rate"].item() for _ in range(4)]
    assert rates == pytest.approx([0.1, 0.05, 0.0, 0.0])
    assert (algorithm.agent_steps, algorithm.updates) == (80, 4)


def test_a_learning_rate_of_zero_changes_nothing() -> None:
    algorithm = IMPALA(make_model(), learning_rate=0.0)
    before = algorithm.get_weights()
    algorithm.learn(to_torch(make_rollout(5, 3)))
    for name, array in algorithm.get_weights().items():
        np.testing.assert_array_equal(array, before[name])


def test_a_rollout_of_the_wrong_shape_is_refused_before_anything_changes() -> None:
    algorithm = IMPALA(make_model())
    before = algorithm.get_weights()
    rollout = to_torch(make_rollout(5, 5))
    with pytest.raises(ValueError, match=r"^rollout\.rewards is float32 \[5, 4\], expected float32 \[5, 5\]$"):
        algorithm.learn(rollout._replace(rewards=rollout.rewards[:, :4]))
    assert algorithm.updates == 0
    np.testing.assert_array_equal(algorithm.get_weights()["policy.0.weight"], before["policy.0.weight"])


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^precision is 'fp16', expected 'fp32' or 'bf16'$"):
        IMPALA(make_model(), precision="fp16")  # type: ignore[arg-type]


def test_a_state_continues_learning_bit_for_bit() -> None:
    rollouts = [to_torch(make_rollout(5, 3, seed=seed, **ENDS)) for seed in range(4)]
    algorithm = IMPALA(make_model(), decay_steps=1000, momentum=0.5)
    for rollout in rollouts[:2]:
        algorithm.learn(rollout)
    state = algorithm.state_dict()
    for rollout in rollouts[2:]:
        algorithm.learn(rollout)

    other = IMPALA(make_model(seed=9), learning_rate=1.0)
    other.load_state_dict(state)
    assert (other.agent_steps, other.updates) == (30, 2)
    for rollout in rollouts[2:]:
        other.learn(rollout)
    for name, array in algorithm.get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], array)


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


def test_a_state_of_another_model_or_algorithm_changes_nothing() -> None:
    algorithm = IMPALA(make_model())
    algorithm.learn(to_torch(make_rollout(5, 3)))
    before = algorithm.state_dict()
    wider = IMPALA(MLP(4, 3, hidden=(16,)), learning_rate=1.0).state_dict()
    unfit = {
        r"^weights do not fit: 'policy\.0\.weight' has shape \[16, 4\]": wider,
        r"^the state is of Other, not of IMPALA$": {**wider, "model": before["model"], "algorithm": "Other"},
    }
    for message, state in unfit.items():
        with pytest.raises(ValueError, match=message):
            algorithm.load_state_dict(state)
        assert is_same(algorithm.state_dict(), before)
