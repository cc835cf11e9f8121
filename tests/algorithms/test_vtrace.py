from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncparl.algorithms.returns import discounted_returns, lambda_returns, n_step_returns, next_values
from asyncparl.algorithms.vtrace import VTraceReturns, vtrace
from tests.algorithms.rollouts import slow_vtrace

NO_FINALS = (torch.zeros(0), torch.zeros(0, 2, dtype=torch.int64))


def column(*numbers: float) -> Tensor:
    """[T, 1]"""
    return torch.tensor(numbers)[:, None]


def no_ends(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.bool)


def random_inputs(num_steps: int, num_envs: int, seed: int, end_rate: float = 0.0) -> dict[str, Any]:
    """Inputs of `vtrace` whose `next_values` follow from values, a bootstrap and final values, as in training."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_steps, num_envs)
    terminated = torch.rand(shape, generator=generator) < end_rate
    truncated = torch.rand(shape, generator=generator) < end_rate
    values = torch.randn(shape, generator=generator)
    final_steps = truncated.nonzero()
    following = next_values(
        values,
        torch.randn(num_envs, generator=generator),
        torch.randn(len(final_steps), generator=generator),
        final_steps,
    )
    return {
        "log_rhos": torch.randn(shape, generator=generator),
        "discounts": 0.9 * (~terminated).float(),
        "rewards": torch.randn(shape, generator=generator),
        "values": values,
        "next_values": following,
        "ends": terminated | truncated,
    }


def assert_matches_slow_vtrace(inputs: dict[str, Any], **bounds: Any) -> None:
    vs, advantages = slow_vtrace(**{name: tensor.numpy() for name, tensor in inputs.items()}, **bounds)
    result = vtrace(**inputs, **bounds)
    np.testing.assert_allclose(result.vs, vs, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(result.pg_advantages, advantages, rtol=2e-5, atol=2e-5)


def published_inputs(num_envs: int) -> dict[str, Any]:
    """The inputs of the test that came with the paper's code."""
    count = 5 * num_envs
    counting = torch.arange(count, dtype=torch.float32).view(5, num_envs)
    values = counting / num_envs
    bootstrap_value = torch.arange(num_envs, dtype=torch.float32) + 1.0
    return {
        "log_rhos": 5.0 * (counting / count - 0.5),
        "discounts": (0.9 / (torch.arange(num_envs) + 1.0)).expand(5, num_envs),
        "rewards": counting,
        "values": values,
        "next_values": next_values(values, bootstrap_value, *NO_FINALS),
        "ends": no_ends(values),
    }


def test_published_inputs_give_known_numbers() -> None:
    result = vtrace(**published_inputs(1), rho_bar=3.7, pg_rho_bar=2.2)
    expected_vs = [0.20018185, 2.70968245, 8.51362793, 11.93239657, 7.33]
    expected_advantages = [0.20018185, 1.70968245, 6.51362793, 10.87661422, 1.98]
    np.testing.assert_allclose(result.vs[:, 0], expected_vs, rtol=1e-6)
    np.testing.assert_allclose(result.pg_advantages[:, 0], expected_advantages, rtol=1e-6)


@pytest.mark.parametrize("num_envs", [1, 5])
def test_published_inputs_give_the_double_sum_of_the_paper(num_envs: int) -> None:
    assert_matches_slow_vtrace(published_inputs(num_envs), rho_bar=3.7, pg_rho_bar=2.2)


# Two steps by hand: rho = 2 and 0.5, gamma = 0.5, V = 3, 4, 6. The TD errors are 2 + 2 - 3 = 1 and 2 + 3 - 4 = 1.
BY_HAND: dict[str, Any] = {
    "log_rhos": column(math.log(2.0), math.log(0.5)),
    "discounts": column(0.5, 0.5),
    "rewards": column(2.0, 2.0),
    "values": column(3.0, 4.0),
    "next_values": column(4.0, 6.0),
    "ends": torch.zeros(2, 1, dtype=torch.bool),
}


@pytest.mark.parametrize(
    ("bounds", "vs", "advantages"),
    [
        # the last value is 4 + 0.5, the first 3 + rho + 0.5 * c * 0.5, its advantage pg_rho * (2 + 0.5 * 4.5 - 3)
        ({}, (4.25, 4.5), (1.25, 0.5)),
        ({"rho_bar": 1.5}, (4.75, 4.5), (1.25, 0.5)),
        ({"rho_bar": 1.5, "c_bar": 1.5}, (4.875, 4.5), (1.25, 0.5)),
        ({"rho_bar": 1.5, "c_bar": 1.5, "lambda_": 0.5}, (4.6875, 4.5), (1.25, 0.5)),
        ({"rho_bar": math.inf, "c_bar": math.inf, "pg_rho_bar": math.inf}, (5.5, 4.5), (2.5, 0.5)),
        ({"pg_rho_bar": 1.5}, (4.25, 4.5), (1.875, 0.5)),
        ({"rho_bar": 0.25, "c_bar": 0.25, "pg_rho_bar": 0.25}, (3.28125, 4.25), (0.28125, 0.25)),
    ],
)
def test_each_bound_acts_where_the_paper_says(
    bounds: dict[str, Any], vs: tuple[float, ...], advantages: tuple[float, ...]
) -> None:
    result = vtrace(**BY_HAND, **bounds)
    torch.testing.assert_close(result.vs, column(*vs))
    torch.testing.assert_close(result.pg_advantages, column(*advantages))


@pytest.mark.parametrize(("num_steps", "num_envs"), [(1, 1), (1, 4), (6, 1), (20, 7)])
def test_any_size_matches_the_double_sum(num_steps: int, num_envs: int) -> None:
    inputs = random_inputs(num_steps, num_envs, seed=num_steps, end_rate=0.2)
    assert_matches_slow_vtrace(inputs, rho_bar=1.4, c_bar=1.1, pg_rho_bar=1.2, lambda_=0.9)


def test_nothing_leaks_over_the_end_of_an_episode() -> None:
    inputs = random_inputs(6, 2, seed=3)
    inputs["ends"][2, 0] = True
    inputs["discounts"][2, 0] = 0.0
    before = vtrace(**inputs)
    for name in ("log_rhos", "rewards", "values", "next_values"):
        inputs[name] = inputs[name].clone()
        inputs[name][3:, 0] += 100.0
    inputs["next_values"][2, 0] += 100.0  # V(x_3)
    after = vtrace(**inputs)
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new[:3, 0], old[:3, 0])
        assert not torch.isclose(new[3:, 0], old[3:, 0]).any()


def truncated_episode() -> VTraceReturns:
    """Reward 1 and value 10 for ever at gamma 0.9, cut after two steps; the next episode has value 100."""
    values = column(10.0, 10.0, 100.0)
    return vtrace(
        log_rhos=column(0.0, 0.0, 0.0),
        discounts=column(0.9, 0.9, 0.9),
        rewards=column(1.0, 1.0, 1.0),
        values=values,
        next_values=next_values(values, torch.tensor([100.0]), torch.tensor([10.0]), torch.tensor([[1, 0]])),
        ends=torch.tensor([[False], [True], [False]]),
    )


def test_a_truncated_episode_is_worth_what_its_last_observation_is_worth() -> None:
    result = truncated_episode()
    # 1 + 0.9 * 10 - 10 = 0 before the cut. With V of the next episode it would be 1 + 0.9 * 100 - 10 = 81,
    # as a termination 1 - 10 = -9.
    torch.testing.assert_close(result.pg_advantages[:2], column(0.0, 0.0), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(result.vs[:2], column(10.0, 10.0))
    torch.testing.assert_close(result.pg_advantages[2:], column(1.0 + 90.0 - 100.0))


def test_no_gradient_flows_through_targets_or_advantages() -> None:
    inputs = random_inputs(4, 2, seed=1)
    for name in ("log_rhos", "values", "next_values"):
        inputs[name].requires_grad_()
    result = vtrace(**inputs)
    assert not result.vs.requires_grad and not result.pg_advantages.requires_grad


def test_inputs_are_left_as_they_were() -> None:
    inputs = random_inputs(4, 2, seed=1, end_rate=0.3)
    copies = {name: tensor.clone() for name, tensor in inputs.items()}
    vtrace(**inputs, rho_bar=0.5, c_bar=0.5, pg_rho_bar=0.5, lambda_=0.5)
    for name, tensor in inputs.items():
        torch.testing.assert_close(tensor, copies[name], rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", ["log_rhos", "discounts", "values", "next_values", "ends"])
@pytest.mark.parametrize("shape", [(4, 1), (1, 3), (3, 4), (4, 3, 1), (3,)])
def test_any_other_shape_is_refused(name: str, shape: tuple[int, ...]) -> None:
    inputs = random_inputs(4, 3, seed=0)
    inputs[name] = torch.zeros(shape, dtype=inputs[name].dtype)
    with pytest.raises(ValueError, match=rf"^{name} has shape "):
        vtrace(**inputs)


def test_a_bootstrap_value_with_a_trailing_axis_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^bootstrap_value has shape \[3, 1\], expected \[3\]$"):
        next_values(torch.zeros(4, 3), torch.zeros(3, 1), *NO_FINALS)


sizes = st.tuples(st.integers(1, 8), st.integers(1, 3))
seeds = st.integers(0, 2**32)
bounds = st.floats(0.1, 3.0)
lambdas = st.floats(0.0, 1.0)


@given(size=sizes, seed=seeds, lambda_=lambdas)
@settings(deadline=None, max_examples=60)
def test_on_policy_the_targets_are_lambda_returns(size: tuple[int, int], seed: int, lambda_: float) -> None:
    inputs = random_inputs(*size, seed=seed, end_rate=0.25)
    inputs["log_rhos"] = torch.zeros(size)
    others = {name: inputs[name] for name in ("rewards", "discounts", "next_values", "ends")}
    result = vtrace(**inputs, lambda_=lambda_)
    torch.testing.assert_close(result.vs, lambda_returns(**others, lambda_=lambda_), rtol=1e-4, atol=1e-5)

    full = vtrace(**inputs)
    returns = discounted_returns(**others)
    torch.testing.assert_close(full.vs, returns, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(full.vs, n_step_returns(**others, n=size[0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(full.pg_advantages, returns - inputs["values"], rtol=1e-4, atol=1e-5)


@given(size=sizes, seed=seeds, bounds=st.tuples(bounds, bounds, bounds), lambda_=lambdas)
@settings(deadline=None, max_examples=60)
def test_any_bounds_match_the_double_sum(
    size: tuple[int, int], seed: int, bounds: tuple[float, float, float], lambda_: float
) -> None:
    rho_bar, c_bar, pg_rho_bar = bounds
    inputs = random_inputs(*size, seed=seed, end_rate=0.25)
    assert_matches_slow_vtrace(inputs, rho_bar=rho_bar, c_bar=c_bar, pg_rho_bar=pg_rho_bar, lambda_=lambda_)
