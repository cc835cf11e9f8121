"""Which session is meant: that of the innermost `connect()` block of a task, else that of its process."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from asyncparl.errors import NotConnectedError

if TYPE_CHECKING:
    from asyncparl.runtime.session import Session

_session: contextvars.ContextVar[Session] = contextvars.ContextVar("asyncparl_session")
_of_process: list[Callable[[], Session | None]] = []
"""What to use outside of any block, last first: the session of an actor, made when it is first wanted."""


# No event loop runs in a forked child.
os.register_at_fork(after_in_child=_of_process.clear)


@contextlib.contextmanager
def block_session(session: Session) -> Iterator[None]:
    """What `find_session` finds in this block."""
    token = _session.set(session)
    try:
        yield
    finally:
        _session.reset(token)


@contextlib.contextmanager
def process_session(make: Callable[[], Session | None]) -> Iterator[None]:
    """What `find_session` finds outside of any `connect()` block of this process, in all of its threads."""
    _of_process.append(make)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # in a forked child
            _of_process.remove(make)


def is_in_block() -> bool:
    """Whether this task, or the task whose thread this is, is in an open `connect()` block."""
    return _session_of_block() is not None


def _session_of_block() -> Session | None:
    session = _session.get(None)
    return None if session is None or session.loop.is_elsewhere else session


def find_session() -> Session | None:
    """The session of the innermost open `connect()` block of this task, else that of this process, else None."""
    session = _session_of_block()
    if session is None:
        for make in _of_process[-1:]:  # a copy: another thread may leave its block now
            return make()
    return session


def current_session(what: str) -> Session:
    """The same, where there must be one.

    Raises:
        NotConnectedError: there is none; `what` says what needed it.
        RuntimeError: it is that of another thread, and this one has an event loop of its own.
    """
    session = find_session()
    if session is None:
        raise NotConnectedError(
            f"{what} needs a cluster: put it inside `async with asyncparl.connect():`, "
            "or where there is no `async`, `with asyncparl.blocking.connect():`"
        )
    session.loop.check_here(what)
    return session
