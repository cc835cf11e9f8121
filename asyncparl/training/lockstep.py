"""How several learners keep step: they add up only when all of them have got so far.

    thread of a learner          has something to add up: tells its event loop, and waits
    ... event loop               tells the first learner how often that was (`learners.py`)
    ... of the first learner     all have got so far: `allow`, in each of them
    thread of a learner          adds up with the others

So no operation of the process group waits for a learner that has no batch, or is slow, or hangs: it takes as long as
the network does. A learner that has to end does so while it waits, and leaves nobody in the middle of an operation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

import trio
from torch import Tensor

from asyncparl.algorithms import Together


class UpdateAbandoned(Exception):
    """In the thread of a learner that is to end: the others have not got so far, and nobody makes this update."""


class AddsUp(Protocol):
    """What is needed here of `LearnerGroup`."""

    def add_up(self, tensor: Tensor) -> None: ...


class Lockstep:
    """What the event loop and the thread of one learner share.

    Args:
        index: which of the learners; 0 is the first.
        num_learners: how many there are.
        on_arrival: called in the event loop when this one has something to add up, with how often it had.
    """

    def __init__(self, index: int, num_learners: int, on_arrival: Callable[[int], None]) -> None:
        self.index = index
        self.num_learners = num_learners
        self.together = Together(num_learners, index == 0, self._add_up)
        """For the algorithm."""
        self.waited_s = 0.0
        """How long the thread has waited for the others so far."""
        self._on_arrival = on_arrival
        self._group: AddsUp | None = None
        self._loop: trio.lowlevel.TrioToken | None = None
        self._news = threading.Condition()
        self._num_arrivals = 0
        self._num_allowed = 0
        self._is_closed = False

    # --- in the event loop ------------------------------------------------------------------------------------

    def open(self, group: AddsUp) -> None:
        """The process group is there; before the thread begins."""
        self._group = group
        self._loop = trio.lowlevel.current_trio_token()

    def allow(self, number: int) -> bool:
        """All learners have got so far. False: this one has to end and does not take part any more."""
        with self._news:
            if not self._is_closed:
                self._num_allowed = max(self._num_allowed, number)
                self._news.notify_all()
            return not self._is_closed

    def close(self) -> None:
        """What is not allowed yet will not be."""
        with self._news:
            self._is_closed = True
            self._news.notify_all()

    # --- in the learner's thread ------------------------------------------------------------------------------

    def _add_up(self, tensor: Tensor) -> None:
        """Raises UpdateAbandoned, or what the group does."""
        assert self._group is not None
        self._wait_for_others()
        self._group.add_up(tensor)

    def _wait_for_others(self) -> None:
        start = perf_counter()
        self._num_arrivals += 1
        self._tell(self._num_arrivals)
        with self._news:
            self._news.wait_for(lambda: self._is_allowed or self._is_closed)
            is_allowed = self._is_allowed  # then the others count on us, even if we are to end
        self.waited_s += perf_counter() - start
        if not is_allowed:
            raise UpdateAbandoned

    @property
    def _is_allowed(self) -> bool:
        return self._num_arrivals <= self._num_allowed

    def _tell(self, number: int) -> None:
        assert self._loop is not None
        try:
            self._loop.run_sync_soon(self._on_arrival, number)
        except trio.RunFinishedError:
            pass  # the owner gave up on us
