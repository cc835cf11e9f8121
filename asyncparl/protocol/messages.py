"""All messages of a link, one type each. Who sends it, when, and what must answer it.

A link joins two processes. Either side may call the other: "caller" and "callee" below are roles in one call,
not processes. A message travels in a frame (`frames.py`) that may also carry a payload: an encoded value
(`values.py`) or, on control links, an encoded struct of `control.py`. The payload is not decoded here.

Fields may be added at the end of a message; a peer that does not know them ignores them.
"""

from __future__ import annotations

import msgspec

PROTOCOL_VERSION = 3


class Hello(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """First message, sent by both sides at once, without waiting for the other's.

    A peer of another `protocol_version` is refused. `call_window` is how many unanswered calls the sender of
    this message accepts.
    """

    protocol_version: int
    call_window: int
    name: str
    pid: int
    process_id: str = ""
    """The driver's or actor's id, by which references name the objects of the sender's process."""
    max_value_bytes: int | None = None
    """The largest value that the sender of this message takes; None: there is no limit but memory."""


class CallKind:
    """What a `Call` asks for. Plain integers: they are on the wire."""

    METHOD = 0
    """Run a method. If it returns a generator, stream its items."""
    GET_ATTRIBUTE = 1
    SET_ATTRIBUTE = 2
    CREATE = 3
    """Build the object; always the first call of an owner's link."""
    CLOSE = 4
    """Answer after everything called before; then end the actor."""
    CONTROL = 5
    """A request to a node; the payload is a struct of `control.py`."""
    PING = 6
    """Answer when the object is there, after what was called before."""


class Call(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Sent by a caller; answered by exactly one `Returned`, `Raised` or `Cancelled`, after any number of `Item`.

    `call_id` grows by one with every call of its sender: the callee sees a repeated call at once, so no call
    runs twice. `credit` is how many items the caller takes before it grants more.
    """

    call_id: int
    kind: int
    target: str
    credit: int
    object_id: int = 0
    """Which object of the callee's process: 0 is the actor itself, others were exposed."""
    timeout_s: float | None = None
    """What is left of the time that the call may take, counted from here by whoever reads it; None: all the time."""


class Cancel(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """The caller no longer wants the answer. Answered like the call itself; ignored if already answered."""

    call_id: int


class Returned(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """The call ended well; the payload is its value. `streamed`: it was a stream, and there are no more items."""

    call_id: int
    streamed: bool = False


class ErrorReport(msgspec.Struct, array_like=True, frozen=True):
    """An exception in words, for the case that it cannot be rebuilt; `note` names actor, node and pid."""

    type_name: str
    text: str
    traceback: str
    note: str


class Raised(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """The call ended with an exception; the payload is the exception, or empty if it cannot be pickled."""

    call_id: int
    error: ErrorReport


class Cancelled(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """The call was cancelled before it had a result, or its result was dropped."""

    call_id: int


class Item(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """The next value of a stream, as payload. Uses up one credit."""

    call_id: int


class Grant(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """The caller takes `num_items` more items of a stream. Ignored once the stream has ended."""

    call_id: int
    num_items: int


class Goodbye(msgspec.Struct, tag=8, array_like=True, frozen=True):
    """The last message of its sender: the loss of the link that follows is no accident."""


class TimedOut(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """What the callee knows of a call whose time is up; comes before its answer, and only for a call with a limit.

    It is certain: a call of which `has_started` is false never starts.
    """

    call_id: int
    has_started: bool
    running: str = ""
    """The method that runs: the call's own, or the one that was in its way. Empty: nothing does, or nobody knows."""
    running_s: float = 0.0


class SharesMemory(msgspec.Struct, tag=10, array_like=True, frozen=True):
    """Sent once, after `Hello`, by whoever sees the link's arena: frames may refer to it from now on."""


class GiveBack(msgspec.Struct, tag=11, array_like=True, frozen=True):
    """The sender does not look any more at what it was lent at these offsets of the receiver's half of the arena."""

    offsets: list[int]


class Fragment(msgspec.Struct, tag=12, array_like=True, frozen=True):
    """A part of a frame that is too large for one message: its buffers, one after the other. No payload.

    Those of one transfer come in order and without a gap; others, and other messages, may come between them. The last
    one is followed by whatever the whole frame asks for.
    """

    transfer_id: int
    """Grows with every transfer of its sender."""
    at: int
    """Where in the frame it begins."""
    size: int
    """Of the whole frame."""
    asks: bool = False
    """`FragmentsTaken` is to say how much has been taken so far."""


class FragmentsTaken(msgspec.Struct, tag=13, array_like=True, frozen=True):
    """So much of fragments has been put in its place, since the last word of it. Answers a `Fragment` that asks for it,
    and `FragmentsDropped` if there is anything to be said."""

    num_bytes: int


class FragmentsDropped(msgspec.Struct, tag=14, array_like=True, frozen=True):
    """The rest of a transfer that has begun is not sent: nobody wants it any more, or it may not be said any more."""

    transfer_id: int


Message = (
    Hello
    | Call
    | Cancel
    | Returned
    | Raised
    | Cancelled
    | Item
    | Grant
    | Goodbye
    | TimedOut
    | SharesMemory
    | GiveBack
    | Fragment
    | FragmentsTaken
    | FragmentsDropped
)
Answer = Returned | Raised | Cancelled
