"""NNG listeners and channels against peers that do not follow the protocol."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

import asyncparl.transport.greeting as greeting_module
from asyncparl.transport import Channel, Listener, dial, listen
from asyncparl.transport.addresses import IpcAddress, parse_address
from asyncparl.transport.greeting import pack_greeting
from tests.transport.addresses import FRESH_ADDRESS

SCHEMES = ("ipc", "tcp")
NNG_HEADER = b"\x00SP\x00\x00\x10\x00\x00"  # of Pair0


async def _connect(address: str) -> trio.SocketStream:
    parsed = parse_address(address)
    if isinstance(parsed, IpcAddress):
        return await trio.open_unix_socket(parsed.path)
    return await trio.open_tcp_stream(parsed.host, parsed.port)  # type: ignore[union-attr]


@asynccontextmanager
async def _accepting(scheme: str) -> AsyncIterator[tuple[Listener, list[Channel]]]:
    """A listener that accepts whoever is let in, for the length of the block."""
    accepted: list[Channel] = []

    async def accept_all() -> None:
        while True:
            accepted.append(await listener.accept())

    with trio.fail_after(30), listen(FRESH_ADDRESS[scheme](), max_message_bytes=1 << 20) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_all)
            try:
                yield listener, accepted
            finally:
                nursery.cancel_scope.cancel()
                for channel in accepted:
                    channel.close()


async def _expect_hang_up(stream: trio.SocketStream) -> None:
    try:
        assert await stream.receive_some() == b""
    except trio.BrokenResourceError:
        pass


async def _expect_service(listener: Listener, accepted: list[Channel]) -> None:
    with await dial(listener.address) as channel:
        await channel.send([b"x"])
        assert bytes(await accepted[-1].receive()) == b"x"


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(16),
        NNG_HEADER * 2,
        pack_greeting(1 << 20)[:7] + b"\x02" + pack_greeting(1 << 20)[8:],  # of another version
        pack_greeting(0),
    ],
    ids=["http", "zeros", "plain NNG", "another version", "no limit"],
)
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_stranger_is_hung_up_on_and_disturbs_nobody(scheme: str, junk: bytes) -> None:
    async with _accepting(scheme) as (listener, accepted), await _connect(listener.address) as stranger:
        await stranger.send_all(junk)
        await _expect_hang_up(stranger)
        assert accepted == []
        await _expect_service(listener, accepted)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_one_who_hangs_up_or_says_nothing_delays_nobody(scheme: str) -> None:
    async with _accepting(scheme) as (listener, accepted):
        await (await _connect(listener.address)).aclose()
        async with await _connect(listener.address) as silent, await _connect(listener.address) as slow:
            await slow.send_all(pack_greeting(1 << 20)[:5])
            await _expect_service(listener, accepted)
            await slow.send_all(pack_greeting(1 << 20)[5:])
            assert await _receive_exactly(slow, 16) == pack_greeting(1 << 20)
            await silent.aclose()
        assert len(accepted) == 2


async def test_those_who_say_nothing_are_hung_up_on_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting_module, "GREETING_TIMEOUT_S", 0.05)
    async with _accepting("tcp") as (listener, accepted):
        async with await _connect(listener.address) as silent:
            await _expect_hang_up(silent)
        await _expect_service(listener, accepted)


async def test_those_who_say_nothing_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting_module, "MAX_UNGREETED", 2)
    async with _accepting("tcp") as (listener, accepted):
        streams = [await _connect(listener.address) for _ in range(3)]
        await _expect_hang_up(streams[0])
        await _expect_service(listener, accepted)
        for stream in streams:
            await stream.aclose()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_message_announced_larger_than_the_limit_is_refused_before_it_is_sent(scheme: str) -> None:
    async with _accepting(scheme) as (listener, accepted), await _connect(listener.address) as peer:
        await peer.send_all(pack_greeting(1 << 40))
        assert await _receive_exactly(peer, 16) == pack_greeting(1 << 20)
        await peer.send_all(NNG_HEADER)
        assert await _receive_exactly(peer, 8) == NNG_HEADER
        await peer.send_all(struct.pack("!Q", 5) + b"hello")
        while not accepted:
            await trio.lowlevel.checkpoint()
        assert bytes(await accepted[0].receive()) == b"hello"
        assert accepted[0].max_message_bytes == 1 << 20
        await peer.send_all(struct.pack("!Q", (1 << 20) + 1) + b"and so on")
        with pytest.raises(trio.BrokenResourceError):
            await accepted[0].receive()
        await _expect_service(listener, accepted)


async def _receive_exactly(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = await stream.receive_some(count - len(data))
        assert part
        data += part
    return data


@pytest.mark.parametrize(
    "junk", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", bytes(16)], ids=["http", "nothing", "zeros"]
)
async def test_dialing_something_else_fails_at_once(junk: bytes) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(junk)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(10), pytest.raises(ConnectionAbortedError):
            await dial(f"tcp://127.0.0.1:{port}", timeout_s=60)
        nursery.cancel_scope.cancel()


async def test_a_listener_that_hangs_up_after_its_greeting_fails_the_dial_at_once() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await _receive_exactly(stream, 16)
        await stream.send_all(pack_greeting(1000))
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(10), pytest.raises(ConnectionAbortedError):
            await dial(f"tcp://127.0.0.1:{port}", timeout_s=60)
        nursery.cancel_scope.cancel()


async def test_a_peer_that_greets_and_then_says_nothing_is_lost_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncparl.transport.nng.HANDSHAKE_TIMEOUT_S", 0.05)
    async with _accepting("tcp") as (listener, accepted), await _connect(listener.address) as peer:
        await peer.send_all(pack_greeting(1 << 20))
        assert await _receive_exactly(peer, 16) == pack_greeting(1 << 20)
        while not accepted:
            await trio.lowlevel.checkpoint()
        with pytest.raises(trio.BrokenResourceError):
            await accepted[0].receive()
        with pytest.raises(trio.BrokenResourceError):
            accepted[0].send_nowait([b"x"])


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_lost_peer_is_never_replaced(scheme: str) -> None:
    async with _accepting(scheme) as (listener, accepted):
        with await dial(listener.address) as first:
            await first.send([b"from the first"])
            assert bytes(await accepted[0].receive()) == b"from the first"
            second = await dial(listener.address)
            accepted[0].close()
            with pytest.raises(trio.BrokenResourceError):
                await first.receive()
            await second.send([b"from the second"])
            assert bytes(await accepted[1].receive()) == b"from the second"
            with pytest.raises(trio.BrokenResourceError):
                await first.receive()
            second.close()


async def test_ipv6_and_names_can_be_dialed() -> None:
    for address in ("tcp://[::1]:0", "tcp://localhost:0"):
        try:
            listener = listen(address)
        except OSError:
            pytest.skip("no such address on this machine")
        with listener:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_accept_and_close, listener)
                (await dial(listener.address)).close()


async def _accept_and_close(listener: Listener) -> None:
    with await listener.accept() as channel, pytest.raises(trio.BrokenResourceError):
        await channel.receive()


async def test_an_unknown_host_is_an_os_error() -> None:
    with pytest.raises(socket.gaierror):
        await dial("tcp://no-such-host.invalid:1")
