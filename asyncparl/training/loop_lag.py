"""How long the event loop is held up: while one task runs without waiting, nobody else gets a turn."""

from __future__ import annotations

from collections import deque
from time import perf_counter

import trio

_BUCKET_S = 1.0


class LoopLag(trio.abc.Instrument):
    """Times every step of every task. Add it with `trio.lowlevel.add_instrument`, and remove it at the end.

    On a machine with fewer free cores than running threads the time that the loop waited for a core is in it, as it
    should be: that is what the tasks feel.
    """

    def __init__(self, *, window_s: float) -> None:
        self._started = perf_counter()
        self._longest: deque[tuple[float, float]] = deque(maxlen=max(1, round(window_s / _BUCKET_S)))
        self._longest.append((self._started, 0.0))

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._started = perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        now = perf_counter()
        step_s = now - self._started
        bucket_start, longest = self._longest[-1]
        if now - bucket_start > _BUCKET_S:
            self._longest.append((now, step_s))
        elif step_s > longest:
            self._longest[-1] = (bucket_start, step_s)

    def longest_ms(self) -> float:
        """The longest single step of the window, in milliseconds."""
        return max(step_s for _, step_s in self._longest) * 1e3
