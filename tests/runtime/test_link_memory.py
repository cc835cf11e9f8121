"""Two links that share memory over the transport in memory: whatever one side has, or says, of it."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio

from asyncparl.errors import CallFate
from asyncparl.protocol.events import CallArrived
from asyncparl.protocol.frames import Lent, encode_frame
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.messages import (
    PROTOCOL_VERSION,
    Call,
    CallKind,
    GiveBack,
    Hello,
    Message,
    Returned,
    SharesMemory,
)
from asyncparl.protocol.values import decode_value, encode_value
from asyncparl.runtime.call import make_call
from asyncparl.runtime.lending import MIN_LENT_BYTES
from asyncparl.runtime.link import Link
from asyncparl.transport.memory_link import MemoryLink

ROOM = 4 * MIN_LENT_BYTES
LIMIT = 1 << 30


class Echo:
    """Answers with what it is given."""

    def link_opened(self, link: Link) -> None:
        pass

    def call_arrived(self, link: Link, arrived: CallArrived) -> None:
        value = decode_value(arrived.frame.payload, arrived.frame.buffers)
        link.answer_returned(arrived.call.call_id, encode_value(value))

    def cancel_arrived(self, link: Link, call_id: int) -> None:
        link.answer_cancelled(call_id)

    def grant_arrived(self, link: Link, call_id: int) -> None:
        pass

    def running(self, call: Call) -> tuple[str, float]:
        return "", 0.0


@asynccontextmanager
async def joined(cable: MemoryLink) -> AsyncIterator[tuple[Link, Link]]:
    """Both ends, of which the second echoes."""
    links = Link(LinkCore(name="left")), Link(LinkCore(name="right"), Echo())
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for link, channel in zip(links, (cable.dialer, cable.acceptor), strict=True):
                link.attach(channel)
                nursery.start_soon(link.run)
            await echo(links[0], None)
            yield links
            for link in links:
                link.lose(_lost)


def _lost(_fate: CallFate) -> BaseException:
    return ConnectionError("lost")


async def echo(link: Link, value: Any) -> Any:
    return await make_call(link, "echo", CallKind.METHOD, "echo", encode_value(value))


def large(fill: int) -> Any:
    return np.full(MIN_LENT_BYTES, fill, np.uint8)


@pytest.mark.parametrize("without", ["dialer", "acceptor"])
async def test_a_side_that_could_not_map_the_memory_is_sent_everything_in_messages(without: str) -> None:
    cable = MemoryLink(8, LIMIT, ROOM)
    getattr(cable, without).arena = None
    async with joined(cable) as (left, _):
        for i in range(10):
            assert (await echo(left, large(i)) == i).all()
        assert cable.dialer.statistics().sent_bytes > 10 * MIN_LENT_BYTES
        assert cable.acceptor.statistics().sent_bytes > 10 * MIN_LENT_BYTES


async def test_large_arrays_are_in_no_message_until_there_is_no_room() -> None:
    cable = MemoryLink(8, LIMIT, ROOM)
    async with joined(cable) as (left, _):
        for i in range(20):
            value = await echo(left, large(i))
            assert (value == i).all()
        assert cable.dialer.statistics().sent_bytes < MIN_LENT_BYTES
        kept = [await echo(left, large(i)) for i in range(10)]
        assert all((value == i).all() for i, value in enumerate(kept))
        sent = cable.acceptor.statistics().sent_bytes
        assert 5 * MIN_LENT_BYTES < sent < 8 * MIN_LENT_BYTES
        del kept, value
        for i in range(20):
            await echo(left, large(i))
        assert cable.acceptor.statistics().sent_bytes < sent + 2 * MIN_LENT_BYTES


async def test_what_waits_for_a_full_channel_is_sent_as_it_was() -> None:
    cable = MemoryLink(1, LIMIT, ROOM)
    async with joined(cable) as (left, _):
        value = large(0)
        calls = []
        for i in range(50):
            value[:] = i
            calls.append(make_call(left, "echo", CallKind.METHOD, "echo", encode_value(value)))
        for i, call in enumerate(calls):
            assert (await call == i).all()


async def test_views_stay_when_the_link_is_cut_and_the_next_link_has_other_memory() -> None:
    cable = MemoryLink(8, LIMIT, ROOM)
    async with joined(cable) as (left, _):
        kept = [await echo(left, large(i)) for i in range(3)]
        call = make_call(left, "echo", CallKind.METHOD, "echo", encode_value(large(9)))
        cable.cut()
        with pytest.raises(ConnectionError), trio.fail_after(10):
            left.lose(_lost)
            await call
    async with joined(MemoryLink(8, LIMIT, ROOM)) as (left, _):
        others = [await echo(left, large(7)) for _ in range(4)]
    assert [set(value.tolist()) for value in kept] == [{0}, {1}, {2}]
    assert all((value == 7).all() for value in others)


def _message(message: Message, *buffers: Lent) -> bytes:
    return b"".join(encode_frame(message, b"", buffers))


LIES: dict[str, Callable[[], bytes]] = {
    "memory that is not there": lambda: _message(Returned(1), Lent(ROOM, MIN_LENT_BYTES)),
    "the end of it": lambda: _message(Returned(1), Lent(ROOM - 1, 2)),
    "nothing": lambda: _message(Returned(1), Lent(0, 0)),
    "the return of what was not lent": lambda: _message(GiveBack([4096])),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("is_shared", [True, False])
async def test_who_lies_about_memory_loses_the_link_and_nothing_else(lie: str, is_shared: bool) -> None:
    cable = MemoryLink(8, LIMIT, ROOM if is_shared else 0)
    left = Link(LinkCore(name="left"))
    left.attach(cable.dialer)
    cable.acceptor.send_nowait([_message(Hello(PROTOCOL_VERSION, 8, "liar", 0)), _message(SharesMemory())])
    cable.acceptor.send_nowait([LIES[lie]()])
    with trio.fail_after(10):
        why = await left.run()
    assert why.startswith("the peer broke the protocol: ")
    assert "memory" in why or "lends" in why
    left.lose(_lost)


async def test_a_result_that_nobody_takes_comes_back() -> None:
    cable = MemoryLink(8, LIMIT, ROOM)
    async with joined(cable) as (left, _):
        assert cable.acceptor.arena is not None
        for _ in range(3):
            call = make_call(left, "echo", CallKind.METHOD, "echo", encode_value(large(1)))
            call.cancel()
            del call
            make_call(left, "echo", CallKind.METHOD, "echo", encode_value(large(1)))
        for _ in range(3):
            await echo(left, None)
        gc.collect()
        await echo(left, None)
        assert cable.acceptor.arena.num_lent == 0
