"""Frames: the bytes of a message, its payload and its raw buffers.

Layout (little-endian; `[n]` is a size in bytes):

    magic[2] version[1] flags[1] num_buffers[2] payload_len_high[2] envelope_len[4] payload_len[4]     header, 16 bytes
    buffer_len[8] * num_buffers
    buffer_at[8] * num_buffers  only with flag 1: where in the arena of the link; -1: it follows in this frame
    envelope        msgpack of one message
    payload         opaque
    padding to 64   then every buffer that follows, each padded to 64

A transport message holds one frame with buffers, or any number of frames without buffers one after another, each
padded to 8. Buffers therefore start at a multiple of 64 from the start of the transport message.

Nothing is allocated by an announced size: sizes are checked against the bytes that are there, and everything
handed out is a view of them. Whatever bytes arrive, the result is frames or one `ProtocolError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from asyncparl.errors import ProtocolError, SerializationError
from asyncparl.protocol.messages import Message
from asyncparl.protocol.owned import Owned

Buffer = bytes | bytearray | memoryview

MAX_BUFFERS = 0xFFFF
BUFFER_ALIGNMENT = 64
_FRAME_ALIGNMENT = 8

_MAGIC = b"aP"
_WIRE_VERSION = 1
_HEADER = struct.Struct("<2sBBHHII")
_PADDING = bytes(BUFFER_ALIGNMENT)
_REFERS = 1
_FOLLOWS = (1 << 64) - 1
_JOIN_PAYLOAD_BYTES = 64 * 1024  # a longer one is passed on as it is

_encode_envelope = msgspec.msgpack.Encoder().encode

MSGPACK_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that it cannot read. The second: text that is no UTF-8, before msgspec 0.23."""
_decode_envelope = msgspec.msgpack.Decoder(Message).decode


class Frame(NamedTuple):
    """One message as received. `payload` and `buffers` are views that keep the received memory alive."""

    message: Message
    payload: memoryview
    buffers: Sequence[memoryview] = ()


class Lent(NamedTuple):
    """A buffer that is in the arena of the link: only what is sent over this link may refer to it."""

    offset: int
    num_bytes: int


Borrow = Callable[[int, int], memoryview]
"""A view of what the peer has lent, by offset and size; raises `ProtocolError` where there is nothing."""


def encode_frame(
    message: Message, payload: bytes | Owned = b"", buffers: Sequence[Buffer | Owned | Lent] = ()
) -> list[Buffer]:
    """The parts of a frame, in order. The buffers, and a long payload, are passed on as they are, not copied.

    Raises as `frame_parts`.
    """
    parts = frame_parts(message, payload, buffers)
    if not any(isinstance(part, Owned) for part in parts):
        return parts  # type: ignore[return-value]
    return [piece for part in parts for piece in (part.pieces if isinstance(part, Owned) else (part,))]


def frame_parts(
    message: Message, payload: bytes | Owned = b"", buffers: Sequence[Buffer | Owned | Lent] = ()
) -> list[Buffer | Owned]:
    """The same for whoever sends it piece by piece.

    Lone surrogates in the message's texts (from the name of a file, say) arrive as `\\udc80`: UTF-8 has no bytes for
    them. Nothing else of a message changes.

    Raises:
        SerializationError: more than 65,535 buffers, an envelope of 4 GiB, or a payload of 256 TiB.
    """
    try:
        envelope = _encode_envelope(message)
    except UnicodeEncodeError:
        envelope = _encode_envelope(_without_surrogates(msgspec.to_builtins(message)))
    refers = any(isinstance(buffer, Lent) for buffer in buffers)
    try:
        head = _HEADER.pack(
            _MAGIC, _WIRE_VERSION, refers, len(buffers), len(payload) >> 32, len(envelope), len(payload) & 0xFFFFFFFF
        )
    except struct.error:
        raise SerializationError(
            f"a message with {len(buffers)} buffers and a payload of {len(payload)} bytes does not fit a frame "
            f"(limits: {MAX_BUFFERS} buffers, 256 TiB; 4 GiB for the message itself)"
        ) from None
    if not buffers:
        size = _HEADER.size + len(envelope) + len(payload)
        return _joined(head, envelope, payload, _PADDING[: -size % _FRAME_ALIGNMENT])
    table = _pack_table(buffers, refers)
    size = _HEADER.size + len(table) + len(envelope) + len(payload)
    parts = _joined(head + table, envelope, payload, _PADDING[: -size % BUFFER_ALIGNMENT])
    for buffer in buffers:
        if not isinstance(buffer, Lent):
            parts.append(buffer)
            if padding := -len(buffer) % BUFFER_ALIGNMENT:
                parts.append(_PADDING[:padding])
    return parts


def _joined(head: bytes, envelope: bytes, payload: bytes | Owned, padding: bytes) -> list[Buffer | Owned]:
    if isinstance(payload, Owned):
        return [head + envelope, payload, padding]
    if len(payload) <= _JOIN_PAYLOAD_BYTES:
        return [b"".join((head, envelope, payload, padding))]
    return [head + envelope, payload, padding]


def _pack_table(buffers: Sequence[Buffer | Owned | Lent], refers: bool) -> bytes:
    entries = [buffer.num_bytes if isinstance(buffer, Lent) else len(buffer) for buffer in buffers]
    if refers:
        entries += [buffer.offset if isinstance(buffer, Lent) else _FOLLOWS for buffer in buffers]
    return struct.pack(f"<{len(entries)}Q", *entries)


def decode_frames(view: memoryview, borrow: Borrow | None = None) -> list[Frame]:
    """Every frame of one transport message, in order.

    Args:
        borrow: what gives views of the arena of the link that the message came over; None: it has none.

    Raises:
        ProtocolError: the bytes are not frames of this version, sizes do not add up, an envelope is no message, or
            there is no such memory as a frame refers to.
    """
    frames = []
    offset = 0
    while offset < len(view):
        frame, offset = _decode_one(view, offset, borrow)
        frames.append(frame)
    if not frames:
        raise ProtocolError("an empty transport message")
    return frames


class Head(NamedTuple):
    """Of a transport message with one frame that has one buffer, and no payload."""

    message: Message
    head_bytes: int
    """Before the buffer."""
    buffer_bytes: int


def decode_head(beginning: memoryview, message_bytes: int) -> Head | None:
    """What can be said of a transport message of which the beginning has come; None: it is another one, or no frame.

    Whatever comes: `decode_frames` finds the faults once all of it is there.
    """
    if len(beginning) < _HEADER.size + 8:
        return None
    magic, version, flags, num_buffers, high, envelope_len, payload_len = _HEADER.unpack_from(beginning)
    envelope_at = _HEADER.size + 8
    end = envelope_at + envelope_len
    if (magic, version, flags, num_buffers, high, payload_len) != (_MAGIC, _WIRE_VERSION, 0, 1, 0, 0):
        return None
    (buffer_bytes,) = struct.unpack_from("<Q", beginning, _HEADER.size)
    head_bytes = end + -end % BUFFER_ALIGNMENT
    if len(beginning) < end or message_bytes != head_bytes + buffer_bytes + -buffer_bytes % BUFFER_ALIGNMENT:
        return None
    try:
        return Head(_decode_envelope(beginning[envelope_at:end]), head_bytes, buffer_bytes)
    except MSGPACK_ERRORS:
        return None


def _decode_one(view: memoryview, start: int, borrow: Borrow | None) -> tuple[Frame, int]:
    available = len(view) - start
    if available < _HEADER.size:
        raise ProtocolError(f"{available} bytes are too few for a frame")
    magic, version, flags, num_buffers, payload_len_high, envelope_len, payload_len = _HEADER.unpack_from(view, start)
    if magic != _MAGIC:
        raise ProtocolError(f"not an asyncparl frame: it starts with {bytes(magic)!r}")
    if version != _WIRE_VERSION:
        raise ProtocolError(f"frame version {version}; this side speaks {_WIRE_VERSION}")
    table_at = start + _HEADER.size
    refers = flags & _REFERS
    num_entries = 2 * num_buffers if refers else num_buffers
    envelope_at = table_at + 8 * num_entries
    payload_at = envelope_at + envelope_len
    end = payload_at + payload_len + (payload_len_high << 32)
    if end > len(view):
        raise ProtocolError(f"a frame announces {end - start} bytes, but {available} are left")
    try:
        message = _decode_envelope(view[envelope_at:payload_at])
    except MSGPACK_ERRORS as error:
        raise ProtocolError(f"a frame's envelope is no known message: {error}") from None
    if not num_buffers:
        return Frame(message, view[payload_at:end]), end + (start - end) % _FRAME_ALIGNMENT
    entries = struct.unpack_from(f"<{num_entries}Q", view, table_at)
    buffers_at = end + (start - end) % BUFFER_ALIGNMENT
    if refers:
        sizes, places = entries[:num_buffers], entries[num_buffers:]
        following = [size for size, place in zip(sizes, places, strict=True) if place == _FOLLOWS]
        slices, end_of_buffers = _slice_buffers(view, buffers_at, following)
        buffers = _with_borrowed(slices, sizes, places, borrow)
    else:
        buffers, end_of_buffers = _slice_buffers(view, buffers_at, entries)
    return Frame(message, view[payload_at:end], buffers), end_of_buffers


def _slice_buffers(view: memoryview, offset: int, sizes: Sequence[int]) -> tuple[list[memoryview], int]:
    buffers = []
    for size in sizes:
        if offset + size > len(view):
            raise ProtocolError(f"a frame announces a buffer of {size} bytes at {offset}, beyond its {len(view)}")
        buffers.append(view[offset : offset + size])
        offset += size + -size % BUFFER_ALIGNMENT
    return buffers, offset


def _with_borrowed(
    slices: list[memoryview], sizes: Sequence[int], places: Sequence[int], borrow: Borrow | None
) -> list[memoryview]:
    """All buffers in order: those that followed, and those that are in the arena."""
    if borrow is None:
        raise ProtocolError("a frame refers to shared memory, and this link has none")
    following = iter(slices)
    return [
        next(following) if place == _FOLLOWS else borrow(place, size) for size, place in zip(sizes, places, strict=True)
    ]


def _without_surrogates(part: Any) -> Any:
    if isinstance(part, str):
        return part.encode(errors="backslashreplace").decode()
    return [_without_surrogates(inner) for inner in part] if isinstance(part, list) else part
