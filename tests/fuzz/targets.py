"""What is fuzzed. Each target takes any bytes at all and returns, or raises because of a fault of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from asyncparl.errors import ProtocolError, SerializationError
from asyncparl.protocol.control import Answer, Request, decode_answer, decode_request, encode_control
from asyncparl.protocol.events import AnswerArrived, TimeIsUp
from asyncparl.protocol.fragments import MAX_TRANSFERS
from asyncparl.protocol.frames import decode_frames, encode_frame
from asyncparl.protocol.messages import Fragment, Message, Returned
from asyncparl.protocol.owned import in_one_piece
from asyncparl.protocol.values import NOTHING, Encoded, decode_value, encode_value
from asyncparl.transport.handshake import REPLY_BYTES, HandshakeError, Hello, ListenerHandshake
from tests.protocol.pair import call, open_pair, taken
from tests.protocol.strategies import instances_of, messages, plain_values

Target = Callable[[bytes], None]

ARENA = bytearray(4096)


def _borrow(offset: int, num_bytes: int) -> memoryview:
    if offset + num_bytes > len(ARENA):
        raise ProtocolError("beyond the arena")
    return memoryview(ARENA)[offset : offset + num_bytes]


def read_frames(data: bytes) -> None:
    """Frames that are views of what came; written again, they are read as the same."""
    view = memoryview(bytearray(data))
    try:
        frames = decode_frames(view, _borrow)
    except ProtocolError:
        return
    for frame in frames:
        parts = encode_frame(frame.message, bytes(frame.payload), frame.buffers)
        [again] = decode_frames(memoryview(bytearray(b"".join(parts))))
        assert repr(again.message) == repr(frame.message)  # a NaN is not equal to itself
        assert again[1:] == frame[1:]


def run_link(data: bytes) -> None:
    """Whatever a peer sends: every call of ours is settled once, and nothing is raised but a `ProtocolError`.

    Or a `MemoryError`, where he announces more than there is.
    """
    core, _ = open_pair()
    unsettled = {call(core), call(core), call(core, credit=2)}
    taken(core)
    try:
        for frame in decode_frames(memoryview(bytearray(data)), _borrow):
            event = core.receive(frame)
            if isinstance(event, AnswerArrived | TimeIsUp):
                unsettled.remove(event.call_id)
            taken(core)
            assert core._joiner.num_open <= MAX_TRANSFERS
    except (ProtocolError, MemoryError):
        pass
    lost, _ = core.lose()
    assert {call_id for call_id, _ in lost} == unsettled


def read_control(data: bytes) -> None:
    """Requests and answers of the control plane, which say the same when they are written again."""
    for decode in (decode_request, decode_answer):
        try:
            struct = decode(data)
        except ProtocolError:
            continue
        if struct is not None:
            encode_control(struct)


def read_value(data: bytes) -> None:
    """Values without pickle; a pickle runs code of the peer, who is trusted by then."""
    if not data.startswith(b"P"):
        try:
            decode_value(data, [memoryview(ARENA), memoryview(ARENA)[:64]])
        except SerializationError:
            return


def greet(data: bytes) -> None:
    """A stranger who does not know the key never gets in."""
    for keys in (None, lambda key_id: b"k" * 32 if key_id == "known" else None):
        listener = ListenerHandshake(keys, 1000, may_share=True, nonce=b"n" * 16, decoy=b"?" * 32)
        rest = data
        try:
            while rest and listener.admission is None:
                assert 0 < listener.num_wanted < 2000
                answer = listener.receive(rest[: listener.num_wanted])
                assert len(answer) in (0, REPLY_BYTES)
                rest = rest[min(len(rest), max(1, listener.num_wanted)) :] if not answer else rest[1:]
        except HandshakeError:
            continue
        assert listener.admission is None or keys is None


TARGETS: dict[str, Target] = {
    "frames": read_frames,
    "link": run_link,
    "control": read_control,
    "values": read_value,
    "greeting": greet,
}


# --- what is correct, for the fuzzer to begin with ----------------------------------------------------------------

_values = plain_values.map(encode_value)
_long_values = st.sampled_from([b"x", "x", bytearray(b"x")]).map(lambda unit: encode_value([unit * 70_000, 1]))
_controls = st.one_of([instances_of(kind) for kind in (*get_args(Request), *get_args(Answer))]).map(encode_control)
_hellos = st.builds(
    Hello,
    max_message_bytes=st.integers(1, 2**64 - 1),
    encrypt=st.booleans(),
    nonce=st.binary(min_size=16, max_size=16),
    key_id=st.sampled_from(["", "known", "unknown"]),
    route=st.text(max_size=20),
    share=st.booleans(),
)


def _framed(message: Message, value: Encoded = NOTHING) -> bytes:
    return b"".join(encode_frame(message, value.payload, value.buffers))


def _in_fragments(number: int, message: Message, value: Encoded, size: int) -> bytes:
    data = _framed(message, value)
    pieces = [Encoded(b"", [data[at : at + size]]) for at in range(0, len(data), size)]
    return b"".join(_framed(Fragment(number, i * size, len(data)), piece) for i, piece in enumerate(pieces))


_fragments = st.lists(
    st.tuples(st.builds(Returned, st.integers(1, 3), st.booleans()), _values, st.integers(20, 200)), max_size=3
).map(lambda sent: b"".join(_in_fragments(number, *each) for number, each in enumerate(sent, start=1)))

_CORRECT: dict[str, st.SearchStrategy[bytes]] = {
    "frames": st.builds(_framed, messages, _values),
    "link": st.lists(st.builds(_framed, messages)).map(b"".join) | _fragments,
    "control": _controls.map(lambda encoded: bytes(encoded.payload)),
    "values": (_values | _long_values).map(lambda encoded: bytes(in_one_piece(encoded.payload))),
    "greeting": st.builds(lambda hello, proof: hello.pack() + proof, _hellos, st.binary(min_size=32, max_size=32)),
}


def correct_inputs(name: str, number: int) -> list[bytes]:
    """Inputs as a correct peer sends them, always the same ones."""
    found: list[bytes] = []

    @settings(
        max_examples=number,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(_CORRECT[name])
    def collect(data: bytes) -> None:
        found.append(data)

    collect()
    return found
