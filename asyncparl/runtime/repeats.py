"""Calls that are made again: where the first process that should have answered them has died.

Nothing is sent twice but to methods that are marked as `@idempotent`: only their author knows that it does no harm.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from asyncparl.errors import ActorDied, CallFate
from asyncparl.protocol.frames import Frame
from asyncparl.protocol.messages import TimedOut
from asyncparl.protocol.values import Encoded
from asyncparl.runtime.activity import WaitingCall
from asyncparl.runtime.link import Link
from asyncparl.runtime.pending import Pending

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__asyncparl_idempotent__"


def idempotent(function: F) -> F:
    """Mark a method that may run twice as well as once. If its actor dies and is started again, so are its open calls.

    Without it such a call raises `ActorDied`, because it may have run. Nothing else changes: an actor that is not
    started again (`max_restarts`) fails all of its calls. The arguments are kept, as a copy, until the call has ended.

    Raises:
        TypeError: a generator, of which a part may have been used already.
    """
    plain = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise TypeError(f"{plain.__name__} is a generator: it cannot be idempotent, as its items cannot be taken back")
    if not inspect.isroutine(plain):
        raise TypeError(f"@idempotent marks methods, not {function!r}")
    setattr(plain, _MARK, True)
    return function


def idempotent_methods(cls: type) -> frozenset[str]:
    """The methods of a class that are marked."""
    return frozenset(name for name in dir(cls) if hasattr(_plain_function(cls, name), _MARK))


def _plain_function(cls: type, name: str) -> object:
    found = inspect.getattr_static(cls, name, None)
    return found.__func__ if isinstance(found, (staticmethod, classmethod)) else found


class RepeatableCall:
    """A call that may be sent over one link after another. It keeps its arguments, which must be detached.

    To its link it stands for the `Pending` that the user waits for. `on_lost` is told of a lost link instead, in the
    event loop, and either has it sent again or lets it `fail`.
    """

    def __init__(
        self,
        pending: Pending,
        kind: int,
        target: str,
        value: Encoded,
        *,
        credit: int,
        deadline: float | None,
        on_lost: Callable[[RepeatableCall, BaseException], None],
    ) -> None:
        self.target = target
        self._pending = pending
        self._kind = kind
        self._value = value
        self._credit = credit
        self._deadline = deadline
        self._on_lost = on_lost
        self.fate = CallFate.NEVER_STARTED
        """What is known of it, whatever has become of it since it was first sent."""

    def send(self, link: Link) -> None:
        """Make it, unless it was cancelled. Whatever goes wrong is raised where it is awaited."""
        pending = self._pending
        if pending.is_settled:
            return
        try:
            pending.call_id = link.call(
                self, self._kind, self.target, self._value, credit=self._credit, deadline=self._deadline
            )
            pending.link = link  # last: from now on other threads cancel it there
        except Exception as error:
            pending.call_lost(error)

    def fail(self, error: BaseException) -> None:
        """It will have no answer."""
        if not self._pending.is_settled:
            self._pending.call_lost(error)

    @property
    def is_settled(self) -> bool:
        """Whether it needs no answer any more."""
        return self._pending.is_settled

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer has come: it streams."""
        return self._pending.streams

    # --- told by the link -----------------------------------------------------------------------------------

    def answer_arrived(self, frame: Frame) -> None:
        self._pending.answer_arrived(frame)

    def item_arrived(self, frame: Frame) -> None:
        self._pending.item_arrived(frame)

    def describe(self) -> WaitingCall:
        """For people who ask what goes on."""
        return self._pending.describe()

    def timed_out(self, message: TimedOut) -> None:
        self._pending.timed_out(message)

    def call_lost(self, error: BaseException) -> None:
        self._pending.link = None  # until it is sent again, it is cancelled in the event loop
        if isinstance(error, ActorDied) and error.fate is CallFate.MAY_HAVE_RUN:
            self.fate = error.fate
            if self._pending.limit is not None:
                self._pending.limit.has_run_before = True
        elif isinstance(error, ActorDied) and error.fate is not self.fate:
            error = ActorDied(error.actor, error.reason, error.exit_code, error.signal, error.log_tail, self.fate)
        self._on_lost(self, error)
