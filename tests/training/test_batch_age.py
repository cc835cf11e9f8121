"""How old batches are when they have been learned from."""

from __future__ import annotations

from asyncparl.training.batch_age import BatchAges


def test_a_batch_is_as_old_as_its_first_rollout() -> None:
    ages = BatchAges(num_columns=4)
    ages.added(2, slot=None, now=1.0)
    ages.added(2, slot=0, now=3.0)
    ages.added(4, slot=1, now=4.0)
    assert ages.learned(0, now=6.0) == 5.0
    assert ages.learned(1, now=6.0) == 2.0


def test_what_is_left_of_a_rollout_begins_the_next_batch() -> None:
    ages = BatchAges(num_columns=4)
    ages.added(3, slot=None, now=1.0)
    ages.added(3, slot=0, now=2.0)  # two of its columns are left
    ages.added(2, slot=1, now=5.0)
    ages.added(4, slot=2, now=7.0)
    assert [ages.learned(slot, now=10.0) for slot in range(3)] == [9.0, 8.0, 3.0]


def test_a_batch_that_nobody_knows_has_no_age() -> None:
    assert BatchAges(4).learned(0, now=5.0) == 0.0
