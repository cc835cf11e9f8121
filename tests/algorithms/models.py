"""Models for tests, and losses of advantage actor-critics in their slow and obvious form."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from asyncparl.algorithms import Rollout
from asyncparl.rl import MLP


def make_model(seed: int = 0) -> MLP:
    """Far from uniform, so that log rho, entropy and all gradients are of some size."""
    torch.manual_seed(seed)
    model = MLP(4, 3, hidden=(8,))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    return model


class Table(nn.Module):
    """Logits and a value that do not depend on the observation."""

    def __init__(self, logits: tuple[float, ...] = (0.0, 0.0), value: float = 0.0) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.logits.expand(len(obs), -1), self.value.expand(len(obs))


def slow_advantages(model: nn.Module, rollout: Rollout[Tensor], *, discount: float, lambda_: float) -> Tensor:
    """GAE as the sum of eq. (16), one start and one environment after the other, in float64; [T, B]."""
    num_steps, num_envs = rollout.rewards.shape
    final_obs = {tuple(step): obs for step, obs in zip(rollout.final_steps.tolist(), rollout.final_obs, strict=True)}

    def value(obs: Tensor) -> float:
        result: float = model(obs[None])[1].item()
        return result

    advantages = torch.zeros(num_steps, num_envs, dtype=torch.float64)
    for s in range(num_steps):
        for b in range(num_envs):
            factor = 1.0  # (gamma * lambda)^(t-s)
            for t in range(s, num_steps):
                following = rollout.obs[t + 1, b] if t + 1 < num_steps else rollout.bootstrap_obs[b]
                later = value(final_obs.get((t, b), following))
                if rollout.terminated[t, b]:
                    later = 0.0
                advantages[s, b] += factor * (
                    float(rollout.rewards[t, b]) + discount * later - value(rollout.obs[t, b])
                )
                if rollout.terminated[t, b] or rollout.truncated[t, b]:
                    break
                factor *= discount * lambda_
    return advantages


def slow_loss(
    model: nn.Module,
    rollout: Rollout[Tensor],
    *,
    discount: float,
    lambda_: float,
    value_cost: float,
    entropy_cost: float = 0.01,
    log_epsilon: float = 0.0,
    normalise: bool = False,
) -> Tensor:
    """The loss of A2C and GA3C, step by step; gradients flow to the model."""
    advantages = slow_advantages(model, rollout, discount=discount, lambda_=lambda_)
    weights = advantages
    if normalise:
        flat = advantages.flatten().tolist()
        mean = sum(flat) / len(flat)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in flat) / len(flat))
        weights = (advantages - mean) / deviation
    total = torch.zeros(())
    num_steps, num_envs = rollout.rewards.shape
    for t in range(num_steps):
        for b in range(num_envs):
            logits, value = model(rollout.obs[t, b][None])
            probabilities = logits[0].softmax(0)
            entropy = -(probabilities * probabilities.log()).sum()
            target = float(advantages[t, b]) + value.item()
            total = total - (probabilities[rollout.actions[t, b]] + log_epsilon).log() * float(weights[t, b])
            total = total + value_cost * 0.5 * (target - value[0]) ** 2 - entropy_cost * entropy
    return total
