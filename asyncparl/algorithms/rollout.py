"""The unit of experience, and the one time convention that everything here follows.

Step t of environment b is: the policy sees `obs[t, b]`, does `actions[t, b]`, and then receives `rewards[t, b]`,
`terminated[t, b]` and `truncated[t, b]`, all three the result of that action. So:

- `discounts = gamma * (1 - terminated)`: nothing that comes after a real end has any value.
- The trace is cut where `terminated | truncated`: what comes next in the array is another episode.
- Where an episode was truncated, the value of what would have come next is V(`final_obs`), not V(`obs[t + 1]`).
- `obs[t + 1]` after an end is the first observation of the next episode (auto-reset in the same step).
- After the last step comes `bootstrap_obs`, whose value counts unless that step ended an episode.
- A model with a memory has seen what came before `obs[0]`, unless an episode begins there: `initial_state` is what it
  remembered. After an end it remembers nothing, and V(`final_obs`) is that of who remembers the whole episode.

Where a step is both terminated and truncated, `terminated` decides the discount; it has its final observation all
the same.
"""

from __future__ import annotations

import itertools
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncparl.algorithms.arrays import as_tensor

ArrayT = TypeVar("ArrayT")


class Rollout(NamedTuple, Generic[ArrayT]):
    """T steps of B environments side by side, as numpy arrays or as torch tensors."""

    obs: ArrayT  # [T, B, *obs_shape] what the policy saw
    actions: ArrayT  # [T, B] int64
    behaviour_log_probs: ArrayT  # [T, B] float32, log mu(a|x) from the forward pass that chose the action
    rewards: ArrayT  # [T, B] float32
    terminated: ArrayT  # [T, B] bool, the episode really ended
    truncated: ArrayT  # [T, B] bool, the episode was cut by a limit
    bootstrap_obs: ArrayT  # [B, *obs_shape] what the policy would see next
    final_obs: ArrayT  # [K, *obs_shape] the last observation of each truncated episode
    final_steps: ArrayT  # [K, 2] int64, the (t, b) of each final observation
    initial_state: ArrayT | None = None  # [B, S] float32, see `recurrence.py`; None: the model has no memory


STEP_FIELDS = ("obs", "actions", "behaviour_log_probs", "rewards", "terminated", "truncated")
"""Those that are [T, B, ...]."""


def num_agent_steps(rollout: Rollout[Any]) -> int:
    """How many actions the rollout holds, T * B."""
    num_steps, num_envs = rollout.obs.shape[:2]
    return int(num_steps * num_envs)


def to_torch(
    rollout: Rollout[NDArray[Any]] | Rollout[Tensor],
    device: torch.device | str = "cpu",
    *,
    non_blocking: bool = False,
) -> Rollout[Tensor]:
    """The rollout as tensors on a device.

    On the CPU the tensors share the arrays' memory: do not write to the arrays while the tensors are in use. With
    `non_blocking` the same holds for pinned memory until the device has caught up.
    """
    arrays = ((name, array) for name, array in rollout._asdict().items() if array is not None)
    return Rollout(**{name: as_tensor(array).to(device, non_blocking=non_blocking) for name, array in arrays})


def split_columns(rollout: Rollout[Tensor], num_parts: int) -> list[Rollout[Tensor]]:
    """Parts of about the same number of environments, at most so many; views of the rollout but for final observations.

    The parts of [T, B] are [T, B_1], [T, B_2] ..., in order; no part is empty.
    """
    num_envs = rollout.rewards.shape[1]
    num_parts = max(1, min(num_parts, num_envs))
    if num_parts == 1:
        return [rollout]
    bounds = [num_envs * part // num_parts for part in range(num_parts + 1)]
    return [_columns(rollout, start, stop) for start, stop in itertools.pairwise(bounds)]


def _columns(rollout: Rollout[Tensor], start: int, stop: int) -> Rollout[Tensor]:
    envs = rollout.final_steps[:, 1]
    mine = (start <= envs) & (envs < stop)
    final_steps = rollout.final_steps[mine]
    final_steps[:, 1] -= start  # a mask copies
    return rollout._replace(
        **{name: getattr(rollout, name)[:, start:stop] for name in STEP_FIELDS},
        bootstrap_obs=rollout.bootstrap_obs[start:stop],
        final_obs=rollout.final_obs[mine],
        final_steps=final_steps,
        initial_state=None if rollout.initial_state is None else rollout.initial_state[start:stop],
    )


def check_rollout(rollout: Rollout[Any]) -> None:
    """Check every shape and dtype, and that there is a final observation for exactly the truncated steps.

    The last check reads values, so it is left out for tensors on an accelerator, where it would wait for the device.

    Raises:
        ValueError: names the field, what it is and what it should be.
    """
    if rollout.obs.ndim < 2 or 0 in rollout.obs.shape[:2]:
        raise ValueError(f"rollout.obs has shape {list(rollout.obs.shape)}, expected [T, B, ...] with T, B >= 1")
    for name, expected in _expected_fields(rollout).items():
        actual = _describe(getattr(rollout, name))
        if actual != expected:
            raise ValueError(f"rollout.{name} is {actual}, expected {expected}")
    if not isinstance(rollout.truncated, Tensor) or rollout.truncated.device.type == "cpu":
        _check_final_steps(rollout)


def _expected_fields(rollout: Rollout[Any]) -> dict[str, str]:
    steps = list(rollout.obs.shape[:2])
    obs_shape = list(rollout.obs.shape[2:])
    obs_dtype = _dtype_name(rollout.obs)
    num_final = rollout.final_steps.shape[0] if rollout.final_steps.ndim else 0
    state = rollout.initial_state
    state_size = "S" if state is None or state.ndim != 2 else state.shape[1]
    return {
        "actions": f"int64 {steps}",
        "behaviour_log_probs": f"float32 {steps}",
        "rewards": f"float32 {steps}",
        "terminated": f"bool {steps}",
        "truncated": f"bool {steps}",
        "bootstrap_obs": f"{obs_dtype} {[steps[1], *obs_shape]}",
        "final_steps": f"int64 {[num_final, 2]}",
        "final_obs": f"{obs_dtype} {[num_final, *obs_shape]}",
    } | ({} if state is None else {"initial_state": f"float32 [{steps[1]}, {state_size}]"})


def _describe(array: Any) -> str:
    return f"{_dtype_name(array)} {list(array.shape)}"


def _dtype_name(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _check_final_steps(rollout: Rollout[Any]) -> None:
    listed = sorted(tuple(step) for step in rollout.final_steps.tolist())
    nonzero = rollout.truncated.nonzero()
    where = nonzero.tolist() if isinstance(nonzero, Tensor) else zip(*(axis.tolist() for axis in nonzero), strict=True)
    truncated = sorted(tuple(step) for step in where)
    if listed != truncated:
        raise ValueError(f"rollout.final_steps lists {listed}, but the truncated steps are {truncated}")
