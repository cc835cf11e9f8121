"""Other processes for the tests to talk to. Run as a script: `python peers.py BEHAVIOUR ADDRESS [tls]`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from asyncparl.transport import Channel, dial


@asynccontextmanager
async def peer_process(behaviour: str, address: str, *, encrypt: bool = False) -> AsyncIterator[trio.Process]:
    """A process that dials `address`; killed at the end of the block if it still runs."""
    process = await trio.lowlevel.open_process([sys.executable, __file__, behaviour, address, *["tls"] * encrypt])
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()


async def send_and_leave(channel: Channel) -> None:
    """Ends without closing anything."""
    await channel.send([b"hello"])
    await channel.receive()


async def echo(channel: Channel) -> None:
    try:
        while True:
            await channel.send([await channel.receive()])
    except trio.BrokenResourceError:
        channel.close()


async def ignore(channel: Channel) -> None:
    """Receives nothing, so that whoever sends has to wait."""
    await channel.send([b"hello"])
    await trio.sleep_forever()


BEHAVIOURS: dict[str, Callable[[Channel], Awaitable[None]]] = {
    "send_and_leave": send_and_leave,
    "echo": echo,
    "ignore": ignore,
}


async def _main(behaviour: str, address: str, *options: str) -> None:
    await BEHAVIOURS[behaviour](await dial(address, encrypt="tls" in options))


if __name__ == "__main__":
    trio.run(_main, *sys.argv[1:])
