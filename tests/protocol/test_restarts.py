"""How often and how soon an actor is started again, with the values written down."""

from __future__ import annotations

from typing import Any

import pytest

from asyncparl.protocol.restarts import (
    LONGEST_PAUSE_S,
    RestartBudget,
    Strategy,
    check_restarts,
    restarted_with,
)


def test_the_pauses_double_up_to_ten_seconds() -> None:
    budget = RestartBudget(100, None)
    pauses = [budget.died(float(now)) for now in range(10)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_the_pauses_begin_anew_after_a_quiet_window() -> None:
    budget = RestartBudget(100, 60.0)
    assert [budget.died(now) for now in (0.0, 59.0, 118.9)] == [0.1, 0.2, 0.4]
    assert [budget.died(now) for now in (178.9, 179.0)] == [0.1, 0.2]


def test_no_more_than_so_many_restarts_are_given_within_any_window() -> None:
    budget = RestartBudget(2, 60.0)
    assert [budget.died(now) is not None for now in (0.0, 30.0, 59.9)] == [True, True, False]
    assert [budget.died(now) is not None for now in (60.0, 89.9, 90.0, 119.9)] == [True, False, True, False]
    assert budget.why_spent() == "gave up after 2 restarts within 60 s"


def test_without_a_window_the_restarts_of_a_lifetime_count() -> None:
    budget = RestartBudget(1, None)
    assert [budget.died(now) is not None for now in (0.0, 1e9, 2e9)] == [True, False, False]
    assert budget.why_spent() == "gave up after 1 restart"


def test_who_may_never_restart_never_does() -> None:
    budget = RestartBudget(0, 60.0)
    assert budget.died(0.0) is None
    assert not budget.why_spent()


@pytest.mark.parametrize(
    ("strategy", "expected"), [("one_for_one", "c"), ("one_for_all", "abcd"), ("rest_for_one", "cd")]
)
def test_who_is_restarted_together(strategy: Strategy, expected: str) -> None:
    assert list(restarted_with(strategy, list("abcd"), "c")) == list(expected)


@pytest.mark.parametrize(
    ("max_restarts", "window_s", "error", "text"),
    [
        (-1, 60.0, ValueError, "max_restarts must be 0 or more, not -1"),
        (1.5, 60.0, TypeError, "max_restarts must be a whole number, not 1.5"),
        (True, 60.0, TypeError, "max_restarts must be a whole number, not True"),
        (1, 0.0, ValueError, "restart_window_s must be more than 0, or None for ever, not 0.0"),
        (1, float("nan"), ValueError, "restart_window_s must be more than 0, or None for ever, not nan"),
        (1, "60", TypeError, "restart_window_s must be a number of seconds, or None for ever, not '60'"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(
    max_restarts: Any, window_s: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        check_restarts(max_restarts, window_s)
    assert str(caught.value) == text
