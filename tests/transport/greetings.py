"""The handshake by hand, for tests that stand between the two sides or stop half way."""

from __future__ import annotations

import secrets

import trio

from asyncparl.transport import Admission, Credentials
from asyncparl.transport.addresses import IpcAddress, parse_dialable
from asyncparl.transport.handshake import (
    COME_IN,
    NONCE_BYTES,
    PROOF_BYTES,
    REPLY_BYTES,
    DialerHandshake,
    Hello,
    ListenerHandshake,
)

LIMIT = 1 << 20


def new_dialer(
    credentials: Credentials | None = None, *, limit: int = LIMIT, encrypt: bool = False, route: str = ""
) -> DialerHandshake:
    nonce = secrets.token_bytes(NONCE_BYTES)
    return DialerHandshake(credentials, max_message_bytes=limit, encrypt=encrypt, route=route, nonce=nonce)


def pack_hello(limit: int = LIMIT, *, key_id: str = "", route: str = "") -> bytes:
    return Hello(limit, False, bytes(NONCE_BYTES), key_id, route).pack()


async def open_stream(address: str) -> trio.SocketStream:
    parsed = parse_dialable(address)
    if isinstance(parsed, IpcAddress):
        return await trio.open_unix_socket(parsed.path)
    return await trio.open_tcp_stream(parsed.host, parsed.port)


async def receive_exactly(stream: trio.abc.ReceiveStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = await stream.receive_some(count - len(data))
        assert part, f"the end after {len(data)} bytes"
        data += part
    return data


async def expect_hang_up(stream: trio.abc.ReceiveStream) -> None:
    try:
        assert await stream.receive_some() == b""
    except trio.BrokenResourceError:
        pass


async def greet(stream: trio.SocketStream, dialer: DialerHandshake) -> Admission:
    """The dialer's part, up to its being let in."""
    await stream.send_all(dialer.hello)
    proof, admission = dialer.answer(await receive_exactly(stream, REPLY_BYTES))
    await stream.send_all(proof)
    assert await receive_exactly(stream, 1) == COME_IN
    return admission


async def take_proof(stream: trio.SocketStream, listener: ListenerHandshake) -> None:
    """The listener's part, up to its verdict."""
    while listener.admission is None:
        answer = listener.receive(await receive_exactly(stream, listener.num_wanted))
        if answer:
            await stream.send_all(answer)


async def welcome(stream: trio.SocketStream, listener: ListenerHandshake) -> None:
    """All of the listener's part."""
    await take_proof(stream, listener)
    await stream.send_all(COME_IN)


def new_listener(key: bytes | None = None, *, limit: int = LIMIT) -> ListenerHandshake:
    """One that has this key for everybody, or asks for none."""
    return ListenerHandshake(
        None if key is None else lambda _: key,
        limit,
        nonce=secrets.token_bytes(NONCE_BYTES),
        decoy=secrets.token_bytes(PROOF_BYTES),
    )
