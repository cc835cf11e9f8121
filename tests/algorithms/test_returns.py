from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asyncparl.algorithms.returns import (
    discounted_returns,
    gae,
    lambda_returns,
    n_step_returns,
    next_values,
    scan_backwards,
)

# Two environments, five steps; the numbers in `test_gae_gives_published_numbers` belong to these.
REWARDS = torch.tensor([[0.0, 0.0, 1.0, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0, 1.0]]).T
DISCOUNTS = torch.tensor([[0.99, 0.99, 0.99, 0.99, 0.99], [0.9, 0.9, 0.9, 0.0, 0.9]]).T
VALUES = torch.tensor([[1.0, 4.0, -3.0, -2.0, -1.0], [-3.0, -2.0, -1.0, 0.0, 5.0]]).T
BOOTSTRAP = torch.tensor([-1.0, -1.0])
NO_FINALS = (torch.zeros(0), torch.zeros(0, 2, dtype=torch.int64))
NEXT_VALUES = next_values(VALUES, BOOTSTRAP, *NO_FINALS)
NO_ENDS = torch.zeros(5, 2, dtype=torch.bool)


def slow_lambda_return(t: int, b: int, lambda_: float, ends: Tensor) -> float:
    """The forward view: a mean of n-step returns, weighted (1 - lambda) * lambda^(n-1), the rest on the longest."""
    n_step = []
    total, factor = 0.0, 1.0
    for u in range(t, 5):
        total += factor * float(REWARDS[u, b])
        factor *= float(DISCOUNTS[u, b])
        n_step.append(total + factor * float(NEXT_VALUES[u, b]))
        if ends[u, b]:
            break
    weights = [(1.0 - lambda_) * lambda_**n for n in range(len(n_step) - 1)]
    weights.append(1.0 - sum(weights))
    return sum(weight * value for weight, value in zip(weights, n_step, strict=True))


def slow_lambda_returns(lambda_: float, ends: Tensor) -> Tensor:
    return torch.tensor([[slow_lambda_return(t, b, lambda_, ends) for b in range(2)] for t in range(5)])


def some_ends() -> Tensor:
    ends = NO_ENDS.clone()
    ends[1, 0] = ends[3, 1] = ends[4, 0] = True
    return ends


def test_gae_gives_published_numbers() -> None:
    advantages = gae(
        rewards=REWARDS, discounts=DISCOUNTS, values=VALUES, next_values=NEXT_VALUES, ends=NO_ENDS, lambda_=1.0
    )
    expected = torch.tensor([[-1.45119, -4.45575, 2.53965, 0.5249, -0.49], [3.0, 2.0, 1.0, 0.0, -4.9]]).T
    torch.testing.assert_close(advantages, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.4, 0.7, 1.0])
@pytest.mark.parametrize("ends", [NO_ENDS, some_ends()], ids=["one episode", "several episodes"])
def test_lambda_returns_are_the_weighted_mean_of_n_step_returns(lambda_: float, ends: Tensor) -> None:
    steps = {"rewards": REWARDS, "discounts": DISCOUNTS, "next_values": NEXT_VALUES, "ends": ends}
    expected = slow_lambda_returns(lambda_, ends)
    torch.testing.assert_close(lambda_returns(**steps, lambda_=lambda_), expected)
    torch.testing.assert_close(gae(**steps, values=VALUES, lambda_=lambda_) + VALUES, expected)


def test_discounted_returns_by_hand() -> None:
    returns = discounted_returns(
        rewards=torch.tensor([[1.0], [2.0], [4.0]]),
        discounts=torch.tensor([[0.5], [0.5], [0.5]]),
        next_values=torch.tensor([[9.0], [16.0], [8.0]]),
        ends=torch.tensor([[False], [True], [False]]),
    )
    # 4 + 0.5 * 8; then the cut: 2 + 0.5 * 16; then 1 + 0.5 * 10
    torch.testing.assert_close(returns, torch.tensor([[6.0], [10.0], [8.0]]))


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, [1.0 + 0.5 * 10, 2.0 + 0.5 * 20, 4.0 + 0.5 * 30]),
        (2, [1.0 + 0.5 * (2.0 + 0.5 * 20), 2.0 + 0.5 * (4.0 + 0.5 * 30), 4.0 + 0.5 * 30]),
        (3, [1.0 + 0.5 * (2.0 + 0.5 * (4.0 + 0.5 * 30)), 2.0 + 0.5 * (4.0 + 0.5 * 30), 4.0 + 0.5 * 30]),
        (99, [1.0 + 0.5 * (2.0 + 0.5 * (4.0 + 0.5 * 30)), 2.0 + 0.5 * (4.0 + 0.5 * 30), 4.0 + 0.5 * 30]),
    ],
)
def test_n_step_returns_by_hand(n: int, expected: list[float]) -> None:
    returns = n_step_returns(
        rewards=torch.tensor([[1.0], [2.0], [4.0]]),
        discounts=torch.full((3, 1), 0.5),
        next_values=torch.tensor([[10.0], [20.0], [30.0]]),
        ends=torch.zeros(3, 1, dtype=torch.bool),
        n=n,
    )
    torch.testing.assert_close(returns[:, 0], torch.tensor(expected))


def test_n_step_returns_stop_at_the_end_of_an_episode() -> None:
    returns = n_step_returns(
        rewards=torch.tensor([[1.0], [2.0], [4.0]]),
        discounts=torch.tensor([[0.5], [0.5], [0.5]]),
        next_values=torch.tensor([[10.0], [20.0], [30.0]]),
        ends=torch.tensor([[False], [True], [False]]),
        n=3,
    )
    torch.testing.assert_close(returns[:, 0], torch.tensor([1.0 + 0.5 * 12.0, 12.0, 19.0]))


def test_fewer_than_one_step_is_refused() -> None:
    steps = {"rewards": REWARDS, "discounts": DISCOUNTS, "next_values": NEXT_VALUES, "ends": NO_ENDS}
    with pytest.raises(ValueError, match=r"^n is 0, expected at least 1$"):
        n_step_returns(**steps, n=0)


def test_next_values_come_from_the_next_step_the_bootstrap_and_final_observations() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    final_steps = torch.tensor([[2, 0], [0, 1]])
    result = next_values(values, torch.tensor([7.0, 8.0]), torch.tensor([-1.0, -2.0]), final_steps)
    torch.testing.assert_close(result, torch.tensor([[3.0, -2.0], [5.0, 6.0], [-1.0, 8.0]]))
    assert values[1, 1] == 4.0


@pytest.mark.parametrize(
    ("values", "bootstrap", "finals", "steps", "message"),
    [
        ((3,), (2,), (0,), (0, 2), "values has shape"),
        ((3, 2, 1), (2,), (0,), (0, 2), "values has shape"),
        ((3, 2), (3,), (0,), (0, 2), "values has shape"),
        ((3, 2), (2, 1), (0,), (0, 2), "bootstrap_value has shape"),
        ((3, 2), (2,), (1, 1), (1, 2), "final_values has shape"),
        ((3, 2), (2,), (2,), (1, 2), "final_values has shape"),
        ((3, 2), (2,), (1,), (1, 3), "final_steps has shape"),
    ],
)
def test_next_values_refuses_other_shapes(
    values: tuple[int, ...], bootstrap: tuple[int, ...], finals: tuple[int, ...], steps: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        next_values(
            torch.zeros(values), torch.zeros(bootstrap), torch.zeros(finals), torch.zeros(steps, dtype=torch.int64)
        )


@pytest.mark.parametrize("name", ["discounts", "next_values", "ends"])
def test_returns_refuse_other_shapes(name: str) -> None:
    steps = {"rewards": REWARDS, "discounts": DISCOUNTS, "next_values": NEXT_VALUES, "ends": NO_ENDS}
    steps[name] = steps[name][:, :1]
    with pytest.raises(ValueError, match=rf"^{name} has shape \[5, 1\], expected \[5, 2\]$"):
        lambda_returns(**steps, lambda_=0.9)


def test_scan_backwards_by_hand() -> None:
    sums = scan_backwards(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[10.0], [0.5], [7.0]]))
    torch.testing.assert_close(sums, torch.tensor([[36.0], [3.5], [3.0], [0.0]]))
