"""What happens when there is nothing to receive, or no room to send."""

from __future__ import annotations

import trio
import trio.testing

from asyncparl.transport.conformance.harness import Transport, channels, expect, expect_error, expect_error_later, fill


async def check_nothing_to_receive_would_block(transport: Transport) -> None:
    async with channels(transport) as (a, b):
        expect_error(trio.WouldBlock, b.receive_nowait)
        await a.send([b"x"])
        expect(bytes(await b.receive()) == b"x", "the message arrives")
        expect_error(trio.WouldBlock, b.receive_nowait)


async def check_a_full_queue_makes_senders_wait_and_loses_nothing(transport: Transport) -> None:
    async with channels(transport) as (a, b):
        num_sent = await fill(a, bytes(64 * 1024))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.send, [b"last one"])
            for _ in range(num_sent):
                expect(len(await b.receive()) == 64 * 1024, "what was accepted arrives first")
            expect(bytes(await b.receive()) == b"last one", "the sender that waited has sent")
        a.send_nowait([b"room again"])
        expect(bytes(await b.receive()) == b"room again", "the channel works on")


async def check_a_cancelled_send_has_sent_nothing(transport: Transport) -> None:
    async with channels(transport) as (a, b):
        num_sent = await fill(a, bytes(64 * 1024))
        cancelled = False
        while not cancelled:  # there may have been room after all
            with trio.move_on_after(0.01) as scope:
                await a.send([bytes(64 * 1024)])
                num_sent += 1
            cancelled = scope.cancelled_caught
        for _ in range(num_sent):
            await b.receive()
        await a.send([b"next"])
        expect(bytes(await b.receive()) == b"next", "a cancelled send leaves no trace")


async def check_a_cancelled_receive_loses_nothing(transport: Transport) -> None:
    async with channels(transport) as (a, b), trio.open_nursery() as nursery:

        async def send_slowly() -> None:
            for number in range(200):
                await a.send([number.to_bytes(4)])
                await trio.sleep(0.0005)

        nursery.start_soon(send_slowly)
        expected = num_rounds = num_cancelled = 0
        while expected < 200:
            num_rounds += 1
            with trio.move_on_after(0.0002 * (num_rounds % 5)) as scope:
                message = await b.receive()
                expect(int.from_bytes(message) == expected, f"message {expected} is not lost")
                expected += 1
            num_cancelled += scope.cancelled_caught
        expect(num_cancelled > 0, "some were cancelled, or this check shows nothing")


async def check_only_one_task_receives(transport: Transport) -> None:
    async with channels(transport) as (a, b), trio.open_nursery() as nursery:
        nursery.start_soon(b.receive)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await expect_error_later(trio.BusyResourceError, b.receive)
        await a.send([b"for the first"])
