"""What listeners promise, and what dialing does."""

from __future__ import annotations

import trio
import trio.testing

from asyncparl.transport.base import Channel
from asyncparl.transport.conformance.harness import (
    CHECK_TIMEOUT_S,
    Transport,
    connect,
    expect,
    expect_error_later,
)


async def check_one_listener_has_many_channels(transport: Transport) -> None:
    with transport.listen(1000) as listener:
        pairs = [await connect(transport, listener, 1000) for _ in range(30)]
        for number, (dialed, _) in enumerate(pairs):
            dialed.send_nowait([bytes([number])])
        for number, (dialed, accepted) in enumerate(pairs):
            expect(await accepted.receive() == bytes([number]), "every channel has a peer of its own")
            await accepted.send([bytes([number, number])])
            expect(await dialed.receive() == bytes([number, number]), "every channel has a peer of its own")
        pairs[0][0].close()
        await expect_error_later(trio.BrokenResourceError, pairs[0][1].receive)
        await pairs[1][0].send([b"alive"])
        expect(bytes(await pairs[1][1].receive()) == b"alive", "the end of one channel is not the end of another")
        for dialed, accepted in pairs:
            dialed.close()
            accepted.close()


async def check_many_may_dial_at_once(transport: Transport) -> None:
    async def dial_and_greet(number: int, channels: list[Channel]) -> None:
        channel = await transport.dial(listener.address, 1000, CHECK_TIMEOUT_S)
        channels.append(channel)
        await channel.send([bytes([number])])

    dialed: list[Channel] = []
    accepted: list[Channel] = []
    with transport.listen(1000) as listener:
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(dial_and_greet, number, dialed)
            accepted += [await listener.accept() for _ in range(30)]
        numbers = {(await channel.receive())[0] for channel in accepted}
        expect(numbers == set(range(30)), "nobody who dials is forgotten")
        for channel in (*dialed, *accepted):
            channel.close()


async def check_a_cancelled_accept_takes_nobody(transport: Transport) -> None:
    with transport.listen(1000) as listener:
        with trio.move_on_after(0.01):
            await listener.accept()
        dialed, accepted = await connect(transport, listener, 1000)
        with dialed, accepted:
            await dialed.send([b"x"])
            expect(bytes(await accepted.receive()) == b"x", "the next accept gets the next peer")


async def check_closing_a_listener_spares_its_channels(transport: Transport) -> None:
    listener = transport.listen(1000)
    dialed, accepted = await connect(transport, listener, 1000)
    with dialed, accepted:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_error_later, trio.ClosedResourceError, listener.accept)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await expect_error_later(trio.BusyResourceError, listener.accept)
            listener.close()
        listener.close()
        await expect_error_later(trio.ClosedResourceError, listener.accept)
        await dialed.send([b"x"])
        expect(bytes(await accepted.receive()) == b"x", "an accepted channel lives longer than its listener")


async def check_dialing_nobody_fails(transport: Transport) -> None:
    listener = transport.listen(1000)
    listener.close()
    with trio.fail_after(5):
        await expect_error_later(OSError, lambda: transport.dial(listener.address, 1000, 1.0))


async def check_dialing_a_listener_that_does_not_accept_fails_in_time(transport: Transport) -> None:
    with transport.listen(1000) as listener, trio.fail_after(5):
        await expect_error_later(TimeoutError, lambda: transport.dial(listener.address, 1000, 0.05))


async def check_a_listener_that_closes_fails_those_who_dial(transport: Transport) -> None:
    listener = transport.listen(1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            expect_error_later, ConnectionError, lambda: transport.dial(listener.address, 1000, CHECK_TIMEOUT_S)
        )
        await trio.testing.wait_all_tasks_blocked(0.01)
        listener.close()
