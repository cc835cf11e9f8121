"""Plain sockets below the NNG transport: connecting and binding, with the system's own errors."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys

import trio

from asyncparl.transport.addresses import IpcAddress, TcpAddress
from asyncparl.transport.forks import guard

QUIETLY = getattr(socket, "MSG_NOSIGNAL", 0)
"""To send with: the loss of the peer is an error, also where the program lets SIGPIPE end it, for its own output."""

_BACKLOG = 1024
_FULL_BACKLOG_RETRY_S = 0.005

# A machine that vanishes sends no goodbye. An idle connection to it ends after IDLE + INTERVAL * COUNT = 15 seconds,
# one with something under way when nothing of it was acknowledged for as long.
_KEEPALIVE_IDLE_S = 5
_KEEPALIVE_INTERVAL_S = 2
_KEEPALIVE_COUNT = 5
_USER_TIMEOUT_MS = 15_000

# On a bad line what was lost is repeated once a second, not ever more rarely: heartbeats are to come in time. Kernels
# before Linux 6.15 do not know the longest pause; where little is under way, theirs do not grow for six times.
_LONGEST_PAUSE_MS = 1000
_TCP_THIN_LINEAR_TIMEOUTS, _TCP_RTO_MAX_MS = 16, 44  # Linux; Python has no names for them


async def connect(address: IpcAddress | TcpAddress) -> socket.socket:
    """A connected, non-blocking socket.

    Of a host name's addresses each gets its turn when the one before it has failed, or hangs for a quarter of a second.

    Raises:
        OSError: the error of the last attempt.
    """
    if isinstance(address, IpcAddress):
        return await _connect_ipc(address.path)
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except OSError as error:
        if isinstance(error.__cause__, ExceptionGroup):  # Trio's error for all attempts has no number
            raise error.__cause__.exceptions[-1] from None
        raise
    connection = socket.socket(fileno=stream.socket.detach())
    guard.close_in_child(connection)
    try:
        tune(connection)
    except BaseException:
        connection.close()
        raise
    return connection


async def _connect_ipc(path: str) -> socket.socket:
    """Unlike TCP, connecting a Unix socket is done at once, or fails with EAGAIN while the backlog is full."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    guard.close_in_child(connection)
    try:
        connection.setblocking(False)
        while (code := connection.connect_ex(path)) == errno.EAGAIN:  # noqa: ASYNC110  # there is no event for it
            await trio.sleep(_FULL_BACKLOG_RETRY_S)
        if code:
            raise OSError(code, os.strerror(code), path)
    except BaseException:
        connection.close()
        raise
    return connection


def make_own_folder(path: str) -> None:
    """Make a folder that only this user may enter, unless it is there: for one that somebody may have removed.

    Raises:
        PermissionError: meanwhile somebody else has made one of that name.
        OSError: it cannot be made.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(errno.EACCES, "others may write there", path)


def bind(address: IpcAddress | TcpAddress) -> tuple[socket.socket, IpcAddress | TcpAddress]:
    """A listening, non-blocking socket, and its address with the port that was chosen.

    Raises:
        OSError: the address cannot be used.
    """
    if isinstance(address, IpcAddress):
        return _bind_ipc(address.path), address
    in_use: OSError | None = None
    for port in address.ports:
        try:
            listening = _bind_tcp(address.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            in_use = error
        else:
            return listening, TcpAddress(address.host, listening.getsockname()[1])
    assert in_use is not None
    raise OSError(in_use.errno, in_use.strerror, str(address))


def _bind_tcp(host: str, port: int) -> socket.socket:
    targets = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, target = targets[0]
    listening = socket.socket(family, kind, protocol)
    guard.close_in_child(listening)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::" and socket.has_dualstack_ipv6():
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.setblocking(False)
        listening.bind(target)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _bind_ipc(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    guard.close_in_child(listening)
    try:
        listening.setblocking(False)
        try:
            listening.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_stale(path):
                raise OSError(error.errno, error.strerror, path) from None
            os.unlink(path)
            listening.bind(path)
        os.chmod(path, 0o600)  # before listen(): no other user can have connected yet
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _is_stale(path: str) -> bool:
    """Whether `path` is a socket file whose listener is dead."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED


def tune(connection: socket.socket) -> None:
    """Non-blocking; on TCP also without delay for small messages, and noticing a peer that vanished."""
    connection.setblocking(False)
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", _KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", _USER_TIMEOUT_MS),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    _allow_bulk(connection)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_THIN_LINEAR_TIMEOUTS, 1)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_PAUSE_MS)


def stream_of(connection: socket.socket) -> trio.SocketStream:
    """A Trio stream for bulk data. Takes ownership of the connection."""
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
    _allow_bulk(connection)
    return stream


def _allow_bulk(connection: socket.socket) -> None:
    # Trio's streams set it low, for whoever may think better of what has not left yet. We never do.
    if connection.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)


def allow_stalls(connection: socket.socket) -> None:
    """Never give up on a peer that is there but reads nothing, which `TCP_USER_TIMEOUT` takes for a lost one.

    Linux counts the time during which the peer's window is closed, too. The price: where something is under way to a
    machine that vanished, a system without `TCP_RTO_MAX_MS` notices only after a quarter of an hour.
    """
    if connection.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)


def peer_host(connection: socket.socket) -> str:
    """The peer's IP address in numbers, or "" for a Unix socket.

    Raises:
        OSError: the connection has been reset already.
    """
    if connection.family == socket.AF_UNIX:
        return ""
    host = str(connection.getpeername()[0])
    return host.removeprefix("::ffff:") if "." in host else host  # IPv4 that arrived at a socket for both


class SocketFile:
    """The file of a listening `ipc` socket, removed by its listener unless another one has replaced it since."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = self._look()

    def _look(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def is_there(self) -> bool:
        """Whether this path still leads to our socket."""
        return self._look() == self._identity

    def remove(self) -> None:
        if self._identity is not None and self._look() == self._identity:
            os.unlink(self._path)
