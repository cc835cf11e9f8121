"""Listeners with keys, and dialers, against impostors and others on the way. TLS is in test_tls.py."""

from __future__ import annotations

import errno
import socket
from functools import partial

import pytest
import trio
import trio.testing

from asyncparl.errors import AuthenticationError
from asyncparl.transport import Credentials, Listener, dial, listen
from asyncparl.transport.handshake import COME_IN, PROOF_BYTES, REPLY_BYTES
from tests.transport.between import serving
from tests.transport.greetings import (
    expect_hang_up,
    greet,
    new_dialer,
    new_listener,
    open_stream,
    receive_exactly,
    take_proof,
    welcome,
)
from tests.transport.members import KEY, MEMBER, UNKNOWN, WRONG_KEY
from tests.transport.pairs import expect_joined, join, member_listener


async def _accept_all(listener: Listener) -> None:
    while True:
        with await listener.accept() as channel, pytest.raises(trio.BrokenResourceError):
            await channel.receive()


@pytest.mark.parametrize(
    ("credentials", "cause"),
    [
        (WRONG_KEY, "the secret is not the one of that cluster"),
        (UNKNOWN, "the secret is not the one of that cluster"),
        (None, "asks for a secret"),
    ],
    ids=["wrong key", "unknown key", "no key"],
)
async def test_the_error_names_the_address_and_the_likely_cause(credentials: Credentials | None, cause: str) -> None:
    async with member_listener() as listener, trio.open_nursery() as nursery:
        nursery.start_soon(_accept_all, listener)
        with pytest.raises(AuthenticationError, match=cause) as caught:
            await dial(listener.address, credentials=credentials)
        assert listener.address in str(caught.value)
        nursery.cancel_scope.cancel()


async def test_an_impostor_gets_no_proof() -> None:
    received = b""

    async def impersonate(stream: trio.SocketStream) -> None:
        nonlocal received
        listener = new_listener(bytes(32))
        answer = b""
        while not answer:
            answer = listener.receive(await receive_exactly(stream, listener.num_wanted))
        await stream.send_all(answer)
        received += await stream.receive_some()

    async with serving(impersonate) as address:
        with pytest.raises(AuthenticationError, match="secret"):
            await dial(address, credentials=MEMBER)
        await trio.testing.wait_all_tasks_blocked(0.05)
    assert received == b""


async def test_a_wrong_proof_is_hung_up_on_without_a_word_and_counted() -> None:
    async with member_listener() as listener, trio.open_nursery() as nursery:
        nursery.start_soon(_accept_all, listener)
        async with await open_stream(listener.address) as stream:
            await stream.send_all(new_dialer(MEMBER).hello)
            await receive_exactly(stream, REPLY_BYTES)
            await stream.send_all(bytes(PROOF_BYTES))
            await expect_hang_up(stream)
        assert listener.num_rejected == 1
        with await dial(listener.address, credentials=MEMBER):
            assert listener.num_rejected == 1
        nursery.cancel_scope.cancel()


async def test_a_recorded_handshake_lets_nobody_in() -> None:
    async with member_listener() as listener, trio.open_nursery() as nursery:
        nursery.start_soon(_accept_all, listener)
        dialer = new_dialer(MEMBER)
        async with await open_stream(listener.address) as stream:
            await stream.send_all(dialer.hello)
            reply = await receive_exactly(stream, REPLY_BYTES)
            proof, _ = dialer.answer(reply)
            await stream.send_all(proof)
            assert await receive_exactly(stream, 1) == COME_IN
        async with await open_stream(listener.address) as stream:
            await stream.send_all(dialer.hello)
            assert await receive_exactly(stream, REPLY_BYTES) != reply
            await stream.send_all(proof)
            await expect_hang_up(stream)
        nursery.cancel_scope.cancel()


async def test_a_listener_that_hangs_up_on_a_good_proof_fails_the_dial() -> None:
    async def hang_up(stream: trio.SocketStream) -> None:
        await take_proof(stream, new_listener(KEY))
        await stream.aclose()

    async with serving(hang_up) as address:
        with pytest.raises(ConnectionAbortedError, match="before it let us in"):
            await dial(address, credentials=MEMBER)


@pytest.mark.parametrize("verdict", [b"\x02", b"\x01\xff", b"\x01\x05abc"], ids=["unknown", "too long", "cut off"])
async def test_a_verdict_of_noise_fails_the_dial(verdict: bytes) -> None:
    async def answer_badly(stream: trio.SocketStream) -> None:
        await take_proof(stream, new_listener(KEY))
        await stream.send_all(verdict + b"\0" * (verdict == b"\x02"))
        await stream.aclose()

    async with serving(answer_badly) as address:
        with pytest.raises(ConnectionAbortedError):
            await dial(address, credentials=MEMBER)


async def test_a_visitor_may_be_as_slow_as_it_likes_once_it_has_proved_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with member_listener() as listener, await open_stream(listener.address) as member:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(greet, member, new_dialer(MEMBER))
            visitor = await listener.accept_visitor()
            monkeypatch.setattr("asyncparl.transport.greeting.GREETING_TIMEOUT_S", 0.05)
            monkeypatch.setattr("asyncparl.transport.greeting.MAX_UNGREETED", 1)
            others = [await open_stream(listener.address) for _ in range(3)]
            with trio.move_on_after(0.2):
                await listener.accept_visitor()
            with visitor.open():
                pass
        for other in others:
            await other.aclose()


@pytest.mark.parametrize("error", [ValueError("broken ring"), KeyError("broken ring")], ids=["ValueError", "KeyError"])
async def test_the_errors_of_a_key_ring_are_its_owners(error: Exception) -> None:
    def find(key_id: str) -> bytes | None:
        if key_id == UNKNOWN.key_id:
            raise error
        return KEY

    with trio.fail_after(30), listen("tcp://127.0.0.1:0", keys=find) as listener:
        async with await open_stream(listener.address) as stream:
            await stream.send_all(new_dialer(UNKNOWN).hello)
            with pytest.raises(type(error), match="broken ring"):
                await listener.accept()
            await expect_hang_up(stream)
        dialed, accepted = await join(listener, encrypt=False)
        with dialed, accepted:
            await expect_joined(dialed, accepted)


async def test_where_the_peer_comes_from_is_known() -> None:
    async with (
        member_listener() as listener,
        await open_stream(listener.address) as stream,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(greet, stream, new_dialer(MEMBER, route="r"))
        with await listener.accept_visitor() as visitor:
            assert (visitor.peer_host, visitor.route, visitor.key_id) == ("127.0.0.1", "r", MEMBER.key_id)
            assert not visitor.encrypted
            visitor.open().close()
    async with member_listener("ipc") as listener, trio.open_nursery() as nursery:
        nursery.start_soon(partial(_dial_and_close, listener.address, encrypt=True))
        with await listener.accept_visitor() as visitor:
            assert visitor.peer_host == ""
            assert visitor.encrypted
            with visitor.open() as channel, pytest.raises(trio.BrokenResourceError):
                await channel.receive()


async def _dial_and_close(address: str, *, encrypt: bool) -> None:
    (await dial(address, credentials=MEMBER, encrypt=encrypt)).close()


async def test_nobody_in_between_can_turn_the_encryption_off() -> None:
    async def downgrade(stream: trio.SocketStream) -> None:
        async with await open_stream(listener.address) as server:
            hello = bytearray(await stream.receive_some())
            assert hello[16] == 1  # the flags
            hello[16] = 0
            await server.send_all(hello)
            await stream.send_all(await receive_exactly(server, REPLY_BYTES))
            await expect_hang_up(stream)

    async with member_listener() as listener, trio.open_nursery() as nursery:
        nursery.start_soon(_accept_all, listener)
        async with serving(downgrade) as address:
            with pytest.raises(AuthenticationError):
                await dial(address, credentials=MEMBER, encrypt=True)
        nursery.cancel_scope.cancel()


async def test_dialing_something_that_never_decides_ends_in_time() -> None:
    async def let_wait(stream: trio.SocketStream) -> None:
        await take_proof(stream, new_listener(KEY))
        await trio.sleep_forever()

    async with serving(let_wait) as address:
        with pytest.raises(TimeoutError) as caught:
            await dial(address, credentials=MEMBER, timeout_s=0.2)
        assert caught.value.errno == errno.ETIMEDOUT
        assert address in str(caught.value)


async def test_welcomed_by_the_right_key_but_no_nng_fails_the_dial() -> None:
    async def welcome_only(stream: trio.SocketStream) -> None:
        await welcome(stream, new_listener(KEY))
        await stream.aclose()

    async with serving(welcome_only) as address:
        with pytest.raises(ConnectionAbortedError):
            await dial(address, credentials=MEMBER)


async def test_invalid_credentials_and_routes_never_leave_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ValueError, match="32 bytes"):
            await dial(address, credentials=Credentials("member", b"short"))
        with pytest.raises(ValueError, match="256"):
            await dial(address, route="x" * 257)
        with pytest.raises(BlockingIOError):
            server.accept()
