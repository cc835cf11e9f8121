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
from asyncparl.transport.handshake import COME_IN, REPLY_BYTES
from tests.transport.addresses import FRESH_ADDRESS
from tests.transport.greetings import (
    LIMIT,
    expect_hang_up,
    greet,
    new_dialer,
    new_listener,
    open_stream,
    pack_hello,
    receive_exactly,
    welcome,
)

SCHEMES = ("ipc", "tcp")
NNG_HEADER = b"\x00SP\x00\x00\x10\x00\x00"  # of Pair0


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


async def _expect_service(listener: Listener, accepted: list[Channel]) -> None:
    with await dial(listener.address) as channel:
        await channel.send([b"x"])
        assert bytes(await accepted[-1].receive()) == b"x"


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(64),
        NNG_HEADER * 8,
        pack_hello()[:7] + b"\x01" + pack_hello()[8:],
        pack_hello(0),
        pack_hello()[:16] + b"\x04" + pack_hello()[17:],
        pack_hello()[:33] + b"\xff\xff" + pack_hello()[35:] + bytes(1 << 20),
        pack_hello(route=257 * "x"),
        pack_hello(route="x")[:-1] + b"\xff",
    ],
    ids=["http", "zeros", "plain NNG", "version", "no limit", "flag", "1 MB", "long route", "not UTF-8"],
)
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_stranger_is_hung_up_on_and_disturbs_nobody(scheme: str, junk: bytes) -> None:
    async with _accepting(scheme) as (listener, accepted), await open_stream(listener.address) as stranger:
        try:
            await stranger.send_all(junk)
        except trio.BrokenResourceError:
            pass  # hung up on before the end
        await expect_hang_up(stranger)
        assert accepted == []
        await _expect_service(listener, accepted)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_one_who_hangs_up_or_says_nothing_delays_nobody(scheme: str) -> None:
    async with _accepting(scheme) as (listener, accepted):
        await (await open_stream(listener.address)).aclose()
        async with await open_stream(listener.address) as silent, await open_stream(listener.address) as slow:
            dialer = new_dialer(route="somewhere")
            for byte in dialer.hello:
                await slow.send_all(bytes([byte]))
            await _expect_service(listener, accepted)
            proof, _ = dialer.answer(await receive_exactly(slow, REPLY_BYTES))
            await slow.send_all(proof[:5])
            await _expect_service(listener, accepted)
            await slow.send_all(proof[5:])
            assert await receive_exactly(slow, 1) == COME_IN
            await silent.aclose()
        assert len(accepted) == 3


async def test_those_who_say_nothing_are_hung_up_on_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting_module, "GREETING_TIMEOUT_S", 0.05)
    async with _accepting("tcp") as (listener, accepted):
        async with await open_stream(listener.address) as silent:
            await expect_hang_up(silent)
        await _expect_service(listener, accepted)


async def test_those_who_say_little_at_a_time_are_hung_up_on_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting_module, "GREETING_TIMEOUT_S", 0.2)
    start = trio.current_time()
    async with _accepting("tcp") as (listener, accepted), await open_stream(listener.address) as slow:
        with pytest.raises(trio.BrokenResourceError):
            for byte in pack_hello(route=200 * "x"):
                await slow.send_all(bytes([byte]))
                await trio.sleep(0.02)
        assert trio.current_time() - start < 200 * 0.02
        await _expect_service(listener, accepted)


async def test_the_time_limit_is_one_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting_module, "GREETING_TIMEOUT_S", 0.3)
    async with _accepting("tcp") as (listener, accepted), await open_stream(listener.address) as slow:
        await trio.sleep(0.2)
        start = trio.current_time()
        await slow.send_all(pack_hello())
        await receive_exactly(slow, REPLY_BYTES)
        await expect_hang_up(slow)
        assert trio.current_time() - start < 0.3
        assert listener.num_rejected == 1
        await _expect_service(listener, accepted)


async def test_a_port_scan_disturbs_nobody() -> None:
    async with _accepting("tcp") as (listener, accepted):
        for number in range(300):
            stream = await open_stream(listener.address)
            if number % 3 == 0:
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            elif number % 3 == 1:
                await stream.send_all(b"\x16\x03\x01")
            await stream.aclose()
        await _expect_service(listener, accepted)
        assert len(accepted) == 1
        assert listener.num_rejected == 0


async def test_half_closed_peers_are_hung_up_on() -> None:
    async with _accepting("tcp") as (listener, accepted), await open_stream(listener.address) as peer:
        await peer.send_all(pack_hello())
        await peer.send_eof()
        await receive_exactly(peer, REPLY_BYTES)
        await expect_hang_up(peer)
        await _expect_service(listener, accepted)


async def test_those_who_say_nothing_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting_module, "MAX_UNGREETED", 2)
    async with _accepting("tcp") as (listener, accepted):
        streams = [await open_stream(listener.address) for _ in range(3)]
        await expect_hang_up(streams[0])
        await _expect_service(listener, accepted)
        for stream in streams:
            await stream.aclose()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_message_announced_larger_than_the_limit_is_refused_before_it_is_sent(scheme: str) -> None:
    async with _accepting(scheme) as (listener, accepted), await open_stream(listener.address) as peer:
        admission = await greet(peer, new_dialer(limit=1 << 40))
        assert (admission.max_send_bytes, admission.max_receive_bytes) == (LIMIT, 1 << 40)
        await peer.send_all(NNG_HEADER)
        assert await receive_exactly(peer, 8) == NNG_HEADER
        await peer.send_all(struct.pack("!Q", 5) + b"hello")
        while not accepted:
            await trio.lowlevel.checkpoint()
        assert bytes(await accepted[0].receive()) == b"hello"
        assert accepted[0].max_message_bytes == 1 << 20
        await peer.send_all(struct.pack("!Q", (1 << 20) + 1) + b"and so on")
        with pytest.raises(trio.BrokenResourceError):
            await accepted[0].receive()
        await _expect_service(listener, accepted)


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
        await welcome(stream, new_listener())
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(10), pytest.raises(ConnectionAbortedError):
            await dial(f"tcp://127.0.0.1:{port}", timeout_s=60)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_peer_that_greets_and_then_says_nothing_is_lost_after_a_while(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setattr("asyncparl.transport.nng.HANDSHAKE_TIMEOUT_S", 0.05)
    monkeypatch.setattr("asyncparl.transport.unix.GREETING_TIMEOUT_S", 0.05)
    async with _accepting(scheme) as (listener, accepted), await open_stream(listener.address) as peer:
        await greet(peer, new_dialer())
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
