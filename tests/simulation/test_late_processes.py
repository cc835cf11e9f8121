"""A process of an actor that starts when its owner has already given it up for the next one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

from asyncparl.ids import new_actor_id
from asyncparl.protocol.control import SILENCE_LIMIT_S
from asyncparl.protocol.master_messages import AskPlace, Placed
from asyncparl.protocol.node_messages import StartActor
from asyncparl.protocol.resources import ActorTitle, Demand
from asyncparl.protocol.tickets import SignedLease
from asyncparl.runtime.node_link import NodeLink
from asyncparl.transport.memory import MemoryNetwork
from asyncparl.transport.memory_link import MemoryLink
from tests.simulation.cluster import Machine, SimulatedCluster, SimulatedDriver

LATENCY_S = 0.5


def _slow(link: MemoryLink) -> None:
    link.delay_s = lambda: LATENCY_S


@dataclass(frozen=True, slots=True)
class _Stage:
    """A machine, and an actor with the leases of two processes: the owner has given up the first before it started."""

    machine: Machine
    driver: SimulatedDriver
    node: NodeLink
    actor_id: str
    late: SignedLease
    second: SignedLease

    async def start(self, lease: SignedLease) -> None:
        await self.node.request(StartActor(self.actor_id, "actor", lease))


@contextlib.asynccontextmanager
async def _stage() -> AsyncIterator[_Stage]:
    async with trio.open_nursery() as nursery:
        cluster = SimulatedCluster(nursery, MemoryNetwork(on_link=_slow))
        await cluster.start_master()
        await cluster.add_machines(1)
        [machine] = cluster.machines.values()
        driver, actor_id = await cluster.add_driver(), new_actor_id()
        late, second = await _ask(driver, actor_id, 0), await _ask(driver, actor_id, 1)
        node = driver._node(second.ticket)
        await node.wait_ready()
        yield _Stage(machine, driver, node, actor_id, late.lease, second.lease)
        nursery.cancel_scope.cancel()


async def _ask(driver: SimulatedDriver, actor_id: str, num_restarts: int) -> Placed:
    title = ActorTitle(may_restart=True, num_restarts=num_restarts)
    placed = await driver.master.request(AskPlace(actor_id, "actor", Demand(1), title))
    assert isinstance(placed, Placed)
    return placed


async def test_a_late_process_must_end_and_the_next_one_may_start(autojump_clock: MockClock) -> None:
    async with _stage() as stage:
        await stage.start(stage.late)
        await trio.sleep(5)
        assert stage.machine.workers.running == set()
        await stage.start(stage.second)
        await trio.sleep(5)
        assert stage.machine.workers.running == {stage.actor_id}


async def test_the_order_to_end_a_late_process_does_not_hit_the_next_one(autojump_clock: MockClock) -> None:
    async with _stage() as stage, trio.open_nursery() as nursery:
        nursery.start_soon(stage.start, stage.late)
        await trio.sleep(LATENCY_S + 0.01)  # it runs, and the master is about to hear of it
        assert stage.machine.workers.running == {stage.actor_id}
        stage.machine.workers.die(stage.actor_id)
        await stage.start(stage.second)
        await trio.sleep(5)  # the order has arrived when this one ran
        assert stage.machine.workers.num_started == 2
        assert stage.machine.workers.running == {stage.actor_id}
        actors = (await stage.driver.describe()).actors
        assert [(each.actor_id, each.state) for each in actors] == [(stage.actor_id, "started")]


async def test_a_dial_to_a_worker_ends_when_its_machine_is_known_to_be_lost(autojump_clock: MockClock) -> None:
    async with _stage() as stage:
        stage.machine.cable.cut()
        began = trio.current_time()
        with pytest.raises(OSError, match="is gone: it has been silent"):
            await stage.node.dial_worker(stage.actor_id, None, encrypt=False)
        assert trio.current_time() - began < SILENCE_LIMIT_S + LATENCY_S
