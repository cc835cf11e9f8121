"""Listening and dialing for `ipc://` and `tcp://`: plain sockets, then an `NngChannel` once both have greeted."""

from __future__ import annotations

import errno
import socket
import warnings

import trio

from asyncparl.transport.addresses import IpcAddress, TcpAddress
from asyncparl.transport.base import Channel, Listener
from asyncparl.transport.greeting import Reception, greet_listener
from asyncparl.transport.nng import NngChannel, library
from asyncparl.transport.sockets import SocketFile, bind, connect


class SocketListener(Listener):
    """A plain listening socket; every connection that greets properly becomes a channel of its own."""

    def __init__(self, address: IpcAddress | TcpAddress, *, max_message_bytes: int) -> None:
        self._closed = True  # nothing to close yet, should binding fail
        self._forked = False
        library.prepare()
        listening, bound = bind(address)
        self._closed = False
        self.address = str(bound)
        self._file = SocketFile(bound.path) if isinstance(bound, IpcAddress) else None
        self._max_message_bytes = max_message_bytes
        self._reception = Reception(listening, max_message_bytes)
        library.add_user(self)

    async def accept(self) -> Channel:
        if self._forked:
            raise RuntimeError("this listener was opened before the process was forked")
        if self._closed:
            raise trio.ClosedResourceError("this listener was closed")
        connection, peer_limit = await self._reception.next_guest()
        return _open_channel(connection, self._max_message_bytes, peer_limit)

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


def listen_socket(address: IpcAddress | TcpAddress, *, max_message_bytes: int) -> SocketListener:
    """See `asyncparl.transport.listen`."""
    return SocketListener(address, max_message_bytes=max_message_bytes)


async def dial_socket(address: IpcAddress | TcpAddress, *, max_message_bytes: int, timeout_s: float) -> NngChannel:
    """See `asyncparl.transport.dial`."""
    library.prepare()
    try:
        with trio.fail_after(timeout_s):
            connection = await connect(address)
            with connection:
                peer_limit = await greet_listener(connection, max_message_bytes)
                channel = _open_channel(connection, max_message_bytes, peer_limit)
            try:
                if not await channel.wait_connected():
                    raise ConnectionAbortedError(errno.ECONNABORTED, "the listener hung up at once")
            except BaseException:
                channel.close()
                raise
            return channel
    except trio.TooSlowError:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer within {timeout_s} s from {address}") from None


def _open_channel(connection: socket.socket, max_message_bytes: int, peer_limit: int) -> NngChannel:
    return NngChannel(
        connection, max_send_bytes=min(max_message_bytes, peer_limit), max_receive_bytes=max_message_bytes
    )
