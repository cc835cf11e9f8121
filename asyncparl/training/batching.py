"""Training batches, put together from rollouts in memory that is allocated once.

A ring of `num_batches` batches of T steps and `num_columns` columns. Rollouts may have any number of columns up to
that; one that does not fit in what is left of a batch is split by columns, and its rest starts the next batch.
A column is never cut in time. Each array is copied once, from the rollout to its place in the batch; a rollout that
has single frames becomes one of stacks by that very copy.

A batch is lent to the learner: its tensors are valid until it is released, then the memory is filled anew.
Nothing here blocks and nothing is dropped: `has_room` says whether `add` may be called. Use it from one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from asyncparl.algorithms.rollout import STEP_FIELDS, Rollout, check_rollout
from asyncparl.training.frames import FrameRollout, as_stacks, write_older_frames


class Batch(NamedTuple):
    """One training batch; `rollout` has `num_columns` columns."""

    rollout: Rollout[torch.Tensor]
    versions: NDArray[np.int64]  # [T, B] the weights that acted in each step; may be kept
    slot: int  # for `release`

    def policy_lag(self, current_version: int) -> NDArray[np.int64]:
        """[T, B] by how many versions the acting weights of each step are older than the learner's."""
        return current_version - self.versions


class BatchAssembler:
    """See the top of this file.

    Args:
        num_steps: T of every rollout and batch.
        num_columns: B of every batch.
        obs_shape: of one observation. obs_dtype: its numpy type.
        state_size: numbers that the model remembers of an environment; None: it has no memory.
        num_batches: size of the ring: one fills while the others wait for the learner or are with it.
        pin_memory: page-locked memory, for copies to a CUDA device that do not wait.
    """

    def __init__(
        self,
        *,
        num_steps: int,
        num_columns: int,
        obs_shape: tuple[int, ...],
        obs_dtype: np.dtype[Any],
        state_size: int | None = None,
        num_batches: int = 2,
        pin_memory: bool = False,
    ) -> None:
        if min(num_steps, num_columns, num_batches) < 1:
            raise ValueError("num_steps, num_columns and num_batches must be at least 1")
        self._num_columns = num_columns
        self._state_size = state_size
        self._slots = [
            _Slot.allocate(num_steps, num_columns, obs_shape, obs_dtype, state_size, pin_memory)
            for _ in range(num_batches)
        ]
        self._lent: dict[int, Batch] = {}  # by slot
        self._free = deque(range(num_batches))  # the first one is being filled
        self._filled = 0  # columns in it

    def has_room(self, num_columns: int) -> bool:
        """Whether a rollout of that many columns can be added now."""
        return num_columns <= len(self._free) * self._num_columns - self._filled

    def add(self, rollout: Rollout[NDArray[Any]] | FrameRollout, weights_versions: int | Sequence[int]) -> Batch | None:
        """Copy a rollout in; it is not needed afterwards.

        Args:
            rollout: T steps of any number of columns up to that of a batch.
            weights_versions: of the policy that acted: [T], or one of all steps.

        Returns:
            The batch that is complete now, if one is; the caller owes its `release`.

        Raises:
            ValueError: if the rollout is not of this assembler's shapes and types, or wider than a batch.
            RuntimeError: if there is no room. In either case nothing was added.
        """
        packed = rollout if isinstance(rollout, FrameRollout) else None
        steps = as_stacks(rollout) if isinstance(rollout, FrameRollout) else rollout
        width = self._checked_width(steps)
        if not self.has_room(width):
            raise RuntimeError(f"no room for {width} columns: {len(self._lent)} batches are not released")
        versions = np.asarray(weights_versions)[..., None]  # [T, 1], or [1]
        first = min(width, self._num_columns - self._filled)
        slot = self._free[0]
        self._slots[slot].write(self._filled, steps, 0, first, versions, packed)
        self._filled += first
        if self._filled < self._num_columns:
            return None
        batch = self._lent[self._free.popleft()] = self._slots[slot].batch(slot)
        self._filled = width - first
        if self._filled:
            self._slots[self._free[0]].write(0, steps, first, width, versions, packed)
        return batch

    def release(self, batch: Batch) -> None:
        """Take a batch back; its tensors must not be used any more.

        Raises:
            ValueError: if it is not lent: released twice, or from another assembler.
        """
        if self._lent.get(batch.slot) is not batch:
            raise ValueError("this batch was released before, or is not of this assembler")
        del self._lent[batch.slot]
        self._free.append(batch.slot)

    def _checked_width(self, rollout: Rollout[NDArray[Any]]) -> int:
        check_rollout(rollout)
        ours, theirs = self._slots[0].arrays["obs"], rollout.obs
        num_steps, width, *obs_shape = map(int, theirs.shape)
        fits = (theirs.dtype, num_steps, obs_shape) == (ours.dtype, len(ours), list(ours.shape[2:]))
        if not fits or width > self._num_columns:
            expected = ", ".join(str(size) for size in (len(ours), f"1 to {self._num_columns}", *ours.shape[2:]))
            raise ValueError(f"rollout.obs is {theirs.dtype} {list(theirs.shape)}, expected {ours.dtype} [{expected}]")
        size = None if rollout.initial_state is None else rollout.initial_state.shape[1]
        if size != self._state_size:
            raise ValueError(f"rollout.initial_state has {size} numbers in a row, expected {self._state_size}")
        return width


@dataclass(slots=True)
class _Slot:
    """The memory of one batch, seen as numpy arrays and as torch tensors."""

    tensors: dict[str, torch.Tensor]
    arrays: dict[str, NDArray[Any]]
    versions: NDArray[np.int64]
    final_obs: list[NDArray[Any]] = field(default_factory=list)
    final_steps: list[NDArray[np.int64]] = field(default_factory=list)

    @classmethod
    def allocate(
        cls,
        num_steps: int,
        num_columns: int,
        obs_shape: tuple[int, ...],
        obs_dtype: np.dtype[Any],
        state_size: int | None,
        pin_memory: bool,
    ) -> _Slot:
        steps = (num_steps, num_columns)
        obs_type = torch.from_numpy(np.empty(0, obs_dtype)).dtype
        tensors = {
            "obs": torch.empty((*steps, *obs_shape), dtype=obs_type, pin_memory=pin_memory),
            "actions": torch.empty(steps, dtype=torch.int64, pin_memory=pin_memory),
            "behaviour_log_probs": torch.empty(steps, dtype=torch.float32, pin_memory=pin_memory),
            "rewards": torch.empty(steps, dtype=torch.float32, pin_memory=pin_memory),
            "terminated": torch.empty(steps, dtype=torch.bool, pin_memory=pin_memory),
            "truncated": torch.empty(steps, dtype=torch.bool, pin_memory=pin_memory),
            "bootstrap_obs": torch.empty((num_columns, *obs_shape), dtype=obs_type, pin_memory=pin_memory),
        }
        if state_size is not None:
            shape = (num_columns, state_size)
            tensors["initial_state"] = torch.empty(shape, dtype=torch.float32, pin_memory=pin_memory)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        return cls(tensors, arrays, np.empty(steps, np.int64))

    def write(
        self,
        column: int,
        rollout: Rollout[NDArray[Any]],
        start: int,
        stop: int,
        versions: NDArray[Any],
        packed: FrameRollout | None,
    ) -> None:
        """Copy columns start to stop of the rollout to here, from `column` on. `packed`: what it is a view of."""
        here = slice(column, column + stop - start)
        for name in STEP_FIELDS:
            self.arrays[name][:, here] = getattr(rollout, name)[:, start:stop]
        self.arrays["bootstrap_obs"][here] = rollout.bootstrap_obs[start:stop]
        if packed is not None:
            obs, bootstrap_obs = self.arrays["obs"][:, here], self.arrays["bootstrap_obs"][here]
            write_older_frames(packed, start, stop, obs, bootstrap_obs)
        if rollout.initial_state is not None:
            self.arrays["initial_state"][here] = rollout.initial_state[start:stop]
        self.versions[:, here] = versions
        columns = rollout.final_steps[:, 1]
        mine = (start <= columns) & (columns < stop)
        if mine.any():
            self.final_obs.append(rollout.final_obs[mine])  # a mask copies
            self.final_steps.append(rollout.final_steps[mine] + np.array([0, column - start]))

    def batch(self, slot: int) -> Batch:
        """Hand out what was written, and forget the final observations."""
        no_obs, no_steps = self.arrays["bootstrap_obs"][:0], np.empty((0, 2), np.int64)
        final_obs = torch.from_numpy(np.concatenate([no_obs, *self.final_obs]))
        final_steps = torch.from_numpy(np.concatenate([no_steps, *self.final_steps]))
        self.final_obs.clear()
        self.final_steps.clear()
        return Batch(Rollout(**self.tensors, final_obs=final_obs, final_steps=final_steps), self.versions.copy(), slot)
