"""A slow and independent record of what must be true of a cluster, for `test_cluster_properties.py`.

It knows the rules but not how the core follows them: it adds fractions over all leases again and again, and looks at
every demand and every node. It predicts every answer except which node is chosen; that choice it checks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from asyncparl.protocol.resources import Capacity, Demand, Lease


@dataclass
class NodeRecord:
    """A node as the master should know it."""

    capacity: Capacity
    incarnation: int
    joined: float
    heard: float
    listened: float = 0.0
    """Seconds since it was heard in which the master was listening."""
    is_draining: bool = False
    is_connected: bool = True


@dataclass
class Absence:
    """A driver whose connection broke."""

    since: float
    listened: float = 0.0


@dataclass
class ActorRecord:
    """An actor that has a place or waits for one."""

    driver_id: str
    demand: Demand
    asked: float
    lease: Lease | None = None
    granted: float | None = None
    is_started: bool = False


@dataclass
class Record:
    """All that must be true."""

    started: float
    last_tick: float
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    missed: dict[str, tuple[Capacity, float]] = field(default_factory=dict)
    drivers: dict[str, Absence | None] = field(default_factory=dict)
    actors: dict[str, ActorRecord] = field(default_factory=dict)
    """In the order of arrival."""
    outstanding: dict[str, ActorRecord] = field(default_factory=dict)
    """Actors that had a place on a node that was lost, and had not started."""
    news: set[str] = field(default_factory=set)
    """Actors that waited until a node said that it runs them: their drivers must be told."""

    def leases(self, node_id: str | None = None) -> dict[str, Lease]:
        return {
            actor_id: actor.lease
            for actor_id, actor in self.actors.items()
            if actor.lease is not None and node_id in (None, actor.lease.node_id)
        }

    def waiting(self) -> dict[str, ActorRecord]:
        return {actor_id: actor for actor_id, actor in self.actors.items() if actor.lease is None}

    def used(self, node_id: str) -> tuple[Fraction, int, list[Fraction]]:
        """CPUs, bytes, and the share of each GPU."""
        leases = self.leases(node_id).values()
        gpus = [Fraction(0)] * self.nodes[node_id].capacity.num_gpus
        for lease in leases:
            for gpu_id in lease.gpu_ids:
                gpus[gpu_id] += min(exact(lease.demand.gpus), Fraction(1))
        return (
            sum((exact(lease.demand.cpus) for lease in leases), Fraction(0)),
            sum(lease.demand.memory_bytes for lease in leases),
            gpus,
        )

    def free(self, node_id: str) -> tuple[Fraction | float, int, list[Fraction]]:
        capacity = self.nodes[node_id].capacity
        cpus, memory, gpus = self.used(node_id)
        return exact(capacity.cpus) - cpus, capacity.memory_bytes - memory, [1 - used for used in gpus]

    def fits(self, demand: Demand, node_id: str) -> bool:
        node = self.nodes[node_id]
        if node.is_draining or not node.is_connected or not holds(node.capacity, demand):
            return False
        cpus, memory, gpus = self.free(node_id)
        return (
            (demand.cpus == 0 or exact(demand.cpus) <= cpus)
            and (demand.memory_bytes == 0 or demand.memory_bytes <= memory)
            and (demand.gpus == 0 or sum(free >= min(exact(demand.gpus), 1) for free in gpus) >= demand.gpus)
        )

    def is_kept(self, node_id: str, actor_id: str, now: float) -> bool:
        """Whether what an actor would use on a node is kept for one that has waited longer."""
        demand, (cpus, memory, _) = self.actors[actor_id].demand, self.free(node_id)
        for other_id, other in self.actors.items():
            if other_id == actor_id:
                return False
            older = other.demand
            if other.lease is not None or now - other.asked < 10 or not holds(self.nodes[node_id].capacity, older):
                continue
            if demand.cpus and older.cpus and cpus - exact(demand.cpus) < exact(older.cpus):
                return True
            if demand.memory_bytes and older.memory_bytes and memory - demand.memory_bytes < older.memory_bytes:
                return True
            if demand.gpus and older.gpus:
                return True
        raise AssertionError("unknown actor")

    def tick(self, now: float) -> tuple[list[str], list[str]]:
        """The nodes and drivers that are lost now."""
        for node in self.nodes.values():
            node.listened += listening(now, node.heard, max(node.joined, self.last_tick))
        for absence in self.drivers.values():
            if absence is not None:
                absence.listened += listening(now, absence.since, max(absence.since, self.last_tick))
        self.last_tick = now
        nodes = [node_id for node_id, node in self.nodes.items() if node.listened >= 5]
        return nodes, [driver_id for driver_id, absence in self.drivers.items() if absence and absence.listened >= 5]

    def adopt(self, lease: Lease, now: float) -> None:
        """A node runs this, wanted or not."""
        actor = self.actors.pop(lease.actor_id, None)
        if actor is not None and actor.lease is None:
            self.news.add(lease.actor_id)
        actor = actor or ActorRecord(lease.driver_id, lease.demand, now)
        actor.lease, actor.is_started, actor.granted, actor.demand = lease, True, None, lease.demand
        self.actors[lease.actor_id] = actor

    def expire(self, now: float) -> None:
        """Who has not started within a minute has lost its place."""
        for actors in (self.actors, self.outstanding):
            for actor_id, actor in list(actors.items()):
                if actor.granted is not None and now - actor.granted >= 60:
                    del actors[actor_id]

    def lose_node(self, node_id: str) -> None:
        """Its actors are forgotten, but not those that may still start there."""
        for actor_id in self.leases(node_id):
            if not self.actors[actor_id].is_started:
                self.outstanding[actor_id] = self.actors[actor_id]
        self.forget_node(node_id)

    def is_back(self, node_id: str, num_gpus: int) -> None:
        """The node was lost: its places are kept for those that may still start there."""
        for actor_id, actor in list(self.outstanding.items()):
            if actor.lease is None or actor.lease.node_id != node_id:
                continue
            del self.outstanding[actor_id]
            has_gpus = set(actor.lease.gpu_ids) <= set(range(num_gpus))
            if actor_id not in self.actors and actor.driver_id in self.drivers and has_gpus:
                self.actors[actor_id] = actor

    def forget_node(self, node_id: str) -> None:
        """With the actors that had a place there."""
        for actor_id in self.leases(node_id):
            del self.actors[actor_id]
        self.nodes.pop(node_id, None)

    def is_impossible(self, demand: Demand, now: float) -> bool:
        present = [node for node in self.nodes.values() if not node.is_draining]
        able = [node for node in present if holds(node.capacity, demand)]
        missed = [capacity for capacity, since in self.missed.values() if now - since < 5 and holds(capacity, demand)]
        return bool(present) and not able and not missed and now - self.started >= 5

    def grant(self, lease: Lease, now: float) -> None:
        """Check a new lease, and book it."""
        actor = self.actors[lease.actor_id]
        assert actor.lease is None
        assert (lease.driver_id, lease.demand) == (actor.driver_id, actor.demand)
        assert self.fits(actor.demand, lease.node_id)
        assert not self.is_kept(lease.node_id, lease.actor_id, now)
        equal = [each for each in self.waiting().items() if each[1].demand == actor.demand]
        assert equal[0][0] == lease.actor_id, "somebody with the same demand came first"
        assert len(set(lease.gpu_ids)) == len(lease.gpu_ids) == -(-actor.demand.gpus // 1)
        actor.lease, actor.granted = lease, now
        gpus = self.used(lease.node_id)[2]
        assert all(gpus[gpu_id] <= 1 for gpu_id in lease.gpu_ids)


def listening(now: float, begin: float, last_tick: float) -> float:
    """Seconds from `begin` to `now` in which the master was listening: at most one after the tick before."""
    return max(0.0, min(now, last_tick + 1.0) - max(begin, last_tick))


def exact(amount: float) -> Any:
    return amount if amount == float("inf") else Fraction(str(amount))


def holds(capacity: Capacity, demand: Demand) -> bool:
    return (
        demand.cpus <= capacity.cpus
        and demand.gpus <= capacity.num_gpus
        and demand.memory_bytes <= capacity.memory_bytes
        and demand.labels.items() <= capacity.labels.items()
    )
