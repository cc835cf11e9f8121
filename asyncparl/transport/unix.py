"""Channels within one host: a Unix socket that speaks the protocol of NNG's Pair0, served by the event loop itself.

To its peer it is an NNG socket, and the peer may be one (`tests/transport/test_unix.py`). But NNG reads on threads of
its own: the system has to wake three threads, one after the other, before the task that waits has its message. Between
processes of one host that is most of the time of a small call (`asyncparl bench calls`); between hosts it is little,
and there `nng.py` reads and writes while Python's lock is taken.

On the wire each side says `_GREETING`, once. Then a message is its length, in 8 bytes, and its bytes.

* What the socket does not take of a message is kept, and leaves in a task of its own. While something is kept, the
  channel is full: more would only lie here.
* All channels of an event loop read into the same buffer, so that a channel that waits has none. Of a message that is
  larger, what is left goes straight to its place.
* Sending is a system call in the thread that sends, under a lock: a message is never cut by another one.
"""

from __future__ import annotations

import socket
import struct
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import trio

from asyncparl.errors import MessageTooLarge
from asyncparl.transport.arena import Arena
from asyncparl.transport.base import Channel, ChannelStatistics, Part, Place
from asyncparl.transport.forks import guard
from asyncparl.transport.sockets import QUIETLY

GREETING_TIMEOUT_S = 10.0
LINGER_S = 0.3

_GREETING = b"\0SP\0\0\x10\0\0"  # of the protocol Pair, version 0
_LENGTH = struct.Struct(">Q")
_BUFFER_BYTES = 256 * 1024
_SEND_BUFFER_BYTES = 1 << 20  # the system grants what it allows
_JOIN_BELOW_BYTES = 32 * 1024  # below, one more copy costs less than a list of buffers
_MAX_PARTS = 512  # the system takes 1,024 at once
_HEAD_BYTES = 4096


class _Common(threading.local):
    """What the channels of one thread, that of their event loop, share."""

    def __init__(self) -> None:
        self.buffer = bytearray(_BUFFER_BYTES)


_common = _Common()


class BrokenStream(Exception):
    """What came is not of this protocol."""


class Inbox:
    """Puts messages together from pieces of a stream. Pure: the caller reads."""

    def __init__(self, max_message_bytes: int) -> None:
        self.is_greeted = False
        self.messages: deque[memoryview] = deque()
        """Those that are complete."""
        self._max_message_bytes = max_message_bytes
        self._head = b""
        """Of what comes next, if it is not complete: less than the common buffer takes."""
        self._large: memoryview | None = None
        """A message that is larger than that, as far as it has come."""
        self._large_at = 0
        self._after_large = False
        """Then another one may follow: of that as little as possible is read to the common buffer."""

    def space(self, buffer: bytearray) -> memoryview:
        """Where to read to, the next time. The buffer may have been used by others meanwhile."""
        if self._large is not None:
            return self._large[self._large_at :]
        at = len(self._head)
        buffer[:at] = self._head
        return memoryview(buffer)[at : at + _HEAD_BYTES] if self._after_large else memoryview(buffer)[at:]

    def take_in(self, buffer: bytearray, num_bytes: int, place: Place | None = None) -> None:
        """So much was read to `space`.

        Args:
            place: as that of the channel.

        Raises:
            BrokenStream: it is not of this protocol, or the message is too large.
        """
        if self._large is not None:
            self._large_at += num_bytes
            if self._large_at == len(self._large):
                self.messages.append(self._large)
                self._large = None
                self._after_large = True
            return
        self._after_large = False
        end = len(self._head) + num_bytes
        at = 0 if self.is_greeted else self._take_greeting(buffer, end)
        while end - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if size > self._max_message_bytes:
                raise BrokenStream(f"a message of {size:,} bytes; the limit is {self._max_message_bytes:,}")
            body, next_at = at + _LENGTH.size, at + _LENGTH.size + size
            if next_at > end:
                if _LENGTH.size + size > len(buffer):
                    self._begin_large(size, memoryview(buffer)[body:end], place)
                    at = end
                break
            self.messages.append(memoryview(buffer[body:next_at]))
            at = next_at
        self._head = bytes(memoryview(buffer)[at:end])

    def _take_greeting(self, buffer: bytearray, end: int) -> int:
        """How much of it was the greeting."""
        if end < len(_GREETING):
            return 0
        if buffer[: len(_GREETING)] != _GREETING:
            raise BrokenStream("the peer speaks something else")
        self.is_greeted = True
        return len(_GREETING)

    def _begin_large(self, size: int, beginning: memoryview, place: Place | None) -> None:
        self._large = None if place is None else place(beginning, size)
        if self._large is None:
            try:
                self._large = memoryview(bytearray(size))  # by the system, page by page, as it is filled
            except MemoryError:
                raise BrokenStream(f"there is no memory for a message of {size:,} bytes") from None
        self._large[: len(beginning)] = beginning
        self._large_at = len(beginning)


class UnixChannel(Channel):
    """One end of a connection whose handshake is done. Takes ownership of `connection`."""

    def __init__(
        self, connection: socket.socket, *, max_send_bytes: int, max_receive_bytes: int, arena: Arena | None = None
    ) -> None:
        self._closed = True  # until there is something to close
        self._forked = False
        guard.prepare()
        self.max_message_bytes = max_send_bytes
        self.arena = arena
        self._connection = connection
        self._token = trio.lowlevel.current_trio_token()
        self._greeted_by = trio.current_time() + GREETING_TIMEOUT_S
        self._inbox = Inbox(max_receive_bytes)
        self._is_dry = False
        """The socket had nothing more, and nobody has waited since."""
        self._lost = False
        """Nothing will come any more."""
        self._cannot_send = False
        self._lock = threading.Lock()
        """For what is sent, and for the end: the descriptor must not be closed while another thread uses it."""
        self._kept: list[memoryview] = []
        """What the socket did not take of the last message."""
        self._emptying: trio.CancelScope | None = None
        """Of the task that sends what is kept, and waits for room."""
        self._room = trio.Event()
        self._num_sent = self._sent_bytes = self._num_received = self._received_bytes = 0
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        try:
            connection.send(_GREETING, QUIETLY)
        except OSError:
            pass  # the peer has gone, which shows when something is received
        self._closed = False
        guard.add_user(self)

    async def wait_connected(self) -> bool:
        """Wait until the channel works, which it normally does at once. Returns whether it does."""
        with trio.move_on_at(self._greeted_by):
            while not self._inbox.is_greeted and not self._lost and not self._closed:
                await self._wait_readable()
                self._read()
        self._lost = self._lost or not self._inbox.is_greeted
        return not self._lost

    # --- receiving ------------------------------------------------------------------------------------------

    async def _wait_readable(self) -> None:
        """Returns also when the channel was closed, or its peer is gone."""
        try:
            await trio.lowlevel.wait_readable(self._connection)
        except trio.ClosedResourceError:
            pass
        self._is_dry = False

    def _read(self) -> None:
        """Take what is there, once."""
        if self._closed:
            return
        buffer = _common.buffer
        space = self._inbox.space(buffer)
        try:
            num_bytes = self._connection.recv_into(space)
        except BlockingIOError:
            self._is_dry = True
            return
        except OSError:
            self._lost = True
            return
        if not num_bytes:
            self._lost = True
            return
        self._is_dry = num_bytes < len(space)
        try:
            self._inbox.take_in(buffer, num_bytes, self.place)
        except BrokenStream:
            self._lost = True

    def _take(self) -> memoryview | None:
        """The next message, or None if none has arrived."""
        if self._closed or self._forked:
            self._refuse()
        messages = self._inbox.messages
        while not messages and not self._is_dry and not self._lost:
            self._read()
        if not messages:
            if self._lost:
                self._refuse()
            return None
        message = messages.popleft()
        self._num_received += 1
        self._received_bytes += len(message)
        return message

    def receive_nowait(self) -> memoryview:
        message = self._take()
        if message is None:
            raise trio.WouldBlock
        return message

    async def receive(self) -> memoryview:
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._inbox.is_greeted:
            await self.wait_connected()
        message = self._take()
        if message is not None:
            await trio.lowlevel.cancel_shielded_checkpoint()
        while message is None:
            await self._wait_readable()
            message = self._take()
        return message

    # --- sending --------------------------------------------------------------------------------------------

    def send_nowait(self, parts: Sequence[Part], *, unchanging: bool = False) -> None:
        size = 0
        for part in parts:
            size += len(part) if type(part) is bytes else memoryview(part).nbytes
        if size > self.max_message_bytes:
            self._check_sendable()
            raise MessageTooLarge(f"message of {size} bytes; the limit of this channel is {self.max_message_bytes}")
        head = _LENGTH.pack(size)
        with self._lock:
            self._check_sendable()
            if self._kept and not self._send_kept():
                raise trio.WouldBlock
            if size < _JOIN_BELOW_BYTES or len(parts) > _MAX_PARTS:
                message = b"".join((head, *parts))
                num_taken = self._write(self._connection.send, message, QUIETLY)
                rest = [memoryview(message)[num_taken:]] if num_taken < len(message) else []
            else:
                views = [memoryview(part).cast("B") for part in (head, *parts) if len(part)]
                num_taken = self._write(self._connection.sendmsg, views, (), QUIETLY)
                rest = _rest_of(views, num_taken)
                if rest and num_taken and not unchanging:
                    rest = [memoryview(b"".join(rest))]
            if not num_taken:
                raise trio.WouldBlock
            if rest:
                self._kept = rest
                self._call_soon(self._empty_soon)
        # Adding is atomic enough for several threads: CPython switches threads at calls and jumps only.
        self._num_sent += 1
        self._sent_bytes += size

    def make_room(self) -> bool:
        if not self._kept:
            return True
        with self._lock:
            self._check_sendable()
            return not self._kept or self._send_kept()

    def _write(self, send: Callable[..., int], *arguments: Any) -> int:
        """How much the socket took."""
        try:
            return send(*arguments)
        except BlockingIOError:
            return 0
        except OSError:
            self._cannot_send = True
            self._kept = []
            self._refuse()

    def _send_kept(self) -> bool:
        """Whether all of it has left."""
        num_taken = self._write(self._connection.sendmsg, self._kept, (), QUIETLY)
        self._kept = _rest_of(self._kept, num_taken)
        return not self._kept

    async def wait_sendable(self) -> None:
        self._check_sendable()
        self._empty_soon()
        await self._room.wait()
        self._check_sendable()

    def _empty_soon(self) -> None:
        """On the loop: have what is kept leave, and tell those who wait for room."""
        if self._emptying is None and self._connection.fileno() != -1:
            scope = trio.CancelScope()
            try:
                trio.lowlevel.spawn_system_task(self._empty, scope, name="asyncparl sender")
            except RuntimeError:
                return  # too late in the life of the loop
            self._emptying = scope

    async def _empty(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._send_all_kept()
        finally:
            self._emptying = None
            self._wake_senders()
            if self._closed:
                self._hang_up()

    async def _send_all_kept(self) -> None:
        """At least until there is room. When the channel is closed meanwhile, what is kept still leaves."""
        while True:
            try:
                await trio.lowlevel.wait_writable(self._connection)
            except trio.ClosedResourceError:
                if not self._kept:
                    return
            with self._lock:
                try:
                    if not self._kept or self._send_kept():
                        return
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return

    def _wake_senders(self) -> None:
        self._room.set()
        self._room = trio.Event()

    def _check_sendable(self) -> None:
        if self._closed or self._forked or self._cannot_send or self._lost:
            self._refuse()

    # --- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._closed or self._forked:
            return
        with self._lock:
            self._closed = True
        if self.arena is not None:
            self.arena.close()
        if self._kept:
            self._empty_soon()
        if self._kept and self._emptying is not None:
            self._emptying.deadline = trio.current_time() + LINGER_S
            self._emptying.shield = True
        try:
            trio.lowlevel.notify_closing(self._connection)
        except RuntimeError:
            pass  # outside of Trio, so that nobody waits
        self._wake_senders()
        if self._emptying is None:
            self._hang_up()

    def _hang_up(self) -> None:
        """Also where a forked child has the same descriptor. What the peer has not read yet it can still read."""
        with self._lock:
            try:
                self._connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended already
            self._connection.close()

    def mark_forked(self) -> None:
        self._forked = True

    def _call_soon(self, call: Callable[[], object]) -> None:
        try:
            self._token.run_sync_soon(call)
        except trio.RunFinishedError:
            pass  # nobody is left who could wait for it

    def _refuse(self) -> NoReturn:
        if self._forked:
            raise RuntimeError("this channel was opened before the process was forked")
        if self._closed:
            raise trio.ClosedResourceError("this channel was closed")
        raise trio.BrokenResourceError("the peer of this channel is gone")

    def __del__(self) -> None:
        if not self._closed and not self._forked:
            self._hang_up()
            warnings.warn(f"unclosed channel {self!r}", ResourceWarning, source=self, stacklevel=1)

    @property
    def closed(self) -> bool:
        return self._closed

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(self._num_sent, self._sent_bytes, self._num_received, self._received_bytes)


def _rest_of(views: Sequence[memoryview], num_taken: int) -> list[memoryview]:
    """What is left of a message."""
    rest = []
    for view in views:
        if num_taken < len(view):
            rest.append(view[num_taken:])
        num_taken = max(0, num_taken - len(view))
    return rest
