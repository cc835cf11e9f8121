"""The greeting that both sides of a connection exchange before NNG gets it, and the reception of those who dial in.

A connection starts with 16 bytes in each direction, the dialer's first: a magic number and the largest message that
the sender of the greeting accepts. So a stranger's connection never reaches NNG, a dialer learns at once whether it
reached the right kind of process, and too large a message fails where it is sent.
"""

from __future__ import annotations

import errno
import math
import selectors
import socket
import struct
from collections import deque
from typing import NamedTuple

import trio

from asyncparl.transport.sockets import tune

GREETING_TIMEOUT_S = 10.0
MAX_UNGREETED = 256  # connections that have not greeted yet; the oldest gives way to the next

_MAGIC = b"\x00aparl\x00\x01"  # the last byte is the version of what follows on the wire
_GREETING = struct.Struct("!8sQ")


def pack_greeting(max_message_bytes: int) -> bytes:
    return _GREETING.pack(_MAGIC, max_message_bytes)


def parse_greeting(data: bytes | bytearray) -> int | None:
    """The peer's message limit, or None if the peer speaks something else."""
    magic, max_message_bytes = _GREETING.unpack(data)
    return int(max_message_bytes) if magic == _MAGIC and max_message_bytes > 0 else None


async def greet_listener(connection: socket.socket, max_message_bytes: int) -> int:
    """The dialer's part. Returns the listener's message limit.

    Raises:
        ConnectionAbortedError: the other side hung up, or is something else than one of our listeners.
    """
    reading = _Greeting()
    try:
        connection.send(pack_greeting(max_message_bytes))  # there is room for it in a fresh connection
        while not reading.complete:
            await trio.lowlevel.wait_readable(connection)
            reading.read(connection)
    except OSError as error:
        raise ConnectionAbortedError(errno.ECONNABORTED, "the listener hung up before it answered") from error
    if reading.limit is None:
        raise ConnectionAbortedError(errno.ECONNABORTED, "whatever listens there does not speak this protocol")
    return reading.limit


class _Greeting:
    """A greeting being read."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.drop_at = trio.current_time() + GREETING_TIMEOUT_S

    def read(self, connection: socket.socket) -> None:
        """Take what has arrived, and not a byte of what follows the greeting.

        Raises:
            OSError: the connection ended.
        """
        try:
            data = connection.recv(_GREETING.size - len(self._data))
        except BlockingIOError:
            return
        if not data:
            raise ConnectionAbortedError(errno.ECONNABORTED, "closed")
        self._data += data

    @property
    def complete(self) -> bool:
        return len(self._data) == _GREETING.size

    @property
    def limit(self) -> int | None:
        return parse_greeting(self._data)


class Guest(NamedTuple):
    """A connection whose greeting has been read and answered."""

    connection: socket.socket
    max_message_bytes: int


class Reception:
    """Takes connections from a listening socket and lets in those that greet properly. Owns the socket.

    One selector watches the listening socket and the connections that have not greeted yet: a silent one delays
    nobody, and waiting needs one file descriptor and no tasks.
    """

    def __init__(self, listening: socket.socket, max_message_bytes: int) -> None:
        self._listening = listening
        self._answer = pack_greeting(max_message_bytes)
        self._ungreeted: dict[socket.socket, _Greeting] = {}  # oldest first
        self._waiting: deque[Guest] = deque()  # greeted, not answered
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)

    async def next_guest(self) -> Guest:
        """Wait for a connection that greets. A cancelled wait has taken none.

        Raises:
            OSError: the system cannot take the connection now; it stays in the backlog.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            self._drop_late()
            self._look()
            while self._waiting:
                guest = self._waiting.popleft()
                if self._welcome(guest):
                    await trio.lowlevel.cancel_shielded_checkpoint()
                    return guest
            with trio.move_on_at(self._next_drop()):
                await trio.lowlevel.wait_readable(self._selector.fileno())

    def _look(self) -> None:
        """Whatever can be done without waiting."""
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listening:
                self._take()
            elif isinstance(key.fileobj, socket.socket):
                self._listen_to(key.fileobj)

    def _take(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        try:
            tune(connection)
        except OSError:  # it has been reset already
            connection.close()
            return
        if len(self._ungreeted) >= MAX_UNGREETED:
            self._drop(next(iter(self._ungreeted)))
        self._ungreeted[connection] = _Greeting()
        self._selector.register(connection, selectors.EVENT_READ)

    def _listen_to(self, connection: socket.socket) -> None:
        greeting = self._ungreeted.get(connection)
        if greeting is None:
            return  # dropped a moment ago
        try:
            greeting.read(connection)
        except OSError:
            self._drop(connection)
            return
        if greeting.complete:
            limit = greeting.limit
            if limit is None:
                self._drop(connection)
            else:
                self._forget(connection)
                self._waiting.append(Guest(connection, limit))

    def _welcome(self, guest: Guest) -> bool:
        try:
            guest.connection.send(self._answer)  # there is room for it in a fresh connection
        except OSError:
            guest.connection.close()
            return False
        return True

    def _forget(self, connection: socket.socket) -> None:
        del self._ungreeted[connection]
        self._selector.unregister(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _drop_late(self) -> None:
        now = trio.current_time()
        for connection in [c for c, greeting in self._ungreeted.items() if greeting.drop_at <= now]:
            self._drop(connection)

    def _next_drop(self) -> float:
        return next(iter(self._ungreeted.values())).drop_at if self._ungreeted else math.inf

    def close(self) -> None:
        """Hang up on everybody who has not been let in. Whoever waits for a guest gets `ClosedResourceError`."""
        try:
            trio.lowlevel.notify_closing(self._selector.fileno())
        except RuntimeError:
            pass  # outside of Trio, so that nobody waits
        self._selector.close()
        self._listening.close()
        for connection in [*self._ungreeted, *(guest.connection for guest in self._waiting)]:
            connection.close()
        self._ungreeted.clear()
        self._waiting.clear()
