"""One end of a link as a pure machine: what to send, and what a received frame means.

    OPENING --Hello received--> OPEN --Goodbye received--> CLOSING
        \\________________________\\________________________\\___ lose() ___> LOST

Give it frames with `receive`; take what must be sent with `take_outgoing`. Calls may be made from the start: they wait
in the table until the peer's `Hello` names its window. After `lose` nothing is sent and nothing is open.

Any message that has no place in the present state is a `ProtocolError`: the peer is at fault and the link must be
dropped; the state is then undefined but for `lose`.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

import msgspec

from asyncparl.errors import CallFate, ProtocolError
from asyncparl.protocol.calls import CalleeTable, CallerState, CallerTable
from asyncparl.protocol.frames import Frame
from asyncparl.protocol.messages import (
    PROTOCOL_VERSION,
    Call,
    Cancel,
    Cancelled,
    ErrorReport,
    Goodbye,
    Grant,
    Hello,
    Item,
    Message,
    Raised,
    Returned,
)
from asyncparl.protocol.values import NOTHING, Encoded

CALL_WINDOW = 1024
"""Unanswered calls that each side accepts: enough to hide a round trip of 50 ms at 20,000 calls a second."""


class LinkState(Enum):
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    LOST = "lost"


class Outgoing(NamedTuple):
    """A message to be sent and what travels with it."""

    message: Message
    value: Encoded = NOTHING


class Opened(NamedTuple):
    """The peer said who it is."""

    hello: Hello


class CallArrived(NamedTuple):
    """The peer calls us. It is owed one of the `answer_*` methods."""

    call: Call
    frame: Frame


class CancelArrived(NamedTuple):
    """The peer gave up on a call that it is still owed an answer to; `answer_cancelled` will do."""

    call_id: int


class GrantArrived(NamedTuple):
    """The peer takes more items of a stream."""

    call_id: int


class ItemArrived(NamedTuple):
    """The next item of a stream that we called."""

    call_id: int
    frame: Frame


class AnswerArrived(NamedTuple):
    """The one answer to a call of ours: the frame's message is `Returned`, `Raised` or `Cancelled`."""

    call_id: int
    frame: Frame


class PeerClosing(NamedTuple):
    """The peer said goodbye: it sends nothing more, and the loss of the link is expected."""


Event = Opened | CallArrived | CancelArrived | GrantArrived | ItemArrived | AnswerArrived | PeerClosing


class LinkCore:
    """Both roles, caller and callee, of one end of a link."""

    def __init__(self, *, name: str, pid: int = 0, process_id: str = "", call_window: int = CALL_WINDOW) -> None:
        self.state = LinkState.OPENING
        self.peer: Hello | None = None
        """What the peer said of itself."""
        self.caller = CallerTable()
        self.callee = CalleeTable(call_window)
        self._waiting: dict[int, Outgoing] = {}
        hello = Hello(PROTOCOL_VERSION, call_window, name, pid, process_id)
        self._outgoing: deque[Outgoing] = deque([Outgoing(hello)])
        self._num_detached = 0
        self._is_silent = False
        """We said goodbye, or the link is lost: whatever we would say now is dropped."""

    # --- what we want ---------------------------------------------------------------------------------------

    def call(self, kind: int, target: str, value: Encoded = NOTHING, *, credit: int = 0, object_id: int = 0) -> int:
        """Make a call; its id. It is outgoing at once if the peer's window has room, else when it has.

        A call that must wait takes a copy of its arrays, so that the user may change them.

        Raises:
            RuntimeError: the link is lost; nobody would ever settle the call.
        """
        if self.state is LinkState.LOST:
            raise RuntimeError("a call on a lost link")
        call_id = self.caller.open(credit)
        self._waiting[call_id] = Outgoing(Call(call_id, kind, target, credit, object_id), value)
        self._send_what_fits()
        if value.buffers and call_id in self._waiting:
            self._waiting[call_id] = _detached(self._waiting[call_id])
        return call_id

    def cancel(self, call_id: int) -> bool:
        """Give up on a call of ours; False if it is already settled. Its late answer will be dropped."""
        state = self.caller.cancel(call_id)
        if state is CallerState.QUEUED:
            del self._waiting[call_id]
        elif state is CallerState.SENT:
            self._say(Outgoing(Cancel(call_id)))
        return state is not None

    def grant(self, call_id: int, num_items: int) -> None:
        """Take more items of a stream of ours."""
        if self.caller.grant(call_id, num_items):
            self._say(Outgoing(Grant(call_id, num_items)))
        elif call_id in self._waiting:
            call, value = self._waiting[call_id]
            assert isinstance(call, Call)
            self._waiting[call_id] = Outgoing(msgspec.structs.replace(call, credit=call.credit + num_items), value)

    def answer_returned(self, call_id: int, value: Encoded = NOTHING, *, streamed: bool = False) -> None:
        """Answer a call of the peer's; the result of a cancelled call is dropped here."""
        wanted = self.callee.is_wanted(call_id)
        self._answer(call_id, Outgoing(Returned(call_id, streamed), value) if wanted else Outgoing(Cancelled(call_id)))

    def answer_raised(self, call_id: int, error: ErrorReport, value: Encoded = NOTHING) -> None:
        """Answer a call of the peer's with an exception; `value` is the exception itself, if it can travel."""
        wanted = self.callee.is_wanted(call_id)
        self._answer(call_id, Outgoing(Raised(call_id, error), value) if wanted else Outgoing(Cancelled(call_id)))

    def answer_cancelled(self, call_id: int) -> None:
        """Answer a call of the peer's that was cancelled."""
        self._answer(call_id, Outgoing(Cancelled(call_id)))

    def send_item(self, call_id: int, value: Encoded) -> None:
        """Send the next item of a stream; only while `callee.has_credit`."""
        if self.state is not LinkState.LOST:
            self.callee.spend(call_id)
            self._say(Outgoing(Item(call_id), value))

    def say_goodbye(self) -> None:
        """Tell the peer that we send nothing more. Answers from now on go nowhere; calls wait for the loss."""
        self._say(Outgoing(Goodbye()))
        self._is_silent = True
        self.caller.window = 0

    # --- what happens ---------------------------------------------------------------------------------------

    def receive(self, frame: Frame) -> Event | None:
        """What a frame means; None if nobody cares any more.

        Raises:
            ProtocolError: the peer may not send this now.
        """
        message = frame.message
        if self.state is not LinkState.OPEN and not (self.state is LinkState.OPENING and type(message) is Hello):
            raise ProtocolError(f"{type(message).__name__} while the link is {self.state.value}")
        match message:
            case Returned(call_id=call_id) | Raised(call_id=call_id) | Cancelled(call_id=call_id):
                wanted = self.caller.answer(call_id)
                self._send_what_fits()
                return AnswerArrived(call_id, frame) if wanted else None
            case Call(call_id=call_id, credit=credit):
                self.callee.arrive(call_id, credit)
                return CallArrived(message, frame)
            case Item(call_id):
                return ItemArrived(call_id, frame) if self.caller.item(call_id) else None
            case Grant(call_id, num_items):
                return GrantArrived(call_id) if self.callee.grant(call_id, num_items) else None
            case Cancel(call_id):
                return CancelArrived(call_id) if self.callee.cancel(call_id) else None
            case Goodbye():
                self.state = LinkState.CLOSING
                self.caller.window = 0  # it will not answer, so what was not sent yet is never started
                return PeerClosing()
            case Hello():
                return self._open(message)

    def lose(self) -> tuple[list[tuple[int, CallFate]], list[int]]:
        """The link is gone: (calls of ours with their fate, calls of the peer's that need no answer any more)."""
        self.state = LinkState.LOST
        self._is_silent = True
        self._outgoing.clear()
        self._waiting.clear()
        return self.caller.lose(), self.callee.lose()

    # --- what must be sent ----------------------------------------------------------------------------------

    @property
    def has_outgoing(self) -> bool:
        """Whether `take_outgoing` has anything to give."""
        return bool(self._outgoing)

    @property
    def num_outgoing(self) -> int:
        """How many messages `take_outgoing` has to give."""
        return len(self._outgoing)

    @property
    def next_outgoing(self) -> Outgoing:
        """What `take_outgoing` will give."""
        return self._outgoing[0]

    def take_outgoing(self) -> Outgoing:
        """The next message to send."""
        self._num_detached = max(0, self._num_detached - 1)
        return self._outgoing.popleft()

    def detach_outgoing(self) -> None:
        """The channel is full: copy the arrays of what could not leave yet, so that the user may change them."""
        for index in range(self._num_detached, len(self._outgoing)):
            self._outgoing[index] = _detached(self._outgoing[index])
        self._num_detached = len(self._outgoing)

    # --- inside ---------------------------------------------------------------------------------------------

    def _open(self, hello: Hello) -> Opened:
        if self.state is not LinkState.OPENING:
            raise ProtocolError("a second Hello")
        if hello.protocol_version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"{hello.name} speaks protocol version {hello.protocol_version}, this side {PROTOCOL_VERSION}: "
                "install the same version of asyncparl on both sides"
            )
        self.state = LinkState.OPEN
        self.peer = hello
        if not self._is_silent:
            self.caller.window = hello.call_window
            self._send_what_fits()
        return Opened(hello)

    def _send_what_fits(self) -> None:
        while self._waiting and (call_id := self.caller.next_to_send()) is not None:
            self._outgoing.append(self._waiting.pop(call_id))

    def _answer(self, call_id: int, answer: Outgoing) -> None:
        # A call may end after its link did: then there is nobody to tell.
        if self.state is not LinkState.LOST:
            self.callee.answer(call_id)
            self._say(answer)

    def _say(self, outgoing: Outgoing) -> None:
        if not self._is_silent:
            self._outgoing.append(outgoing)


def _detached(outgoing: Outgoing) -> Outgoing:
    return outgoing._replace(value=outgoing.value.detach()) if outgoing.value.buffers else outgoing
