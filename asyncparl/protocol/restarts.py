"""How often actors that die are started again, how soon, and which of a group together. Decides; their owner then does.

    RUNNING --died--> WAITING --after the pause--> STARTING --constructor returned--> RUNNING
                         ^                            |
                         +------------died------------+
       any of them, `max_restarts` within `window_s` spent --died--> DEAD

One `RestartBudget` is shared by all actors of a group. Time is given by the caller, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, TypeVar

from asyncparl.protocol.numbers import check_digits

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one"]
STRATEGIES: tuple[Strategy, ...] = ("one_for_one", "one_for_all", "rest_for_one")

T = TypeVar("T")


class RestartBudget:
    """At most `max_restarts` within any `window_s`; None: ever."""

    def __init__(self, max_restarts: int, window_s: float | None) -> None:
        self._max_restarts = max_restarts
        self._window_s = float("inf") if window_s is None else window_s
        self._restarts: deque[float] = deque()
        """When the restarts of the last window were granted."""
        self._last_death = -float("inf")
        self._pause_s = FIRST_PAUSE_S

    def died(self, now: float) -> float | None:
        """Somebody died: how long to wait before the restart. None: it is one too many.

        The pauses double from one death to the next, and begin anew after a window without any.
        """
        if now - self._last_death >= self._window_s:
            self._pause_s = FIRST_PAUSE_S
        self._last_death = now
        while self._restarts and now - self._restarts[0] >= self._window_s:
            self._restarts.popleft()
        if len(self._restarts) >= self._max_restarts:
            return None
        self._restarts.append(now)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s

    def why_spent(self) -> str:
        """How `died` came to be None, for people; empty if no restart was ever allowed."""
        if not self._max_restarts:
            return ""
        plural = "s" if self._max_restarts > 1 else ""
        within = "" if self._window_s == float("inf") else f" within {self._window_s:g} s"
        return f"gave up after {self._max_restarts} restart{plural}{within}"


def check_restarts(max_restarts: int, window_s: float | None) -> None:
    """Say what is wrong with a budget, as the user named it.

    Raises:
        TypeError, ValueError: with the name of the option.
    """
    if not isinstance(max_restarts, int) or isinstance(max_restarts, bool):
        raise TypeError(f"max_restarts must be a whole number, not {max_restarts!r}")
    check_digits("max_restarts", max_restarts)
    if max_restarts < 0:
        raise ValueError(f"max_restarts must be 0 or more, not {max_restarts}")
    if window_s is None:
        return
    if not isinstance(window_s, (int, float)):
        raise TypeError(f"restart_window_s must be a number of seconds, or None for ever, not {window_s!r}")
    check_digits("restart_window_s", window_s)
    if not window_s > 0:
        raise ValueError(f"restart_window_s must be more than 0, or None for ever, not {window_s}")


def restarted_with(strategy: Strategy, members: Sequence[T], dead: T) -> Sequence[T]:
    """Who of a group, in the order of joining, is started again when one of them has died; that one included."""
    match strategy:
        case "one_for_one":
            return [dead]
        case "one_for_all":
            return members
        case "rest_for_one":
            return members[members.index(dead) :]
