"""An event loop as other threads reach it: that of a session, or of an actor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import trio

from asyncparl.errors import NotConnectedError

T = TypeVar("T")

_thread = threading.local()
"""`token`: of the loop that runs in this thread. (The number of a thread may be given to another one after it.)"""


class EventLoop:
    """The loop of the thread in which this is made."""

    __slots__ = ("_token",)

    def __init__(self) -> None:
        self._token = _thread.token = trio.lowlevel.current_trio_token()

    @property
    def is_here(self) -> bool:
        """Whether this is its thread."""
        return getattr(_thread, "token", None) is self._token

    def run_soon(self, function: Callable[..., object], *args: object) -> bool:
        """Run something in the loop, soon. From any thread, and from a finalizer. False: the loop has ended."""
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return False
        return True

    def run(self, function: Callable[..., T], *args: object) -> T:
        """Run something in the loop and wait for it: here, if this is its thread.

        Raises:
            NotConnectedError: the loop has ended.
        """
        if self.is_here:
            return function(*args)
        try:
            return trio.from_thread.run_sync(function, *args, trio_token=self._token)
        except trio.RunFinishedError:
            raise NotConnectedError("the `connect()` block that this belongs to has ended") from None
