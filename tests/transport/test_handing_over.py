"""Connections that are opened elsewhere than where they arrived: in another process, or at the far end of a tunnel."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from asyncparl.errors import AuthenticationError
from asyncparl.transport import Admission, DialRefused, Listener, Tunnel, dial, listen, open_admitted, open_tunnel
from tests.transport import holder
from tests.transport.between import copy_both_ways
from tests.transport.members import KEY, MEMBER, keys
from tests.transport.pairs import expect_joined, join, member_listener

PING = bytes(range(256)) * 1000

# To another process


@asynccontextmanager
async def _holder_process() -> AsyncIterator[socket.socket]:
    """A process that is given connections through this socket, and ends when it is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            command = [sys.executable, str(Path(holder.__file__)), str(theirs.fileno())]
            process = await trio.lowlevel.open_process(command, pass_fds=[theirs.fileno()])
        try:
            yield ours
            ours.close()
            assert await process.wait() == 0
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()


async def _hand_over_all(listener: Listener, to: socket.socket) -> None:
    while True:
        with await listener.accept_visitor() as visitor:
            connection, admission = visitor.hand_over()
        with connection:
            socket.send_fds(to, [msgspec.msgpack.encode(admission)], [connection.fileno()])


@pytest.mark.parametrize("encrypt", [False, True])
@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
async def test_a_connection_handed_to_another_process_works_there(scheme: str, encrypt: bool) -> None:
    async with member_listener(scheme) as listener, _holder_process() as process, trio.open_nursery() as nursery:
        nursery.start_soon(_hand_over_all, listener, process)
        for _ in range(2):
            with await dial(listener.address, credentials=MEMBER, encrypt=encrypt, route="x", timeout_s=30) as channel:
                for message in (b"", b"small", PING):
                    await channel.send([message])
                    assert await channel.receive() == message
        nursery.cancel_scope.cancel()


async def test_what_is_handed_over_may_stall_and_is_decided() -> None:
    async with member_listener() as listener, trio.open_nursery() as nursery:
        nursery.start_soon(partial(_dial_and_expect_end, listener.address))
        with await listener.accept_visitor() as visitor:
            connection, admission = visitor.hand_over()
            with pytest.raises(trio.ClosedResourceError):
                visitor.open()
            visitor.close()
        assert not connection.getblocking()
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(admission), type=Admission) == admission
        open_admitted(connection, admission).close()


async def _dial_and_expect_end(address: str) -> None:
    try:
        with await dial(address, credentials=MEMBER) as channel, pytest.raises(trio.BrokenResourceError):
            await channel.receive()
    except ConnectionAbortedError:
        pass  # the other side was faster


async def test_what_was_handed_over_when_the_peer_had_gone_is_a_lost_channel() -> None:
    async with member_listener() as listener:
        with trio.move_on_after(0.2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(dial, listener.address, credentials=MEMBER))
                visitor = await listener.accept_visitor()
                await trio.sleep_forever()
        with open_admitted(*visitor.hand_over()) as channel, pytest.raises(trio.BrokenResourceError):
            await channel.receive()


async def test_memory_has_nothing_to_hand_over_or_adopt() -> None:
    with listen("memory://here") as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial, "memory://here")
            with await listener.accept_visitor() as visitor:
                with pytest.raises(RuntimeError, match="socket"):
                    visitor.hand_over()
                visitor.open().close()
        a, b = socket.socketpair()
        with b, pytest.raises(RuntimeError, match="socket"):
            listener.adopt(a)
        assert a.fileno() == -1
    with pytest.raises(ValueError, match="tunnel"):
        await dial("memory://here", tunnel=Tunnel("tcp://127.0.0.1:1", MEMBER, ""))


# Through a tunnel

RELAY_KEY = bytes(reversed(KEY))


def _relay_keys(key_id: str) -> bytes | None:
    return RELAY_KEY if key_id == MEMBER.key_id else None


ON_THE_WAY = MEMBER._replace(key=RELAY_KEY)


@asynccontextmanager
async def _closing(connections: dict[str, socket.socket]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for connection in connections.values():
            connection.close()


async def _join_pairs(listener: Listener) -> None:
    """What the owner of a relay does: whoever names the same route is joined."""
    waiting: dict[str, socket.socket] = {}
    async with trio.open_nursery() as nursery, _closing(waiting):
        while True:
            with await listener.accept_visitor() as visitor:
                if not visitor.route:
                    visitor.refuse("to whom?")
                    continue
                connection, _ = visitor.hand_over()
            if visitor.route not in waiting:
                waiting[visitor.route] = connection
                continue
            ends = (waiting.pop(visitor.route), connection)
            nursery.start_soon(copy_both_ways, *(trio.SocketStream(trio.socket.from_stdlib_socket(s)) for s in ends))


@asynccontextmanager
async def _relay() -> AsyncIterator[str]:
    with trio.fail_after(60), listen("tcp://127.0.0.1:0", keys=_relay_keys) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_join_pairs, listener)
            yield listener.address
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("encrypt", [False, True])
@pytest.mark.parametrize("first", ["dialer", "listener"])
async def test_a_tunnel_leads_to_the_listener_that_adopts_its_other_end(first: str, encrypt: bool) -> None:
    async with _relay() as relay, member_listener() as listener, trio.open_nursery() as nursery:

        async def adopt() -> None:
            if first == "dialer":
                await trio.sleep(0.1)
            listener.adopt(await open_tunnel(relay, credentials=ON_THE_WAY, route="meet", timeout_s=10))

        async def dial_through() -> None:
            if first == "listener":
                await trio.sleep(0.1)
            tunnel = Tunnel(relay, ON_THE_WAY, "meet")
            channel = await dial(
                "tcp://unreachable.invalid:1", credentials=MEMBER, encrypt=encrypt, route="actor", tunnel=tunnel
            )
            with channel:
                await channel.send([PING])
                assert await channel.receive() == PING

        nursery.start_soon(adopt)
        nursery.start_soon(dial_through)
        with await listener.accept_visitor() as visitor:
            assert (visitor.route, visitor.peer_host, visitor.encrypted) == ("actor", "127.0.0.1", encrypt)
            with visitor.open() as channel:
                await channel.send([await channel.receive()])
                with pytest.raises(trio.BrokenResourceError):
                    await channel.receive()


async def test_both_handshakes_of_a_tunnel_need_a_key_of_their_own() -> None:
    async with _relay() as relay, member_listener() as listener, trio.open_nursery() as nursery:
        nursery.start_soon(listener.accept_visitor)
        listener.adopt(await open_tunnel(relay, credentials=ON_THE_WAY, route="meet"))
        tunnel = Tunnel(relay, ON_THE_WAY, "meet")
        with pytest.raises(AuthenticationError, match="tcp://node:1"):
            await dial("tcp://node:1", credentials=ON_THE_WAY, tunnel=tunnel)
        with pytest.raises(AuthenticationError, match=relay):
            await dial("tcp://node:1", credentials=MEMBER, tunnel=tunnel._replace(credentials=MEMBER))
        nursery.cancel_scope.cancel()


async def test_a_tunnel_that_is_refused_or_leads_nowhere_fails_the_dial() -> None:
    async with _relay() as relay:
        with pytest.raises(DialRefused, match="to whom"):
            await dial("tcp://node:1", credentials=MEMBER, tunnel=Tunnel(relay, ON_THE_WAY, ""))
        with pytest.raises(DialRefused, match="to whom"):
            await open_tunnel(relay, credentials=ON_THE_WAY, route="")
        with pytest.raises(TimeoutError):
            await dial("tcp://node:1", credentials=MEMBER, tunnel=Tunnel(relay, ON_THE_WAY, "alone"), timeout_s=0.2)
    with pytest.raises(ConnectionRefusedError):
        await open_tunnel(relay, credentials=ON_THE_WAY, route="meet")
    for address in ("memory://here", "tcp://127.0.0.1:0", "tcp://127.0.0.1:1-2"):
        with pytest.raises(ValueError, match=r"dialed|no sockets"):
            await open_tunnel(address, credentials=ON_THE_WAY, route="meet")


async def test_an_adopted_connection_that_says_nothing_is_hung_up_on_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncparl.transport.greeting.GREETING_TIMEOUT_S", 0.05)
    async with member_listener() as listener, trio.open_nursery() as nursery:
        nursery.start_soon(listener.accept_visitor)
        await trio.testing.wait_all_tasks_blocked(0.01)
        mine, adopted = socket.socketpair()
        listener.adopt(adopted)  # while somebody waits already, with no reason to wake up
        with mine:
            mine.setblocking(False)
            with trio.fail_after(5):
                await trio.lowlevel.wait_readable(mine)
            assert mine.recv(1) == b""
        nursery.cancel_scope.cancel()


async def test_a_closed_listener_adopts_nothing() -> None:
    listener = listen("tcp://127.0.0.1:0", keys=keys)
    listener.close()
    mine, adopted = socket.socketpair()
    with mine, pytest.raises(trio.ClosedResourceError):
        listener.adopt(adopted)
    assert adopted.fileno() == -1


async def test_an_adopted_connection_that_is_dead_already_disturbs_nobody() -> None:
    async with member_listener() as listener:
        mine, adopted = socket.socketpair()
        mine.close()
        listener.adopt(adopted)
        dialed, accepted = await join(listener)
        with dialed, accepted:
            await expect_joined(dialed, accepted)
        assert adopted.fileno() == -1
