"""An event loop as other threads reach it: that of a session, or of an actor."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

import trio

from asyncparl.errors import NotConnectedError
from asyncparl.runtime.activity import note_loop
from asyncparl.runtime.alarms import Alarms

T = TypeVar("T")

_thread = threading.local()
"""`token`: of the loop that runs in this thread. (The number of a thread may be given to another one after it.)

`alarms`: of the same loop.
"""


_num_forks = 0
"""How many forks led to this process: the loops that were made before the last of them do not run here."""
_inherited: trio.lowlevel.TrioToken | None = None
"""Of the loop in which this process was forked. Trio still takes it for running."""


def _forked() -> None:
    global _num_forks, _inherited  # noqa: PLW0603  # facts of the process
    _num_forks += 1
    _inherited = trio.lowlevel.current_trio_token() if trio.lowlevel.in_trio_run() else None


os.register_at_fork(after_in_child=_forked)


def runs_trio() -> bool:
    """Whether a Trio loop runs in this thread."""
    return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is not _inherited


class EventLoop:
    """The loop of the thread in which this is made."""

    __slots__ = ("_clock", "_num_forks", "_token", "alarms")

    def __init__(self) -> None:
        token = trio.lowlevel.current_trio_token()
        if getattr(_thread, "token", None) is not token:
            _thread.token, _thread.alarms = token, Alarms(token)
            note_loop()
        self._token = token
        self._num_forks = _num_forks
        self._clock = trio.lowlevel.current_clock()
        self.alarms: Alarms = _thread.alarms
        """One set of them for all of what runs in this loop."""

    @property
    def is_here(self) -> bool:
        """Whether this is its thread."""
        return getattr(_thread, "token", None) is self._token

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process is a fork of the one in which it runs."""
        return self._num_forks != _num_forks

    def why_over(self, what: str) -> NotConnectedError:
        """Why it does nothing for us any more."""
        if self.is_elsewhere:
            return NotConnectedError(
                f"{what} belongs to the process that this one was forked from: fork before `connect()`, or start this "
                "process anew (`multiprocessing` calls it spawn), and connect in it"
            )
        return NotConnectedError(f"{what}: the `connect()` block that this belongs to has ended")

    def check_here(self, what: str) -> None:
        """Raise RuntimeError in the thread of another Trio loop that runs, which must not wait for this one."""
        if runs_trio() and not self.is_here and self.run_soon(_do_nothing):
            raise RuntimeError(
                f"{what} belongs to an event loop in another thread, and would stop the one in this thread: "
                "use `async with asyncparl.connect():` here, or call it in a thread, "
                "with `await trio.to_thread.run_sync(...)`"
            )

    def is_that_of(self, other: EventLoop) -> bool:
        """Whether both are the same loop."""
        return self._token is other._token

    def now(self) -> float:
        """`trio.current_time()` of the loop, from any thread."""
        return self._clock.current_time()

    def run_soon(self, function: Callable[..., object], *args: object) -> bool:
        """Run something in the loop, soon. From any thread, and from a finalizer. False: the loop has ended."""
        if self.is_elsewhere:
            return False
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return False
        return True

    def run(self, function: Callable[..., T], *args: object) -> T:
        """Run something in the loop and wait for it: here, if this is its thread.

        Raises:
            NotConnectedError: the loop has ended, or is that of another process.
            RuntimeError: another one runs in this thread.
        """
        if self.is_elsewhere:
            raise self.why_over("what was asked for")
        if self.is_here:
            return function(*args)
        self.check_here("what was asked for")
        try:
            return trio.from_thread.run_sync(function, *args, trio_token=self._token)
        except trio.RunFinishedError:
            raise self.why_over("what was asked for") from None


def _do_nothing() -> None:
    """In a loop: shows that it runs."""
