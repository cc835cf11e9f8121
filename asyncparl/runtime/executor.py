"""The thread in which an actor's methods without `async` run: the main thread of its process.

One thing at a time, in the order it came. The event loop, in its own thread, only hands over; results leave from
here, so a call costs one change of thread, not two.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class Executor:
    """A queue of jobs and the thread that runs them."""

    def __init__(self) -> None:
        # Bounded by the call windows of the links: every job serves a call.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread_id: int | None = None

    def submit(self, job: Job) -> None:
        """Run a job after those that wait. From any thread."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Return from `run` after the jobs that wait."""
        self._jobs.put(None)

    @property
    def num_waiting(self) -> int:
        """Jobs that have not begun. From any thread."""
        return self._jobs.qsize()

    def run(self) -> None:
        """Run jobs in this thread until `stop`. What a job raises is raised here."""
        self._thread_id = threading.get_ident()
        try:
            get = self._jobs.get
            while (job := get()) is not None:
                job()
                del job  # it has the arguments of a call
        finally:
            self._thread_id = None

    @property
    def is_here(self) -> bool:
        """Whether this is its thread: then no other job can run before the present one returns."""
        return self._thread_id == threading.get_ident()
