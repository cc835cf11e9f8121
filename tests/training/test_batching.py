"""Batch assembly: the same numbers as a plain concatenation, in memory that no batch shares while it is lent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from asyncparl.algorithms.rollout import Rollout
from asyncparl.training.batching import Batch, BatchAssembler

T, B = 3, 4
OBS_SHAPE = (2, 2)
S = 5


def make_rollout(
    num_columns: int,
    seed: int = 0,
    *,
    num_steps: int = T,
    obs_shape: tuple[int, ...] = OBS_SHAPE,
    obs_dtype: type[np.generic] = np.uint8,
) -> Rollout[NDArray[Any]]:
    """Random contents, with a truncated step now and then."""
    rng = np.random.default_rng(seed)
    steps = (num_steps, num_columns)
    terminated = rng.random(steps) < 0.2
    truncated = (rng.random(steps) < 0.3) & ~terminated

    def new_obs(*leading: int) -> NDArray[Any]:
        return rng.integers(256, size=(*leading, *obs_shape)).astype(obs_dtype)

    return Rollout(
        obs=new_obs(*steps),
        actions=rng.integers(6, size=steps),
        behaviour_log_probs=rng.random(steps, np.float32),
        rewards=rng.random(steps, np.float32),
        terminated=terminated,
        truncated=truncated,
        bootstrap_obs=new_obs(num_columns),
        final_obs=new_obs(int(truncated.sum())),
        final_steps=np.argwhere(truncated),
        initial_state=rng.random((num_columns, S), np.float32),
    )


def make_assembler(num_batches: int = 2, state_size: int | None = S) -> BatchAssembler:
    return BatchAssembler(
        num_steps=T,
        num_columns=B,
        obs_shape=OBS_SHAPE,
        obs_dtype=np.dtype(np.uint8),
        state_size=state_size,
        num_batches=num_batches,
    )


def column(rollout: Rollout[Any], b: int) -> dict[str, Any]:
    """Everything that one column holds, as plain lists; final observations by their step."""
    finals = {
        int(step): obs.tolist()
        for obs, (step, owner) in zip(rollout.final_obs, rollout.final_steps, strict=True)
        if owner == b
    }
    names = ("obs", "actions", "behaviour_log_probs", "rewards", "terminated", "truncated")
    contents = {name: getattr(rollout, name)[:, b].tolist() for name in names}
    per_column = {name: getattr(rollout, name)[b].tolist() for name in ("bootstrap_obs", "initial_state")}
    return contents | per_column | {"final_obs": finals}


def columns(rollout: Rollout[Any]) -> list[dict[str, Any]]:
    assert len(rollout.final_steps) == rollout.truncated.sum()
    return [column(rollout, b) for b in range(rollout.actions.shape[1])]


def fill(assembler: BatchAssembler, seed: int) -> Batch:
    """One batch out of one rollout of full width."""
    batch = assembler.add(make_rollout(B, seed), weights_versions=seed)
    assert batch is not None
    return batch


def test_a_batch_is_complete_when_its_last_column_arrives() -> None:
    assembler = make_assembler()
    assert assembler.add(make_rollout(1), 0) is None
    assert assembler.add(make_rollout(2), 0) is None
    assert isinstance(assembler.add(make_rollout(1), 0), Batch)


def test_two_rollouts_side_by_side_are_their_concatenation() -> None:
    left, right = make_rollout(2, 1), make_rollout(2, 2)
    assembler = make_assembler()
    assembler.add(left, 7)
    batch = assembler.add(right, 9)
    assert batch is not None
    for name in ("obs", "actions", "behaviour_log_probs", "rewards", "terminated", "truncated"):
        expected = np.concatenate([getattr(left, name), getattr(right, name)], axis=1)
        actual = getattr(batch.rollout, name)
        assert isinstance(actual, torch.Tensor) and actual.is_contiguous()
        assert torch.equal(actual, torch.from_numpy(expected)), name
    both = np.concatenate([left.bootstrap_obs, right.bootstrap_obs])
    assert torch.equal(batch.rollout.bootstrap_obs, torch.from_numpy(both))
    assert np.array_equal(batch.rollout.final_obs.numpy(), np.concatenate([left.final_obs, right.final_obs]))
    shifted = np.concatenate([left.final_steps, right.final_steps + np.array([0, 2])])
    assert np.array_equal(batch.rollout.final_steps.numpy(), shifted) and len(shifted) > 0
    assert batch.versions.tolist() == [[7, 7, 9, 9]] * T


def test_a_batch_without_truncation_has_empty_final_observations() -> None:
    whole = make_rollout(B)
    nothing_cut = whole._replace(
        truncated=np.zeros((T, B), bool), final_obs=whole.final_obs[:0], final_steps=whole.final_steps[:0]
    )
    batch = make_assembler().add(nothing_cut, 0)
    assert batch is not None
    assert batch.rollout.final_obs.shape == (0, *OBS_SHAPE) and batch.rollout.final_obs.dtype == torch.uint8
    assert batch.rollout.final_steps.shape == (0, 2) and batch.rollout.final_steps.dtype == torch.int64


def test_a_rollout_that_does_not_fit_is_split_over_two_batches() -> None:
    assembler = make_assembler()
    first, second, third = make_rollout(3, 1), make_rollout(3, 2), make_rollout(2, 3)
    assert assembler.add(first, 1) is None
    one = assembler.add(second, 2)
    two = assembler.add(third, 3)
    assert one is not None and two is not None
    assert one.versions.tolist() == [[1, 1, 1, 2]] * T and two.versions.tolist() == [[2, 2, 3, 3]] * T
    assert columns(one.rollout) + columns(two.rollout) == columns(first) + columns(second) + columns(third)


@given(widths=st.lists(st.integers(1, B), min_size=1, max_size=30), num_batches=st.integers(2, 4))
def test_no_column_is_lost_changed_or_reordered(widths: list[int], num_batches: int) -> None:
    assembler = make_assembler(num_batches)
    sent: list[dict[str, Any]] = []
    received: list[dict[str, Any]] = []
    lent: list[tuple[Batch, list[dict[str, Any]]]] = []
    for seed, width in enumerate(widths):
        while not assembler.has_room(width):
            batch, before = lent.pop(0)
            assert columns(batch.rollout) == before  # what came after did not write into it
            assembler.release(batch)
        rollout = make_rollout(width, seed)
        sent += columns(rollout)
        batch_or_none = assembler.add(rollout, seed)
        if batch_or_none is not None:
            lent.append((batch_or_none, columns(batch_or_none.rollout)))
            received += lent[-1][1]
    assert received == sent[: len(received)] and len(sent) - len(received) < B


def test_a_lent_batch_is_never_written_to_and_a_released_one_is_reused() -> None:
    assembler = make_assembler(num_batches=3)
    lent = [fill(assembler, seed) for seed in range(3)]
    assert len({batch.rollout.obs.data_ptr() for batch in lent}) == 3
    assert not assembler.has_room(1)
    with pytest.raises(RuntimeError, match=r"^no room for 1 columns: 3 batches are not released$"):
        assembler.add(make_rollout(1), 0)

    assembler.release(lent[1])
    assert assembler.has_room(B)
    reused = fill(assembler, seed=9)
    assert reused.rollout.obs.data_ptr() == lent[1].rollout.obs.data_ptr()
    assert columns(reused.rollout) == columns(make_rollout(B, 9))
    assert lent[1].versions.tolist() == [[1] * B] * T  # not of the ring: may be kept
    assert columns(lent[0].rollout) == columns(make_rollout(B, 0))
    assert columns(lent[2].rollout) == columns(make_rollout(B, 2))


def test_room_counts_the_columns_already_filled() -> None:
    assembler = make_assembler(num_batches=1)
    assembler.add(make_rollout(3), 0)
    assert assembler.has_room(1) and not assembler.has_room(2)
    with pytest.raises(RuntimeError, match="no room for 2 columns"):
        assembler.add(make_rollout(2), 0)
    assert assembler.add(make_rollout(1, 5), 0) is not None  # the refused one left nothing behind


def test_a_batch_can_be_released_once_and_only_where_it_is_from() -> None:
    assembler, other = make_assembler(), make_assembler()
    old = fill(assembler, 0)
    with pytest.raises(ValueError, match=r"^this batch was released before"):
        other.release(old)
    assembler.release(old)
    fill(assembler, 1)
    again = fill(assembler, 2)  # in the same memory as the first
    assert again.slot == old.slot
    with pytest.raises(ValueError, match=r"^this batch was released before"):
        assembler.release(old)


def test_policy_lag_is_counted_per_step() -> None:
    assembler = make_assembler()
    assembler.add(make_rollout(3), 5)
    batch = assembler.add(make_rollout(1), [6, 8, 8])
    assert batch is not None and batch.policy_lag(9).tolist() == [[4, 4, 4, 3], [4, 4, 4, 1], [4, 4, 4, 1]]


def test_the_rollout_may_be_overwritten_after_it_was_added() -> None:
    assembler, rollout = make_assembler(), make_rollout(B, 1)
    batch = assembler.add(rollout, 0)
    for array in rollout:
        array.fill(0)
    assert batch is not None and columns(batch.rollout) == columns(make_rollout(B, 1))


def test_rollouts_may_be_read_only_views() -> None:
    wide = make_rollout(2 * B, 1)
    part = wide._replace(
        **{n: getattr(wide, n)[:, ::2] for n in ("obs", "actions", "behaviour_log_probs", "rewards", "terminated")},
        truncated=np.zeros((T, B), bool),
        bootstrap_obs=wide.bootstrap_obs[::2],
        final_obs=wide.final_obs[:0],
        final_steps=wide.final_steps[:0],
        initial_state=wide.initial_state[::2],
    )
    for array in part:
        array.flags.writeable = False
    batch = make_assembler().add(part, 0)
    assert batch is not None and columns(batch.rollout) == columns(part)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((T, B, 2, 3), np.uint8)}, r"^rollout.bootstrap_obs is uint8 \[4, 2, 2\], expected"),
        ({"rewards": np.zeros((T, B), np.float64)}, r"^rollout.rewards is float64 \[3, 4\], expected float32 \[3, 4\]"),
        ({"truncated": np.zeros((T, B), bool)}, r"^rollout.final_steps lists \[\(.*, but the truncated steps are \[\]"),
    ],
)
def test_a_rollout_that_breaks_the_convention_is_named(change: dict[str, NDArray[Any]], message: str) -> None:
    assembler = make_assembler()
    with pytest.raises(ValueError, match=message):
        assembler.add(make_rollout(B)._replace(**change), 0)
    assert columns(fill(assembler, 3).rollout) == columns(make_rollout(B, 3))


@pytest.mark.parametrize(
    ("misfit", "actual"),
    [
        (make_rollout(B + 1), r"uint8 \[3, 5, 2, 2\]"),
        (make_rollout(2, num_steps=T + 1), r"uint8 \[4, 2, 2, 2\]"),
        (make_rollout(2, obs_shape=(2, 3)), r"uint8 \[3, 2, 2, 3\]"),
        (make_rollout(2, obs_dtype=np.float32), r"float32 \[3, 2, 2, 2\]"),
    ],
)
def test_a_rollout_that_does_not_fit_the_batch_is_refused(misfit: Rollout[NDArray[Any]], actual: str) -> None:
    with pytest.raises(ValueError, match=rf"^rollout.obs is {actual}, expected uint8 \[3, 1 to 4, 2, 2\]$"):
        make_assembler().add(misfit, 0)


def test_only_a_model_with_a_memory_has_states() -> None:
    without = make_rollout(B)._replace(initial_state=None)
    batch = make_assembler(state_size=None).add(without, 0)
    assert batch is not None and batch.rollout.initial_state is None
    with pytest.raises(ValueError, match=r"^rollout.initial_state has None numbers in a row, expected 5$"):
        make_assembler().add(without, 0)
    with pytest.raises(ValueError, match=r"^rollout.initial_state has 5 numbers in a row, expected None$"):
        make_assembler(state_size=None).add(make_rollout(B), 0)
