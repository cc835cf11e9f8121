"""Many machines in one program, whose clock jumps whenever nothing is left to do."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.protocol.master_messages import AskPlace
from asyncparl.protocol.resources import Demand
from asyncparl.transport.memory import MemoryNetwork
from asyncparl.transport.memory_link import MemoryLink
from tests.simulation.cluster import Machine, SimulatedCluster, SimulatedDriver

HOUR_S = 3600


@contextlib.asynccontextmanager
async def _cluster(*, delay_s: tuple[float, float] = (0, 0), seed: int = 1) -> AsyncIterator[SimulatedCluster]:
    """With a master; each message takes a time between these two."""
    lots = random.Random(seed)

    def delay(link: MemoryLink) -> None:
        link.delay_s = partial(lots.uniform, *delay_s)

    async with trio.open_nursery() as nursery:
        cluster = SimulatedCluster(nursery, MemoryNetwork(on_link=delay))
        await cluster.start_master()
        yield cluster
        nursery.cancel_scope.cancel()


async def _until(is_so: Callable[[], bool], *, within_s: float) -> None:
    with trio.fail_after(within_s):
        while not is_so():
            await trio.sleep(0.05)


def _running(cluster: SimulatedCluster) -> dict[str, set[str]]:
    return {node_id: machine.workers.running for node_id, machine in cluster.machines.items()}


def _assert_books_are_right(view: ClusterView, cluster: SimulatedCluster) -> None:
    """What the master believes is what the machines run, and no machine runs more than it has CPUs."""
    running = _running(cluster)
    assert {actor.actor_id: actor.node_id for actor in view.actors} == {
        actor_id: node_id for node_id, actors in running.items() for actor_id in actors
    }
    assert {actor.state for actor in view.actors} <= {"started"}
    for node in view.nodes:
        assert node.num_actors == node.used_cpus == len(running[node.node_id])
        assert node.total_cpus is not None and node.used_cpus <= node.total_cpus


async def test_300_nodes_join_at_once(autojump_clock: MockClock) -> None:
    async with _cluster(delay_s=(0.01, 0.05)) as cluster:
        with trio.fail_after(1):
            await cluster.add_machines(300)
        view = await (await cluster.add_driver()).describe()
        names = {node.name for node in view.nodes}
        assert names == {"machine", *(f"machine-{number}" for number in range(2, 301))}
        assert {node.state for node in view.nodes} == {"ready"}
        assert cluster.log.num_joined == 300


@pytest.mark.slow
async def test_2000_actors_are_placed_started_and_forgotten(autojump_clock: MockClock) -> None:
    async with _cluster(delay_s=(0.01, 0.05)) as cluster:
        await cluster.add_machines(50, cpus=40)
        drivers = [await cluster.add_driver() for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for driver, strategy in zip(drivers, ("pack", "spread", "pack", "spread"), strict=True):
                nursery.start_soon(driver.run_actors, 500, Demand(strategy=strategy))  # type: ignore[arg-type]
        await trio.sleep(0.1)  # until the master has heard of the last one
        assert [(len(driver.running), driver.failed) for driver in drivers] == [(500, [])] * 4
        assert [len(actors) for actors in _running(cluster).values()] == [40] * 50
        _assert_books_are_right(await drivers[0].describe(), cluster)
        for driver in drivers[1:]:
            driver.leave()
        await trio.sleep(1)
        view = await drivers[0].describe()
        assert {actor.actor_id for actor in view.actors} == set(drivers[0].running)
        _assert_books_are_right(view, cluster)


async def _full_cluster(cluster: SimulatedCluster) -> tuple[SimulatedDriver, list[Machine], list[Machine]]:
    """60 machines with 4 actors each, in two halves."""
    await cluster.add_machines(60)
    driver = await cluster.add_driver()
    await driver.run_actors(240)
    assert len(driver.running) == 240
    machines = list(cluster.machines.values())
    return driver, machines[::2], machines[1::2]


async def test_half_of_the_nodes_vanish_without_a_word(autojump_clock: MockClock) -> None:
    async with _cluster() as cluster, trio.open_nursery() as nursery:
        driver, lost, left = await _full_cluster(cluster)
        nursery.start_soon(driver.run_actors, 40)  # there is no room for these
        await trio.sleep(10)
        vanished_at = trio.current_time()
        for machine in lost:
            machine.cable.cut()
        await trio.sleep(8)
        delays = [when - vanished_at for when in cluster.log.lost.values()]
        assert len(delays) == 30
        # The last heartbeat was up to a second before, and the master looks every half second.
        assert all(4 <= delay <= 6 for delay in delays), sorted(delays)
        assert len(driver.ended) == 120
        assert all("silent for 4.5 s" in reason for reason in driver.ended.values())
        view = await driver.describe()
        assert {node.node_id for node in view.nodes} == {machine.info.node_id for machine in left}
        assert len(view.waiting) == 40
        # Whoever waits gets what becomes free elsewhere.
        for actor_id in [min(machine.workers.running) for machine in left]:
            left_on = cluster.machines[driver.running[actor_id]]
            left_on.workers.die(actor_id)
        await trio.sleep(1)
        assert all(len(machine.workers.running) == 4 for machine in left)
        assert len(driver.running) == 120
        assert len((await driver.describe()).waiting) == 10
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_machines_that_come_back_are_empty_and_take_those_who_wait(autojump_clock: MockClock) -> None:
    async with _cluster() as cluster, trio.open_nursery() as nursery:
        driver, lost, _ = await _full_cluster(cluster)
        for machine in lost:
            machine.cable.cut()
        await trio.sleep(60)
        nursery.start_soon(driver.run_actors, 100)
        await trio.sleep(1)
        assert len((await driver.describe()).waiting) == 100
        for machine in lost:
            machine.cable.mend()
        await _until(lambda: len(driver.running) == 220, within_s=10)
        await trio.sleep(1)
        assert driver.failed == []
        assert sum(len(machine.workers.running) for machine in lost) == 100
        assert cluster.log.num_joined == 60 + 30
        _assert_books_are_right(await driver.describe(), cluster)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_slow_network_and_a_program_that_stands_still_lose_nobody(autojump_clock: MockClock) -> None:
    async with _cluster(delay_s=(0.5, 1.5)) as cluster:
        await cluster.add_machines(50)
        driver = await cluster.add_driver()
        await driver.run_actors(200)
        for pause_s in (3.3, 7.7, 0.2, 10.5):
            await trio.sleep(pause_s)
            autojump_clock.jump(30)  # for everybody, like a computer that was asleep
        await trio.sleep(20)
        assert cluster.log.lost == {}
        assert (len(driver.running), driver.ended, driver.failed) == (200, {}, [])
        _assert_books_are_right(await driver.describe(), cluster)


@pytest.mark.slow
async def test_a_master_that_answers_nobody_for_3_seconds_loses_nobody(autojump_clock: MockClock) -> None:
    async with _cluster() as cluster:
        await cluster.add_machines(100)
        driver = await cluster.add_driver()
        for _ in range(5):
            until = trio.current_time() + 3.5
            for machine in cluster.machines.values():
                machine.cable.hold(until)
            await driver.run_actors(50)
            await trio.sleep(5)
        assert cluster.log.lost == {}
        assert cluster.log.num_joined == 100
        assert (len(driver.running), driver.ended, driver.failed) == (250, {}, [])


@pytest.mark.slow
async def test_an_hour_without_work_costs_no_memory_and_no_node(autojump_clock: MockClock) -> None:
    async with _cluster() as cluster:
        await cluster.add_machines(10)
        driver = await cluster.add_driver()
        await driver.run_actors(40)
        await trio.sleep(60)
        objects, size = await _memory()
        await trio.sleep(HOUR_S)
        num_more, more_bytes = (now - before for now, before in zip(await _memory(), (objects, size), strict=True))
        print(f"{num_more} objects more, {more_bytes} bytes")
        # A hundred thousand messages. What each node leaves behind twice in the hour would show.
        assert num_more < 20
        assert more_bytes < 20_000
        assert cluster.log.lost == {}
        assert cluster.log.num_joined == 10
        assert (len(driver.running), driver.ended) == (40, {})


async def _memory() -> tuple[int, int]:
    """Objects of this program, and their bytes; at the quietest of some moments, for messages under way are neither."""
    moments = []
    for _ in range(5):
        await trio.sleep(0.13)
        gc.collect()
        objects = gc.get_objects()
        with warnings.catch_warnings(action="ignore"):  # of deprecated types that other tests have loaded
            moments.append((len(objects), sum(map(sys.getsizeof, objects))))
        del objects
    return min(moments)


async def test_a_master_that_dies_as_soon_as_it_has_taken_nodes_in_leaves_them_alive(
    autojump_clock: MockClock,
) -> None:
    async with _cluster() as cluster:
        machines = [cluster.add_machine() for _ in range(20)]
        for _ in range(20):
            await cluster.log.wait_node_joined()
            await cluster.kill_master()
            await cluster.start_master()
        await trio.sleep(5)
        assert all(machine.has_joined for machine in machines)
        assert len((await (await cluster.add_driver()).describe()).nodes) == 20


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_master_that_restarts_while_it_places_forgets_nobody(autojump_clock: MockClock, seed: int) -> None:
    lots = random.Random(seed)
    async with _cluster(delay_s=(0.01, 0.1), seed=seed) as cluster, trio.open_nursery() as nursery:
        await cluster.add_machines(40, cpus=8)
        drivers = [await cluster.add_driver() for _ in range(2)]
        for driver in drivers:
            nursery.start_soon(driver.run_actors, 160)
        for _ in range(3):
            await trio.sleep(lots.uniform(0.02, 0.3))
            await cluster.kill_master()
            await trio.sleep(lots.uniform(0, 3))
            await cluster.start_master()
        await _until(lambda: sum(len(driver.running) for driver in drivers) == 320, within_s=90)
        await trio.sleep(5)  # until the last node has joined again
        assert [(len(driver.running), driver.ended, driver.failed) for driver in drivers] == [(160, {}, [])] * 2
        # A place that the old master gave, and that nobody had begun to use, may be given again by the new one; the
        # node gives it to who comes first.
        assert Counter(len(actors) for actors in _running(cluster).values()) == {8: 40}
        _assert_books_are_right(await drivers[0].describe(), cluster)
        assert sum(machine.workers.num_started for machine in cluster.machines.values()) == 320


async def test_a_node_has_room_once_for_what_two_masters_gave_away(autojump_clock: MockClock) -> None:
    async with _cluster() as cluster:
        machine = cluster.add_machine(cpus=1)
        early, late = await cluster.add_driver(), await cluster.add_driver()
        old = await early.master.request(AskPlace("early", "early", Demand()))
        await cluster.kill_master()
        await cluster.start_master()
        await late.run_actor()
        assert (await early.start_at("early", old), late.failed) == (False, [])
        assert len(machine.workers.running) == 1
        with trio.move_on_after(10):
            await early.run_actor()
        assert not early.running and late.running  # it waits for a place, as whoever comes late does
        _assert_books_are_right(await late.describe(), cluster)
