"""What happens at the end of a channel, on both sides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio
import trio.testing

from asyncparl.transport.conformance.harness import (
    Transport,
    channels,
    drain,
    expect,
    expect_error,
    expect_error_later,
    fill,
    keep_sending,
    wait_until_lost,
)


async def check_the_loss_wakes_a_waiting_receiver(transport: Transport) -> None:
    for closing_side in (0, 1):
        async with channels(transport) as pair, trio.open_nursery() as nursery:
            survivor = pair[1 - closing_side]
            nursery.start_soon(expect_error_later, trio.BrokenResourceError, survivor.receive)
            await trio.testing.wait_all_tasks_blocked(0.01)
            pair[closing_side].close()


async def check_the_loss_wakes_every_waiting_sender(transport: Transport) -> None:
    async with channels(transport) as (a, b):
        await fill(a, bytes(64 * 1024))
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(expect_error_later, trio.BrokenResourceError, partial(keep_sending, a))
            await trio.testing.wait_all_tasks_blocked(0.01)
            b.close()


async def check_the_loss_is_final(transport: Transport) -> None:
    async with channels(transport) as (a, b):
        a.close()
        await expect_error_later(trio.BrokenResourceError, b.receive)
        for _ in range(2):
            expect_error(trio.BrokenResourceError, b.receive_nowait)
            expect_error(trio.BrokenResourceError, lambda: b.send_nowait([b"x"]))
            await expect_error_later(trio.BrokenResourceError, b.receive)
            await expect_error_later(trio.BrokenResourceError, b.wait_sendable)
            await expect_error_later(trio.BrokenResourceError, lambda: b.send([b"x"]))
        expect(not b.closed, "losing the peer is not closing")
        b.close()
        expect_error(trio.ClosedResourceError, b.receive_nowait)


async def check_what_arrived_is_delivered_before_the_loss(transport: Transport) -> None:
    sent = [bytes([number]) * 100 for number in range(20)]
    for pause_s in (0.01, 0.1, 0.5, 2.0):  # the time that delivery takes is not promised
        async with channels(transport) as (a, b):
            for message in sent:
                a.send_nowait([message])
            await trio.sleep(pause_s)
            a.close()
            await wait_until_lost(b)
            received = await drain(b)
        expect(received == sent[: len(received)], "what is delivered is a prefix of what was sent")
        if received == sent:
            return
    raise AssertionError("messages that have arrived are delivered")


async def check_a_sudden_end_leaves_a_prefix(transport: Transport) -> None:
    sent = [number.to_bytes(4) for number in range(1000)]
    for _ in range(5):
        async with channels(transport) as (a, b):
            num_sent = 0
            try:
                for message in sent:
                    a.send_nowait([message])
                    num_sent += 1
            except trio.WouldBlock:
                pass
            a.close()
            received = await drain(b)
            expect(received == sent[: len(received)], "what is delivered is a prefix of what was sent")
            expect(len(received) <= num_sent, "nothing is delivered that was not sent")


async def check_closing_wakes_ones_own_tasks(transport: Transport) -> None:
    async with channels(transport) as (a, _b):
        await fill(a, bytes(64 * 1024))
        calls: Sequence[Callable[[], Awaitable[object]]] = (a.receive, *[partial(keep_sending, a)] * 3)
        async with trio.open_nursery() as nursery:
            for call in calls:
                nursery.start_soon(expect_error_later, trio.ClosedResourceError, call)
            await trio.testing.wait_all_tasks_blocked(0.01)
            a.close()


async def check_a_closed_channel_stays_closed(transport: Transport) -> None:
    async with channels(transport) as (a, b):
        await b.send([b"never read"])
        a.close()
        a.close()
        expect(a.closed, "a closed channel says so")
        for _ in range(2):
            expect_error(trio.ClosedResourceError, a.receive_nowait)
            expect_error(trio.ClosedResourceError, lambda: a.send_nowait([b"x"]))
            await expect_error_later(trio.ClosedResourceError, a.receive)
            await expect_error_later(trio.ClosedResourceError, a.wait_sendable)
