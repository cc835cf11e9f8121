"""The roles in a call, as a link knows them: who waits for the answer, and who gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from asyncparl.protocol.events import CallArrived
from asyncparl.protocol.frames import Frame
from asyncparl.protocol.messages import Call, TimedOut
from asyncparl.runtime.activity import WaitingCall

if TYPE_CHECKING:
    from asyncparl.runtime.link import Link


class Caller(Protocol):
    """Who waits for a call of ours. Told in the event loop."""

    def answer_arrived(self, frame: Frame) -> None: ...
    def item_arrived(self, frame: Frame) -> None: ...
    def timed_out(self, message: TimedOut) -> None: ...
    def call_lost(self, error: BaseException) -> None: ...

    def describe(self) -> WaitingCall:
        """For people who ask what goes on. From any thread."""


class Callee(Protocol):
    """Who serves the calls of the peer. Called in the event loop; must not block."""

    def link_opened(self, link: Link) -> None: ...
    def call_arrived(self, link: Link, arrived: CallArrived) -> None: ...
    def cancel_arrived(self, link: Link, call_id: int) -> None: ...
    def grant_arrived(self, link: Link, call_id: int) -> None: ...

    def running(self, call: Call) -> tuple[str, float]:
        """What is in the way of a call that has not started: the method, and for how long it runs."""
