"""Which way to a node is taken, and how long it stays the one that is known. The network is not there."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from asyncparl.protocol.master_messages import NodeTicket
from asyncparl.protocol.parties import NodeInfo
from asyncparl.protocol.resources import Capacity
from asyncparl.runtime.versions import our_versions
from asyncparl.runtime.ways import WayToNode
from asyncparl.transport import Credentials

FIRST, SECOND = "tcp://192.0.2.1:1", "tcp://192.0.2.2:1"
RELAY = "relay"


class _Way(WayToNode):
    """To a node that answers at some of its addresses, and to everybody who comes through the relay."""

    def __init__(self) -> None:
        info = NodeInfo("n1", "node", Capacity(1), [FIRST, SECOND], "elsewhere", our_versions())
        no_master: Any = None
        super().__init__(NodeTicket(info, b"", b""), no_master, "", Credentials("driver", bytes(32)))
        self.answering: set[str] = set()
        self.tried: list[str] = []

    async def ways(self, num_dials: int = 1) -> list[str]:
        """By which way so many dials at once come through."""
        came: list[str] = []

        async def dial() -> None:
            channel: Any = await self.dial(encrypt=False)
            came.append(channel)

        self.tried.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(num_dials):
                nursery.start_soon(dial)
        return came

    async def _dial_address(self, address: str, route: str, encrypt: bool) -> Any:
        self.tried.append(address)
        await trio.sleep(0.01 if address in self.answering else 5)
        if address not in self.answering:
            raise TimeoutError("no answer")
        return address

    async def _dial_relay(self, route: str, encrypt: bool) -> Any:
        await trio.sleep(0.02)
        return RELAY


async def test_the_relay_stays_the_known_way_for_a_minute(autojump_clock: MockClock) -> None:
    way = _Way()
    assert await way.ways() == [RELAY]
    way.answering = {FIRST, SECOND}
    await trio.sleep(59)
    assert await way.ways(3) == [RELAY] * 3
    assert way.tried == []


async def test_after_a_minute_one_dial_looks_for_a_shorter_way_and_the_others_do_not_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    way = _Way()
    assert await way.ways(3) == [RELAY] * 3
    for _ in range(2):
        await trio.sleep(61)
        assert await way.ways(3) == [RELAY] * 3
        assert len(way.tried) == 1
    way.answering = {FIRST, SECOND}
    await trio.sleep(61)
    assert sorted(await way.ways(3)) == [RELAY, RELAY, way.tried[0]]
    assert await way.ways(3) == [way.tried[0]] * 3  # what came through the relay later makes nobody forget it


@pytest.mark.parametrize("answering", [FIRST, SECOND])
async def test_an_address_behind_one_that_swallows_everything_is_found(
    autojump_clock: MockClock, answering: str
) -> None:
    way = _Way()
    for _ in range(4):  # whichever was tried last
        assert await way.ways() == [RELAY]
        await trio.sleep(61)
    way.answering = {answering}
    came = []
    for _ in range(2):
        came += await way.ways()
        await trio.sleep(61)
    assert came[-1] == answering


async def test_a_known_address_is_dialed_alone(autojump_clock: MockClock) -> None:
    way = _Way()
    way.answering = {FIRST}
    assert await way.ways() == [FIRST]
    await trio.sleep(3600)
    assert await way.ways(3) == [FIRST] * 3
    assert way.tried == [FIRST] * 3
