"""The time limits of the calls that a link serves, as the callee counts them: one alarm, for the first that is due."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from asyncparl.protocol.calls import CalleeTable
from asyncparl.protocol.messages import Call
from asyncparl.runtime.event_loop import EventLoop


class ServedLimits:
    """Of one link.

    Args:
        table: the calls that it serves, guarded by `lock`.
        loop: where the alarm is.
        stop_serving: told of each call whose time is up, in the event loop.
    """

    def __init__(
        self, table: CalleeTable, lock: threading.Lock, loop: EventLoop, stop_serving: Callable[[int], None]
    ) -> None:
        self._table = table
        self._lock = lock
        self._loop = loop
        self._stop_serving = stop_serving
        self._alarm, self._alarm_at = 0, math.inf

    def count(self, call: Call, timeout_s: float) -> None:
        """A call has arrived that may take so long, from now."""
        with self._lock:
            self._table.limit(call, self._loop.now() + timeout_s)
            self._set_alarm()

    def time_is_up(self) -> None:
        """Told by the alarm."""
        with self._lock:
            self._alarm_at = math.inf
            overdue = self._table.take_overdue(self._loop.now())
        for call_id in overdue:
            self._stop_serving(call_id)
        with self._lock:
            self._set_alarm()

    def end(self) -> None:
        """The link is lost."""
        self._loop.alarms.drop(self._alarm)

    def _set_alarm(self) -> None:
        at = self._table.next_deadline()
        if at < self._alarm_at:
            self._loop.alarms.drop(self._alarm)
            self._alarm, self._alarm_at = self._loop.alarms.set(at, self), at
