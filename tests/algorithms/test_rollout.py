from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from asyncparl.algorithms import Rollout, check_rollout, num_agent_steps, to_torch
from asyncparl.algorithms.rollout import split_columns
from tests.algorithms.rollouts import make_rollout

GOOD = make_rollout(5, 3, (4,), terminated=((1, 1),), truncated=((0, 2), (3, 0)), state_size=7)


def test_a_whole_rollout_passes_as_arrays_and_as_tensors() -> None:
    check_rollout(GOOD)
    check_rollout(to_torch(GOOD))
    check_rollout(make_rollout(1, 1))
    assert to_torch(make_rollout(1, 1)).initial_state is None


def test_a_step_may_be_terminated_and_truncated() -> None:
    check_rollout(make_rollout(terminated=((1, 1),), truncated=((1, 1),)))


def test_agent_steps_are_all_steps_of_all_environments() -> None:
    assert num_agent_steps(GOOD) == 15
    assert num_agent_steps(to_torch(GOOD)) == 15


@pytest.mark.parametrize("as_torch", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("obs", np.zeros(5), r"rollout\.obs has shape \[5\], expected \[T, B, ...\] with T, B >= 1"),
        ("obs", np.zeros((0, 3, 4)), r"rollout\.obs has shape \[0, 3, 4\]"),
        ("actions", np.zeros((5, 3), np.int32), r"rollout\.actions is int32 \[5, 3\], expected int64 \[5, 3\]"),
        ("actions", np.zeros((3, 5), np.int64), r"rollout\.actions is int64 \[3, 5\]"),
        ("behaviour_log_probs", np.zeros((5, 3)), r"rollout\.behaviour_log_probs is float64"),
        ("rewards", np.zeros((6, 3), np.float32), r"rollout\.rewards is float32 \[6, 3\], expected float32 \[5, 3\]"),
        ("terminated", np.zeros((5, 3), np.float32), r"rollout\.terminated is float32"),
        ("truncated", np.zeros((5, 3, 1), bool), r"rollout\.truncated is bool \[5, 3, 1\]"),
        ("bootstrap_obs", np.zeros((3, 4)), r"rollout\.bootstrap_obs is float64 \[3, 4\], expected float32"),
        ("bootstrap_obs", np.zeros((3, 5), np.float32), r"rollout\.bootstrap_obs is float32 \[3, 5\]"),
        ("final_obs", np.zeros((1, 4), np.float32), r"final_obs is float32 \[1, 4\], expected float32 \[2, 4\]"),
        ("final_steps", np.zeros((2, 3), np.int64), r"rollout\.final_steps is int64 \[2, 3\]"),
        ("final_steps", np.array([[0, 2], [2, 0]]), r"rollout\.final_steps lists \[\(0, 2\), \(2, 0\)\], but the "),
        ("final_steps", np.array([[0, 2], [0, 2]]), r"rollout\.final_steps lists"),
        ("truncated", np.zeros((5, 3), bool), r"the truncated steps are \[\]"),
        ("initial_state", np.zeros((3, 7)), r"rollout\.initial_state is float64 \[3, 7\], expected float32 \[3, 7\]"),
        ("initial_state", np.zeros((2, 7), np.float32), r"rollout\.initial_state is float32 \[2, 7\], expected"),
        (
            "initial_state",
            np.zeros(3, np.float32),
            r"rollout\.initial_state is float32 \[3\], expected float32 \[3, S\]",
        ),
    ],
)
def test_a_wrong_field_is_named_in_one_line(field: str, value: Any, message: str, as_torch: bool) -> None:
    rollout: Rollout[Any] = GOOD._replace(**{field: value})
    if as_torch:
        rollout = to_torch(rollout)
    with pytest.raises(ValueError, match=message) as error:
        check_rollout(rollout)
    assert "\n" not in str(error.value)


def test_a_final_step_listed_twice_is_refused() -> None:
    twice = GOOD._replace(final_steps=GOOD.final_steps[[0, 1, 1]], final_obs=GOOD.final_obs[[0, 1, 1]])
    with pytest.raises(ValueError, match=r"lists \[\(0, 2\), \(3, 0\), \(3, 0\)\], but the truncated steps are"):
        check_rollout(twice)


def test_tensors_share_memory_with_writable_arrays_only() -> None:
    writable = GOOD.rewards.copy()
    read_only = GOOD.actions.copy()
    read_only.flags.writeable = False
    tensors = to_torch(GOOD._replace(rewards=writable, actions=read_only))
    writable[0, 0] = 42.0
    assert tensors.rewards[0, 0] == 42.0
    tensors.actions[0, 0] = 99
    assert read_only[0, 0] != 99


def test_tensors_keep_every_value_and_dtype() -> None:
    tensors = to_torch(GOOD, "cpu", non_blocking=True)
    for name, array in GOOD._asdict().items():
        tensor = getattr(tensors, name)
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
def test_parts_of_a_rollout_are_whole_rollouts_of_some_environments(num_parts: int) -> None:
    rollout = to_torch(GOOD)
    parts = split_columns(rollout, num_parts)
    assert len(parts) == min(num_parts, 3)
    for part in parts:
        check_rollout(part)
    for name in ("obs", "actions", "behaviour_log_probs", "rewards", "terminated", "truncated"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts], dim=1), getattr(rollout, name))
    for name in ("bootstrap_obs", "initial_state"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(rollout, name))
    finals, first = {}, 0
    for part in parts:
        for (t, b), obs in zip(part.final_steps.tolist(), part.final_obs, strict=True):
            finals[t, first + b] = obs
        first += part.rewards.shape[1]
    assert finals.keys() == {(0, 2), (3, 0)}
    for step, obs in zip(rollout.final_steps.tolist(), rollout.final_obs, strict=True):
        assert torch.equal(finals[tuple(step)], obs)
    assert torch.equal(rollout.final_steps, to_torch(GOOD).final_steps)  # the whole is as it was
