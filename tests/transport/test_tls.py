"""Encrypted channels: what they keep out, and that they give everything back."""

from __future__ import annotations

import os
import random
import socket
import ssl
import tempfile
from pathlib import Path

import pytest
import trio

from asyncparl.errors import AuthenticationError
from asyncparl.transport import Channel, dial, listen, tls
from asyncparl.transport.addresses import parse_dialable
from asyncparl.transport.certificate import make_certificate
from asyncparl.transport.handshake import PROOF_BYTES, REPLY_BYTES, bind_certificate
from asyncparl.transport.sockets import connect
from tests.transport.between import copy_both_ways, relay, serving
from tests.transport.greetings import (
    expect_hang_up,
    greet,
    new_dialer,
    new_listener,
    open_stream,
    receive_exactly,
    welcome,
)
from tests.transport.members import KEY, MEMBER
from tests.transport.pairs import expect_joined, join, member_listener


def _num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _num_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def _wait_until_at_most(limits: tuple[int, int, int]) -> None:
    """Files, threads and tasks, as long as they need in the background."""
    with trio.move_on_after(10):
        while any(now > limit for now, limit in zip(_resources(), limits, strict=True)):
            await trio.sleep(0.01)
    assert _resources() <= limits


def _resources() -> tuple[int, int, int]:
    return _num_files(), _num_threads(), _num_tasks()


# What passes


async def test_50_mb_arrive_as_they_were_sent_in_both_directions() -> None:
    generator = random.Random(1)
    messages = [generator.randbytes(generator.randrange(1 << generator.randrange(1, 23))) for _ in range(100)]
    messages.append(generator.randbytes(20 << 20))
    messages.append(generator.randbytes((50 << 20) - sum(map(len, messages))))
    assert sum(map(len, messages)) == 50 << 20

    async def send_all(channel: Channel) -> None:
        for message in messages:
            await channel.send([message])

    async def receive_all(channel: Channel) -> None:
        for message in messages:
            assert await channel.receive() == message

    async with member_listener() as listener:
        dialed, accepted = await join(listener)
        with dialed, accepted:
            async with trio.open_nursery() as nursery:
                for sender, receiver in ((dialed, accepted), (accepted, dialed)):
                    nursery.start_soon(send_all, sender)
                    nursery.start_soon(receive_all, receiver)


@pytest.mark.parametrize("encrypt", [True, False])
async def test_nobody_in_between_can_read_along_if_it_is_encrypted(encrypt: bool) -> None:
    recorded = bytearray()

    def record(data: bytes) -> bytes:
        recorded.extend(data)
        return data

    async with member_listener() as listener, relay(listener.address, record, record) as address:
        dialed, accepted = await join(listener, lambda: dial(address, credentials=MEMBER, encrypt=encrypt))
        with dialed, accepted:
            for sender, receiver in ((dialed, accepted), (accepted, dialed)):
                await sender.send([b"attack at dawn"])
                assert bytes(await receiver.receive()) == b"attack at dawn"
    assert recorded.count(b"attack at dawn") == (0 if encrypt else 2)


@pytest.mark.parametrize("direction", ["to the listener", "to the dialer"])
async def test_a_bit_flipped_on_the_way_breaks_the_channel(direction: str) -> None:
    flips = False

    def bend(data: bytes) -> bytes:
        return bytes([*data[:-1], data[-1] ^ 1]) if flips else data

    bends = (bend, bytes) if direction == "to the listener" else (bytes, bend)
    async with member_listener() as listener, relay(listener.address, *bends) as address:
        dialed, accepted = await join(listener, lambda: dial(address, credentials=MEMBER, encrypt=True))
        with dialed, accepted:
            await expect_joined(dialed, accepted)
            flips = True
            sender, receiver = (dialed, accepted) if direction == "to the listener" else (accepted, dialed)
            await sender.send([bytes(100)])
            for channel in (receiver, sender):
                with pytest.raises(trio.BrokenResourceError):
                    await channel.receive()


async def test_encryption_without_keys_works_but_is_no_proof() -> None:
    with trio.fail_after(30), listen("tcp://127.0.0.1:0") as listener:
        dialed, accepted = await join(listener, lambda: dial(listener.address, encrypt=True))
        with dialed, accepted:
            await expect_joined(dialed, accepted)


async def test_bulk_data_is_not_held_back_below_the_encryption() -> None:
    with listen("tcp://127.0.0.1:0") as listener:
        address = parse_dialable(listener.address)
        pump = tls.TlsPump.for_dialer(await connect(address), bytes(32))
        try:
            assert pump._outer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 0
        finally:
            pump.discard()


# Who is in between


class _Interceptor:
    """Passes the handshake on as it is, and then ends the encryption in the middle, on both sides."""

    def __init__(self, address: str, *, forges: bool) -> None:
        self._address = address
        self._forges = forges  # whether it makes up the proofs inside TLS, instead of passing them on

    async def __call__(self, client: trio.SocketStream) -> None:
        server = await open_stream(self._address)
        await server.send_all(await client.receive_some())  # the hello
        await client.send_all(await receive_exactly(server, REPLY_BYTES))
        await server.send_all(await receive_exactly(client, PROOF_BYTES))
        await client.send_all(await receive_exactly(server, 1))
        to_client, to_server = self._wrap(client, server)
        await to_client.do_handshake()
        await to_server.do_handshake()
        if self._forges:
            certificate = to_server.getpeercert(binary_form=True)
            await to_server.send_all(bind_certificate(bytes(32), b"dialer", certificate))
            await to_client.send_all(bind_certificate(bytes(32), b"listener", self._certificate))
        await copy_both_ways(to_client, to_server)

    def _wrap(self, client: trio.SocketStream, server: trio.SocketStream) -> tuple[trio.SSLStream, trio.SSLStream]:
        pem, self._certificate = make_certificate()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_bytes(pem)
            context.load_cert_chain(file.name)
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        return trio.SSLStream(client, context, server_side=True), trio.SSLStream(server, trusting)


@pytest.mark.parametrize("forges", [False, True])
async def test_who_ends_the_encryption_in_the_middle_is_found_out_by_both_sides(forges: bool) -> None:
    async with (
        member_listener() as listener,
        serving(_Interceptor(listener.address, forges=forges)) as address,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_expect_authentication_error, address)
        with await listener.accept() as accepted, pytest.raises(trio.BrokenResourceError):
            await accepted.receive()


async def _expect_authentication_error(address: str) -> None:
    with pytest.raises(AuthenticationError, match="in between") as caught:
        await dial(address, credentials=MEMBER, encrypt=True)
    assert address in str(caught.value)


@pytest.mark.parametrize("behaviour", ["junk", "silence", "hanging up", "a wrong proof", "half a proof"])
async def test_a_member_that_does_not_encrypt_properly_becomes_a_lost_channel(
    behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if behaviour == "silence":
        monkeypatch.setattr(tls, "TLS_TIMEOUT_S", 0.1)

    async def misbehave() -> None:
        async with await open_stream(listener.address) as stream:
            await greet(stream, new_dialer(MEMBER, encrypt=True))
            if behaviour == "junk":
                await stream.send_all(b"\x00SP\x00\x00\x10\x00\x00" * 100)
            elif behaviour == "hanging up":
                return
            elif behaviour != "silence":
                encrypted = trio.SSLStream(stream, tls._client_context())
                await encrypted.send_all(bytes(PROOF_BYTES if behaviour == "a wrong proof" else 5))
                await receive_exactly(encrypted, PROOF_BYTES)
                if behaviour == "half a proof":
                    await encrypted.aclose()
                    return
            with pytest.raises(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
                raise trio.BrokenResourceError

    async with member_listener() as listener:
        num_tasks = _num_tasks()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(misbehave)
            with await listener.accept() as channel:
                channel.send_nowait([b"secret"])
                with pytest.raises(trio.BrokenResourceError):
                    await channel.receive()
        while _num_tasks() > num_tasks:
            await trio.sleep(0.01)
        dialed, accepted = await join(listener)
        with dialed, accepted:
            await expect_joined(dialed, accepted)


@pytest.mark.parametrize("answer", [b"\x00SP\x00\x00\x10\x00\x00" * 100, b""], ids=["junk", "nothing"])
async def test_a_listener_that_does_not_encrypt_fails_the_dial(answer: bytes) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await welcome(stream, new_listener(KEY))
        await stream.send_all(answer)
        await stream.aclose()

    async with serving(serve) as address:
        with pytest.raises(ConnectionAbortedError, match="encryption"):
            await dial(address, credentials=MEMBER, encrypt=True)


async def test_a_listener_that_says_nothing_after_its_verdict_fails_the_dial_in_time() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await welcome(stream, new_listener(KEY))
        while await stream.receive_some():
            pass
        await stream.aclose()

    async with serving(serve) as address:
        before = _resources()
        with pytest.raises(TimeoutError):
            await dial(address, credentials=MEMBER, encrypt=True, timeout_s=0.2)
        await _wait_until_at_most(before)


# What is left behind


async def test_opening_and_closing_again_and_again_leaves_no_files_threads_or_tasks() -> None:
    async def one_cycle(number: int) -> None:
        dialed, accepted = await join(listener)
        await dialed.send([bytes(100_000)])
        await accepted.receive()
        await accepted.send([b"unread"])
        for channel in (dialed, accepted) if number % 2 else (accepted, dialed):
            channel.close()
            if number % 3 == 0:
                await trio.sleep(0.002)

    async with member_listener() as listener:
        await one_cycle(0)
        await trio.sleep(1)
        before = _resources()
        for number in range(40):
            await one_cycle(number)
        await _wait_until_at_most(before)


async def test_a_dial_that_is_cancelled_anywhere_leaves_nothing() -> None:
    async def accept_and_close() -> None:
        while True:
            (await listener.accept()).close()

    async with member_listener() as listener:
        for channel in await join(listener):
            channel.close()
        await trio.sleep(1)
        before = _resources()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_and_close)
            for number in range(60):
                try:
                    with trio.move_on_after(0.0005 * (number % 20)):
                        (await dial(listener.address, credentials=MEMBER, encrypt=True)).close()
                except ConnectionError:
                    pass  # the other side was faster
            nursery.cancel_scope.cancel()
        await _wait_until_at_most(before)


async def test_closing_ends_in_time_though_the_peer_reads_nothing() -> None:
    async with member_listener() as listener:
        before = _resources()
        async with trio.open_nursery() as nursery:
            gate = trio.Event()
            nursery.start_soon(_encrypt_and_read_nothing, listener.address, gate)
            channel = await listener.accept()
            with trio.move_on_after(1):
                while True:
                    await channel.send([bytes(1 << 20)])
            channel.close()
            with trio.fail_after(5):
                while _num_tasks() > before[2] + 1:  # that of the peer
                    await trio.sleep(0.01)
            gate.set()
        await _wait_until_at_most(before)


async def _encrypt_and_read_nothing(address: str, gate: trio.Event) -> None:
    async with await open_stream(address) as stream:
        admission = await greet(stream, new_dialer(MEMBER, encrypt=True))
        encrypted = trio.SSLStream(stream, tls._client_context())
        await encrypted.do_handshake()
        certificate = encrypted.getpeercert(binary_form=True)
        await encrypted.send_all(bind_certificate(admission.session_key, b"dialer", certificate))
        await encrypted.send_all(b"\x00SP\x00\x00\x10\x00\x00")
        await gate.wait()


async def test_the_end_of_a_channel_is_said_and_not_only_noticed() -> None:
    """Without close_notify somebody in between could cut the last messages off, and it would look like an end."""
    async with member_listener() as listener, trio.open_nursery() as nursery:
        nursery.start_soon(_expect_goodbye, listener.address)
        with await listener.accept() as channel:
            await channel.send([b"the last message"])
            await trio.sleep(0.1)


async def _expect_goodbye(address: str) -> None:
    async with await open_stream(address) as stream:
        admission = await greet(stream, new_dialer(MEMBER, encrypt=True))
        encrypted = trio.SSLStream(stream, tls._client_context())
        await encrypted.do_handshake()
        proof = bind_certificate(admission.session_key, b"dialer", encrypted.getpeercert(binary_form=True))
        await encrypted.send_all(proof + b"\x00SP\x00\x00\x10\x00\x00")
        data = b""
        while part := await encrypted.receive_some():  # BrokenResourceError without a goodbye
            data += part
        assert data.endswith(b"the last message")


def test_a_run_that_ends_right_after_closing_still_sends() -> None:
    received: list[bytes] = []

    async def send_and_end(address: str) -> None:
        channel = await dial(address, encrypt=True)
        for number in range(50):
            await channel.send([bytes([number]) * 1000])
        channel.close()

    async def receive_from_another_run() -> None:
        with trio.fail_after(30), listen("tcp://127.0.0.1:0") as listener:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, trio.run, send_and_end, listener.address)
                with await listener.accept() as channel, pytest.raises(trio.BrokenResourceError):
                    while True:
                        received.append(bytes(await channel.receive()))

    for _ in range(5):  # it is not promised
        received.clear()
        trio.run(receive_from_another_run)
        if len(received) == 50:
            break
    assert received == [bytes([number]) * 1000 for number in range(50)]


async def test_the_certificate_is_made_once_and_its_file_is_gone() -> None:
    tls._identity.cache_clear()
    before = set(os.listdir(tempfile.gettempdir()))
    async with member_listener() as listener:
        for _ in range(2):
            dialed, accepted = await join(listener)
            with dialed, accepted:
                await expect_joined(dialed, accepted)
    assert tls._identity.cache_info().misses == 1
    assert set(os.listdir(tempfile.gettempdir())) <= before


async def test_an_old_version_of_tls_is_refused() -> None:
    async with member_listener() as listener, trio.open_nursery() as nursery:
        nursery.start_soon(_offer_tls_1_2, listener.address)
        with await listener.accept() as channel, pytest.raises(trio.BrokenResourceError):
            await channel.receive()


async def _offer_tls_1_2(address: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with await open_stream(address) as stream:
        await greet(stream, new_dialer(MEMBER, encrypt=True))
        with pytest.raises(trio.BrokenResourceError):
            await trio.SSLStream(stream, context).do_handshake()
        await expect_hang_up(stream)
