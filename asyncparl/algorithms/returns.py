"""Returns and advantages from values: discounted, n-step, lambda, GAE.

Time runs as in `rollout.py`. Every function takes:

    rewards      [T, B] received after action t
    discounts    [T, B] gamma, or 0 where the episode terminated at this step
    next_values  [T, B] V(x_{t+1}), the value of what follows step t: see `next_values()`
    ends         [T, B] bool, terminated | truncated: nothing is carried over from the next step of the array

and returns [T, B] tensors through which no gradient flows. Nothing is broadcast.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def next_values(values: Tensor, bootstrap_value: Tensor, final_values: Tensor, final_steps: Tensor) -> Tensor:
    """V(x_{t+1}) for every step: from the next step, at the end from the bootstrap, at a truncation from V(final_obs).

    Args:
        values: [T, B] V(x_t).
        bootstrap_value: [B] V(x_T).
        final_values: [K] V(final_obs) of each truncated step.
        final_steps: [K, 2] int64, the (t, b) of each.

    Raises:
        ValueError: if a shape differs from the above.
    """
    num_final = final_steps.shape[0]
    check_shape("values", values, (*values.shape[:1], *bootstrap_value.shape[:1]))
    check_shape("bootstrap_value", bootstrap_value, values.shape[1:])
    check_shape("final_steps", final_steps, (num_final, 2))
    check_shape("final_values", final_values, (num_final,))
    result = torch.cat([values[1:], bootstrap_value[None]])
    if num_final:
        result[final_steps[:, 0], final_steps[:, 1]] = final_values.to(result.dtype)
    return result


def discounted_returns(*, rewards: Tensor, discounts: Tensor, next_values: Tensor, ends: Tensor) -> Tensor:
    """The sum of discounted rewards up to the end of the episode or of the array, plus the value of what follows."""
    return lambda_returns(rewards=rewards, discounts=discounts, next_values=next_values, ends=ends, lambda_=1.0)


@torch.no_grad()
def n_step_returns(*, rewards: Tensor, discounts: Tensor, next_values: Tensor, ends: Tensor, n: int) -> Tensor:
    """n rewards and then a value; fewer where the episode or the array ends before.

    Raises:
        ValueError: if n < 1 or shapes differ.
    """
    if n < 1:
        raise ValueError(f"n is {n}, expected at least 1")
    check_steps(rewards, discounts=discounts, next_values=next_values, ends=ends)
    returns = rewards + discounts * next_values
    for _ in range(min(n, len(rewards)) - 1):
        following = torch.where(ends[:-1], next_values[:-1], returns[1:])
        returns = torch.cat([rewards[:-1] + discounts[:-1] * following, returns[-1:]])
    return returns


@torch.no_grad()
def lambda_returns(*, rewards: Tensor, discounts: Tensor, next_values: Tensor, ends: Tensor, lambda_: float) -> Tensor:
    """G_t = r_t + discount_t * ((1 - lambda) * V(x_{t+1}) + lambda * G_{t+1}): TD(lambda), forward view.

    lambda = 0 gives one-step targets, lambda = 1 discounted returns (Sutton & Barto 2018, section 12.1).
    """
    check_steps(rewards, discounts=discounts, next_values=next_values, ends=ends)
    carried = lambda_ * (~ends).to(rewards.dtype)
    carried[-1] = 0.0  # after the last step there is only a value
    inputs = rewards + discounts * (1.0 - carried) * next_values
    return scan_backwards(inputs, discounts * carried)[:-1]


@torch.no_grad()
def gae(
    *, rewards: Tensor, discounts: Tensor, values: Tensor, next_values: Tensor, ends: Tensor, lambda_: float
) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438, eq. 16), cut where an episode ends.

    Adding `values` [T, B] gives the lambda returns.
    """
    check_steps(rewards, discounts=discounts, values=values, next_values=next_values, ends=ends)
    td_errors = rewards + discounts * next_values - values
    return scan_backwards(td_errors, (lambda_ * discounts).masked_fill_(ends, 0.0))[:-1]


def scan_backwards(inputs: Tensor, gains: Tensor) -> Tensor:
    """s_t = inputs_t + gains_t * s_{t+1} for [T, B] inputs and gains. Returns s as [T + 1, B]; s_T is 0.

    A loop over T with one small operation each: at the sizes of an unroll (T up to some hundreds) this is tens of
    microseconds, less than any form that trades the loop for more arithmetic.
    """
    sums = inputs.new_zeros(len(inputs) + 1, *inputs.shape[1:])
    rows = sums.unbind()
    input_rows, gain_rows = inputs.unbind(), gains.unbind()
    for t in range(len(inputs) - 1, -1, -1):
        torch.addcmul(input_rows[t], gain_rows[t], rows[t + 1], out=rows[t])
    return sums


def check_steps(rewards: Tensor, **others: Tensor) -> None:
    """Raise ValueError unless all are [T, B] like the rewards."""
    if rewards.ndim != 2:
        raise ValueError(f"rewards has shape {list(rewards.shape)}, expected [T, B]")
    for name, tensor in others.items():
        check_shape(name, tensor, rewards.shape)


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    """Raise ValueError unless the tensor has exactly this shape."""
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"{name} has shape {list(tensor.shape)}, expected {list(expected)}")
