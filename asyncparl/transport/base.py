"""What every transport promises: ordered, message-preserving connections between two processes.

A `Channel` joins exactly two peers and moves bytes; it knows nothing of what they mean. A `Listener` gives one
channel for every peer that dials its address; before that it is a `Visitor`, who may still be turned away. The promises
below are checked by `conformance/`.

What travels is a prefix: the receiver gets the messages in the order in which they were sent, without a gap and
without a duplicate, until the connection ends. It does not necessarily get the last ones. A sender that must know
that everything arrived asks for an answer before it closes.

Errors, on any method of a channel, listener or visitor:

| raised                      | means                                                             |
|-----------------------------|-------------------------------------------------------------------|
| `trio.ClosedResourceError`  | this side closed it                                               |
| `trio.BrokenResourceError`  | the peer is gone; it will never come back on this channel         |
| `trio.WouldBlock`           | `*_nowait` only: the queue is full, or no message is there         |
| `trio.BusyResourceError`    | two tasks wait to receive, or to accept, at once                  |
| `asyncparl.MessageTooLarge` | the message exceeds the limit of the channel; nothing was sent    |
| `RuntimeError`              | it was opened by the process that this one was forked from        |
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

import trio

from asyncparl.transport.credentials import Admission

if TYPE_CHECKING:
    from asyncparl.transport.arena import Arena

DEFAULT_MAX_MESSAGE_BYTES = 1 << 30
DEFAULT_TIMEOUT_S = 5.0

Part: TypeAlias = bytes | bytearray | memoryview

Place: TypeAlias = Callable[[memoryview, int], memoryview | None]
"""Gives memory for a large message, by its beginning and its size; None: anywhere."""


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """What has passed through one channel so far; a message counts as sent once the queue has taken it."""

    num_sent: int
    sent_bytes: int
    num_received: int
    received_bytes: int


class Channel(ABC):
    """One connection to exactly one peer.

    All methods belong to the event loop's thread, except `send_nowait`, which any thread may call.
    """

    max_message_bytes: int
    """The largest message that may be sent: the smaller one of both sides' limits."""

    arena: Arena | None = None
    """Memory that the peer sees as well, if it could map it, which it has to say. Closed together with the channel."""

    place: Place | None = None
    """Asked for memory for a large message, so that it need not be copied to where it belongs. `receive` gives that
    memory. Not every transport asks, nor for each message."""

    @abstractmethod
    def send_nowait(self, parts: Sequence[Part], *, unchanging: bool = False) -> None:
        """Send one message, the concatenation of `parts`, if the queue has room. Thread-safe.

        The parts are copied before this returns; the caller may change them afterwards. If he never will
        (`unchanging`), the channel may hold on to them instead. Parts may be empty, and may be any C-contiguous
        buffers. Success means that the message is queued, not that it arrived.

        Raises:
            trio.WouldBlock: the queue is full.
            trio.ClosedResourceError: this side closed the channel.
            trio.BrokenResourceError: the peer is gone.
            MessageTooLarge: the message exceeds `max_message_bytes`.
        """

    def make_room(self) -> bool:
        """Send what is still kept of earlier messages; False if `send_nowait` would certainly raise `trio.WouldBlock`.

        True promises nothing. Never blocks. Thread-safe. Raises as `send_nowait` where the channel has ended.
        """
        return True

    @abstractmethod
    async def wait_sendable(self) -> None:
        """Wait until `send_nowait` has a chance to succeed; another sender may still be faster.

        Any number of tasks may wait. Closing the channel, and the loss of the peer, wake all of them with the
        same errors as `send_nowait`.
        """

    async def send(self, parts: Sequence[Part]) -> None:
        """Send one message, waiting for room in the queue if necessary. Same errors as `send_nowait`.

        Messages of one task keep their order. Between tasks that wait at the same time no order is promised.

        Cancellation:
            A cancelled send has sent nothing.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                self.send_nowait(parts)
            except trio.WouldBlock:
                await self.wait_sendable()
            else:
                break
        await trio.lowlevel.cancel_shielded_checkpoint()

    @abstractmethod
    def receive_nowait(self) -> memoryview:
        """Take the next message if one has arrived.

        The view is writable and one-dimensional, of format `B`. It owns its memory, which stays valid as long as
        the view, or anything made from it, lives: also after the channel is closed.

        Raises:
            trio.WouldBlock: no message is there.
            trio.ClosedResourceError: this side closed the channel; what had arrived is discarded.
            trio.BrokenResourceError: the peer is gone, and every message that arrived before has been taken.
        """

    @abstractmethod
    async def receive(self) -> memoryview:
        """Wait for the next message; otherwise as `receive_nowait`. One task at a time.

        Cancellation:
            A cancelled receive has taken nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection. Never blocks, may be called twice, wakes every task that waits on this channel.

        What has been sent has a moment to leave, in the background. There is no promise that it arrives, least of
        all where the queue was full: to be sure, say goodbye and wait for the answer before closing.
        """

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether this side has closed the channel. The loss of the peer does not count."""

    @abstractmethod
    def statistics(self) -> ChannelStatistics:
        """What has passed so far. Also after the channel has been closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Visitor(ABC):
    """A peer that has proved itself, and waits to be told whether it may come in.

    Decided once, by `open`, `refuse`, `hand_over` or `close`; anything after that raises `trio.ClosedResourceError`,
    except `close`. It does not need its listener any more. That the peer has gone meanwhile is no error here: it shows
    on the channel.
    """

    key_id: str
    """Whose key it has; "" at a listener without keys."""
    route: str
    """What it asked for when it dialed. Said by the peer, and at most 256 bytes."""
    peer_host: str
    """The IP address, in numbers, that its connection comes from; that of the relay where it was adopted; else ""."""
    encrypted: bool
    """Whether the channel will be encrypted, as the dialer decides."""

    @abstractmethod
    def open(self) -> Channel:
        """Tell the peer to come in. The channel may be used at once.

        Raises:
            OSError: the process has too many files open. The peer has been hung up on.
        """

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """Tell the peer why not, in 200 bytes, and hang up: `dial` raises `DialRefused`."""

    @abstractmethod
    def hand_over(self) -> tuple[socket.socket, Admission]:
        """Tell the peer to come in, and give its connection away, to be opened elsewhere by `open_admitted`.

        The connection may stall for as long as it likes: nothing here or in the system ends it for that.

        Raises:
            RuntimeError: it has no socket (`memory`).
        """

    @abstractmethod
    def close(self) -> None:
        """Hang up without a word, if nothing has been decided. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Listener(ABC):
    """A place where peers can dial in; each of them becomes a channel of its own."""

    address: str
    """What dialers need. Where a part of it was chosen, such as a port, this is the chosen one."""

    @property
    @abstractmethod
    def num_rejected(self) -> int:
        """How many peers spoke our protocol, and then did not prove that they have a key."""

    @abstractmethod
    async def accept_visitor(self) -> Visitor:
        """Wait for the next peer that proves itself. One task at a time.

        Peers are answered only while a task waits here: nothing happens in the background.

        Cancellation:
            A cancelled call has taken no peer; whoever was dialing is served by the next call.

        Raises:
            trio.ClosedResourceError: the listener was closed, before or while waiting.
            OSError: the process has too many files open. A later call may succeed; repeating it at once is no use.
        """

    async def accept(self) -> Channel:
        """Wait for the next peer and let it in. As `accept_visitor`, also in its errors.

        The channel may be used at once. Its peer may go before its first message; that is reported as any loss.
        """
        return (await self.accept_visitor()).open()

    @abstractmethod
    def adopt(self, connection: socket.socket) -> None:
        """Treat a connection, of `open_tunnel`, as one that somebody has dialed. Takes ownership of it.

        Raises:
            trio.ClosedResourceError: the listener was closed; so is the connection now.
            RuntimeError: this listener has no sockets (`memory`).
        """

    @abstractmethod
    def restore(self) -> None:
        """If somebody has removed the file of an `ipc` address, even with its folder: listen there again.

        Raises:
            OSError: that cannot be done.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop listening, and free the address. Never blocks, may be called twice.

        Accepted channels and visitors live on.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
