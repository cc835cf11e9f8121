"""The knobs of the in-memory transport, under a clock that jumps."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.testing

from asyncparl.errors import AuthenticationError
from asyncparl.transport import DialRefused, dial, listen
from asyncparl.transport.base import Channel
from asyncparl.transport.memory import MemoryNetwork
from asyncparl.transport.memory_link import MemoryLink
from tests.transport.members import MEMBER, WRONG_KEY, keys


async def _link(network: MemoryNetwork) -> MemoryLink:
    links: list[MemoryLink] = []
    configure = network.on_link

    def remember(link: MemoryLink) -> None:
        links.append(link)
        if configure is not None:
            configure(link)

    network.on_link = remember
    with network.listen("here") as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.accept)
            await network.dial("here")
    network.on_link = configure
    return links[0]


def _delays(*delays_s: float) -> Callable[[], float]:
    remaining = iter(delays_s)
    return lambda: next(remaining)


async def _receive_all(channel: Channel) -> list[bytes]:
    messages = []
    try:
        while True:
            messages.append(bytes(await channel.receive()))
    except trio.BrokenResourceError:
        return messages


async def test_a_delayed_message_is_there_when_it_is_due_and_not_before(autojump_clock: trio.testing.MockClock) -> None:
    link = await _link(MemoryNetwork())
    link.delay_s = _delays(5.0)
    link.dialer.send_nowait([b"x"])
    with trio.move_on_after(4.99) as scope:
        await link.acceptor.receive()
    assert scope.cancelled_caught
    with pytest.raises(trio.WouldBlock):
        link.acceptor.receive_nowait()
    start = trio.current_time()
    assert bytes(await link.acceptor.receive()) == b"x"
    assert trio.current_time() - start == pytest.approx(0.01)


async def test_messages_of_one_link_keep_their_order_whatever_their_delays(
    autojump_clock: trio.testing.MockClock,
) -> None:
    link = await _link(MemoryNetwork())
    generator = random.Random(1)
    link.delay_s = lambda: generator.uniform(0, 10)
    for number in range(100):
        link.dialer.send_nowait([bytes([number])])
    assert [(await link.acceptor.receive())[0] for _ in range(100)] == list(range(100))


async def test_links_with_different_delays_overtake_each_other(autojump_clock: trio.testing.MockClock) -> None:
    slow, fast = await _link(MemoryNetwork()), await _link(MemoryNetwork())
    slow.delay_s, fast.delay_s = (lambda: 2.0), (lambda: 1.0)
    arrivals: list[str] = []

    async def receive(link: MemoryLink) -> None:
        arrivals.append(bytes(await link.acceptor.receive()).decode())

    async with trio.open_nursery() as nursery:
        slow.dialer.send_nowait([b"sent first"])
        fast.dialer.send_nowait([b"sent second"])
        nursery.start_soon(receive, slow)
        nursery.start_soon(receive, fast)
    assert arrivals == ["sent second", "sent first"]


async def test_the_queue_is_bounded_and_counts_what_is_under_way(autojump_clock: trio.testing.MockClock) -> None:
    link = await _link(MemoryNetwork(queued_messages=2))
    link.delay_s = lambda: 1.0
    link.dialer.send_nowait([b"1"])
    link.dialer.send_nowait([b"2"])
    with pytest.raises(trio.WouldBlock):
        link.dialer.send_nowait([b"3"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.dialer.send, [b"3"])
        assert [bytes(await link.acceptor.receive()) for _ in range(3)] == [b"1", b"2", b"3"]


async def test_the_end_of_a_channel_is_noticed_after_what_is_under_way(autojump_clock: trio.testing.MockClock) -> None:
    link = await _link(MemoryNetwork())
    link.delay_s = _delays(1.0, 3.0, 0.0, 0.0)
    link.dialer.send_nowait([b"1"])
    link.dialer.send_nowait([b"2"])
    link.dialer.close()
    link.acceptor.send_nowait([b"into the void"])
    start = trio.current_time()
    assert await _receive_all(link.acceptor) == [b"1", b"2"]
    assert trio.current_time() - start == pytest.approx(3.0)


async def test_a_lossy_close_loses_what_is_under_way(autojump_clock: trio.testing.MockClock) -> None:
    def configure(link: MemoryLink) -> None:
        link.lossy_close = True
        link.delay_s = _delays(0.0, 1.0, 0.0)

    link = await _link(MemoryNetwork(on_link=configure))
    link.dialer.send_nowait([b"arrived"])
    link.dialer.send_nowait([b"under way"])
    link.dialer.close()
    assert await _receive_all(link.acceptor) == [b"arrived"]


async def test_a_cut_loses_what_is_under_way_and_both_sides_notice(autojump_clock: trio.testing.MockClock) -> None:
    link = await _link(MemoryNetwork())
    link.dialer.send_nowait([b"arrived"])
    link.delay_s = lambda: 1.0
    link.dialer.send_nowait([b"under way"])
    link.acceptor.send_nowait([b"under way"])
    async with trio.open_nursery() as nursery:

        async def nothing_more() -> None:
            assert await _receive_all(link.dialer) == []

        nursery.start_soon(nothing_more)
        await trio.testing.wait_all_tasks_blocked()
        link.cut()
    assert await _receive_all(link.acceptor) == [b"arrived"]
    for channel in (link.dialer, link.acceptor):
        with pytest.raises(trio.BrokenResourceError):
            channel.send_nowait([b"x"])


async def test_a_cut_leaves_no_gap(autojump_clock: trio.testing.MockClock) -> None:
    link = await _link(MemoryNetwork())
    link.delay_s = _delays(5.0, 1.0)
    link.dialer.send_nowait([b"late"])
    link.dialer.send_nowait([b"behind it"])
    await trio.sleep(2)
    link.cut()
    assert await _receive_all(link.acceptor) == []


@pytest.mark.parametrize("side", ["dialer", "acceptor"])
async def test_only_one_side_notices_a_half_closed_link(side: str, autojump_clock: trio.testing.MockClock) -> None:
    link = await _link(MemoryNetwork(queued_messages=1))
    bereaved, unaware = (link.dialer, link.acceptor) if side == "dialer" else (link.acceptor, link.dialer)
    bereaved.send_nowait([b"still arrives"])
    async with trio.open_nursery() as nursery:
        for call in (bereaved.receive, bereaved.wait_sendable):
            nursery.start_soon(_expect_error, trio.BrokenResourceError, call)
        await trio.testing.wait_all_tasks_blocked()
        link.half_close(bereaved)
    for _ in range(10):
        unaware.send_nowait([b"vanishes"])
    assert bytes(await unaware.receive()) == b"still arrives"
    with trio.move_on_after(1000) as scope:
        await unaware.receive()
    assert scope.cancelled_caught


async def test_nobody_notices_a_dropped_link(autojump_clock: trio.testing.MockClock) -> None:
    link = await _link(MemoryNetwork(queued_messages=1))
    link.drop()
    for channel in (link.dialer, link.acceptor):
        for _ in range(10):
            await channel.send([b"vanishes"])
        with trio.move_on_after(1000) as scope:
            await channel.receive()
        assert scope.cancelled_caught


async def test_a_delay_function_with_a_seed_gives_the_same_times_again(autojump_clock: trio.testing.MockClock) -> None:
    async def arrival_times(seed: int) -> list[float]:
        link = await _link(MemoryNetwork())
        generator = random.Random(seed)
        link.delay_s = lambda: generator.uniform(0, 10)
        start = trio.current_time()
        times = []
        for _ in range(20):
            link.dialer.send_nowait([b"x"])
        for _ in range(20):
            await link.acceptor.receive()
            times.append(round(trio.current_time() - start, 6))
        return times

    assert await arrival_times(1) == await arrival_times(1)
    assert await arrival_times(1) != await arrival_times(2)


async def test_a_dial_times_out_on_the_clock_of_the_program(autojump_clock: trio.testing.MockClock) -> None:
    network = MemoryNetwork()
    with network.listen("here") as listener:
        start = trio.current_time()
        with pytest.raises(TimeoutError):
            await network.dial("here", timeout_s=60)
        assert trio.current_time() - start == pytest.approx(60)
        # Whoever gave up is not answered any more.
        with trio.move_on_after(1) as scope:
            await listener.accept()
        assert scope.cancelled_caught


async def test_keys_routes_and_refusals_need_no_real_time(autojump_clock: trio.testing.MockClock) -> None:
    network = MemoryNetwork()
    with network.listen("here", keys=keys) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                _expect_error, AuthenticationError, partial(network.dial, "here", credentials=WRONG_KEY, timeout_s=60)
            )
            dial_here = partial(network.dial, "here", credentials=MEMBER, route="actor", encrypt=True, timeout_s=9)
            nursery.start_soon(_expect_error, DialRefused, dial_here)
            visitor = await listener.accept_visitor()
            assert (visitor.key_id, visitor.route, visitor.encrypted) == (MEMBER.key_id, "actor", True)
            await trio.sleep(8)
            visitor.refuse("no such actor")
            with trio.move_on_after(1) as scope:
                await listener.accept_visitor()
            assert scope.cancelled_caught
        assert listener.num_rejected == 1


async def test_a_key_ring_that_fails_fails_its_owner_and_the_dialer(autojump_clock: trio.testing.MockClock) -> None:
    def find(key_id: str) -> bytes | None:
        raise KeyError(key_id)

    network = MemoryNetwork()
    with network.listen("here", keys=find) as listener:
        async with trio.open_nursery() as nursery:
            dial_here = partial(network.dial, "here", credentials=MEMBER)
            nursery.start_soon(_expect_error, ConnectionAbortedError, dial_here)
            with pytest.raises(KeyError):
                await listener.accept_visitor()


async def _expect_error(kind: type[Exception], call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(kind):
        await call()


async def test_networks_are_separate_and_names_are_unique() -> None:
    one, other = MemoryNetwork(), MemoryNetwork()
    with one.listen("here"), other.listen("here"), listen("memory://here"):
        with pytest.raises(OSError, match="here") as caught:
            one.listen("here")
        assert caught.value.errno == 98
    one.listen("here").close()  # free again
    with pytest.raises(ConnectionRefusedError):
        await dial("memory://here")


def test_every_trio_run_has_its_own_names() -> None:
    async def leave_a_listener() -> None:
        listen("memory://here")

    trio.run(leave_a_listener)
    trio.run(leave_a_listener)
