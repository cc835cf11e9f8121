"""What goes on in this process, for people who ask: the calls that wait for an answer, the methods that run, the loops.

Whoever has some of it is noted here when it is made, and forgotten when it is gone. All of this is read without a lock,
in any thread and even in a signal handler: what changes in that very moment is seen before or after.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeVar

import trio

T = TypeVar("T")

_TRIES = 5


class WaitingCall(NamedTuple):
    """A call that was made here, and has no answer yet."""

    name: str
    """As `Simulator#3.sample`; without a dot it is a request to a master or a node."""
    since: float
    """When it was made, or has given its last item; by `time.monotonic()`."""
    is_awaited: bool
    """Somebody waits for it now."""

    @property
    def age_s(self) -> float:
        """For how long it has been so."""
        return time.monotonic() - self.since

    @property
    def is_request(self) -> bool:
        """It asks a master, or a node."""
        return "." not in self.name


class Calling(Protocol):
    """What has calls that wait."""

    def waiting_calls(self) -> Iterable[WaitingCall]: ...


class Serving(Protocol):
    """What runs the methods of an object."""

    @property
    def class_name(self) -> str: ...
    @property
    def num_waiting(self) -> int: ...
    def all_running(self) -> list[tuple[str, float]]: ...


_calling: weakref.WeakSet[Calling] = weakref.WeakSet()
_serving: weakref.WeakSet[Serving] = weakref.WeakSet()
_loops: weakref.WeakKeyDictionary[trio.lowlevel.Task, trio.lowlevel.TrioToken] = weakref.WeakKeyDictionary()


def note_calling(calling: Calling) -> None:
    """It makes calls."""
    _calling.add(calling)


def note_serving(serving: Serving) -> None:
    """It runs methods."""
    _serving.add(serving)


def note_loop() -> None:
    """There is an event loop in this thread."""
    if (root := trio.lowlevel.current_root_task()) is not None:
        _loops[root] = trio.lowlevel.current_trio_token()


def waiting_calls() -> list[WaitingCall]:
    """Those of the whole process, the oldest first."""
    found = [call for calling in _read(_calling) for call in _read(calling.waiting_calls())]
    return sorted(found, key=lambda call: call.since)


def awaited_calls() -> list[WaitingCall]:
    """Those of methods of others that somebody waits for, the oldest first."""
    return [call for call in waiting_calls() if call.is_awaited and not call.is_request]


def servings() -> list[Serving]:
    """What runs methods."""
    return _read(_serving)


def loops() -> list[tuple[trio.lowlevel.Task, trio.lowlevel.TrioToken]]:
    """The first task of each event loop, which only its own thread may look at, and what reaches that."""
    return _read(_loops.items())


def _read(things: Iterable[T]) -> list[T]:
    """All of them; another thread may add one at any moment."""
    for _ in range(_TRIES):
        with contextlib.suppress(RuntimeError):
            return list(things)
    return []
