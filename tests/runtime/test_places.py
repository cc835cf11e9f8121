"""How long the place of an actor lasts: never longer at its node than at the master."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from asyncparl.errors import ResourceError
from asyncparl.protocol.leases import START_LIMIT_S
from asyncparl.protocol.master_messages import AskPlace, Placed
from asyncparl.protocol.resources import Demand, Lease
from asyncparl.protocol.tickets import read_lease
from asyncparl.runtime.places import LEASE_LIFE_S, Places
from tests.protocol.masters import Cluster, info

SECRET = bytes(range(32))
CLOCK_OFFSET_S = 1e9


def _cluster_time() -> float:
    return trio.current_time() + CLOCK_OFFSET_S


def _two_cpus() -> tuple[Cluster, Places]:
    core = Cluster(info("n1", 2), now=trio.current_time())
    return core, Places(core, SECRET, _cluster_time)


def _at_node(placed: Placed) -> Lease:
    """What the node reads now. Raises ResourceError if it is too late."""
    return read_lease(SECRET, placed.lease, "n1", _cluster_time())


async def test_a_lease_is_over_at_its_node_before_the_place_goes_to_somebody_else(autojump_clock: MockClock) -> None:
    core, places = _two_cpus()
    placed = places.ask("d1", AskPlace("a1", "A#1", Demand(2)))
    assert isinstance(placed, Placed)
    await trio.sleep(LEASE_LIFE_S - 0.5)
    assert _at_node(placed).actor_id == "a1"
    await trio.sleep(1)
    with pytest.raises(ResourceError, match="started too late"):
        _at_node(placed)
    core.tick(trio.current_time())
    assert core.placed() == {"a1": "granted on n1"}
    await trio.sleep(START_LIMIT_S - LEASE_LIFE_S)
    core.heard_node("n1", trio.current_time())
    core.tick(trio.current_time())
    assert core.used() == {"n1": 0.0}


async def test_asking_again_renews_the_lease(autojump_clock: MockClock) -> None:
    _, places = _two_cpus()
    request = AskPlace("a1", "A#1", Demand())
    first = places.ask("d1", request)
    await trio.sleep(LEASE_LIFE_S - 1)
    again = places.ask("d1", request)
    await trio.sleep(LEASE_LIFE_S - 1)
    assert isinstance(first, Placed) and isinstance(again, Placed)
    assert _at_node(again).actor_id == "a1"
    with pytest.raises(ResourceError, match="started too late"):
        _at_node(first)


async def test_the_lease_of_an_actor_that_waited_begins_when_it_gets_its_place(autojump_clock: MockClock) -> None:
    core, places = _two_cpus()
    places.ask("d1", AskPlace("a1", "A#1", Demand(2)))
    core.actors.lease_started("n1", "a1")
    waits = places.ask("d1", AskPlace("a2", "A#2", Demand(2)))
    assert not isinstance(waits, Placed)

    async def end_the_other() -> None:
        await trio.sleep(3600)
        core.actors.lease_ended("n1", "a1")
        places.hand_out()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_the_other)
        placed = await waits
    await trio.sleep(LEASE_LIFE_S - 0.5)
    assert _at_node(placed).actor_id == "a2"


async def test_an_actor_that_runs_keeps_its_place_however_old_its_lease_is(autojump_clock: MockClock) -> None:
    """Also at a master that hears of it for the first time."""
    _, places = _two_cpus()
    placed = places.ask("d1", AskPlace("a1", "A#1", Demand()))
    assert isinstance(placed, Placed)
    lease = _at_node(placed)
    await trio.sleep(3600)
    core, _ = _two_cpus()
    core.join_node(info("n1", 2), 2, [lease], trio.current_time())
    core.heard_node("n1", trio.current_time())
    core.tick(trio.current_time())
    assert core.placed() == {"a1": "started on n1"}
