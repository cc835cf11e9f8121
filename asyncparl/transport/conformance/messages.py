"""What is sent arrives: whole, once, in order."""

from __future__ import annotations

from array import array
from functools import partial

import trio

from asyncparl.errors import MessageTooLarge
from asyncparl.transport.base import Channel, ChannelStatistics, Part
from asyncparl.transport.conformance.harness import Transport, channels, expect, expect_error, pattern, receive_numbers

_SIZES = (1, 2, 63, 4095, 4096, 8191, 8192, 32767, 32768, 65537, 1 << 20, (5 << 20) + 3)


async def check_messages_keep_their_order_both_ways(transport: Transport) -> None:
    async def send_numbers(channel: Channel) -> None:
        for number in range(500):
            await channel.send([number.to_bytes(4), b"payload"])

    async with channels(transport) as pair, trio.open_nursery() as nursery:
        for channel in pair:
            nursery.start_soon(send_numbers, channel)
            nursery.start_soon(receive_numbers, channel, 500)


async def check_messages_of_any_size_arrive_whole(transport: Transport) -> None:
    async with channels(transport) as (a, b), trio.open_nursery() as nursery:

        async def send_all() -> None:
            for size in _SIZES:
                await a.send([pattern(size)[:size]])

        nursery.start_soon(send_all)
        for size in _SIZES:
            expect(await b.receive() == pattern(size)[:size], f"a message of {size} bytes arrives as it was sent")


async def check_parts_become_one_message(transport: Transport) -> None:
    numbers = array("d", [1.0, 2.0])
    parts: list[Part] = [b"", b"one", bytearray(b"two"), b"", memoryview(b"xthree")[1:], memoryview(numbers), b""]
    async with channels(transport) as (a, b):
        for padding in (b"", bytes(100_000)):  # a transport may treat large messages differently
            await a.send([*parts, padding])
            expected = b"onetwothree" + numbers.tobytes() + padding
            expect(await b.receive() == expected, "a message is the concatenation of its parts")


async def check_an_empty_message_arrives(transport: Transport) -> None:
    async with channels(transport) as (a, b):
        await a.send([])
        await a.send([b"", b""])
        await a.send([b"after"])
        received = [bytes(await b.receive()) for _ in range(3)]
        expect(received == [b"", b"", b"after"], "an empty message is a message")


async def check_parts_may_change_after_sending(transport: Transport) -> None:
    async with channels(transport) as (a, b):
        for size in (100, 100_000):
            part = bytearray(size)
            a.send_nowait([part])
            part[:] = b"\xff" * size
            expect(await b.receive() == bytes(size), "what was sent is a copy")


async def check_received_views_are_writable_and_outlive_the_channel(transport: Transport) -> None:
    views = []
    async with channels(transport) as (a, b):
        for size in (100, 100, 100_000, 100_000, 3 << 20):
            await a.send([pattern(size)[:size]])
            view = await b.receive()
            expect(view.format == "B" and view.ndim == 1 and not view.readonly, "a view is of bytes, and writable")
            views.append((view, pattern(size)[:size]))
    for index, (view, content) in enumerate(views):
        expect(view == content, "a view lives longer than its channel, and shares its memory with no other")
        view[:] = bytes([index]) * len(view)
    del view
    for index, (kept, _) in enumerate(views):
        expect(kept == bytes([index]) * len(kept), "writing to one view changes no other")


async def check_too_large_a_message_fails_at_the_sender(transport: Transport) -> None:
    for limits in ((1000, 5000), (5000, 1000)):
        async with channels(transport, *limits) as (a, b):
            for sender, receiver in ((a, b), (b, a)):
                expect(sender.max_message_bytes == 1000, "the smaller limit counts for both")
                expect_error(MessageTooLarge, partial(sender.send_nowait, [bytes(500), bytes(501)]))
                sender.send_nowait([bytes(1000)])
                expect(len(await receiver.receive()) == 1000, "a message of the largest size still arrives")


async def check_threads_may_send(transport: Transport) -> None:
    num_threads, num_messages = 4, 100

    async with channels(transport) as (a, b):

        def send_some(index: int) -> None:
            for number in range(num_messages):
                while True:
                    try:
                        a.send_nowait([bytes([index, number]), bytes(50_000 if number % 10 == 0 else 10)])
                        break
                    except trio.WouldBlock:
                        trio.from_thread.run(a.wait_sendable)

        async with trio.open_nursery() as nursery:
            for index in range(num_threads):
                nursery.start_soon(trio.to_thread.run_sync, send_some, index)
            seen: list[list[int]] = [[] for _ in range(num_threads)]
            for _ in range(num_threads * num_messages):
                message = await b.receive()
                seen[message[0]].append(message[1])
        expect(seen == [list(range(num_messages))] * num_threads, "each thread's messages arrive once, in order")
        expect(a.statistics().num_sent == num_threads * num_messages, "every message of every thread is counted")


async def check_statistics_count_messages_and_bytes(transport: Transport) -> None:
    async with channels(transport) as (a, b):
        await a.send([bytes(10), bytes(20)])
        await a.send([bytes(50_000)])
        await b.receive()
        await b.receive()
        await b.send([bytes(7)])
        await a.receive()
    expect(a.statistics() == ChannelStatistics(2, 50_030, 1, 7), "the sender's statistics are right")
    expect(b.statistics() == ChannelStatistics(1, 7, 2, 50_030), "the receiver's statistics are right")
