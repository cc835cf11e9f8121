"""Channels over Unix sockets: the protocol that they share with NNG, and what a socket takes only in part."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from asyncparl.transport.base import Channel
from asyncparl.transport.nng import NngChannel
from asyncparl.transport.unix import BrokenStream, Inbox, UnixChannel

LIMIT = 64 << 20
GREETING = b"\0SP\0\0\x10\0\0"
KINDS = [UnixChannel, NngChannel]


def framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack(">Q", len(message)) + message for message in messages)


@contextmanager
def pair(first: type = UnixChannel, second: type = UnixChannel) -> Iterator[tuple[Channel, Channel]]:
    connections = socket.socketpair()
    for connection in connections:
        connection.setblocking(False)
    with (
        first(connections[0], max_send_bytes=LIMIT, max_receive_bytes=LIMIT) as one,
        second(connections[1], max_send_bytes=LIMIT, max_receive_bytes=LIMIT) as other,
    ):
        yield one, other


# --- the stream -------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), max_size=12), st.lists(st.integers(1, 50), max_size=60), st.integers(24, 64))
def test_messages_are_put_together_from_any_pieces(messages: list[bytes], pieces: list[int], size: int) -> None:
    stream = GREETING + framed(*messages)
    buffer = bytearray(size)
    inbox = Inbox(1000)
    at = 0
    while at < len(stream):
        space = inbox.space(buffer)
        num_bytes = min(len(space), len(stream) - at, pieces.pop() if pieces else 7)
        assert num_bytes > 0
        space[:num_bytes] = stream[at : at + num_bytes]
        inbox.take_in(buffer, num_bytes)
        buffer[:] = bytes(size) if inbox.is_greeted else buffer  # others use it
        at += num_bytes
    assert [bytes(message) for message in inbox.messages] == messages


@given(st.lists(st.binary(max_size=200), max_size=12), st.lists(st.integers(1, 50), max_size=60), st.integers(0, 3))
def test_large_messages_come_to_where_they_are_wanted(messages: list[bytes], pieces: list[int], every: int) -> None:
    """Only those that begin with an `a`, say."""
    given_out = list[memoryview]()

    def place(beginning: memoryview, message_bytes: int) -> memoryview | None:
        if not beginning or beginning[0] % 4 != every:
            return None
        given_out.append(memoryview(bytearray(message_bytes)))
        return given_out[-1]

    stream, buffer, inbox, at = GREETING + framed(*messages), bytearray(64), Inbox(1000), 0
    while at < len(stream):
        space = inbox.space(buffer)
        num_bytes = min(len(space), len(stream) - at, pieces.pop() if pieces else 30)
        space[:num_bytes] = stream[at : at + num_bytes]
        inbox.take_in(buffer, num_bytes, place)
        at += num_bytes
    assert [bytes(message) for message in inbox.messages] == messages
    placed = [message for message in inbox.messages if any(message.obj is view.obj for view in given_out)]
    assert len(placed) == len(given_out)


@given(st.binary(min_size=8, max_size=64))
def test_what_does_not_begin_with_the_greeting_is_refused(data: bytes) -> None:
    inbox, buffer = Inbox(1000), bytearray(64)
    inbox.space(buffer)[: len(data)] = data
    if data.startswith(GREETING):
        return
    with pytest.raises(BrokenStream, match="something else"):
        inbox.take_in(buffer, len(data))


def test_an_announced_size_beyond_the_limit_is_refused_before_anything_is_allocated() -> None:
    inbox, buffer = Inbox(1000), bytearray(64)
    stream = GREETING + struct.pack(">Q", 1 << 62)
    inbox.space(buffer)[: len(stream)] = stream
    with pytest.raises(BrokenStream, match="the limit is 1,000"):
        inbox.take_in(buffer, len(stream))


@pytest.mark.parametrize("stream", [b"GET / HTTP/1.1\r\n\r\n", GREETING + struct.pack(">Q", 1 << 40) + b"x"])
async def test_a_peer_that_speaks_something_else_is_lost(stream: bytes) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs, UnixChannel(ours, max_send_bytes=LIMIT, max_receive_bytes=LIMIT) as channel:
        theirs.sendall(stream)
        with trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
            await channel.receive()


# --- the other end may be NNG ------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
async def test_it_talks_to_nng_as_to_its_like(first: type, second: type) -> None:
    messages = [b"", b"x", b"small" * 100, bytes(range(256)) * 4096, b"last"]
    with trio.fail_after(10), pair(first, second) as (one, other):
        for sender, receiver in ((one, other), (other, one)):
            for message in messages:
                await sender.send([message[:3], memoryview(message)[3:]])
                assert bytes(await receiver.receive()) == message


@pytest.mark.parametrize("second", KINDS)
async def test_the_end_of_one_is_the_loss_of_the_other(second: type) -> None:
    with trio.fail_after(10), pair(UnixChannel, second) as (one, other):
        await one.send([b"last words"])
        assert await one.wait_connected() and await other.wait_connected()  # type: ignore[attr-defined]
        one.close()
        assert bytes(await other.receive()) == b"last words"
        with pytest.raises(trio.BrokenResourceError):
            await other.receive()


# --- what the socket takes only in part ---------------------------------------------------------------------------


async def test_a_message_that_is_larger_than_the_socket_leaves_by_itself() -> None:
    message = bytes(range(256)) * (1 << 15)
    with trio.fail_after(20), pair() as (one, other):
        one.send_nowait([b"head", message, b"tail"])
        with pytest.raises(trio.WouldBlock):
            one.send_nowait([b"one more"])
        assert bytes(await other.receive()) == b"head" + message + b"tail"
        await one.send([b"one more"])
        assert bytes(await other.receive()) == b"one more"


async def test_what_nobody_changes_any_more_is_kept_without_a_copy() -> None:
    message = bytearray(range(256)) * (1 << 15)
    with trio.fail_after(20), pair() as (one, other):
        assert one.make_room()
        one.send_nowait([b"head", message], unchanging=True)
        assert not one.make_room()
        message[-1] = 7  # he does, so that it shows
        assert bytes(await other.receive()) == b"head" + message
        await one.wait_sendable()
        assert one.make_room()


async def test_what_was_kept_still_leaves_when_the_channel_is_closed() -> None:
    message = bytes(range(256)) * (1 << 13)
    with trio.fail_after(20), pair() as (one, other):
        one.send_nowait([message])
        one.close()
        assert bytes(await other.receive()) == message


async def test_a_peer_that_reads_nothing_does_not_keep_a_closed_channel() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        with UnixChannel(ours, max_send_bytes=LIMIT, max_receive_bytes=LIMIT) as channel:
            channel.send_nowait([bytes(8 << 20)])
        with trio.fail_after(5):
            while ours.fileno() != -1:
                await trio.sleep(0.05)


async def test_messages_of_threads_are_never_cut_by_one_another() -> None:
    sizes = (10, 1000, 40_000, 300_000)
    num_messages = 40

    with trio.fail_after(60), pair() as (one, other):
        token = trio.lowlevel.current_trio_token()

        def send(letter: bytes) -> None:
            for number in range(num_messages):
                message = letter * sizes[number % len(sizes)]
                while True:
                    try:
                        one.send_nowait([message[:5], message[5:]])
                        break
                    except trio.WouldBlock:
                        trio.from_thread.run(one.wait_sendable, trio_token=token)

        threads = [threading.Thread(target=send, args=(letter,)) for letter in (b"a", b"b", b"c")]
        for thread in threads:
            thread.start()
        seen: dict[bytes, list[int]] = {}
        for _ in range(3 * num_messages):
            message = bytes(await other.receive())
            assert len(set(message)) == 1
            seen.setdefault(message[:1], []).append(len(message))
        await trio.to_thread.run_sync(lambda: [thread.join() for thread in threads])
        assert seen == {letter: [sizes[number % 4] for number in range(num_messages)] for letter in (b"a", b"b", b"c")}


LOSS = """
import signal, socket, trio
from asyncparl.transport.unix import UnixChannel

async def main():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with UnixChannel(ours, max_send_bytes=99, max_receive_bytes=99) as channel:
        theirs.close()
        try:
            await channel.send([b"x"])
        except trio.BrokenResourceError:
            print("noticed")

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
trio.run(main)
"""


def test_the_loss_of_a_peer_is_an_error_also_where_sigpipe_would_end_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", LOSS], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "noticed\n", "")
