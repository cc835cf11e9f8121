"""How drivers, nodes and the master speak to each other: the payloads of `CallKind.CONTROL` calls and their streams.

They are plain structs, never pickles: neither a node nor the master reads anything that could run code. `decode_*` turn
any bytes into the expected struct or one `ProtocolError`. What may be asked is in `master_messages.py` and
`node_messages.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from asyncparl.errors import ProtocolError
from asyncparl.protocol.frames import MSGPACK_ERRORS, Buffer
from asyncparl.protocol.master_messages import MasterAnswer, MasterRequest
from asyncparl.protocol.node_messages import NodeAnswer, NodeRequest
from asyncparl.protocol.values import Encoded

ALIVE_INTERVAL_S = 1.0
"""Nodes tell the master and their drivers that often that they live."""
SILENCE_LIMIT_S = 4.5
"""A silence as long as this is the end of the link to a node or to a master: it is noticed within 5 s."""
ACTOR_ROUTE = "actor/"
"""With the id of an actor: what to dial at a node to be connected to the worker."""
MAX_CONTROL_BYTES = 16 << 20
"""The largest message to or from a master or a node: they carry no data."""

Request = MasterRequest | NodeRequest
Answer = MasterAnswer | NodeAnswer

_encode = msgspec.msgpack.Encoder().encode
_request_decoder = msgspec.msgpack.Decoder(Request)
_answer_decoder = msgspec.msgpack.Decoder(Answer)


def encode_control(struct: Request | Answer) -> Encoded:
    """The payload of a control message."""
    return Encoded(_encode(struct))


def decode_request(payload: Buffer) -> Request:
    """Read what is asked of a node or of the master.

    Raises:
        ProtocolError: it is no `Request`.
    """
    try:
        return _request_decoder.decode(payload)
    except MSGPACK_ERRORS as error:
        raise ProtocolError(f"not a request to a node or a master: {error}") from None


def decode_answer(payload: Buffer, _buffers: object = ()) -> Any:
    """Read an `Answer`, or an item of a stream; None for an empty answer.

    Raises:
        ProtocolError: it is none of these.
    """
    if not payload:
        return None
    try:
        return _answer_decoder.decode(payload)
    except MSGPACK_ERRORS as error:
        raise ProtocolError(f"not the answer of a node or a master: {error}") from None
