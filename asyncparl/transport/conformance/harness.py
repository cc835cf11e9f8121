"""What the checks are run against, and what they have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import trio
import trio.testing

from asyncparl.transport.base import DEFAULT_MAX_MESSAGE_BYTES, Channel, Listener

CHECK_TIMEOUT_S = 30.0
STUCK_AFTER_S = 0.1  # a sender that has not found room for so long is taken to be blocked


class Dial(Protocol):
    """Connects to `Listener.address`."""

    def __call__(
        self, address: str, max_message_bytes: int, timeout_s: float, *, route: str = "", shared_bytes: int = 0
    ) -> Awaitable[Channel]: ...


@dataclass(frozen=True, slots=True)
class Transport:
    """What is checked.

    Attributes:
        listen: starts a listener at a fresh address, given the message limit.
        dial: connects to it, with a key that it knows if it asks for one.
        key_id: whose key that is; "" without one.
        outsiders: dial without a key that the listener knows, each in a way of its own.
        shares: whether channels have an arena if the dialer wants one.
    """

    listen: Callable[[int], Listener]
    dial: Dial
    key_id: str = ""
    outsiders: Sequence[Dial] = ()
    shares: bool = False


def expect(truth: object, promise: str) -> None:
    if not truth:
        raise AssertionError(promise)


def expect_error(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


async def expect_error_later(kind: type[Exception], call: Callable[[], Awaitable[object]]) -> None:
    try:
        await call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


async def connect(
    transport: Transport, listener: Listener, limit: int, shared_bytes: int = 0
) -> tuple[Channel, Channel]:
    """A new channel of the listener, as seen by the dialer and by the acceptor."""
    accepted: list[Channel] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        dialed = await transport.dial(listener.address, limit, CHECK_TIMEOUT_S, shared_bytes=shared_bytes)
    return dialed, accepted[0]


@asynccontextmanager
async def channels(
    transport: Transport, dialer_limit: int = DEFAULT_MAX_MESSAGE_BYTES, acceptor_limit: int = DEFAULT_MAX_MESSAGE_BYTES
) -> AsyncIterator[tuple[Channel, Channel]]:
    with transport.listen(acceptor_limit) as listener:
        dialed, accepted = await connect(transport, listener, dialer_limit)
        with dialed, accepted:
            yield dialed, accepted


def pattern(size: int) -> bytes:
    return bytes((size + i) % 251 for i in range(min(size, 509))) * (size // 509 + 1)


async def fill(channel: Channel, message: bytes) -> int:
    """Send until the channel stays full. Returns how many were sent."""
    num_sent = 0
    while True:
        try:
            while True:
                channel.send_nowait([message])
                num_sent += 1
        except trio.WouldBlock:
            with trio.move_on_after(STUCK_AFTER_S) as scope:
                await channel.wait_sendable()
            if scope.cancelled_caught:
                return num_sent


async def keep_sending(channel: Channel) -> None:
    """Send and wait for room in turn, until an error ends it."""
    while True:
        try:
            channel.send_nowait([bytes(64 * 1024)])
        except trio.WouldBlock:
            await channel.wait_sendable()


async def receive_numbers(channel: Channel, count: int) -> None:
    for expected in range(count):
        message = await channel.receive()
        expect(int.from_bytes(message[:4]) == expected, f"message {expected} is the next one")


async def drain(channel: Channel) -> list[bytes]:
    """Everything that is still delivered after the loss of the peer."""
    messages = []
    try:
        while True:
            messages.append(bytes(await channel.receive()))
    except trio.BrokenResourceError:
        return messages


async def wait_until_lost(channel: Channel) -> None:
    try:
        while True:
            channel.send_nowait([b"?"])
            await trio.sleep(0.001)
    except trio.BrokenResourceError:
        pass
