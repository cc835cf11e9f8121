"""What a received frame means to the owner of a link: the events that `LinkCore.receive` gives."""

from __future__ import annotations

from typing import NamedTuple

from asyncparl.protocol.frames import Frame
from asyncparl.protocol.messages import Call, Hello, TimedOut


class Opened(NamedTuple):
    """The peer said who it is."""

    hello: Hello
    too_large: tuple[int, ...] = ()
    """Calls of ours that have waited, with values larger than the peer takes: they are settled, and never sent."""


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


class TimeIsUp(NamedTuple):
    """The callee says that a call of ours has not ended in time, and what it knows of it. Its answer is not awaited."""

    call_id: int
    message: TimedOut


class PeerClosing(NamedTuple):
    """The peer said goodbye: it sends nothing more, and the loss of the link is expected."""


class MemoryReturned(NamedTuple):
    """The peer has no views any more of what it was lent at these offsets."""

    offsets: list[int]


Event = (
    Opened
    | CallArrived
    | CancelArrived
    | GrantArrived
    | ItemArrived
    | AnswerArrived
    | TimeIsUp
    | PeerClosing
    | MemoryReturned
)
