"""Rollouts whose observations are stacks of frames, on their way: every frame once.

A stack of S frames has S - 1 in common with the one before it, so that S + T frames are enough for T steps: those of
the first stack, and one more for each step. Only where an episode ends the next stack has nothing in common with the
last one: what the environment fills it with is its own affair, and is sent as it is.

Actors pack what they have played; the learner's copy of a rollout into its batch makes whole stacks of it again, equal
bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

import asyncparl
from asyncparl.algorithms.rollout import Rollout


class FrameRollout(NamedTuple):
    """T steps of B environments whose observations are stacks of S >= 2 frames; all else as in `Rollout`."""

    frames: NDArray[Any]  # [B, S + T, *frame_shape] obs[t, b] are the S from t on, but for what follows an end
    older_frames: NDArray[Any]  # [K, S - 1, *frame_shape] of what follows each end: all but the newest frame
    actions: NDArray[np.int64]
    behaviour_log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]  # the K ends are where `terminated | truncated`, in the order of (t, b)
    final_obs: NDArray[Any]  # whole stacks
    final_steps: NDArray[np.int64]
    initial_state: NDArray[np.float32] | None = None


def pack_frames(rollout: Rollout[NDArray[Any]]) -> FrameRollout:
    """Every frame once.

    Args:
        rollout: its observations are stacks [S, *frame_shape] that go on as `VectorEnvironment.frame_stack` says.
    """
    num_steps, num_envs, frame_stack, *frame_shape = rollout.obs.shape
    # Those of an environment lie together, so that the learner copies a whole stack at a time.
    frames = asyncparl.empty((num_envs, frame_stack + num_steps, *frame_shape), rollout.obs.dtype)
    frames[:, :frame_stack] = rollout.obs[0]
    frames[:, frame_stack:-1] = rollout.obs[1:, :, -1].swapaxes(0, 1)
    frames[:, -1] = rollout.bootstrap_obs[:, -1]
    ends = np.argwhere(rollout.terminated | rollout.truncated)
    older_frames = np.empty((len(ends), frame_stack - 1, *frame_shape), frames.dtype)
    for older, (t, b) in zip(older_frames, ends.tolist(), strict=True):
        next_obs = rollout.obs[t + 1] if t + 1 < num_steps else rollout.bootstrap_obs
        older[:] = next_obs[b, :-1]
    fields = rollout._asdict()
    del fields["obs"], fields["bootstrap_obs"]
    return FrameRollout(frames=frames, older_frames=older_frames, **fields)


def as_stacks(rollout: FrameRollout) -> Rollout[NDArray[Any]]:
    """The rollout with whole stacks, as views of its frames: right, but for what `write_older_frames` corrects.

    Raises:
        ValueError: the frames are not as many as the steps need, or the older ones as the ends.
    """
    num_steps = len(rollout.actions)
    frame_stack = rollout.frames.shape[1] - num_steps
    num_ends = np.count_nonzero(rollout.terminated | rollout.truncated)
    older_shape = (num_ends, frame_stack - 1, *rollout.frames.shape[2:])
    types = rollout.frames.dtype, rollout.older_frames.dtype
    if frame_stack < 2 or rollout.older_frames.shape != older_shape or types[0] != types[1]:
        given = f"{types[0]}{list(rollout.frames.shape)} and {types[1]}{list(rollout.older_frames.shape)}"
        raise ValueError(f"frames and older_frames cannot be {given} in {num_steps} steps with {num_ends} ends")
    stacks = np.moveaxis(sliding_window_view(rollout.frames, frame_stack, axis=1), -1, 2).swapaxes(0, 1)
    fields = rollout._asdict()
    del fields["frames"], fields["older_frames"]
    return Rollout(obs=stacks[:-1], bootstrap_obs=stacks[-1], **fields)


def write_older_frames(
    rollout: FrameRollout, start: int, stop: int, obs: NDArray[Any], bootstrap_obs: NDArray[Any]
) -> None:
    """Correct the stacks after each end, where columns `start` to `stop` of `as_stacks` were copied to.

    Args:
        rollout: where they are from.
        obs: [T, stop - start, S, *frame_shape]
        bootstrap_obs: [stop - start, S, *frame_shape]
    """
    num_steps = len(obs)
    ends = np.argwhere(rollout.terminated | rollout.truncated)
    for (t, b), older in zip(ends.tolist(), rollout.older_frames, strict=True):
        if not start <= b < stop:
            continue
        # Each stack has one of them less than the one before. Where a later end comes in between, it corrects again.
        for first in range(min(len(older), num_steps - t)):
            step = t + 1 + first
            stack = (obs[step] if step < num_steps else bootstrap_obs)[b - start]
            stack[: len(older) - first] = older[first:]
