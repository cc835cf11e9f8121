"""Channels between hosts: one NNG Pair0 socket for each. The only importer of pynng.

How it works, and why:

* Connections are made with plain sockets (`sockets.py`) and then given to NNG by file descriptor. So a listener needs
  one port or one file for any number of channels, connecting fails with the system's own errors, and NNG has nothing
  that it could dial or accept a second time: a lost peer stays lost.
* A Pair socket never drops a message while it is connected; where it is full, sending says so.
* pynng's `asend` and `arecv` are not used: cancelling them can hang, or leak the message. NNG's file descriptors say
  when something can be received or sent, and the calls themselves never block.
* NNG reports connects and losses on threads of its own. What runs there sets a flag and wakes the loop, no more.
* Closing waits for those threads, so that it happens on yet another one (`closing.py`).
* NNG does not survive a fork. In the child of a process that had opened channels, using them raises RuntimeError.
"""

from __future__ import annotations

import atexit
import errno
import select
import socket
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import pynng
import trio
from pynng import ffi, lib

from asyncparl.errors import MessageTooLarge
from asyncparl.transport.arena import Arena
from asyncparl.transport.base import Channel, ChannelStatistics, Part
from asyncparl.transport.closing import Closer, Connection
from asyncparl.transport.forks import guard

QUEUED_MESSAGES = 64  # in each direction, at each end; beyond it sending waits
HANDSHAKE_TIMEOUT_S = 10.0

_JOIN_BELOW_BYTES = 32 * 1024  # below, one more copy costs less than two more calls into NNG
_COPY_BELOW_BYTES = 8 * 1024  # below, copying a received message costs less than lending its memory

_NONBLOCK = lib.NNG_FLAG_NONBLOCK
_MESSAGE_OUT = ffi.typeof("nng_msg **")
_TRY_AGAIN = int(lib.NNG_EAGAIN)

# The only place where NNG's errors become ours. Anything else would be a mistake in this file: RuntimeError.
_ERRORS: dict[int, Callable[[str], Exception]] = {
    int(lib.NNG_ECLOSED): trio.ClosedResourceError,
    int(lib.NNG_EMSGSIZE): MessageTooLarge,
    int(lib.NNG_ENOMEM): MemoryError,
    int(lib.NNG_ENOFILES): lambda text: OSError(errno.EMFILE, text),
}


def _check(code: int) -> None:
    if code:
        raise _ERRORS.get(code, RuntimeError)(f"NNG: {ffi.string(lib.nng_strerror(code)).decode()}")


class _Library:
    """NNG in this process. Its threads do not exist in a forked child, and calling it there aborts the process."""

    def __init__(self) -> None:
        self._prepared = False
        self.closer = Closer()
        self._kept: list[_PairSocket] = []

    def prepare(self) -> None:
        """Before each socket: refuse a forked child. Before the first: limit NNG's threads to what we need.

        Raises:
            RuntimeError: channels were in use when this process was forked.
        """
        guard.prepare()
        if not self._prepared:
            self._prepared = True
            # pynng's would wait for threads that do not exist in a child.
            guard.call_in_child(lambda: atexit.unregister(pynng.nng._pynng_atexit))
            for parameter, value in _THREADS:
                lib.nng_init_set_parameter(parameter, value)

    def keep(self, pair: _PairSocket) -> None:
        """Until the process ends: NNG still knows the address of this open socket."""
        self._kept.append(pair)


_THREADS = (
    (lib.NNG_INIT_NUM_TASK_THREADS, 2),
    (lib.NNG_INIT_MAX_TASK_THREADS, 2),
    (lib.NNG_INIT_NUM_EXPIRE_THREADS, 1),
    (lib.NNG_INIT_MAX_EXPIRE_THREADS, 1),
    (lib.NNG_INIT_NUM_POLLER_THREADS, 1),
    (lib.NNG_INIT_MAX_POLLER_THREADS, 1),
    (lib.NNG_INIT_NUM_RESOLVER_THREADS, 1),
)
library = _Library()


class _PairSocket(pynng.Pair0):  # type: ignore[misc]  # pynng has no types
    """Closed when its channel says so, not by the garbage collector: it may run on a thread of NNG, and deadlock."""

    def __del__(self) -> None:
        pass

    def discard(self) -> None:
        out = ffi.new(_MESSAGE_OUT)
        while not lib.nng_recvmsg(self.socket, out, _NONBLOCK):
            lib.nng_msg_free(out[0])


def _open_pair(
    connection_fd: int, max_receive_bytes: int, on_added: Callable[[Any], None], on_removed: Callable[[Any], None]
) -> _PairSocket:
    """A Pair socket that has exactly this connection; it owns the descriptor once this returns."""
    library.prepare()
    pair = _PairSocket()
    try:
        pair.recv_max_size = max_receive_bytes
        pair.send_buffer_size = pair.recv_buffer_size = QUEUED_MESSAGES
        pair.recv_fd  # noqa: B018  # this creates it, which may fail
        pair.add_post_pipe_connect_cb(on_added)
        pair.add_post_pipe_remove_cb(on_removed)
        listener = ffi.new("nng_listener *")
        _check(lib.nng_listener_create(listener, pair.socket, b"socket://"))
        _check(lib.nng_listener_start(listener[0], 0))
        _check(lib.nng_listener_set_int(listener[0], b"socket:fd", connection_fd))
    except BaseException as error:
        pair.close()
        if isinstance(error, pynng.NNGException):
            _check(error.errno)
        raise
    return pair


class NngChannel(Channel):
    """One end of a connection whose handshake is done. Takes ownership of `connection`.

    `on_close` is called on the loop, when this side closes the channel: for what carries the connection further.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        max_send_bytes: int,
        max_receive_bytes: int,
        arena: Arena | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._closed = True  # until there is something to close
        self._forked = False
        self.max_message_bytes = max_send_bytes
        self.arena = arena
        self._settled = trio.Event()  # NNG has agreed with the NNG of the peer, or never will
        self._lost = False  # NNG has reported the loss; messages may still be queued
        self._drained = False  # the loss has been raised, and will be for ever
        self._token = trio.lowlevel.current_trio_token()
        self._connect_by = trio.current_time() + HANDSHAKE_TIMEOUT_S
        self._send_turn = trio.Lock()  # one task at a time can wait for a file descriptor
        self._send_fd: int | None = None
        self._num_sent = self._sent_bytes = self._num_received = self._received_bytes = 0
        self._out = ffi.new(_MESSAGE_OUT)
        self._on_close = on_close
        self._connection = Connection(connection)  # now, because NNG may have closed it by the time it was handed over
        guard.close_in_child(self._connection)
        try:
            self._pair = _open_pair(connection.fileno(), max_receive_bytes, self._on_pipe_added, self._on_pipe_removed)
        except BaseException:
            connection.close()
            raise
        connection.detach()
        self._closed = False
        self._socket: Any = self._pair.socket
        self._receive_fd: int = self._pair.recv_fd
        guard.add_user(self)

    # On threads of NNG.

    def _on_pipe_added(self, _pipe: object) -> None:
        self._call_soon(self._settled.set)

    def _on_pipe_removed(self, _pipe: object) -> None:
        if self._closed:
            return
        self._lost = True
        self._call_soon(self._wake_waiters)

    def _call_soon(self, call: Callable[[], object]) -> bool:
        try:
            self._token.run_sync_soon(call)
        except trio.RunFinishedError:
            return False  # nobody is left to be told
        return True

    # On the loop.

    def _wake_waiters(self) -> None:
        """Whoever waits looks again at the flags."""
        self._settled.set()
        if not self._closed:
            trio.lowlevel.notify_closing(self._receive_fd)
            if self._send_fd is not None:
                trio.lowlevel.notify_closing(self._send_fd)

    async def _wait_readable(self, fd: int) -> None:
        """Returns when `fd` is readable, and also when the channel was closed or its peer was lost."""
        if not self._settled.is_set():
            await self._wait_settled()
            if self._closed or self._lost:
                return
        try:
            await trio.lowlevel.wait_readable(fd)
        except trio.ClosedResourceError:
            pass

    async def _wait_settled(self) -> None:
        """NNG reports that it has agreed with the NNG of the peer, but not that it failed to: look for that."""
        pause_s = 0.001
        while not self._settled.is_set():
            with trio.move_on_after(pause_s):
                await self._settled.wait()
            pause_s = min(2 * pause_s, 0.05)
            if self._connection.is_released() or trio.current_time() >= self._connect_by:
                self._lost = True
                self._settled.set()

    async def wait_connected(self) -> bool:
        """Wait until the channel works, which it normally does at once. Returns whether it does."""
        await self._wait_settled()
        return not self._lost

    def _take(self) -> memoryview | None:
        """The next message, or None if none has arrived."""
        if self._closed or self._forked or self._drained:
            self._refuse()
        out = self._out
        code = lib.nng_recvmsg(self._socket, out, _NONBLOCK)
        if code:
            if code != _TRY_AGAIN:
                _check(code)
            if not self._lost:
                return None
            # NNG may have queued the last message, and then reported the loss, after we asked.
            if lib.nng_recvmsg(self._socket, out, _NONBLOCK):
                self._drained = True
                self._refuse()
        message = out[0]
        size = lib.nng_msg_len(message)
        self._num_received += 1
        self._received_bytes += size
        if size >= _COPY_BELOW_BYTES:
            return _lend(message, size)
        view = memoryview(bytearray(ffi.buffer(lib.nng_msg_body(message), size)))
        lib.nng_msg_free(message)
        return view

    def receive_nowait(self) -> memoryview:
        view = self._take()
        if view is None:
            raise trio.WouldBlock
        return view

    async def receive(self) -> memoryview:
        await trio.lowlevel.checkpoint_if_cancelled()
        view = self._take()
        if view is not None:
            await trio.lowlevel.cancel_shielded_checkpoint()
        while view is None:
            await self._wait_readable(self._receive_fd)
            view = self._take()
        return view

    def send_nowait(self, parts: Sequence[Part], *, unchanging: bool = False) -> None:
        if self._closed or self._forked or self._lost:
            self._refuse()
        size = 0
        for part in parts:
            size += len(part) if type(part) is bytes else memoryview(part).nbytes
        if size > self.max_message_bytes:
            raise MessageTooLarge(f"message of {size} bytes; the limit of this channel is {self.max_message_bytes}")
        if size < _JOIN_BELOW_BYTES:
            code = lib.nng_send(self._socket, b"".join(parts), size, _NONBLOCK)
        else:
            code = self._send_large(parts, size)
        if code:
            if code == _TRY_AGAIN:
                raise trio.WouldBlock
            _check(code)
        # Adding is atomic enough for several threads: CPython switches threads at calls and jumps only.
        self._num_sent += 1
        self._sent_bytes += size

    def _send_large(self, parts: Sequence[Part], size: int) -> int:
        """Copy each part straight into a message, without holding the interpreter lock meanwhile."""
        if self._send_fd is not None and not _is_readable(self._send_fd):
            return _TRY_AGAIN  # spares the copy where the queue was full lately, and is now
        buffers = [ffi.from_buffer(part) for part in parts]  # before there is a message that could leak
        out = ffi.new(_MESSAGE_OUT)  # not `self._out`: several threads may send, and one receive
        _check(lib.nng_msg_alloc(out, 0))
        message = out[0]
        code = lib.nng_msg_reserve(message, size)
        for buffer in buffers:
            code = code or lib.nng_msg_append(message, buffer, len(buffer))
        if not code:
            code = lib.nng_sendmsg(self._socket, message, _NONBLOCK)
        if code:
            lib.nng_msg_free(message)
        return int(code)

    async def wait_sendable(self) -> None:
        async with self._send_turn:
            self._check_sendable()
            if self._send_fd is None:
                self._send_fd = self._pair.send_fd  # late: from now on NNG spends a system call on each change
            await self._wait_readable(self._send_fd)
            self._check_sendable()

    def _check_sendable(self) -> None:
        if self._closed or self._forked or self._lost:
            self._refuse()

    def mark_forked(self) -> None:
        self._forked = True

    def _refuse(self) -> NoReturn:
        if self._forked:
            raise RuntimeError("this channel was opened before the process was forked")
        if self._closed:
            raise trio.ClosedResourceError("this channel was closed")
        raise trio.BrokenResourceError("the peer of this channel is gone")

    def close(self) -> None:
        if self._closed or self._forked:
            return
        try:
            self._wake_waiters()
            self._on_close()
        except RuntimeError:
            pass  # outside of Trio, so that nobody waits, and nothing is carried any more
        self._closed = True
        if self.arena is not None:
            self.arena.close()
        library.closer.end(self._connection, self._pair, linger=not self._lost)

    def __del__(self) -> None:
        if self._closed or self._forked:
            return
        # Not from here, but from the loop: garbage may be collected on a thread of NNG, or while some lock is held.
        if not self._call_soon(partial(_end_forgotten, self._connection, self._pair, self._on_close)):
            library.keep(self._pair)
        warnings.warn(f"unclosed channel {self!r}", ResourceWarning, source=self, stacklevel=1)

    @property
    def closed(self) -> bool:
        return self._closed

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(self._num_sent, self._sent_bytes, self._num_received, self._received_bytes)


def _end_forgotten(connection: Connection, pair: _PairSocket, on_close: Callable[[], None]) -> None:
    on_close()
    library.closer.end(connection, pair, linger=True)


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _lend(message: Any, size: int) -> memoryview:
    """A view of the message's own memory. Whichever thread drops the last reference frees it."""

    def release(_body: object, message: Any = message, free: Any = lib.nng_msg_free) -> None:
        free(message)

    return memoryview(ffi.buffer(ffi.gc(lib.nng_msg_body(message), release), size))
