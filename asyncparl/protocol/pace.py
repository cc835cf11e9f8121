"""How much of what travels in fragments may be on its way at once. Pure: it is told the time.

Too little, and the sender waits for words of the receiver instead of sending. Too much, and what is small waits behind
it. Both depend on the line, which nobody knows; so the sender looks at how long each word takes. At first nothing is in
its way; what it takes longer than that it has waited in queues, behind what is on its way itself. While that is little
the window grows with what is taken, as far as a line of that length is worth it; when it is more the window shrinks.
(TCP Vegas does the same.)

What is sent after a rest may begin with more than the window, if the line has shown that it is fast: it is soon over.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW_BYTES = 2 << 20
"""To begin with, and at least."""

MAX_WINDOW_BYTES = 32 << 20
"""At most."""

QUEUE_S = 0.002
"""How long what is on its way may wait in queues: so long does a small message wait behind it. On a long line, where it
waits for the line anyhow, a quarter of that more."""

FAST_LINE = 1.25e9
"""Bytes a second, of 10 Gbit/s: the window grows to what such a line takes while a word comes, without `QUEUE_S`."""

BURST_S = 0.004
"""After a rest so much is sent at once as has lately arrived in this time."""

MAX_BURST_BYTES = 8 << 20
"""At most. No more than four windows: a word is asked for after a quarter of it."""


class Pace:
    """Of one direction of a link.

    Attributes:
        num_under_way: bytes that were sent, and of which it is not known that they were taken.
        window: how many these may be.
    """

    def __init__(self) -> None:
        self.num_under_way = 0
        self.window = WINDOW_BYTES
        self._num_since_asked = 0
        self._asked: deque[tuple[int, float]] = deque()
        """How much had been sent in all when the receiver was asked, and when."""
        self._num_sent = 0
        self._shortest_s = math.inf
        """That a word has taken since nothing was on its way."""
        self._began = (0, 0.0)
        """How much had been sent in all when nothing was on its way, and until when."""
        self._speed = 0.0
        """Bytes a second that have arrived since then."""
        self._burst = self._burst_left = 0

    @property
    def has_room(self) -> bool:
        """Whether more may be sent."""
        return self.num_under_way < self.window or self._burst_left > 0

    def sent(self, num_bytes: int, now: float, *, is_last: bool) -> bool:
        """A fragment leaves: whether to ask for a word. `is_last`: perhaps nothing else follows."""
        if not self.num_under_way:
            self._shortest_s = math.inf
            self._began = (self._num_sent, now)
            self._burst = self._burst_left = int(min(MAX_BURST_BYTES, self._speed * BURST_S))
        self._burst_left -= num_bytes
        self.num_under_way += num_bytes
        self._num_sent += num_bytes
        self._num_since_asked += num_bytes
        if not is_last and self._num_since_asked < max(self.window, self._burst) // 4:
            return False
        self._num_since_asked = 0
        self._asked.append((self._num_sent, now))
        return True

    def taken(self, num_bytes: int, now: float) -> None:
        """So much has arrived, of what was on its way."""
        self.num_under_way -= num_bytes
        num_taken, took_s = self._num_sent - self.num_under_way, math.inf
        while self._asked and self._asked[0][0] <= num_taken:
            took_s = now - self._asked.popleft()[1]
        before, began = self._began
        if now > began:
            self._speed = (num_taken - before) / (now - began)
        if took_s < math.inf:
            self._shortest_s = min(self._shortest_s, took_s)
            self._adapt(num_bytes, took_s)

    def _adapt(self, num_bytes: int, took_s: float) -> None:
        is_short = took_s < QUEUE_S + 1.25 * self._shortest_s
        # By a quarter in the time of a word: doubling would fill the queues that it is to keep short.
        change = num_bytes // 4 if is_short else -num_bytes // 4
        most = min(MAX_WINDOW_BYTES, int(FAST_LINE * (self._shortest_s - QUEUE_S)))
        # Not so little that nothing can be sent, and nothing was asked: nobody would ever hear of that again.
        least = max(WINDOW_BYTES, 4 * self._num_since_asked)
        self.window = max(least, min(most, self.window + change))
