"""Every public exception of asyncparl, each saying whose fault it is.

| you see                | whose fault                                                        |
|------------------------|--------------------------------------------------------------------|
| `NotConnectedError`    | yours: a remote object was used outside `asyncparl.connect()`       |
| `ResourceError`        | the cluster cannot give what was asked for                          |
| `SerializationError`   | a value (argument, result) cannot travel                            |
| `MessageTooLarge`      | a value is larger than the configured limit                         |
| `RemoteError`          | your remote code raised something that cannot be rebuilt here       |
| `CallCancelled`        | the call was cancelled before its result was awaited                |
| `CallTimedOut`         | the call took longer than its `timeout_s`                           |
| `ActorDied`            | the process of the actor ended; the death report says why           |
| `AuthenticationError`  | a peer could not prove that it belongs to the cluster               |
| `ProtocolError`        | a peer broke the wire protocol: a bug, or not an asyncparl process  |

An exception that a remote method raises arrives as its own type whenever it can be rebuilt; none of these
classes is involved then. This file knows nothing of the rest of the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class AsyncparlError(Exception):
    """Base of everything that asyncparl itself raises."""


class NotConnectedError(AsyncparlError):
    """A remote object was created or used where no `asyncparl.connect()` block is open."""


class ResourceError(AsyncparlError):
    """The cluster cannot start what was asked for; the message names what is missing."""


class SerializationError(AsyncparlError):
    """A value cannot be sent, or could not be read; the message names which one and why.

    The actor, and every other call to it, go on.
    """


class MessageTooLarge(AsyncparlError):
    """A value is larger than what its link takes: `max_value_bytes` of `connect`, here or there. Nothing was sent."""


class AuthenticationError(AsyncparlError):
    """A peer did not prove that it belongs to this cluster."""


class ProtocolError(AsyncparlError):
    """A peer sent bytes or messages that no correct peer sends. The link is closed."""


class CallCancelled(AsyncparlError):
    """The call was cancelled, so it has no result. Raised when it is awaited again."""


class RemoteError(AsyncparlError):
    """A remote method raised an exception that cannot be rebuilt in this process.

    Attributes:
        type_name: qualified name of the exception's class over there.
        text: its `str()`.
        traceback: the formatted remote traceback.
    """

    def __init__(self, type_name: str, text: str, traceback: str) -> None:
        super().__init__(type_name, text, traceback)
        self.type_name = type_name
        self.text = text
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.type_name}: {self.text}"


class RemoteTraceback(AsyncparlError):
    """Never raised. The `__cause__` of a remote exception: it carries the traceback text of the other side."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class CallFate(Enum):
    """What is known of a call whose actor died before answering."""

    NEVER_STARTED = "the call was never started"
    MAY_HAVE_RUN = "the call may have run"
    RESULT_LOST = "the call ran, and its result was lost"


class CallTimedOut(AsyncparlError, TimeoutError):
    """The time that the call was given is up. The actor lives on.

    Attributes:
        actor: the actor's name, such as `Simulator#3`.
        method: what was called.
        timeout_s: how many seconds it was given.
        has_started: whether the method had started; None if the actor did not say. What had not, never starts.
        running: the method that the actor was running then: this one, or the one that was in its way; or empty.
        running_s: for how many seconds.
        is_item: it is the next item of a stream that did not come in time, not a result.
    """

    def __init__(
        self,
        actor: str,
        method: str,
        timeout_s: float,
        has_started: bool | None = None,
        running: str = "",
        running_s: float = 0.0,
        is_item: bool = False,
    ) -> None:
        super().__init__(f"{actor}.{method}")  # an `OSError` reads more than one argument as an errno
        self.actor = actor
        self.method = method
        self.timeout_s = timeout_s
        self.has_started = has_started
        self.running = running
        self.running_s = running_s
        self.is_item = is_item

    @property
    def fate(self) -> CallFate:
        """What is known of the call, as of `ActorDied`."""
        return CallFate.NEVER_STARTED if self.has_started is False else CallFate.MAY_HAVE_RUN

    def __reduce__(self) -> tuple[object, ...]:
        told = (self.has_started, self.running, self.running_s, self.is_item)
        return CallTimedOut, (self.actor, self.method, self.timeout_s, *told), self.__dict__

    def __str__(self) -> str:
        what = "has given no next item" if self.is_item else "has not ended"
        text = f"{self.actor}.{self.method} {what} within {self.timeout_s:g} s"
        if self.has_started is None:
            return f"{text}; whether it started is not known, as {self.actor} did not answer"
        if self.has_started:
            return f"{text}; it has been running for {self.running_s:.1f} s" if self.running else text
        busy = f", as {self.actor} has been running {self.running} for {self.running_s:.1f} s" if self.running else ""
        return f"{text}; it never started{busy}"


class ActorDied(AsyncparlError):
    """The actor's process has ended, so this call will have no result.

    Attributes:
        actor: the actor's name, such as `Simulator#3`.
        reason: one line: how the process ended.
        exit_code: its exit code, or None.
        signal: the signal that ended it, or None.
        log_tail: the last lines that the process wrote.
        fate: what is known of this call; None if the error is not about one call.
    """

    def __init__(
        self,
        actor: str,
        reason: str,
        exit_code: int | None = None,
        signal: int | None = None,
        log_tail: Sequence[str] = (),
        fate: CallFate | None = None,
    ) -> None:
        super().__init__(actor, reason, exit_code, signal, tuple(log_tail), fate)
        self.actor = actor
        self.reason = reason
        self.exit_code = exit_code
        self.signal = signal
        self.log_tail = tuple(log_tail)
        self.fate = fate

    def __str__(self) -> str:
        text = f"{self.actor} died: {self.reason}"
        if self.fate is not None:
            text += f"; {self.fate.value}"
        if self.log_tail:
            text += "\nIts last output:\n" + "\n".join(f"    {line}" for line in self.log_tail)
        return text
