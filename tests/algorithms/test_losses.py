from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from asyncparl.algorithms.losses import entropy, entropy_loss, normalised, policy_gradient_loss, value_loss


def test_policy_gradient_loss_and_its_gradient_by_hand() -> None:
    log_probs = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]], requires_grad=True)
    advantages = torch.tensor([[2.0, -1.0], [0.0, 4.0]], requires_grad=True)
    loss = policy_gradient_loss(log_probs, advantages)
    assert loss.item() == 12.0  # -(-2 + 2 + 0 - 12), a sum over all four
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(log_probs.grad, torch.tensor([[-2.0, 1.0], [0.0, -4.0]]))
    assert advantages.grad is None


def test_value_loss_and_its_gradient_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    targets = torch.tensor([[2.0, 2.0], [1.0, 8.0]], requires_grad=True)
    loss = value_loss(values, targets)
    assert loss.item() == 0.5 * (1 + 0 + 4 + 16)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(values.grad, torch.tensor([[-1.0, 0.0], [2.0, -4.0]]))
    assert targets.grad is None


def test_entropy_is_that_of_the_distribution_whatever_the_logits_are_shifted_by() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [math.log(0.5), math.log(0.25), math.log(0.25), -1000.0]])
    expected = torch.tensor([math.log(4.0), 0.5 * math.log(2.0) + 0.5 * math.log(4.0)])
    torch.testing.assert_close(entropy(logits), expected)
    torch.testing.assert_close(entropy(logits + 7.0), expected)
    assert (entropy(torch.randn(100, 5) * 20.0) >= 0.0).all()


def test_entropy_loss_is_minus_the_sum_and_descending_it_spreads_the_policy() -> None:
    logits = torch.tensor([[[1.0, 0.0]], [[0.0, -1.0]]], requires_grad=True)
    loss = entropy_loss(logits)
    p = 1.0 / (1.0 + math.exp(-1.0))
    one = -(p * math.log(p) + (1.0 - p) * math.log(1.0 - p))
    assert loss.item() == pytest.approx(-2.0 * one)
    loss.backward()  # type: ignore[no-untyped-call]
    # d(-H)/d(logit of the likelier) = p * (log p + H) = p * (1 - p) * (logit difference) > 0
    slope = p * (1.0 - p)
    torch.testing.assert_close(logits.grad, torch.tensor([[[slope, -slope]]] * 2))


@pytest.mark.parametrize("loss", [policy_gradient_loss, value_loss])
def test_shapes_are_not_broadcast(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match=r"has shape \[3\], expected \[3, 1\]$"):
        loss(torch.zeros(3, 1), torch.zeros(3))


def test_normalised_advantages_have_mean_0_and_deviation_1() -> None:
    advantages = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    deviation = math.sqrt((4.0 + 1.0 + 0.0 + 9.0) / 4.0)
    torch.testing.assert_close(normalised(advantages), torch.tensor([[-2.0, -1.0], [0.0, 3.0]]) / deviation)
    assert torch.equal(normalised(torch.full((2, 2), 7.0)), torch.zeros(2, 2))
