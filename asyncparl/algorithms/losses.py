"""Losses of actor-critic methods. Each is a SUM over all steps, as in the IMPALA and A3C papers, never a mean.

Learning rates and gradient clipping of the papers belong to sums. Divide the total by the number of steps for means.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncparl.algorithms.together import AddUp


def policy_gradient_loss(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """-sum(log pi(a|x) * advantage); lowering it makes actions with a positive advantage likelier.

    Args:
        log_probs: [...] log pi(a|x) of the actions that were taken.
        advantages: same shape; no gradient flows through them.

    Raises:
        ValueError: if the shapes differ.
    """
    _check_same_shape("advantages", advantages, log_probs)
    return -(log_probs * advantages.detach()).sum()


def clipped_policy_gradient_loss(log_ratios: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """-sum(min(ratio * A, clip(ratio, 1 - clip_range, 1 + clip_range) * A)), Schulman et al. 2017, eq. 7.

    Its gradient is that of `policy_gradient_loss` where ratio = 1, and 0 where the ratio has already moved so far to
    where the advantage points.

    Args:
        log_ratios: [...] log pi(a|x) - log mu(a|x), of the policy that learns to the one that acted.
        advantages: same shape; no gradient flows through them.
        clip_range: epsilon, more than 0.

    Raises:
        ValueError: if the shapes differ.
    """
    _check_same_shape("advantages", advantages, log_ratios)
    ratios, advantages = log_ratios.exp(), advantages.detach()
    return -torch.min(ratios * advantages, ratios.clamp(1.0 - clip_range, 1.0 + clip_range) * advantages).sum()


def value_loss(values: Tensor, targets: Tensor) -> Tensor:
    """0.5 * sum((target - V(x))^2).

    Args:
        values: [...] V(x).
        targets: same shape; no gradient flows through them.

    Raises:
        ValueError: if the shapes differ.
    """
    _check_same_shape("targets", targets, values)
    return 0.5 * (targets.detach() - values).square().sum()


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of each categorical distribution, [...] from logits [..., A]; never negative."""
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def entropy_loss(logits: Tensor) -> Tensor:
    """-sum(entropy); lowering it spreads the policy out. Its cost is a positive number."""
    return -entropy(logits).sum()


def normalised(advantages: Tensor, add_up: AddUp | None = None) -> Tensor:
    """Advantages [...] with their mean taken off, divided by their standard deviation (of all of them, not a sample).

    A habit of implementations (Andrychowicz et al. 2021, arXiv:2006.05990), not of the A3C paper. Equal ones become 0.

    Args:
        advantages: [...]
        add_up: of several learners: mean and deviation are those of the advantages of all.
    """
    centred = advantages - _mean(advantages, add_up)
    return centred / (_mean(centred.square(), add_up).sqrt() + 1e-8)


def _mean(values: Tensor, add_up: AddUp | None) -> Tensor:
    if add_up is None:
        return values.mean()
    sum_and_number = torch.stack([values.sum(), values.new_tensor(values.numel())])
    add_up(sum_and_number)
    return sum_and_number[0] / sum_and_number[1]


def _check_same_shape(name: str, tensor: Tensor, expected: Tensor) -> None:
    if tensor.shape != expected.shape:
        raise ValueError(f"{name} has shape {list(tensor.shape)}, expected {list(expected.shape)}")
