from __future__ import annotations

import pytest

from asyncparl.algorithms import LinearDecay


def test_falls_in_a_straight_line_to_zero_and_stays_there() -> None:
    schedule = LinearDecay(8.0, decay_steps=100)
    assert [schedule.at(steps) for steps in (0, 25, 50, 100, 1000)] == [8.0, 6.0, 4.0, 0.0, 0.0]


def test_may_end_anywhere() -> None:
    schedule = LinearDecay(8.0, decay_steps=100, end=10.0)
    assert [schedule.at(steps) for steps in (0, 25, 100, 1000)] == [8.0, 8.5, 10.0, 10.0]


def test_is_constant_without_an_end() -> None:
    assert LinearDecay(8.0).at(10**9) == 8.0


def test_an_end_before_the_first_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^decay_steps is 0, expected at least 1"):
        LinearDecay(8.0, decay_steps=0)
