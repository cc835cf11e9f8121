"""Whether a peer that should be heard of all the time is still there.

    ALIVE --silence >= limit + own lateness--> LOST        (for ever)

Silence is evidence only while we listen. A judge that was itself held up (a busy machine, a stopped process) has
messages waiting that it has not read: so it is judged by `tick`, which expects to be called every interval, and
every second that it comes late is a second more of patience.
"""

from __future__ import annotations


class Liveness:
    """Listens for one peer. Time is given by the caller, in seconds of any monotonic clock."""

    __slots__ = ("_expected", "_interval_s", "_last_heard", "_limit_s", "_patience_s", "lost")

    def __init__(self, interval_s: float = 1.0, limit_s: float = 5.0, *, now: float) -> None:
        self._interval_s = interval_s
        self._limit_s = limit_s
        self._last_heard = now
        self._expected = now + interval_s
        """When the next tick is due."""
        self._patience_s = 0.0
        """How late the ticks came since the peer was last heard."""
        self.lost = False

    def heard(self, now: float) -> None:
        """Any sign of life. Too late once it is lost."""
        if not self.lost:
            self._last_heard = max(now, self._last_heard)
            self._patience_s = 0.0

    def tick(self, now: float) -> bool:
        """Judge; whether the peer is lost. To be called about every interval, and after reading what has arrived."""
        # What was late before the peer was last heard says nothing about the silence since.
        self._patience_s += max(0.0, now - max(self._expected, self._last_heard))
        self._expected = now + self._interval_s
        if self.silence(now) >= self._limit_s + self._patience_s:
            self.lost = True
        return self.lost

    def silence(self, now: float) -> float:
        """Seconds since the peer was last heard."""
        return max(0.0, now - self._last_heard)
