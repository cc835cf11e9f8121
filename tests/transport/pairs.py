"""Both ends of a new channel, with the keys of `members.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from asyncparl.transport import Channel, Listener, dial, listen
from tests.transport.addresses import FRESH_ADDRESS
from tests.transport.members import MEMBER, keys


@asynccontextmanager
async def member_listener(scheme: str = "tcp") -> AsyncIterator[Listener]:
    with trio.fail_after(60), listen(FRESH_ADDRESS[scheme](), keys=keys) as listener:
        yield listener


async def join(
    listener: Listener, dialing: Callable[[], Awaitable[Channel]] | None = None, *, encrypt: bool = True
) -> tuple[Channel, Channel]:
    """A new channel of the listener, as seen by the dialer and by the acceptor."""
    accepted: list[Channel] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        if dialing is None:
            dialed = await dial(listener.address, credentials=MEMBER, encrypt=encrypt)
        else:
            dialed = await dialing()
    return dialed, accepted[0]


async def expect_joined(a: Channel, b: Channel) -> None:
    """What either sends reaches the other."""
    for sender, receiver in ((a, b), (b, a)):
        await sender.send([b"x" * 20])
        assert bytes(await receiver.receive()) == b"x" * 20
