"""The transport for `memory://`: channels inside one Trio program, with knobs to break them.

Made for testing what is built on channels, also under Trio's `MockClock`. Nothing here is random and nothing runs in
the background: a message has a time at which it is due, and whoever receives waits for it. A simulation that wants
delays at random passes a function that draws them, and so keeps the seed in its own hands.

A test that only needs channels uses `dial("memory://name")`. One that needs the knobs makes its own `MemoryNetwork`,
and reaches every new `MemoryLink` through `on_link`.
"""

from __future__ import annotations

import errno
import hmac
import socket
from collections import deque
from collections.abc import Callable

import trio

from asyncparl.errors import AuthenticationError
from asyncparl.transport.addresses import MemoryAddress
from asyncparl.transport.base import (
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_TIMEOUT_S,
    Channel,
    Listener,
    Visitor,
)
from asyncparl.transport.credentials import (
    Admission,
    Credentials,
    DialRefused,
    KeyRing,
    check_dialing,
    cut_reason,
    find_key,
)
from asyncparl.transport.mapping import MAX_SHARED_BYTES
from asyncparl.transport.memory_link import MemoryChannel, MemoryLink

QUEUED_MESSAGES = 128


class MemoryNetwork:
    """The names that can be dialed, and how new links behave.

    Args:
        queued_messages: how many messages each direction of a link holds before sending waits.
        on_link: called with every new link before anybody uses it, to set its knobs.
        max_shared_bytes: links have arenas of this size at most, each way, however large the dialer wants them.
    """

    def __init__(
        self,
        *,
        queued_messages: int = QUEUED_MESSAGES,
        on_link: Callable[[MemoryLink], None] | None = None,
        max_shared_bytes: int = MAX_SHARED_BYTES,
    ) -> None:
        self.queued_messages = queued_messages
        self.on_link = on_link
        self.max_shared_bytes = max_shared_bytes
        self._listeners: dict[str, MemoryListener] = {}

    def listen(
        self, name: str, *, keys: KeyRing | None = None, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    ) -> MemoryListener:
        """See `asyncparl.transport.listen`."""
        if name in self._listeners:
            raise OSError(errno.EADDRINUSE, f"somebody else listens at memory://{name}")
        listener = self._listeners[name] = MemoryListener(self, name, keys, max_message_bytes)
        return listener

    async def dial(
        self,
        name: str,
        *,
        credentials: Credentials | None = None,
        route: str = "",
        encrypt: bool = False,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        shared_bytes: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> MemoryChannel:
        """See `asyncparl.transport.dial`. Nothing is encrypted; the listener only hears that it should be."""
        await trio.lowlevel.checkpoint_if_cancelled()
        check_dialing(credentials, route)
        if name not in self._listeners:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at memory://{name}")
        call = _Dialing(credentials, route, encrypt, max_message_bytes, shared_bytes)
        self._listeners[name].ring(call)
        try:
            with trio.fail_after(timeout_s):
                await call.answered.wait()
        except trio.TooSlowError:
            call.give_up()
            raise TimeoutError(errno.ETIMEDOUT, f"no answer within {timeout_s} s from memory://{name}") from None
        except BaseException:
            call.give_up()
            raise
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def forget(self, name: str) -> None:
        """The listener of that name has been closed."""
        del self._listeners[name]

    def new_link(self, dialer_limit: int, acceptor_limit: int, shared_bytes: int) -> MemoryLink:
        """What an accepted dial becomes."""
        shared_bytes = min(shared_bytes, self.max_shared_bytes)
        link = MemoryLink(self.queued_messages, min(dialer_limit, acceptor_limit), shared_bytes)
        if self.on_link is not None:
            self.on_link(link)
        return link


_default_network: trio.lowlevel.RunVar[MemoryNetwork] = trio.lowlevel.RunVar("asyncparl.transport.memory")


def default_network() -> MemoryNetwork:
    """The network of `memory://` addresses; every Trio run has its own."""
    try:
        return _default_network.get()
    except LookupError:
        network = MemoryNetwork()
        _default_network.set(network)
        return network


class _Dialing:
    """Somebody who waits for a listener to answer."""

    def __init__(
        self, credentials: Credentials | None, route: str, encrypt: bool, max_message_bytes: int, shared_bytes: int
    ) -> None:
        self.key_id = "" if credentials is None else credentials.key_id
        self.key = b"" if credentials is None else credentials.key
        self.route = route
        self.encrypt = encrypt
        self.max_message_bytes = max_message_bytes
        self.shared_bytes = shared_bytes
        self.answered = trio.Event()
        self.answer: MemoryChannel | Exception = ConnectionAbortedError(
            errno.ECONNABORTED, "the listener hung up before it answered"
        )
        self.gone = False

    def end(self, answer: MemoryChannel | Exception | None = None) -> None:
        """Without an answer the listener has hung up."""
        if answer is not None:
            self.answer = answer
        self.answered.set()

    def give_up(self) -> None:
        """Nobody takes the answer, which may have come in this very moment."""
        self.gone = True
        if isinstance(self.answer, MemoryChannel):
            self.answer.close()


class MemoryListener(Listener):
    """See `Listener`. Made by `MemoryNetwork.listen`."""

    def __init__(self, network: MemoryNetwork, name: str, keys: KeyRing | None, max_message_bytes: int) -> None:
        self.address = str(MemoryAddress(name))
        self._network = network
        self._name = name
        self._keys = keys
        self._num_rejected = 0
        self._max_message_bytes = max_message_bytes
        self._calls: deque[_Dialing] = deque()
        self._rung = trio.Event()
        self._accepting = False
        self._closed = False

    def ring(self, call: _Dialing) -> None:
        """Somebody dials."""
        self._calls.append(call)
        self._rung.set()

    @property
    def num_rejected(self) -> int:
        return self._num_rejected

    async def accept_visitor(self) -> Visitor:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._accepting:
            raise trio.BusyResourceError("another task is accepting already")
        self._accepting = True
        try:
            while True:
                if self._closed:
                    raise trio.ClosedResourceError("this listener was closed")
                while self._calls:
                    call = self._calls.popleft()
                    if not call.gone and self._trusts(call):
                        await trio.lowlevel.cancel_shielded_checkpoint()
                        return MemoryVisitor(self._network, call, self._max_message_bytes)
                self._rung = trio.Event()
                await self._rung.wait()
        finally:
            self._accepting = False

    def _trusts(self, call: _Dialing) -> bool:
        try:
            key = find_key(self._keys, call.key_id)
        except BaseException:
            call.end()
            raise
        if key is not None and hmac.compare_digest(key, call.key):
            return True
        self._num_rejected += 1
        call.end(AuthenticationError(f"the listener at {self.address} does not have the same key"))
        return False

    def adopt(self, connection: socket.socket) -> None:
        connection.close()
        raise RuntimeError(f"{self.address} has no sockets")

    def restore(self) -> None:
        """It has no file."""

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.forget(self._name)
        for call in self._calls:
            call.end()
        self._calls.clear()
        self._rung.set()


class MemoryVisitor(Visitor):
    """See `Visitor`."""

    def __init__(self, network: MemoryNetwork, call: _Dialing, max_message_bytes: int) -> None:
        self.key_id = call.key_id
        self.route = call.route
        self.peer_host = ""
        self.encrypted = call.encrypt
        self._network = network
        self._call: _Dialing | None = call
        self._max_message_bytes = max_message_bytes

    def open(self) -> Channel:
        call = self._decide()
        link = self._network.new_link(call.max_message_bytes, self._max_message_bytes, call.shared_bytes)
        if call.gone:
            link.dialer.close()
        else:
            call.end(link.dialer)
        return link.acceptor

    def refuse(self, reason: str) -> None:
        self._decide().end(DialRefused(errno.ECONNREFUSED, cut_reason(reason)))

    def hand_over(self) -> tuple[socket.socket, Admission]:
        raise RuntimeError("a visitor of memory:// has no socket")

    def _decide(self) -> _Dialing:
        if self._call is None:
            raise trio.ClosedResourceError("it has been decided what becomes of this visitor")
        call, self._call = self._call, None
        return call

    def close(self) -> None:
        if self._call is not None:
            self._decide().end()
