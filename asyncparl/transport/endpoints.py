"""Listening and dialing for `ipc://` and `tcp://`: plain sockets and a handshake, then a channel over them.

Over a Unix socket that is a `UnixChannel`, over TCP an `NngChannel`. NNG is loaded with the first of these.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from asyncparl.errors import AuthenticationError
from asyncparl.transport.addresses import IpcAddress, TcpAddress, parse_dialable
from asyncparl.transport.arena import Arena
from asyncparl.transport.base import DEFAULT_MAX_MESSAGE_BYTES, Channel, Listener, Visitor
from asyncparl.transport.credentials import Admission, Credentials, KeyRing, Tunnel, check_dialing
from asyncparl.transport.forks import guard
from asyncparl.transport.greeting import Guest, Reception, greet_listener, send, take_memory
from asyncparl.transport.handshake import COME_IN, NONCE_BYTES, DialerHandshake, UntrustedPeer, pack_refusal
from asyncparl.transport.sharing import offer_memory, open_arena, take_arena
from asyncparl.transport.sockets import SocketFile, allow_stalls, bind, connect, make_own_folder
from asyncparl.transport.tls import TlsPump
from asyncparl.transport.unix import UnixChannel

if TYPE_CHECKING:
    from asyncparl.transport.nng import NngChannel


class SocketListener(Listener):
    """A plain listening socket; every connection whose peer proves itself becomes a channel of its own."""

    def __init__(self, address: IpcAddress | TcpAddress, *, keys: KeyRing | None, max_message_bytes: int) -> None:
        self._closed = True  # nothing to close yet, should binding fail
        self._forked = False
        guard.prepare()
        listening, bound = bind(address)
        self._closed = False
        self.address = str(bound)
        self._bound = bound
        self._file = SocketFile(bound.path) if isinstance(bound, IpcAddress) else None
        self._reception = Reception(listening, keys, max_message_bytes)
        guard.add_user(self)

    @property
    def num_rejected(self) -> int:
        return self._reception.num_rejected

    async def accept_visitor(self) -> Visitor:
        self._check_open()
        return SocketVisitor(await self._reception.next_guest())

    def adopt(self, connection: socket.socket) -> None:
        try:
            self._check_open()
        except BaseException:
            connection.close()
            raise
        self._reception.adopt(connection)

    def restore(self) -> None:
        if not isinstance(self._bound, IpcAddress) or self._file is None or self._file.is_there():
            return
        self._check_open()
        make_own_folder(os.path.dirname(self._bound.path) or ".")
        listening, _ = bind(self._bound)
        self._file = SocketFile(self._bound.path)
        self._reception.listen_at(listening)

    def _check_open(self) -> None:
        if self._forked:
            raise RuntimeError("this listener was opened before the process was forked")
        if self._closed:
            raise trio.ClosedResourceError("this listener was closed")

    def mark_forked(self) -> None:
        self._forked = True

    def close(self) -> None:
        if self._closed or self._forked:
            return
        self._closed = True
        self._reception.close()
        if self._file is not None:
            self._file.remove()

    def __del__(self) -> None:
        if not self._closed and not self._forked:
            warnings.warn(f"unclosed listener {self.address}", ResourceWarning, source=self, stacklevel=1)


class SocketVisitor(Visitor):
    """See `Visitor`. Owns the connection of a guest until it is decided what becomes of it."""

    def __init__(self, guest: Guest) -> None:
        self.key_id = guest.hello.key_id
        self.route = guest.hello.route
        self.peer_host = guest.host
        self.encrypted = guest.hello.encrypt
        self._connection: socket.socket | None = guest.connection
        self._admission = guest.admission

    def open(self) -> Channel:
        return open_admitted(self._decide(COME_IN), self._admission)

    def refuse(self, reason: str) -> None:
        self._decide(pack_refusal(reason)).close()

    def hand_over(self) -> tuple[socket.socket, Admission]:
        connection = self._decide(COME_IN)
        try:
            allow_stalls(connection)
        except OSError:
            pass  # it has been reset
        return connection, self._admission

    def _decide(self, verdict: bytes) -> socket.socket:
        if self._connection is None:
            raise trio.ClosedResourceError("it has been decided what becomes of this visitor")
        connection, self._connection = self._connection, None
        try:
            send(connection, verdict)
        except OSError:
            pass  # the peer has gone; whoever uses the connection will see
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def listen_socket(
    address: IpcAddress | TcpAddress, *, keys: KeyRing | None = None, max_message_bytes: int
) -> SocketListener:
    """See `asyncparl.transport.listen`."""
    return SocketListener(address, keys=keys, max_message_bytes=max_message_bytes)


def open_admitted(connection: socket.socket, admission: Admission) -> Channel:
    """See `asyncparl.transport.open_admitted`."""
    try:
        guard.prepare()
        connection.setblocking(False)
        arena = take_arena(take_memory(connection)) if admission.shares_memory else None
        if not admission.encrypt:
            return _open_plain(connection, admission, arena)
        return _open_encrypted(TlsPump.for_listener(connection, admission.session_key), admission)
    except BaseException:
        connection.close()
        raise


async def dial_socket(
    address: IpcAddress | TcpAddress,
    *,
    credentials: Credentials | None,
    route: str,
    encrypt: bool,
    tunnel: Tunnel | None,
    max_message_bytes: int,
    shared_bytes: int,
    may_stall: bool,
    timeout_s: float,
) -> Channel:
    """See `asyncparl.transport.dial`."""
    guard.prepare()
    can_share = shared_bytes and isinstance(address, IpcAddress) and tunnel is None and not encrypt
    memory_fd = offer_memory(shared_bytes) if can_share else None
    try:
        handshake = _new_handshake(
            credentials, route, encrypt=encrypt, share=memory_fd is not None, max_message_bytes=max_message_bytes
        )
        with _time_limit(timeout_s, address):
            connection = await (connect(address) if tunnel is None else _reach_through(tunnel))
            channel = await _greet_and_open(
                connection, handshake, str(address), may_stall=may_stall, memory_fd=memory_fd
            )
            try:
                if not await channel.wait_connected():
                    raise ConnectionAbortedError(errno.ECONNABORTED, f"the listener at {address} hung up at once")
            except BaseException:
                channel.close()
                raise
    finally:
        if memory_fd is not None:
            os.close(memory_fd)
    return channel


async def open_tunnel_socket(
    address: IpcAddress | TcpAddress, *, credentials: Credentials, route: str, timeout_s: float
) -> socket.socket:
    """See `asyncparl.transport.open_tunnel`."""
    with _time_limit(timeout_s, address):
        return await _reach_through(Tunnel(str(address), credentials, route))


async def _reach_through(tunnel: Tunnel) -> socket.socket:
    """A connection with whatever is at the other end of the tunnel, where the handshake happens once more."""
    handshake = _new_handshake(
        tunnel.credentials, tunnel.route, encrypt=False, share=False, max_message_bytes=DEFAULT_MAX_MESSAGE_BYTES
    )
    connection = await connect(parse_dialable(tunnel.address))
    try:
        await greet_listener(connection, handshake, tunnel.address)
    except BaseException:
        connection.close()
        raise
    return connection


def _new_handshake(
    credentials: Credentials | None, route: str, *, encrypt: bool, share: bool, max_message_bytes: int
) -> DialerHandshake:
    check_dialing(credentials, route)
    return DialerHandshake(
        credentials,
        max_message_bytes=max_message_bytes,
        encrypt=encrypt,
        share=share,
        route=route,
        nonce=secrets.token_bytes(NONCE_BYTES),
    )


async def _greet_and_open(
    connection: socket.socket, handshake: DialerHandshake, address: str, *, may_stall: bool, memory_fd: int | None
) -> UnixChannel | NngChannel:
    """A channel that the peer may still be setting up. Takes ownership of the connection."""
    try:
        if may_stall:
            allow_stalls(connection)
        admission = await greet_listener(connection, handshake, address, memory_fd=memory_fd)
        if not admission.encrypt:
            if memory_fd is None or not admission.shares_memory:
                return _open_plain(connection, admission, None)
            return _open_plain(connection, admission, open_arena(memory_fd, is_dialer=True))
        pump = TlsPump.for_dialer(connection, admission.session_key)
        await pump.shake_hands()
        return _open_encrypted(pump, admission)
    except BaseException as error:
        connection.close()
        if isinstance(error, UntrustedPeer):
            raise AuthenticationError(f"the listener at {address} {error}") from None
        if isinstance(error, trio.BrokenResourceError):
            text = f"the encryption with the listener at {address} could not be set up"
            raise ConnectionAbortedError(errno.ECONNABORTED, text) from error
        raise


@contextmanager
def _time_limit(timeout_s: float, address: IpcAddress | TcpAddress) -> Iterator[None]:
    try:
        with trio.fail_after(timeout_s):
            yield
    except trio.TooSlowError:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer within {timeout_s} s from {address}") from None


def _open_plain(connection: socket.socket, admission: Admission, arena: Arena | None) -> UnixChannel | NngChannel:
    max_send_bytes, max_receive_bytes = admission.max_send_bytes, admission.max_receive_bytes
    if connection.family == socket.AF_UNIX:
        return UnixChannel(connection, max_send_bytes=max_send_bytes, max_receive_bytes=max_receive_bytes, arena=arena)
    from asyncparl.transport.nng import NngChannel

    return NngChannel(connection, max_send_bytes=max_send_bytes, max_receive_bytes=max_receive_bytes)


def _open_encrypted(pump: TlsPump, admission: Admission) -> NngChannel:
    from asyncparl.transport.nng import NngChannel

    try:
        channel = NngChannel(
            pump.outlet,
            max_send_bytes=admission.max_send_bytes,
            max_receive_bytes=admission.max_receive_bytes,
            on_close=pump.end_soon,
        )
    except BaseException:
        pump.discard()
        raise
    pump.start()
    return channel
