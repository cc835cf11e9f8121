"""How long a call may take, as its caller counts it."""

from __future__ import annotations

from asyncparl.runtime.alarms import Timed
from asyncparl.runtime.event_loop import EventLoop

LAST_WORD_S = 0.1
"""How much later than that a call may end, whose callee has yet to say what became of it. Never twice its time."""


class TimeLimit:
    """Of one call. It knows nothing of the call: that would hold its result for as long as it lasts."""

    __slots__ = ("_alarm", "deadline", "has_run_before", "is_up", "timeout_s")

    def __init__(self, timeout_s: float, deadline: float) -> None:
        self.timeout_s = timeout_s
        self.deadline = deadline
        """By the clock of the event loop."""
        self.is_up = False
        self.has_run_before = False
        """Perhaps, in an earlier process of its actor."""
        self._alarm = 0

    @property
    def is_counting(self) -> bool:
        """Whether an alarm is set."""
        return self._alarm != 0

    def count(self, loop: EventLoop, thing: Timed, seconds: float) -> None:
        """Tell it, after so long. From any thread."""
        self._alarm = loop.alarms.set(loop.now() + seconds, thing)

    def rest(self, loop: EventLoop) -> None:
        """Do not tell it. From any thread."""
        if self._alarm:
            loop.alarms.drop(self._alarm)
            self._alarm = 0
