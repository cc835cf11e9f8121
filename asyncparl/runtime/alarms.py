"""Telling things in an event loop that their time is up.

One task for all of them, and only while there are any: a call that ends in time costs an entry in a table.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Protocol

import trio

from asyncparl.protocol.deadlines import Deadlines


class Timed(Protocol):
    """What can be told so."""

    def time_is_up(self) -> None:
        """In the event loop; must neither block nor raise."""


class Alarms:
    """Those of one event loop. They may be set and dropped in any thread."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token
        self._lock = threading.Lock()
        self._deadlines: Deadlines[Timed] = Deadlines()
        self._is_watching = False
        """There is a task, or one is about to start."""
        self._wakes_at = math.inf
        """When that task looks by itself."""
        self._nearer = trio.Event()

    def set(self, at: float, thing: Timed) -> int:
        """Tell it at that time of the loop's clock; the number of the alarm."""
        with self._lock:
            ticket = self._deadlines.add(at, thing)
            was_watching, self._is_watching = self._is_watching, True
            is_nearer = at < self._wakes_at
        if not was_watching:
            self._in_loop(self._start)
        elif is_nearer:
            self._in_loop(self._look)
        return ticket

    def drop(self, ticket: int) -> None:
        """It need not be told any more."""
        self._deadlines.drop(ticket)

    def _in_loop(self, function: Callable[[], object]) -> None:
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            self._forget()

    def _start(self) -> None:
        try:
            trio.lowlevel.spawn_system_task(self._watch, name="asyncparl alarms")
        except RuntimeError:  # too late in the loop's life
            self._forget()

    def _forget(self) -> None:
        """The loop has ended, and everything that was timed in it. Its thread knows us until it runs another loop."""
        with self._lock:
            self._deadlines, self._wakes_at = Deadlines(), math.inf

    def _look(self) -> None:
        self._nearer.set()

    async def _watch(self) -> None:
        try:
            await self._tell_in_time()
        except BaseException:
            self._forget()
            raise

    async def _tell_in_time(self) -> None:
        while True:
            self._nearer = trio.Event()
            with self._lock:
                self._wakes_at = self._deadlines.next_at()
                if self._wakes_at == math.inf:
                    self._is_watching = False
                    return
            with trio.CancelScope(deadline=self._wakes_at):
                await self._nearer.wait()
            # Where the loop was held up, what has arrived meanwhile is in time: it is heard first.
            await trio.lowlevel.checkpoint()
            with self._lock:
                due = self._deadlines.take_due(trio.current_time())
            for thing in due:
                thing.time_is_up()
