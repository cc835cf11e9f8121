"""Which `async` methods of an actor run, and in which order they begin.

At most `max_running` at a time; they begin in the order in which they were called, each only when the one before has
begun, because Trio may start the tasks of one moment in any order. Event loop only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from asyncparl.protocol.frames import Frame
from asyncparl.protocol.messages import Call
from asyncparl.runtime.link import Link

Key = tuple[Link, int]
"""One call among those of all links."""


class AsyncCalls:
    """Calls of `async` methods, waiting and running.

    Args:
        start: starts the task of a call; the task reports `begun`, `streams` and `ended`.
    """

    def __init__(self, start: Callable[[Link, Call, Frame], None]) -> None:
        self._start = start
        self.max_running = 1
        # Bounded by the call windows of the links.
        self._waiting: deque[tuple[Link, Call, Frame]] = deque()
        self._num_running = 0
        self._is_beginning = False
        self._unfinished: set[Key] = set()

    @property
    def all_finished(self) -> bool:
        """Whether nothing waits or runs, but for streams: those last as long as their callers please."""
        return not self._unfinished

    @property
    def num_waiting(self) -> int:
        """Calls that have not begun."""
        return len(self._waiting)

    def add(self, link: Link, call: Call, frame: Frame) -> None:
        """A call came in."""
        self._unfinished.add((link, call.call_id))
        self._waiting.append((link, call, frame))
        self._start_next()

    def drop_unwanted(self) -> list[Key]:
        """Forget calls that were cancelled while they waited; which."""
        unwanted = [(link, call.call_id) for link, call, _ in self._waiting if not link.is_wanted(call.call_id)]
        self._waiting = deque(each for each in self._waiting if (each[0], each[1].call_id) not in unwanted)
        self._unfinished.difference_update(unwanted)
        return unwanted

    def begun(self) -> None:
        """The task that was started last has begun."""
        self._is_beginning = False
        self._start_next()

    def streams(self, key: Key) -> None:
        """The call turned out to be a stream."""
        self._unfinished.discard(key)

    def ended(self, key: Key) -> None:
        """A task is at its end."""
        self._unfinished.discard(key)
        self._num_running -= 1
        self._start_next()

    def _start_next(self) -> None:
        if self._waiting and not self._is_beginning and self._num_running < self.max_running:
            self._num_running += 1
            self._is_beginning = True
            self._start(*self._waiting.popleft())
