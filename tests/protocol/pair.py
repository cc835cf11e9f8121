"""Two link cores and the bytes between them; no channel, no task, no clock."""

from __future__ import annotations

from asyncparl.protocol.events import Event
from asyncparl.protocol.frames import Frame, decode_frames, encode_frame
from asyncparl.protocol.link import LinkCore, Outgoing
from asyncparl.protocol.messages import CallKind, ErrorReport, Message
from asyncparl.protocol.values import NOTHING, Encoded, encode_value

REPORT = ErrorReport("ValueError", "no", "Traceback ...", "raised by Simulator#1")


def call(core: LinkCore, value: object = None, credit: int = 0) -> int:
    """Call a method; the id of the call."""
    return core.call(CallKind.METHOD, "sample", encode_value(value), credit=credit)


def packed(outgoing: Outgoing) -> memoryview:
    """A message as the transport would deliver it."""
    message, value, _ = outgoing
    return memoryview(bytearray(b"".join(encode_frame(message, value.payload, value.buffers))))


def frame_of(message: Message, value: Encoded = NOTHING) -> Frame:
    """A message as it is received; for messages that no correct peer sends."""
    [frame] = decode_frames(packed(Outgoing(message, value)))
    return frame


def taken(core: LinkCore) -> list[Outgoing]:
    """Everything that a core has to say."""
    outgoing = []
    while core.has_outgoing:
        outgoing.append(core.take_outgoing())
    return outgoing


def messages(core: LinkCore) -> list[Message]:
    """The messages of everything that a core has to say."""
    return [outgoing.message for outgoing in taken(core)]


def carry(sender: LinkCore, receiver: LinkCore) -> list[Event]:
    """Everything that one core has to say, brought to the other; what it means there."""
    frames = [frame for outgoing in taken(sender) for frame in decode_frames(packed(outgoing))]
    events = [receiver.receive(frame) for frame in frames]
    return [event for event in events if event is not None]


def open_pair(window: int = 8) -> tuple[LinkCore, LinkCore]:
    """Two cores that have exchanged their Hello."""
    left, right = LinkCore(name="left", call_window=window), LinkCore(name="right", call_window=window)
    carry(left, right)
    carry(right, left)
    return left, right


def open_stream(credit: int) -> tuple[LinkCore, LinkCore, int]:
    """A stream that the left core called and the right core is to serve."""
    left, right = open_pair()
    call_id = call(left, credit=credit)
    carry(left, right)
    return left, right, call_id
