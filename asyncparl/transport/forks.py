"""What a forked child must not have: the channels of its parent.

It cannot use them, and NNG's threads are missing there. Nor may it keep them open: peers notice the end of a process
by the end of its connections, and a child may live on for long.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Protocol


class ForkAware(Protocol):
    """What must not be used in a forked child."""

    def mark_forked(self) -> None:
        """This is a child; from now on every use raises RuntimeError, and closing does nothing."""


class Closable(Protocol):
    """What has descriptors."""

    def close(self) -> None:
        """Close them, in this process."""


class ForkGuard:
    """Knows whether this process may have channels, and tells those that it has when it is forked."""

    def __init__(self) -> None:
        self._is_in_use = False
        self._is_forked = False
        self._users: weakref.WeakSet[ForkAware] = weakref.WeakSet()
        self._open: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._in_child: list[Callable[[], object]] = []
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    def check_process(self) -> None:
        """Refuse a forked child.

        Raises:
            RuntimeError: channels were in use when this process was forked.
        """
        if self._is_forked:
            raise RuntimeError("this process was forked from one that had channels; only that one can open more")

    def prepare(self) -> None:
        """Before each channel and listener.

        Raises:
            RuntimeError: channels were in use when this process was forked.
        """
        self.check_process()
        self._is_in_use = True

    def add_user(self, user: ForkAware) -> None:
        """It is told of a fork, as long as it lives."""
        self._users.add(user)

    def close_in_child(self, thing: Closable) -> None:
        """Its descriptors are closed in each child that is forked, as long as it lives."""
        self._open.add(thing)

    def call_in_child(self, call: Callable[[], object]) -> None:
        """Call it in each child that is forked from now on."""
        self._in_child.append(call)

    def _after_fork_in_child(self) -> None:
        for thing in self._open:
            with contextlib.suppress(OSError):
                thing.close()
        if self._is_in_use:
            self._is_forked = True
            for call in self._in_child:
                call()
            for user in self._users:
                user.mark_forked()


guard = ForkGuard()
