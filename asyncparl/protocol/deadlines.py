"""How long a call may take: what users may say, and what is due when.

On the wire there are only durations. Each side counts by a clock of its own, from the moment it knew of the call, so
two machines need not agree on the time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Generic, TypeVar

from asyncparl.protocol.numbers import check_digits

T = TypeVar("T")

_MIN_STALE = 64


def check_timeout(name: str, value: object) -> float | None:
    """A time limit in seconds as a user gave it; None: there is none.

    Raises:
        TypeError: it is no number.
        ValueError: it is not more than 0, or not finite.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or None (no limit), not {value!r}")
    check_digits(name, value)
    if not is_duration(value) or not value:
        raise ValueError(f"{name} must be more than 0 seconds, and finite; None is no limit: {value!r}")
    return float(value)


def is_duration(seconds: float) -> bool:
    """Whether it is a time that may be left: finite, and not below 0."""
    return 0 <= seconds < math.inf


class Deadlines(Generic[T]):
    """Things that are due at some time, in the order of these times. A thing that was dropped is not held any more."""

    def __init__(self) -> None:
        self._things: dict[int, T] = {}
        self._heap: list[tuple[float, int]] = []
        """Also of what was dropped: that is passed over, and cleared away before it is most of it."""
        self._tickets = itertools.count(1)

    def add(self, at: float, thing: T) -> int:
        """It will be due; a number by which it can be dropped."""
        if len(self._heap) > 2 * len(self._things) + _MIN_STALE:
            self._heap = [entry for entry in self._heap if entry[1] in self._things]
            heapq.heapify(self._heap)
        ticket = next(self._tickets)
        self._things[ticket] = thing
        heapq.heappush(self._heap, (at, ticket))
        return ticket

    def drop(self, ticket: int) -> None:
        """It is not due any more. No effect if it was told already."""
        self._things.pop(ticket, None)

    def next_at(self) -> float:
        """When the first of them is due; infinity if there is none."""
        while self._heap and self._heap[0][1] not in self._things:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def take_due(self, now: float) -> list[T]:
        """What is due by now, in order; each is told once."""
        due = []
        while self.next_at() <= now:
            thing = self._things.pop(heapq.heappop(self._heap)[1], None)
            if thing is not None:  # else another thread has dropped it in this very moment
                due.append(thing)
        return due

    def __len__(self) -> int:
        return len(self._things)
