"""Plain sockets below the NNG transport: connecting and binding, with the system's own errors."""

from __future__ import annotations

import errno
import os
import socket
import stat

import trio

from asyncparl.transport.addresses import IpcAddress, TcpAddress

_BACKLOG = 1024
_FULL_BACKLOG_RETRY_S = 0.005

# A machine that vanishes sends no goodbye. The kernel notices after about IDLE + INTERVAL * COUNT seconds.
_KEEPALIVE_IDLE_S = 10
_KEEPALIVE_INTERVAL_S = 5
_KEEPALIVE_COUNT = 3


async def connect(address: IpcAddress | TcpAddress) -> socket.socket:
    """A connected, non-blocking socket. Every address of a host name is tried, in the system's order.

    Raises:
        OSError: the error of the last attempt.
    """
    if isinstance(address, IpcAddress):
        return await _connect_ipc(address.path)
    targets = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for family, kind, protocol, _, target in targets:
        attempt = trio.socket.socket(family, kind, protocol)
        try:
            await attempt.connect(target)
        except OSError as error:
            attempt.close()
            failure = error
        except BaseException:
            attempt.close()
            raise
        else:
            connection = socket.socket(fileno=attempt.detach())
            tune(connection)
            return connection
    raise failure or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL), str(address))


async def _connect_ipc(path: str) -> socket.socket:
    """Unlike TCP, connecting a Unix socket is done at once, or fails with EAGAIN while the backlog is full."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
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


def bind(address: IpcAddress | TcpAddress) -> tuple[socket.socket, IpcAddress | TcpAddress]:
    """A listening, non-blocking socket, and its address with the port that was chosen.

    Raises:
        OSError: the address cannot be used.
    """
    if isinstance(address, IpcAddress):
        return _bind_ipc(address.path), address
    targets = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, target = targets[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind(target)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening, TcpAddress(address.host, listening.getsockname()[1])


def _bind_ipc(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
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
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


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

    def remove(self) -> None:
        if self._identity is not None and self._look() == self._identity:
            os.unlink(self._path)
