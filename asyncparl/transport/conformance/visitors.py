"""How a listener decides who comes in, and what the dialer hears of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial

import trio
import trio.testing

from asyncparl.errors import AuthenticationError
from asyncparl.transport.base import Channel, Listener, Visitor
from asyncparl.transport.conformance.harness import (
    CHECK_TIMEOUT_S,
    Transport,
    connect,
    expect,
    expect_error,
    expect_error_later,
)
from asyncparl.transport.credentials import DialRefused


class _Outcome:
    """What becomes of one who dials."""

    def __init__(self) -> None:
        self.settled = trio.Event()
        self.channel: Channel | None = None
        self.error: OSError | None = None

    async def dial(self, transport: Transport, address: str, route: str, timeout_s: float) -> None:
        try:
            self.channel = await transport.dial(address, 1000, timeout_s, route=route)
        except OSError as error:
            self.error = error
        self.settled.set()


@asynccontextmanager
async def _visiting(
    transport: Transport, listener: Listener, *, route: str = "", timeout_s: float = CHECK_TIMEOUT_S
) -> AsyncIterator[tuple[Visitor, _Outcome]]:
    """Somebody who waits to be let in; by the end of the block this must have been decided."""
    outcome = _Outcome()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome.dial, transport, listener.address, route, timeout_s)
        with await listener.accept_visitor() as visitor:
            yield visitor, outcome
    if outcome.channel is not None:
        outcome.channel.close()


async def _expect_joined(a: Channel | None, b: Channel) -> None:
    assert a is not None
    await a.send([b"x"])
    expect(bytes(await b.receive()) == b"x", "the channel of a visitor leads to who dialed")


async def check_a_visitor_says_whose_key_it_has_and_where_it_wants_to_go(transport: Transport) -> None:
    with transport.listen(1000) as listener:
        for route in ("", "actor/7", "\u00e4" * 128):
            async with _visiting(transport, listener, route=route) as (visitor, outcome):
                expect(visitor.route == route, "the route arrives as it was given")
                expect(visitor.key_id == transport.key_id, "the key id is known")
                await trio.testing.wait_all_tasks_blocked(0.02)
                expect(not outcome.settled.is_set(), "who dials waits until it is decided")
                with visitor.open() as channel:
                    await outcome.settled.wait()
                    await _expect_joined(outcome.channel, channel)


async def check_who_is_refused_hears_why(transport: Transport) -> None:
    with transport.listen(1000) as listener:
        for reason, heard in (
            ("that actor has ended", None),
            ("", None),
            ("\u00e4" * 300, "\u00e4" * 100),
            ("a\nb", "a?b"),
        ):
            async with _visiting(transport, listener) as (visitor, outcome):
                visitor.refuse(reason)
                await outcome.settled.wait()
            error = outcome.error
            expect(isinstance(error, DialRefused), "a refusal is a DialRefused")
            assert error is not None
            expect(error.strerror == (reason if heard is None else heard), "the reason is told, if it is not too long")
        dialed, accepted = await connect(transport, listener, 1000)
        with dialed, accepted:
            await _expect_joined(dialed, accepted)


async def check_a_visitor_is_decided_once(transport: Transport) -> None:
    with transport.listen(1000) as listener:
        async with _visiting(transport, listener) as (visitor, outcome):
            with visitor.open() as channel:
                expect_error(trio.ClosedResourceError, visitor.open)
                expect_error(trio.ClosedResourceError, partial(visitor.refuse, "too late"))
                visitor.close()
                await outcome.settled.wait()
                await _expect_joined(outcome.channel, channel)
        async with _visiting(transport, listener) as (visitor, _):
            visitor.refuse("no")
            expect_error(trio.ClosedResourceError, visitor.open)


async def check_a_visitor_that_is_not_decided_on_is_hung_up_on(transport: Transport) -> None:
    with transport.listen(1000) as listener:
        async with _visiting(transport, listener) as (visitor, outcome):
            visitor.close()
            visitor.close()
            await outcome.settled.wait()
        expect(isinstance(outcome.error, ConnectionAbortedError), "hanging up without a word fails the dial")
        expect_error(trio.ClosedResourceError, visitor.open)


async def check_a_visitor_that_has_gone_becomes_a_lost_channel(transport: Transport) -> None:
    with transport.listen(1000) as listener:
        async with _visiting(transport, listener, timeout_s=0.2) as (visitor, outcome):
            await outcome.settled.wait()
            expect(isinstance(outcome.error, TimeoutError), "who waits for a decision does not do so for ever")
            with visitor.open() as channel:
                await expect_error_later(trio.BrokenResourceError, channel.receive)


async def check_visitors_may_be_decided_in_any_order_and_without_their_listener(transport: Transport) -> None:
    async with trio.open_nursery() as nursery:
        with transport.listen(1000) as listener, ExitStack() as stack:
            outcomes = {route: _Outcome() for route in ("1", "2", "3")}
            for route, outcome in outcomes.items():
                nursery.start_soon(outcome.dial, transport, listener.address, route, CHECK_TIMEOUT_S)
            visitors = [stack.enter_context(await listener.accept_visitor()) for _ in outcomes]
            listener.close()
            expect({visitor.route for visitor in visitors} == set(outcomes), "every visitor is met once")
            for visitor in reversed(visitors):
                outcome = outcomes[visitor.route]
                with visitor.open() as channel:
                    await outcome.settled.wait()
                    await _expect_joined(outcome.channel, channel)
                assert outcome.channel is not None
                outcome.channel.close()


async def check_who_has_no_key_stays_outside(transport: Transport) -> None:
    accepted: list[Channel] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    with transport.listen(1000) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            for dial in transport.outsiders:
                await expect_error_later(AuthenticationError, partial(dial, listener.address, 1000, CHECK_TIMEOUT_S))
            await trio.testing.wait_all_tasks_blocked(0.02)
            expect(not accepted, "nobody comes in without a key")
            dialed = await transport.dial(listener.address, 1000, CHECK_TIMEOUT_S)
        with dialed, accepted[0]:
            await _expect_joined(dialed, accepted[0])
        expect(listener.num_rejected == len(transport.outsiders), "who is rejected is counted, and nobody else")
