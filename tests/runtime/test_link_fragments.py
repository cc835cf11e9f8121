"""Two links over the transport in memory, and values that are too large for one message."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio

from asyncparl.errors import CallFate, MessageTooLarge
from asyncparl.protocol.events import CallArrived
from asyncparl.protocol.fragments import FRAGMENT_BYTES, MAX_TRANSFERS
from asyncparl.protocol.frames import encode_frame
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.messages import (
    PROTOCOL_VERSION,
    CallKind,
    Fragment,
    FragmentsDropped,
    FragmentsTaken,
    Hello,
    Message,
)
from asyncparl.protocol.owned import LARGE_BYTES
from asyncparl.protocol.pace import WINDOW_BYTES
from asyncparl.protocol.values import encode_value
from asyncparl.runtime.call import Call as Made
from asyncparl.runtime.call import make_call
from asyncparl.runtime.link import Link
from asyncparl.transport.memory_link import MemoryLink
from tests.runtime.test_link_memory import Echo

LIMIT_BYTES = 1 << 30
LARGE = 8 * WINDOW_BYTES


class Patient(Echo):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Link, CallArrived]] = []
        self.cancelled: list[int] = []

    def call_arrived(self, link: Link, arrived: CallArrived) -> None:
        self.waiting.append((link, arrived))

    def cancel_arrived(self, link: Link, call_id: int) -> None:
        self.cancelled.append(call_id)
        link.answer_cancelled(call_id)

    def answer_all(self) -> None:
        for link, arrived in self.waiting:
            Echo.call_arrived(self, link, arrived)
        self.waiting.clear()


@asynccontextmanager
async def joined(
    callee: Echo, shared_bytes: int = 0, queued_messages: int = 8, **limits: int | None
) -> AsyncIterator[tuple[Link, Link, MemoryLink]]:
    """Both ends, the second of which serves; and what is between them."""
    cable = MemoryLink(queued_messages, LIMIT_BYTES, shared_bytes)
    left = Link(LinkCore(name="left", max_value_bytes=limits.get("left")))
    right = Link(LinkCore(name="right", max_value_bytes=limits.get("right")), callee)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for link, channel in ((left, cable.dialer), (right, cable.acceptor)):
                link.attach(channel)
                nursery.start_soon(link.run)
            yield left, right, cable
            for link in (left, right):
                link.lose(_lost)


def _lost(fate: CallFate) -> BaseException:
    return ConnectionError(fate.value)


def echo(link: Link, value: Any) -> Made[Any]:
    return make_call(link, "echo", CallKind.METHOD, "echo", encode_value(value))


def large(fill: int, num_bytes: int = LARGE) -> Any:
    return np.full(num_bytes, fill, np.uint8)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.001)


@pytest.mark.parametrize("queued_messages", [1, 8])
@pytest.mark.parametrize("shared_bytes", [0, 1 << 20, 64 << 20], ids=["not shared", "little room", "enough room"])
async def test_large_values_arrive_as_they_were_when_the_call_was_made(shared_bytes: int, queued_messages: int) -> None:
    async with joined(Echo(), shared_bytes, queued_messages) as (left, _, _):
        await echo(left, None)
        value = large(0)
        calls = []
        for i in range(5):
            value[:] = i
            calls.append(echo(left, [value, i, "p" * LARGE_BYTES]))
        value[:] = 99
        for i, call in enumerate(calls):
            again, number, text = await call
            assert (again == i).all()
            assert number == i
            assert len(text) == LARGE_BYTES
            again[0] = 7  # it is ours
        assert left.core.num_fragments_sent > 0


async def test_a_value_without_arrays_is_cut_too() -> None:
    async with joined(Echo()) as (left, _, _):
        for value in ("x" * LARGE, {"a": b"y" * LARGE, "b": {1, 2}}):
            assert await echo(left, value) == value


async def test_a_small_call_is_answered_while_a_large_answer_is_on_its_way() -> None:
    patient = Patient()
    async with joined(patient) as (left, right, cable):
        slow, quick = echo(left, large(1, 100 * WINDOW_BYTES)), echo(left, 2)
        await until(lambda: len(patient.waiting) == 2)
        cable.delay_s = lambda: 0.001  # so that it takes a while
        patient.answer_all()
        assert await quick == 2
        assert not slow.done()
        assert right.core.has_transfers
        assert (await slow == 1).all()


async def test_a_large_call_that_is_cancelled_on_its_way_costs_nothing_more() -> None:
    patient = Patient()
    async with joined(patient) as (left, right, cable):
        cable.delay_s = lambda: 0.001
        call = echo(left, large(1, 100 * WINDOW_BYTES))
        await until(lambda: right.core._joiner.num_open == 1)
        call.cancel()
        following = echo(left, 2)
        await until(lambda: bool(patient.waiting))
        patient.answer_all()
        assert await following == 2
        assert right.core._joiner.num_open == 0
        assert not left.core.has_transfers
        assert cable.dialer.statistics().sent_bytes < 50 * WINDOW_BYTES


async def test_so_does_a_large_answer() -> None:
    patient = Patient()
    async with joined(patient) as (left, right, cable):
        call = echo(left, large(1, 50 * WINDOW_BYTES))
        await until(lambda: bool(patient.waiting))
        cable.delay_s = lambda: 0.001
        patient.answer_all()
        await until(lambda: left.core._joiner.num_open == 1)
        call.cancel()
        await until(lambda: not right.core.has_transfers and left.core.caller.num_open == 0)
        assert left.core._joiner.num_open == 0
        assert cable.acceptor.statistics().sent_bytes < 40 * WINDOW_BYTES


async def test_what_a_lost_link_had_on_its_way_never_started() -> None:
    async with joined(Patient()) as (left, right, cable):
        cable.delay_s = lambda: 0.01
        call = echo(left, large(1, 100 * WINDOW_BYTES))
        await until(lambda: right.core._joiner.num_open == 1)
        cable.cut()
        for link in (left, right):
            link.lose(_lost)
        with pytest.raises(ConnectionError, match="never started"):
            await call
        assert not left.core.has_transfers
        assert right.core._joiner.num_open == 0


async def test_who_waits_for_silence_hears_of_it_when_all_is_taken() -> None:
    patient = Patient()
    async with joined(patient) as (left, right, _):
        heard = list[str]()
        right.call_when_quiet(lambda: heard.append("at once"))
        assert heard == ["at once"]
        call = echo(left, large(1))
        await until(lambda: bool(patient.waiting))
        patient.answer_all()
        right.call_when_quiet(lambda: heard.append("later"))
        assert heard == ["at once"]
        await call
        await until(lambda: len(heard) == 2)
        assert not right.core.has_transfers


async def test_the_memory_that_both_ends_see_is_free_afterwards() -> None:
    async with joined(Echo(), 4 << 20) as (left, right, _):
        await echo(left, None)
        for i in range(3):
            assert (await echo(left, large(i)) == i).all()
        for _ in range(3):
            gc.collect()
            await echo(left, None)
        for link in (left, right):
            assert link._arena is not None
            assert link._arena.num_in_use == 0


# --- limits -----------------------------------------------------------------------------------------------------


async def test_what_is_larger_than_the_limit_is_refused_with_size_and_limit() -> None:
    async with joined(Echo(), left=2 * LARGE_BYTES, right=2 * LARGE_BYTES) as (left, _, _):
        await echo(left, large(1, 2 * LARGE_BYTES - 100))
        with pytest.raises(MessageTooLarge, match=r"4,194,... bytes; the limit is 4,194,304 bytes, which `connect\("):
            await echo(left, large(1, 2 * LARGE_BYTES))
        assert await echo(left, 3) == 3


async def test_the_lower_limit_of_both_ends_counts_also_for_what_was_called_before_it_was_known() -> None:
    async with joined(Echo(), right=2 * LARGE_BYTES) as (left, _, _):
        early = echo(left, large(1, 3 * LARGE_BYTES))
        behind = echo(left, 2)
        with pytest.raises(MessageTooLarge, match="larger than the peer takes; the limit is 4,194,304 bytes"):
            await early
        assert await behind == 2
        with pytest.raises(MessageTooLarge, match="the limit is 4,194,304 bytes"):
            await echo(left, large(1, 3 * LARGE_BYTES))


def _message(message: Message, *buffers: bytes) -> bytes:
    return b"".join(encode_frame(message, b"", buffers))


LIES: dict[str, list[bytes]] = {
    "a gap": [_message(Fragment(1, 0, 100), b"x"), _message(Fragment(1, 2, 100), b"x")],
    "too much": [_message(Fragment(1, 0, 100), b"x" * 101)],
    "a value beyond the limit": [_message(Fragment(1, 0, LIMIT_BYTES), b"x")],
    "too many at once": [_message(Fragment(i + 1, 0, 100), b"x") for i in range(MAX_TRANSFERS + 1)],
    "the end of what never began": [_message(FragmentsDropped(1))],
    "credit for nothing": [_message(FragmentsTaken(FRAGMENT_BYTES))],
    "no frame": [_message(Fragment(1, 0, 100), b"x" * 100)],
    "a fragment of fragments": [_message(Fragment(1, 0, 64), _message(Fragment(2, 0, 1))[:64].ljust(64, b"\0"))],
}


@pytest.mark.parametrize("lie", LIES)
async def test_who_lies_about_fragments_loses_the_link_and_nothing_else(lie: str) -> None:
    cable = MemoryLink(MAX_TRANSFERS + 8, LIMIT_BYTES)
    left = Link(LinkCore(name="left", max_value_bytes=64 << 20))
    left.attach(cable.dialer)
    cable.acceptor.send_nowait([_message(Hello(PROTOCOL_VERSION, 8, "liar", 0))])
    for data in LIES[lie]:
        cable.acceptor.send_nowait([data])
    with trio.fail_after(10):
        why = await left.run()
    assert why.startswith("the peer broke the protocol: ")
    left.lose(_lost)


async def test_an_announced_value_for_which_there_is_no_memory_ends_the_link_with_that_reason() -> None:
    cable = MemoryLink(8, LIMIT_BYTES)
    left = Link(LinkCore(name="left", max_value_bytes=None))
    left.attach(cable.dialer)
    cable.acceptor.send_nowait([_message(Hello(PROTOCOL_VERSION, 8, "giant", 0))])
    cable.acceptor.send_nowait([_message(Fragment(1, 0, 1 << 62), b"x")])
    with trio.fail_after(10):
        assert await left.run() == f"there is no memory for a value of {1 << 62:,} bytes"
    left.lose(_lost)
