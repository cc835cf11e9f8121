"""What a driver and a node say to each other: the payloads of `CallKind.CONTROL` calls and of the node's event stream.

They are plain structs, never pickles: a node reads nothing that could run code. `decode` turns any bytes into the
expected struct or one `ProtocolError`.
"""

from __future__ import annotations

import msgspec

from asyncparl.errors import ProtocolError
from asyncparl.protocol.frames import MSGPACK_ERRORS, Buffer
from asyncparl.protocol.values import Encoded

_encode = msgspec.msgpack.Encoder().encode


class StartActor(msgspec.Struct, tag=True, frozen=True):
    """Driver to node: start a worker process for an actor. Answered with `ActorStarted`, or raised."""

    actor_id: str
    name: str
    num_cpus: float


class ActorStarted(msgspec.Struct, tag=True, frozen=True):
    """The worker listens at `address`; dial it."""

    address: str
    pid: int


class StopActor(msgspec.Struct, tag=True, frozen=True):
    """Driver to node: SIGTERM, then SIGKILL after `grace_s` (at once if 0). Answered when it is over."""

    actor_id: str
    grace_s: float


class WatchNode(msgspec.Struct, tag=True, frozen=True):
    """Driver to node: stream the `NodeEvent`s of my actors."""


class ShutDown(msgspec.Struct, tag=True, frozen=True):
    """Driver to node: stop every actor of mine, then answer. The node of a private cluster then exits."""

    grace_s: float


Request = StartActor | StopActor | WatchNode | ShutDown


class ActorOutput(msgspec.Struct, tag=True, frozen=True):
    """Lines that an actor's process wrote. `num_dropped` lines before these were lost: it wrote too fast."""

    actor_id: str
    is_error: bool
    lines: list[str]
    num_dropped: int = 0


class ActorExited(msgspec.Struct, tag=True, frozen=True):
    """The death report of an actor's process, sent once, after all its output."""

    actor_id: str
    reason: str
    exit_code: int | None
    signal: int | None
    log_tail: list[str]


NodeEvent = ActorOutput | ActorExited

_request_decoder = msgspec.msgpack.Decoder(Request)
_answer_decoder = msgspec.msgpack.Decoder(ActorStarted | NodeEvent)


def encode_control(struct: Request | ActorStarted | NodeEvent) -> Encoded:
    """The payload of a control message."""
    return Encoded(_encode(struct))


def decode_request(payload: Buffer) -> Request:
    """Read what a driver asks.

    Raises:
        ProtocolError: it is no `Request`.
    """
    try:
        return _request_decoder.decode(payload)
    except MSGPACK_ERRORS as error:
        raise ProtocolError(f"not a request to a node: {error}") from None


def decode_answer(payload: Buffer, _buffers: object = ()) -> ActorStarted | NodeEvent | None:
    """Read what a node answers or streams; None for an empty answer.

    Raises:
        ProtocolError: it is none of these.
    """
    if not payload:
        return None
    try:
        return _answer_decoder.decode(payload)
    except MSGPACK_ERRORS as error:
        raise ProtocolError(f"not the answer of a node: {error}") from None
