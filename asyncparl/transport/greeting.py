"""How both sides of a connection go through the handshake, and the reception of those who dial in.

What they say is in `handshake.py`. Nothing of it reaches NNG, and of a stranger nothing else does: a dialer learns at
once whether it reached the right kind of process and the right cluster, and too large a message fails where it is sent.
"""

from __future__ import annotations

import errno
import math
import secrets
import selectors
import socket
from collections import deque
from typing import NamedTuple

import trio

from asyncparl.errors import AuthenticationError
from asyncparl.transport.credentials import KEY_BYTES, Admission, DialRefused, KeyRing
from asyncparl.transport.forks import guard
from asyncparl.transport.handshake import (
    COME_IN,
    MAGIC_BYTES,
    MEMORY,
    NONCE_BYTES,
    REPLY_BYTES,
    DialerHandshake,
    HandshakeError,
    Hello,
    ListenerHandshake,
    UntrustedPeer,
    check_magic,
    parse_reason,
    parse_refusal_head,
)
from asyncparl.transport.sockets import QUIETLY, peer_host, tune

GREETING_TIMEOUT_S = 10.0  # for all of it, however many steps it takes
MAX_UNGREETED = 256  # connections that have not proved themselves yet; the oldest gives way to the next


async def greet_listener(
    connection: socket.socket, handshake: DialerHandshake, address: str, *, memory_fd: int | None = None
) -> Admission:
    """The dialer's part, until the listener says that we may come in. Returns what both have agreed on.

    Args:
        memory_fd: what the handshake offers to share.

    Raises:
        AuthenticationError: the listener does not have our key.
        DialRefused: the listener has another reason.
        ConnectionAbortedError: the other side hung up, or is something else than one of our listeners.
    """
    try:
        send(connection, handshake.hello)
        magic = await _receive_exactly(connection, MAGIC_BYTES)
        check_magic(magic)
        reply = magic + await _receive_exactly(connection, REPLY_BYTES - MAGIC_BYTES)
        proof, admission = handshake.answer(reply)
        send(connection, proof)
        if admission.shares_memory:
            assert memory_fd is not None
            socket.send_fds(connection, [MEMORY], [memory_fd])
        await _receive_verdict(connection)
        return admission
    except UntrustedPeer as error:
        raise AuthenticationError(f"the listener at {address} {error}") from None
    except HandshakeError:
        raise _aborted(f"whatever listens at {address} does not speak this protocol") from None
    except DialRefused:
        raise
    except OSError as error:
        raise _aborted(f"the listener at {address} hung up before it let us in") from error


async def _receive_verdict(connection: socket.socket) -> None:
    head = await _receive_exactly(connection, 1)
    if head != COME_IN:
        head += await _receive_exactly(connection, 1)
        text = await _receive_exactly(connection, parse_refusal_head(head))
        raise DialRefused(errno.ECONNREFUSED, parse_reason(text))


async def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes, and not one of what follows them."""
    data = b""
    while len(data) < count:
        await trio.lowlevel.wait_readable(connection)
        data += receive(connection, count - len(data))
    return data


def receive(connection: socket.socket, count: int) -> bytes:
    """What has arrived, b"" if that is nothing yet.

    Raises:
        OSError: the connection ended.
    """
    try:
        data = connection.recv(count)
    except BlockingIOError:
        return b""
    if not data:
        raise _aborted("closed")
    return data


def send(connection: socket.socket, data: bytes) -> None:
    """Send a few bytes, for which there is room in a fresh connection.

    Raises:
        OSError: the connection ended.
    """
    if connection.send(data, QUIETLY) != len(data):
        raise _aborted("no room for a greeting")


def _has_memory(connection: socket.socket) -> bool:
    """Whether it has arrived. It stays in the socket, for whoever opens the channel, perhaps in another process."""
    try:
        data = connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    if data != MEMORY:
        raise _aborted("closed, or something else than memory")
    return True


def take_memory(connection: socket.socket) -> int | None:
    """The descriptor that `_has_memory` has seen; None: this process may not have another one."""
    _, fds, _, _ = socket.recv_fds(connection, len(MEMORY), 1, socket.MSG_CMSG_CLOEXEC)
    return fds[0] if fds else None


def _aborted(text: str) -> ConnectionAbortedError:
    return ConnectionAbortedError(errno.ECONNABORTED, text)


class Guest(NamedTuple):
    """A connection whose peer has proved itself, and waits for the verdict."""

    connection: socket.socket
    host: str
    hello: Hello
    admission: Admission


class _Stranger:
    """Somebody who has not proved himself yet."""

    def __init__(self, connection: socket.socket, keys: KeyRing | None, max_message_bytes: int) -> None:
        self.connection = connection
        self.host = peer_host(connection)
        self.drop_at = trio.current_time() + GREETING_TIMEOUT_S
        self.handshake = ListenerHandshake(
            keys,
            max_message_bytes,
            may_share=connection.family == socket.AF_UNIX,
            nonce=secrets.token_bytes(NONCE_BYTES),
            decoy=secrets.token_bytes(KEY_BYTES),
        )

    def listen_to(self) -> Guest | None:
        """Take what has arrived, and answer it. Returns the guest once he has proved himself.

        Raises:
            OSError: the connection ended.
            HandshakeError: he has no business here.
        """
        while self.handshake.admission is None:
            data = receive(self.connection, self.handshake.num_wanted)
            if not data:
                return None
            answer = self.handshake.receive(data)
            if answer:
                send(self.connection, answer)
        if self.handshake.admission.shares_memory and not _has_memory(self.connection):
            return None
        assert self.handshake.hello is not None
        return Guest(self.connection, self.host, self.handshake.hello, self.handshake.admission)


class Reception:
    """Takes connections from a listening socket and lets in those that prove themselves. Owns the socket.

    One selector watches the listening socket and the connections of strangers: a silent one delays nobody, and waiting
    needs one file descriptor and no tasks.
    """

    def __init__(self, listening: socket.socket, keys: KeyRing | None, max_message_bytes: int) -> None:
        self.num_rejected = 0
        self._listening = listening
        self._keys = keys
        self._max_message_bytes = max_message_bytes
        self._strangers: dict[socket.socket, _Stranger] = {}  # oldest first
        self._guests: deque[Guest] = deque()
        self._waiting = trio.CancelScope()  # until a stranger has to go
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)

    async def next_guest(self) -> Guest:
        """Wait for a connection whose peer proves itself. A cancelled wait has taken none.

        Raises:
            OSError: the system cannot take the connection now; it stays in the backlog.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            self._drop_late()
            self._look()
            if self._guests:
                guest = self._guests.popleft()
                await trio.lowlevel.cancel_shielded_checkpoint()
                return guest
            with trio.move_on_at(self._next_drop()) as self._waiting:
                await trio.lowlevel.wait_readable(self._selector.fileno())

    def adopt(self, connection: socket.socket) -> None:
        """Treat a connection as if the listening socket had given it."""
        guard.close_in_child(connection)
        try:
            tune(connection)
            stranger = _Stranger(connection, self._keys, self._max_message_bytes)
        except OSError:  # it has been reset already
            connection.close()
            return
        if len(self._strangers) >= MAX_UNGREETED:
            self._drop(next(iter(self._strangers.values())))
        self._strangers[connection] = stranger
        self._selector.register(connection, selectors.EVENT_READ)
        self._waiting.deadline = self._next_drop()

    def listen_at(self, listening: socket.socket) -> None:
        """Take connections from this socket instead."""
        self._selector.unregister(self._listening)
        self._listening.close()
        self._listening = listening
        self._selector.register(listening, selectors.EVENT_READ)

    def _look(self) -> None:
        """Whatever can be done without waiting."""
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listening:
                self._take()
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._strangers:  # else dropped just now
                self._listen_to(self._strangers[key.fileobj])

    def _take(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self.adopt(connection)

    def _listen_to(self, stranger: _Stranger) -> None:
        try:
            guest = stranger.listen_to()
        except (OSError, HandshakeError):
            self._drop(stranger)
            return
        except BaseException:  # of the key ring
            self._drop(stranger)
            raise
        if guest is not None:
            self._forget(stranger)
            self._guests.append(guest)

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.connection]
        self._selector.unregister(stranger.connection)

    def _drop(self, stranger: _Stranger) -> None:
        self.num_rejected += stranger.handshake.hello is not None
        self._forget(stranger)
        stranger.connection.close()

    def _drop_late(self) -> None:
        now = trio.current_time()
        for stranger in [stranger for stranger in self._strangers.values() if stranger.drop_at <= now]:
            self._drop(stranger)

    def _next_drop(self) -> float:
        return next(iter(self._strangers.values())).drop_at if self._strangers else math.inf

    def close(self) -> None:
        """Hang up on everybody who has not been let in. Whoever waits for a guest gets `ClosedResourceError`."""
        try:
            trio.lowlevel.notify_closing(self._selector.fileno())
        except RuntimeError:
            pass  # outside of Trio, so that nobody waits
        self._selector.close()
        self._listening.close()
        for connection in [*self._strangers, *(guest.connection for guest in self._guests)]:
            connection.close()
        self._strangers.clear()
        self._guests.clear()
