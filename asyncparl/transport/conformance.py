"""What every transport must do, as checks that can be run against any of them.

`check_transport(Transport(listen, dial))` runs all of them; a test suite rather has one test for each of `CHECKS`.
A check raises AssertionError where a promise of `base.py` is broken, and ends within `CHECK_TIMEOUT_S`. The checks need
real time: some of them use threads.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import trio
import trio.testing

from asyncparl.errors import MessageTooLarge
from asyncparl.transport.base import DEFAULT_MAX_MESSAGE_BYTES, Channel, ChannelStatistics, Listener

CHECK_TIMEOUT_S = 30.0
STUCK_AFTER_S = 0.1  # a sender that has not found room for so long is taken to be blocked

_SIZES = (1, 2, 63, 4095, 4096, 8191, 8192, 32767, 32768, 65537, 1 << 20, (5 << 20) + 3)


@dataclass(frozen=True, slots=True)
class Transport:
    """What is checked.

    Attributes:
        listen: starts a listener at a fresh address, given the message limit.
        dial: connects to `Listener.address`, given the address, the message limit and the time limit in seconds.
    """

    listen: Callable[[int], Listener]
    dial: Callable[[str, int, float], Awaitable[Channel]]


Check: TypeAlias = Callable[[Transport], Awaitable[None]]


async def check_transport(transport: Transport) -> None:
    """Run every check, one after the other."""
    for check in CHECKS:
        await run_check(check, transport)


async def run_check(check: Check, transport: Transport) -> None:
    """Run one of `CHECKS`; `trio.TooSlowError` if it does not end in time."""
    with trio.fail_after(CHECK_TIMEOUT_S):
        await check(transport)


# Helpers


def _expect(truth: object, promise: str) -> None:
    if not truth:
        raise AssertionError(promise)


def _expect_error(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


async def _expect_error_later(kind: type[Exception], call: Callable[[], Awaitable[object]]) -> None:
    try:
        await call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


async def _connect(transport: Transport, listener: Listener, limit: int) -> tuple[Channel, Channel]:
    """A new channel of the listener, as seen by the dialer and by the acceptor."""
    accepted: list[Channel] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        dialed = await transport.dial(listener.address, limit, CHECK_TIMEOUT_S)
    return dialed, accepted[0]


@asynccontextmanager
async def _channels(
    transport: Transport, dialer_limit: int = DEFAULT_MAX_MESSAGE_BYTES, acceptor_limit: int = DEFAULT_MAX_MESSAGE_BYTES
) -> AsyncIterator[tuple[Channel, Channel]]:
    with transport.listen(acceptor_limit) as listener:
        dialed, accepted = await _connect(transport, listener, dialer_limit)
        with dialed, accepted:
            yield dialed, accepted


def _pattern(size: int) -> bytes:
    return bytes((size + i) % 251 for i in range(min(size, 509))) * (size // 509 + 1)


async def _fill(channel: Channel, message: bytes) -> int:
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


async def _receive_numbers(channel: Channel, count: int) -> None:
    for expected in range(count):
        message = await channel.receive()
        _expect(int.from_bytes(message[:4]) == expected, f"message {expected} is the next one")


async def _drain(channel: Channel) -> list[bytes]:
    """Everything that is still delivered after the loss of the peer."""
    messages = []
    try:
        while True:
            messages.append(bytes(await channel.receive()))
    except trio.BrokenResourceError:
        return messages


async def _wait_until_lost(channel: Channel) -> None:
    try:
        while True:
            channel.send_nowait([b"?"])
            await trio.sleep(0.001)
    except trio.BrokenResourceError:
        pass


# Messages


async def check_messages_keep_their_order_both_ways(transport: Transport) -> None:
    async def send_numbers(channel: Channel) -> None:
        for number in range(500):
            await channel.send([number.to_bytes(4), b"payload"])

    async with _channels(transport) as channels, trio.open_nursery() as nursery:
        for channel in channels:
            nursery.start_soon(send_numbers, channel)
            nursery.start_soon(_receive_numbers, channel, 500)


async def check_messages_of_any_size_arrive_whole(transport: Transport) -> None:
    async with _channels(transport) as (a, b), trio.open_nursery() as nursery:

        async def send_all() -> None:
            for size in _SIZES:
                await a.send([_pattern(size)[:size]])

        nursery.start_soon(send_all)
        for size in _SIZES:
            _expect(await b.receive() == _pattern(size)[:size], f"a message of {size} bytes arrives as it was sent")


async def check_parts_become_one_message(transport: Transport) -> None:
    numbers = array("d", [1.0, 2.0])
    parts = [b"", b"one", bytearray(b"two"), b"", memoryview(b"xthree")[1:], memoryview(numbers), b""]
    async with _channels(transport) as (a, b):
        for padding in (b"", bytes(100_000)):  # a transport may treat large messages differently
            await a.send([*parts, padding])
            expected = b"onetwothree" + numbers.tobytes() + padding
            _expect(await b.receive() == expected, "a message is the concatenation of its parts")


async def check_an_empty_message_arrives(transport: Transport) -> None:
    async with _channels(transport) as (a, b):
        await a.send([])
        await a.send([b"", b""])
        await a.send([b"after"])
        received = [bytes(await b.receive()) for _ in range(3)]
        _expect(received == [b"", b"", b"after"], "an empty message is a message")


async def check_parts_may_change_after_sending(transport: Transport) -> None:
    async with _channels(transport) as (a, b):
        for size in (100, 100_000):
            part = bytearray(size)
            a.send_nowait([part])
            part[:] = b"\xff" * size
            _expect(await b.receive() == bytes(size), "what was sent is a copy")


async def check_received_views_are_writable_and_outlive_the_channel(transport: Transport) -> None:
    views = []
    async with _channels(transport) as (a, b):
        for size in (100, 100, 100_000, 100_000, 3 << 20):
            await a.send([_pattern(size)[:size]])
            view = await b.receive()
            _expect(view.format == "B" and view.ndim == 1 and not view.readonly, "a view is of bytes, and writable")
            views.append((view, _pattern(size)[:size]))
    for index, (view, content) in enumerate(views):
        _expect(view == content, "a view lives longer than its channel, and shares its memory with no other")
        view[:] = bytes([index]) * len(view)
    del view
    for index, (kept, _) in enumerate(views):
        _expect(kept == bytes([index]) * len(kept), "writing to one view changes no other")


async def check_too_large_a_message_fails_at_the_sender(transport: Transport) -> None:
    for limits in ((1000, 5000), (5000, 1000)):
        async with _channels(transport, *limits) as (a, b):
            for sender, receiver in ((a, b), (b, a)):
                _expect(sender.max_message_bytes == 1000, "the smaller limit counts for both")
                _expect_error(MessageTooLarge, lambda sender=sender: sender.send_nowait([bytes(500), bytes(501)]))
                sender.send_nowait([bytes(1000)])
                _expect(len(await receiver.receive()) == 1000, "a message of the largest size still arrives")


async def check_threads_may_send(transport: Transport) -> None:
    num_threads, num_messages = 4, 100

    async with _channels(transport) as (a, b):

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
        _expect(seen == [list(range(num_messages))] * num_threads, "each thread's messages arrive once, in order")
        _expect(a.statistics().num_sent == num_threads * num_messages, "every message of every thread is counted")


async def check_statistics_count_messages_and_bytes(transport: Transport) -> None:
    async with _channels(transport) as (a, b):
        await a.send([bytes(10), bytes(20)])
        await a.send([bytes(50_000)])
        await b.receive()
        await b.receive()
        await b.send([bytes(7)])
        await a.receive()
    _expect(a.statistics() == ChannelStatistics(2, 50_030, 1, 7), "the sender's statistics are right")
    _expect(b.statistics() == ChannelStatistics(1, 7, 2, 50_030), "the receiver's statistics are right")


# Waiting


async def check_nothing_to_receive_would_block(transport: Transport) -> None:
    async with _channels(transport) as (a, b):
        _expect_error(trio.WouldBlock, b.receive_nowait)
        await a.send([b"x"])
        _expect(await b.receive() == b"x", "the message arrives")
        _expect_error(trio.WouldBlock, b.receive_nowait)


async def check_a_full_queue_makes_senders_wait_and_loses_nothing(transport: Transport) -> None:
    async with _channels(transport) as (a, b):
        num_sent = await _fill(a, bytes(64 * 1024))
        _expect_error(trio.WouldBlock, lambda: a.send_nowait([bytes(64 * 1024)]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.send, [b"last one"])
            for _ in range(num_sent):
                _expect(len(await b.receive()) == 64 * 1024, "what was accepted arrives first")
            _expect(await b.receive() == b"last one", "the sender that waited has sent")
        a.send_nowait([b"room again"])
        _expect(await b.receive() == b"room again", "the channel works on")


async def check_a_cancelled_send_has_sent_nothing(transport: Transport) -> None:
    async with _channels(transport) as (a, b):
        num_sent = await _fill(a, bytes(64 * 1024))
        with trio.move_on_after(0.01):
            await a.send([b"never"])
        for _ in range(num_sent):
            await b.receive()
        await a.send([b"next"])
        _expect(await b.receive() == b"next", "a cancelled send leaves no trace")


async def check_a_cancelled_receive_loses_nothing(transport: Transport) -> None:
    async with _channels(transport) as (a, b), trio.open_nursery() as nursery:

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
                _expect(int.from_bytes(message) == expected, f"message {expected} is not lost")
                expected += 1
            num_cancelled += scope.cancelled_caught
        _expect(num_cancelled > 0, "some were cancelled, or this check shows nothing")


async def check_only_one_task_receives(transport: Transport) -> None:
    async with _channels(transport) as (a, b), trio.open_nursery() as nursery:
        nursery.start_soon(b.receive)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await _expect_error_later(trio.BusyResourceError, b.receive)
        await a.send([b"for the first"])


# Endings


async def check_the_loss_wakes_a_waiting_receiver(transport: Transport) -> None:
    for closing_side in (0, 1):
        async with _channels(transport) as channels, trio.open_nursery() as nursery:
            survivor = channels[1 - closing_side]
            nursery.start_soon(_expect_error_later, trio.BrokenResourceError, survivor.receive)
            await trio.testing.wait_all_tasks_blocked(0.01)
            channels[closing_side].close()


async def check_the_loss_wakes_every_waiting_sender(transport: Transport) -> None:
    async with _channels(transport) as (a, b):
        await _fill(a, bytes(64 * 1024))
        async with trio.open_nursery() as nursery:
            for call in (a.wait_sendable, a.wait_sendable, lambda: a.send([bytes(64 * 1024)])):
                nursery.start_soon(_expect_error_later, trio.BrokenResourceError, call)
            await trio.testing.wait_all_tasks_blocked(0.01)
            b.close()


async def check_the_loss_is_final(transport: Transport) -> None:
    async with _channels(transport) as (a, b):
        a.close()
        await _expect_error_later(trio.BrokenResourceError, b.receive)
        for _ in range(2):
            _expect_error(trio.BrokenResourceError, b.receive_nowait)
            _expect_error(trio.BrokenResourceError, lambda: b.send_nowait([b"x"]))
            await _expect_error_later(trio.BrokenResourceError, b.receive)
            await _expect_error_later(trio.BrokenResourceError, b.wait_sendable)
            await _expect_error_later(trio.BrokenResourceError, lambda: b.send([b"x"]))
        _expect(not b.closed, "losing the peer is not closing")
        b.close()
        _expect_error(trio.ClosedResourceError, b.receive_nowait)


async def check_what_arrived_is_delivered_before_the_loss(transport: Transport) -> None:
    sent = [bytes([number]) * 100 for number in range(20)]
    for pause_s in (0.01, 0.1, 0.5, 2.0):  # the time that delivery takes is not promised
        async with _channels(transport) as (a, b):
            for message in sent:
                a.send_nowait([message])
            await trio.sleep(pause_s)
            a.close()
            await _wait_until_lost(b)
            received = await _drain(b)
        _expect(received == sent[: len(received)], "what is delivered is a prefix of what was sent")
        if received == sent:
            return
    raise AssertionError("messages that have arrived are delivered")


async def check_a_sudden_end_leaves_a_prefix(transport: Transport) -> None:
    sent = [number.to_bytes(4) for number in range(1000)]
    for _ in range(5):
        async with _channels(transport) as (a, b):
            num_sent = 0
            try:
                for message in sent:
                    a.send_nowait([message])
                    num_sent += 1
            except trio.WouldBlock:
                pass
            a.close()
            received = await _drain(b)
            _expect(received == sent[: len(received)], "what is delivered is a prefix of what was sent")
            _expect(len(received) <= num_sent, "nothing is delivered that was not sent")


async def check_closing_wakes_ones_own_tasks(transport: Transport) -> None:
    async with _channels(transport) as (a, _b):
        await _fill(a, bytes(64 * 1024))
        calls: Sequence[Callable[[], Awaitable[object]]] = (a.receive, a.wait_sendable, a.wait_sendable)
        async with trio.open_nursery() as nursery:
            for call in calls:
                nursery.start_soon(_expect_error_later, trio.ClosedResourceError, call)
            await trio.testing.wait_all_tasks_blocked(0.01)
            a.close()


async def check_a_closed_channel_stays_closed(transport: Transport) -> None:
    async with _channels(transport) as (a, b):
        await b.send([b"never read"])
        a.close()
        a.close()
        _expect(a.closed, "a closed channel says so")
        for _ in range(2):
            _expect_error(trio.ClosedResourceError, a.receive_nowait)
            _expect_error(trio.ClosedResourceError, lambda: a.send_nowait([b"x"]))
            await _expect_error_later(trio.ClosedResourceError, a.receive)
            await _expect_error_later(trio.ClosedResourceError, a.wait_sendable)


# Listeners


async def check_one_listener_has_many_channels(transport: Transport) -> None:
    with transport.listen(1000) as listener:
        pairs = [await _connect(transport, listener, 1000) for _ in range(30)]
        for number, (dialed, _) in enumerate(pairs):
            dialed.send_nowait([bytes([number])])
        for number, (dialed, accepted) in enumerate(pairs):
            _expect(await accepted.receive() == bytes([number]), "every channel has a peer of its own")
            await accepted.send([bytes([number, number])])
            _expect(await dialed.receive() == bytes([number, number]), "every channel has a peer of its own")
        pairs[0][0].close()
        await _expect_error_later(trio.BrokenResourceError, pairs[0][1].receive)
        await pairs[1][0].send([b"alive"])
        _expect(await pairs[1][1].receive() == b"alive", "the end of one channel is not the end of another")
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
            for _ in range(30):
                accepted.append(await listener.accept())
        numbers = {(await channel.receive())[0] for channel in accepted}
        _expect(numbers == set(range(30)), "nobody who dials is forgotten")
        for channel in (*dialed, *accepted):
            channel.close()


async def check_a_cancelled_accept_takes_nobody(transport: Transport) -> None:
    with transport.listen(1000) as listener:
        with trio.move_on_after(0.01):
            await listener.accept()
        dialed, accepted = await _connect(transport, listener, 1000)
        with dialed, accepted:
            await dialed.send([b"x"])
            _expect(await accepted.receive() == b"x", "the next accept gets the next peer")


async def check_closing_a_listener_spares_its_channels(transport: Transport) -> None:
    listener = transport.listen(1000)
    dialed, accepted = await _connect(transport, listener, 1000)
    with dialed, accepted:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_error_later, trio.ClosedResourceError, listener.accept)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await _expect_error_later(trio.BusyResourceError, listener.accept)
            listener.close()
        listener.close()
        await _expect_error_later(trio.ClosedResourceError, listener.accept)
        await dialed.send([b"x"])
        _expect(await accepted.receive() == b"x", "an accepted channel lives longer than its listener")


async def check_dialing_nobody_fails(transport: Transport) -> None:
    listener = transport.listen(1000)
    listener.close()
    with trio.fail_after(5):
        await _expect_error_later(OSError, lambda: transport.dial(listener.address, 1000, 1.0))


async def check_dialing_a_listener_that_does_not_accept_fails_in_time(transport: Transport) -> None:
    with transport.listen(1000) as listener, trio.fail_after(5):
        await _expect_error_later(TimeoutError, lambda: transport.dial(listener.address, 1000, 0.05))


async def check_a_listener_that_closes_fails_those_who_dial(transport: Transport) -> None:
    listener = transport.listen(1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            _expect_error_later, ConnectionError, lambda: transport.dial(listener.address, 1000, CHECK_TIMEOUT_S)
        )
        await trio.testing.wait_all_tasks_blocked(0.01)
        listener.close()


CHECKS: tuple[Check, ...] = (
    check_messages_keep_their_order_both_ways,
    check_messages_of_any_size_arrive_whole,
    check_parts_become_one_message,
    check_an_empty_message_arrives,
    check_parts_may_change_after_sending,
    check_received_views_are_writable_and_outlive_the_channel,
    check_too_large_a_message_fails_at_the_sender,
    check_threads_may_send,
    check_statistics_count_messages_and_bytes,
    check_nothing_to_receive_would_block,
    check_a_full_queue_makes_senders_wait_and_loses_nothing,
    check_a_cancelled_send_has_sent_nothing,
    check_a_cancelled_receive_loses_nothing,
    check_only_one_task_receives,
    check_the_loss_wakes_a_waiting_receiver,
    check_the_loss_wakes_every_waiting_sender,
    check_the_loss_is_final,
    check_what_arrived_is_delivered_before_the_loss,
    check_a_sudden_end_leaves_a_prefix,
    check_closing_wakes_ones_own_tasks,
    check_a_closed_channel_stays_closed,
    check_one_listener_has_many_channels,
    check_many_may_dial_at_once,
    check_a_cancelled_accept_takes_nobody,
    check_closing_a_listener_spares_its_channels,
    check_dialing_nobody_fails,
    check_dialing_a_listener_that_does_not_accept_fails_in_time,
    check_a_listener_that_closes_fails_those_who_dial,
)
