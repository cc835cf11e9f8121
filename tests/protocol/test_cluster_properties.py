"""Anything that may happen to a cluster, in any order, against a slow record of what must be; and a large cluster."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncparl.protocol.cluster import ClusterCore
from asyncparl.protocol.decisions import (
    DemandRefused,
    DriverGone,
    DriverJoined,
    Granted,
    NodeJoined,
    NodeLost,
    Refused,
    Waiting,
)
from asyncparl.protocol.parties import NodeInfo, Versions
from asyncparl.protocol.resources import Capacity, Demand, Lease
from tests.protocol.cluster_record import Absence, ActorRecord, NodeRecord, Record, exact

GIB = 1 << 30
VERSIONS = Versions("0.3.0", "3.12.4")

CAPACITIES = [
    Capacity(1),
    Capacity(4, memory_bytes=4 * GIB),
    Capacity(2.5, 2, GIB, {"zone": "b"}),
    Capacity(float("inf"), 1, labels={"zone": "a"}),
]
DEMANDS = [
    Demand(),
    Demand(0.1),
    Demand(2),
    Demand(4),
    Demand(0),
    Demand(0.5, strategy="spread"),
    Demand(1, memory_bytes=GIB),
    Demand(0, memory_bytes=3 * GIB),
    Demand(1, gpus=1),
    Demand(0.2, gpus=0.5),
    Demand(0, gpus=0.4),
    Demand(1, gpus=2, labels={"zone": "b"}),
    Demand(1, labels={"zone": "b"}),
    Demand(1, labels={"zone": "c"}),
    Demand(8),
]
capacities, demands = st.sampled_from(CAPACITIES), st.sampled_from(DEMANDS)
picks = st.integers(0, 1 << 16)


class ClusterMachine(RuleBasedStateMachine):
    """Nodes n0 to n2, drivers d0 and d1, and any number of actors."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.num_asked = 0
        self.issued: list[Lease] = []
        """Every lease that a driver was ever given, so that it may be used late."""
        self.runs: dict[str, dict[str, Lease]] = {f"n{i}": {} for i in range(3)}
        """What the machines really run, whatever the master knows."""
        self.capacities: dict[str, Capacity] = {}
        self.incarnations: Counter[str] = Counter()

    @initialize(joined=st.lists(capacities, max_size=3), num_drivers=st.integers(1, 2))
    def begin(self, joined: list[Capacity], num_drivers: int) -> None:
        self.restart_master()
        for number in range(num_drivers):
            self.join_driver(number)
        for number, capacity in enumerate(joined):
            self.join_node(number, capacity, 1)

    # --- nodes

    @rule(number=st.integers(0, 2), capacity=capacities, step=st.sampled_from([1, 1, 1, 1, 3, 0, -1]))
    def join_node(self, number: int, capacity: Capacity, step: int) -> None:
        node_id = f"n{number}"
        if self.runs[node_id] and node_id in self.capacities:
            capacity = self.capacities[node_id]  # a process that runs actors is still the same
        incarnation = self.incarnations[node_id] + step
        reported = self.runs[node_id]
        info = NodeInfo(node_id, node_id, capacity, [], "host", VERSIONS)
        answer = self.core.join_node(info, incarnation, list(reported.values()), self.now)
        old = self.record.nodes.get(node_id)
        known = old.incarnation if old is not None else self.record.lost.get(node_id)
        if known is not None and incarnation <= known:
            assert isinstance(answer, Refused)
            return
        assert isinstance(answer, NodeJoined)
        self.capacities[node_id] = capacity
        self.incarnations[node_id] = incarnation
        over = {
            actor_id
            for actor_id, lease in self.record.leases(node_id).items()
            if actor_id not in reported
            and (self.record.actors[actor_id].is_started or not set(lease.gpu_ids) <= set(range(capacity.num_gpus)))
        }
        unwanted = {
            actor_id
            for actor_id in reported
            if self.record.leases().get(actor_id, reported[actor_id]).node_id != node_id
        }
        assert {lease.actor_id for lease in answer.unwanted} == unwanted
        for actor_id in over:
            del self.record.actors[actor_id]
        if old is None:
            self.record.is_back(node_id, capacity.num_gpus)
        is_draining = old is not None and old.is_draining
        self.record.nodes[node_id] = NodeRecord(capacity, incarnation, self.now, self.now, is_draining=is_draining)
        self.record.lost.pop(node_id, None)
        self.record.missed.pop(node_id, None)
        for actor_id in unwanted:
            del self.runs[node_id][actor_id]
        for lease in self.runs[node_id].values():
            self.record.adopt(lease, self.now)

    @rule(number=st.integers(0, 2), stale=st.booleans())
    def break_node_link(self, number: int, stale: bool) -> None:
        node_id = f"n{number}"
        node = self.record.nodes.get(node_id)
        self.core.node_disconnected(node_id, self.incarnations[node_id] - stale, self.now)
        if node is not None and node.incarnation == self.incarnations[node_id] - stale and node.is_connected:
            node.is_connected = False
            node.heard, node.listened = self.now, 0.0

    def drain_node(self, number: int) -> None:
        node = self.record.nodes.get(f"n{number}")
        self.core.drain_node(f"n{number}")
        if node is not None:
            node.is_draining = True

    def leave_node(self, number: int) -> None:
        node_id = f"n{number}"
        self.core.leave_node(node_id)
        self.runs[node_id].clear()
        self.record.forget_node(node_id)

    # --- drivers

    @rule(number=st.integers(0, 1))
    def join_driver(self, number: int) -> None:
        driver_id = f"d{number}"
        assert self.core.join_driver(driver_id, driver_id, self.now) == DriverJoined(driver_id)
        self.record.drivers[driver_id] = None

    @rule(number=st.integers(0, 1))
    def break_driver_link(self, number: int) -> None:
        driver_id = f"d{number}"
        self.core.driver_disconnected(driver_id, self.now)
        if driver_id in self.record.drivers:
            self.record.drivers[driver_id] = self.record.drivers[driver_id] or Absence(self.now)

    def leave_driver(self, number: int) -> None:
        driver_id = f"d{number}"
        gone = self.core.leave_driver(driver_id)
        assert (gone is None) == (driver_id not in self.record.drivers)
        if gone is not None:
            self.check_gone(gone)

    # --- actors

    @rule(number=st.integers(0, 1), wanted=st.lists(demands, min_size=1, max_size=4), ends=picks, frees=st.booleans())
    def ask_for_several(self, number: int, wanted: list[Demand], ends: int, frees: bool) -> None:
        """Something may become free just before, so that others are placed by the same question."""
        if frees:
            self.end(ends)
        for demand in wanted:
            self.ask(number, demand)

    @precondition(lambda self: self.issued)
    @rule(pick=picks)
    def ask_anew(self, pick: int) -> None:
        """For an actor whose place is over, as far as the master knows; its node may see that differently."""
        lease = self.issued[-1 - pick % len(self.issued)]
        if lease.actor_id not in self.record.actors:
            self.ask(int(lease.driver_id[1:]), lease.demand, lease.actor_id)

    def ask(self, number: int, demand: Demand, actor_id: str = "") -> None:
        self.num_asked += 1
        actor_id, driver_id = actor_id or f"a{self.num_asked}", f"d{number}"
        answer = self.core.actors.ask(driver_id, actor_id, "name", demand, self.now)
        if driver_id in self.record.drivers:
            self.record.outstanding.pop(actor_id, None)
        if driver_id not in self.record.drivers or self.record.is_impossible(demand, self.now):
            assert isinstance(answer, Refused)
            assert self.core.actors.why_waiting(actor_id) is None
            return
        self.record.news.discard(actor_id)
        self.record.actors[actor_id] = ActorRecord(driver_id, demand, self.now)
        self.book_grants()
        if isinstance(answer, Granted):
            self.book(answer.lease)
        else:
            assert answer == Waiting(actor_id)
        self.check_that_all_wait_for_something()

    @precondition(lambda self: self.record.actors)
    @rule(pick=picks, demand=demands)
    def ask_again(self, pick: int, demand: Demand) -> None:
        actor_id, actor = picked(self.record.actors, pick)
        before = self.core.describe(self.now)
        if actor.driver_id in self.record.drivers:
            self.record.news.discard(actor_id)
            self.record.outstanding.pop(actor_id, None)
            answer = self.core.actors.ask(actor.driver_id, actor_id, "other", demand, self.now)
            assert answer == (Waiting(actor_id) if actor.lease is None else Granted(actor.lease))
            if actor.granted is not None:
                actor.granted = self.now  # whoever asks again still wants it
        assert isinstance(self.core.actors.ask("d9", actor_id, "other", demand, self.now), Refused)
        assert self.core.describe(self.now) == before

    @precondition(lambda self: self.record.actors)
    @rule(pick=picks)
    def withdraw(self, pick: int) -> None:
        actor_id, actor = picked(self.record.actors, pick)
        for _ in range(2):
            self.core.actors.withdraw(actor_id)
        self.record.outstanding.pop(actor_id, None)
        if not actor.is_started:
            del self.record.actors[actor_id]

    @precondition(lambda self: self.issued)
    @rule(pick=picks, repeat=st.integers(1, 2))
    def start(self, pick: int, repeat: int) -> None:
        """A node starts what somebody was once given; mostly what he has been given just now."""
        lease = self.issued[-1 - pick % len(self.issued)]
        node = self.record.nodes.get(lease.node_id)
        if max([-1, *lease.gpu_ids]) >= self.capacities[lease.node_id].num_gpus:
            assert self.core.actors.lease_started(lease.node_id, lease.actor_id, lease) == (node is None)
            return
        held = self.record.leases().get(lease.actor_id, lease)
        for _ in range(repeat):
            may_stay = self.core.actors.lease_started(lease.node_id, lease.actor_id, lease)
            assert may_stay == (node is None or held.node_id == lease.node_id)
        if may_stay:
            self.runs[lease.node_id][lease.actor_id] = lease
        if may_stay and node is not None:
            self.record.adopt(held, self.now)

    @rule(pick=picks)
    def end(self, pick: int) -> None:
        running = [lease for runs in self.runs.values() for lease in runs.values()]
        if not running:
            return
        lease = running[pick % len(running)]
        del self.runs[lease.node_id][lease.actor_id]
        for _ in range(2):
            self.core.actors.lease_ended(lease.node_id, lease.actor_id)
        if lease.actor_id in self.record.leases(lease.node_id):
            del self.record.actors[lease.actor_id]

    @precondition(lambda self: self.issued)
    @rule(pick=picks, number=st.integers(0, 2))
    def end_on_another_node(self, pick: int, number: int) -> None:
        lease = self.issued[pick % len(self.issued)]
        if lease.actor_id not in self.record.leases(f"n{number}"):
            before = self.core.describe(self.now)
            self.core.actors.lease_ended(f"n{number}", lease.actor_id)
            assert self.core.describe(self.now) == before

    @rule()
    def take_grants(self) -> None:
        self.book_grants()
        self.check_that_all_wait_for_something()

    # --- time

    @rule(seconds=st.sampled_from([1, 2, 4, 6, 11, 61]), silent=st.sets(st.integers(0, 2), max_size=2))
    def wait(self, seconds: int, silent: set[int]) -> None:
        for _ in range(seconds):
            self.pass_time(1.0, silent)

    @rule(seconds=st.sampled_from([0.0, 0.25, 0.5, 1.5, 3.0, 20.0]), silent=st.sets(st.integers(0, 2)))
    def tick_early_or_late(self, seconds: float, silent: set[int]) -> None:
        self.pass_time(seconds, silent)

    def restart_master(self) -> None:
        self.core = ClusterCore(VERSIONS, self.now)
        self.record = Record(started=self.now, last_tick=self.now)

    def pass_time(self, seconds: float, silent: set[int]) -> None:
        self.now += seconds
        for number in {0, 1, 2} - silent:
            self.core.heard_node(f"n{number}", self.now)
            node = self.record.nodes.get(f"n{number}")
            if node is not None and node.is_connected:
                node.heard, node.listened = self.now, 0.0
        nodes, drivers = self.record.tick(self.now)
        decisions = self.core.tick(self.now)
        expected = {*self.lose(nodes), *(f"gone {driver_id}" for driver_id in drivers)}
        told: set[str] = set()
        for decision in decisions:
            match decision:
                case NodeLost(node_id):
                    told.add(f"lost {node_id}")
                case DriverGone(driver_id):
                    told.add(f"gone {driver_id}")
                    self.check_gone(decision)
                case DemandRefused(actor_id, reason):
                    actor = self.record.actors.pop(actor_id)
                    assert actor.lease is None and reason
                    assert self.record.is_impossible(actor.demand, self.now)
        assert told == expected
        self.record.expire(self.now)
        for actor in self.record.actors.values():
            assert actor.lease is not None or not self.record.is_impossible(actor.demand, self.now)

    def lose(self, nodes: list[str]) -> Iterator[str]:
        for node_id in nodes:
            node = self.record.nodes[node_id]
            self.record.lost[node_id] = node.incarnation
            if not node.is_draining:
                self.record.missed[node_id] = node.capacity, self.now
            self.record.lose_node(node_id)
            yield f"lost {node_id}"

    @rule(
        what=st.sampled_from(["drain node", "leave node", "leave driver", "restart master"]), number=st.integers(0, 2)
    )
    def seldom(self, what: str, number: int) -> None:
        """What would leave too little for the rest if it came as often."""
        match what:
            case "drain node":
                self.drain_node(number)
            case "leave node":
                self.leave_node(number)
            case "leave driver":
                self.leave_driver(number % 2)
            case "restart master":
                self.restart_master()

    # --- what must be

    @invariant()
    def the_core_says_what_the_record_says(self) -> None:
        view = self.core.describe(self.now)
        record = self.record
        assert {node.node_id for node in view.nodes} == set(record.nodes)
        assert {driver.driver_id: driver.is_connected for driver in view.drivers} == {
            driver_id: absence is None for driver_id, absence in record.drivers.items()
        }
        assert {actor.actor_id: (actor.node_id, actor.state, actor.gpu_ids) for actor in view.actors} == {
            actor_id: (lease.node_id, "started" if record.actors[actor_id].is_started else "granted", lease.gpu_ids)
            for actor_id, lease in record.leases().items()
        }
        assert [waiting.actor_id for waiting in view.waiting] == list(record.waiting())
        assert all(waiting.reason for waiting in view.waiting)
        for node in view.nodes:
            used = exact(node.used_cpus), node.used_memory_bytes, [exact(share) for share in node.used_gpus]
            assert used == record.used(node.node_id)
            assert node.num_actors == len(record.leases(node.node_id))

    def check_that_all_wait_for_something(self) -> None:
        for actor_id, actor in self.record.waiting().items():
            for node_id in self.record.nodes:
                is_free = self.record.fits(actor.demand, node_id)
                assert not is_free or self.record.is_kept(node_id, actor_id, self.now), (
                    f"{actor_id} could have {node_id}"
                )

    def book_grants(self) -> None:
        for grant in self.core.actors.take_grants(self.now):
            actor = self.record.actors[grant.lease.actor_id]
            if actor.lease is None:
                self.book(grant.lease)
            else:
                self.record.news.remove(grant.lease.actor_id)
            assert actor.lease == grant.lease
        assert not self.record.news & set(self.record.leases())
        self.record.news.clear()

    def book(self, lease: Lease) -> None:
        self.record.grant(lease, self.now)
        self.issued.append(lease)

    def check_gone(self, gone: DriverGone) -> None:
        del self.record.drivers[gone.driver_id]
        dropped = {
            actor_id
            for actor_id, actor in self.record.actors.items()
            if actor.driver_id == gone.driver_id and not actor.is_started
        }
        for actor_id in dropped:
            del self.record.actors[actor_id]


def picked(actors: dict[str, ActorRecord], pick: int) -> tuple[str, ActorRecord]:
    return list(actors.items())[-1 - pick % len(actors)]


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(max_examples=150, stateful_step_count=40)


@pytest.mark.parametrize("seed", range(16))
def test_so_do_long_random_walks(seed: int) -> None:
    # Hypothesis prefers short scripts; queues get long, and a node is lost in the middle of it, only here.
    rng = random.Random(seed)
    machine = ClusterMachine()
    machine.begin(rng.choices(CAPACITIES, k=3), 2)

    def ask() -> None:
        machine.ask_for_several(rng.randrange(2), rng.choices(DEMANDS, k=3), rng.randrange(99), rng.random() < 0.3)

    def seldom() -> None:
        if rng.random() < 0.2:
            what = rng.choice(["drain node", "leave node", "leave driver", "restart master"])
            machine.seldom(what, rng.randrange(3))

    steps: list[Callable[[], object]] = [
        *[ask] * 4,
        *[lambda: machine.issued and machine.start(int(rng.expovariate(0.2)), 1)] * 6,
        *[lambda: machine.end(rng.randrange(99))] * 4,
        *[machine.take_grants] * 3,
        *[lambda: machine.wait(rng.choice([1, 2, 4, 11]), set())] * 2,
        lambda: machine.wait(rng.choice([1, 6, 61]), set(rng.sample(range(3), rng.choice([0, 1, 1, 2])))),
        lambda: machine.tick_early_or_late(rng.choice([0.25, 1.5, 20.0]), {rng.randrange(3)}),
        lambda: machine.record.actors and machine.withdraw(rng.randrange(9)),
        lambda: machine.record.actors and machine.ask_again(rng.randrange(99), Demand()),
        *[lambda: machine.join_node(rng.randrange(3), rng.choice(CAPACITIES), 1)] * 2,
        *[lambda: machine.issued and machine.ask_anew(int(rng.expovariate(0.2)))] * 2,
        lambda: machine.break_node_link(rng.randrange(3), rng.random() < 0.2),
        lambda: machine.break_driver_link(rng.randrange(2)),
        *[lambda: machine.join_driver(rng.randrange(2))] * 2,
        seldom,
    ]
    for _ in range(400):
        rng.choice(steps)()
        machine.the_core_says_what_the_record_says()
    assert len(machine.issued) > 20


@pytest.mark.slow
def test_a_large_cluster_half_of_which_dies() -> None:
    core, now, num_nodes, num_actors = ClusterCore(VERSIONS, 0.0), 10.0, 1000, 10_000
    core.join_driver("d", "train.py", now)
    for number in range(num_nodes):
        info = NodeInfo(f"n{number}", "machine", Capacity(8, number % 2, 8 * GIB), [], "host", VERSIONS)
        assert isinstance(core.join_node(info, 1, [], now), NodeJoined)
    demands_of_all = [Demand(1, memory_bytes=GIB), Demand(0.5, gpus=0.5), Demand(1, strategy="spread"), Demand(2)]
    answers = [core.actors.ask("d", f"a{i}", f"A#{i}", demands_of_all[i % 4], now) for i in range(num_actors)]
    granted = [answer.lease for answer in answers if isinstance(answer, Granted)]
    assert not [answer for answer in answers if isinstance(answer, Refused)]
    check_totals(core, now, granted, num_actors)
    for lease in granted[::2]:
        assert core.actors.lease_started(lease.node_id, lease.actor_id, lease)

    for second in range(1, 6):
        for number in range(0, num_nodes, 2):
            core.heard_node(f"n{number}", now + second)
        decisions = core.tick(now + second)
    now += 5.0
    lost = {decision.node_id for decision in decisions if isinstance(decision, NodeLost)}
    assert lost == {f"n{number}" for number in range(1, num_nodes, 2)}
    kept = [lease for lease in granted if lease.node_id not in lost]
    kept += [grant.lease for grant in core.actors.take_grants(now)]
    num_over = sum(lease.node_id in lost for lease in granted)
    check_totals(core, now, kept, num_actors - num_over)

    for lease in kept:
        core.actors.lease_ended(lease.node_id, lease.actor_id)
    later = [grant.lease for grant in core.actors.take_grants(now)]
    assert later
    check_totals(core, now, later, num_actors - num_over - len(kept))


def check_totals(core: ClusterCore, now: float, leases: list[Lease], num_actors: int) -> None:
    """The leases are all that is in use, nothing is used twice, and everybody else waits."""
    view = core.describe(now)
    assert len(view.actors) == len(leases) == len({lease.actor_id for lease in leases})
    assert len(view.actors) + len(view.waiting) == num_actors
    assert sum(node.num_actors for node in view.nodes) == len(leases)
    assert sum(exact(node.used_cpus) for node in view.nodes) == sum(exact(lease.demand.cpus) for lease in leases)
    memory = sum(lease.demand.memory_bytes for lease in leases)
    assert sum(node.used_memory_bytes for node in view.nodes) == memory
    gpus = sum(exact(share) for node in view.nodes for share in node.used_gpus)
    assert gpus == sum(exact(lease.demand.gpus) for lease in leases)
    assert all(
        node.used_cpus <= 8 and node.used_memory_bytes <= 8 * GIB and max([0, *node.used_gpus]) <= 1
        for node in view.nodes
    )
