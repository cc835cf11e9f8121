"""Rollouts for tests, and V-trace in its slow and obvious form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncparl.algorithms import Rollout

Array = NDArray[Any]


def make_rollout(
    num_steps: int = 5,
    num_envs: int = 3,
    obs_shape: tuple[int, ...] = (4,),
    *,
    terminated: tuple[tuple[int, int], ...] = (),
    truncated: tuple[tuple[int, int], ...] = (),
    num_actions: int = 3,
    state_size: int | None = None,
    seed: int = 0,
) -> Rollout[Array]:
    """Random numbers everywhere, with ends at the given (t, b)."""
    random = np.random.default_rng(seed)
    steps = (num_steps, num_envs)

    def observations(*shape: int) -> Array:
        return random.standard_normal((*shape, *obs_shape)).astype(np.float32)

    return Rollout(
        obs=observations(*steps),
        actions=random.integers(0, num_actions, steps),
        behaviour_log_probs=random.uniform(-2.0, -0.3, steps).astype(np.float32),
        rewards=random.standard_normal(steps).astype(np.float32),
        terminated=_mark(steps, terminated),
        truncated=_mark(steps, truncated),
        bootstrap_obs=observations(num_envs),
        final_obs=observations(len(truncated)),
        final_steps=np.array(truncated, np.int64).reshape(len(truncated), 2),
        initial_state=None if state_size is None else random.standard_normal((num_envs, state_size)).astype(np.float32),
    )


def _mark(shape: tuple[int, int], places: tuple[tuple[int, int], ...]) -> Array:
    marks = np.zeros(shape, bool)
    for place in places:
        marks[place] = True
    return marks


def slow_vtrace(  # noqa: PLR0913 - as many as `vtrace` takes
    log_rhos: Array,
    discounts: Array,
    rewards: Array,
    values: Array,
    next_values: Array,
    ends: Array,
    *,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    lambda_: float = 1.0,
) -> tuple[Array, Array]:
    """The double sum of eq. (1), one start s and one environment b after the other, in float64."""
    num_steps, num_envs = rewards.shape
    rhos = np.exp(log_rhos.astype(np.float64))
    vs = values.astype(np.float64)
    for s in range(num_steps):
        for b in range(num_envs):
            factor = 1.0  # gamma^(t-s) * c_s * ... * c_{t-1}
            for t in range(s, num_steps):
                delta = rewards[t, b] + discounts[t, b] * next_values[t, b] - values[t, b]
                vs[s, b] += factor * min(rho_bar, rhos[t, b]) * delta
                if ends[t, b]:
                    break
                factor *= discounts[t, b] * lambda_ * min(c_bar, rhos[t, b])
    advantages = np.empty_like(vs)
    for s in range(num_steps):
        for b in range(num_envs):
            same_episode = s + 1 < num_steps and not ends[s, b]
            following = vs[s + 1, b] if same_episode else next_values[s, b]
            advantages[s, b] = min(pg_rho_bar, rhos[s, b]) * (
                rewards[s, b] + discounts[s, b] * following - values[s, b]
            )
    return vs, advantages
