"""What stands between a dialer and a listener: relays that copy, record or change bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from asyncparl.transport.addresses import TcpAddress
from tests.transport.greetings import open_stream

Bend = Callable[[bytes], bytes]


@asynccontextmanager
async def serving(serve: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """The address of something that is no listener of ours; ends with the block."""

    async def serve_until_it_breaks(stream: trio.SocketStream) -> None:
        try:
            await serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve_until_it_breaks, 0)
        with trio.fail_after(60):
            yield str(TcpAddress("127.0.0.1", listeners[0].socket.getsockname()[1]))
        nursery.cancel_scope.cancel()


async def copy_both_ways(
    a: trio.abc.Stream, b: trio.abc.Stream, bend: Bend = lambda data: data, bend_back: Bend = lambda data: data
) -> None:
    """Until either side ends. `bend` sees, and may change, what a sends."""

    async def copy(source: trio.abc.Stream, sink: trio.abc.Stream, bend: Bend) -> None:
        try:
            while data := await source.receive_some(64 * 1024):
                await sink.send_all(bend(data))
        except trio.BrokenResourceError:
            pass
        nursery.cancel_scope.cancel()

    async with a, b, trio.open_nursery() as nursery:
        nursery.start_soon(copy, a, b, bend)
        nursery.start_soon(copy, b, a, bend_back)


@asynccontextmanager
async def relay(
    address: str, bend: Bend = lambda data: data, bend_back: Bend = lambda data: data
) -> AsyncIterator[str]:
    """Another address of the same listener."""

    async def serve(stream: trio.SocketStream) -> None:
        await copy_both_ways(stream, await open_stream(address), bend, bend_back)

    async with serving(serve) as address_of_relay:
        yield address_of_relay
