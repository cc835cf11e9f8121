"""The cluster as people see it, and as JSON."""

from __future__ import annotations

import math

import msgspec

from asyncparl.protocol.parties import NodeInfo
from asyncparl.protocol.placement import NodeView
from asyncparl.protocol.resources import ONE, Demand, Lease
from asyncparl.protocol.waiting import WaitingDemand


class NodeSummary(msgspec.Struct, frozen=True):
    """A node: what it has and what is in use."""

    node_id: str
    name: str
    state: str
    """ready, draining, or disconnected."""
    host: str
    addresses: list[str]
    labels: dict[str, str]
    num_actors: int
    used_cpus: float
    total_cpus: float | None
    """None: without limit. JSON has no infinity."""
    used_gpus: list[float]
    """The share in use of each GPU."""
    used_memory_bytes: int
    total_memory_bytes: int

    @classmethod
    def of(cls, node: NodeView, info: NodeInfo, state: str) -> NodeSummary:
        return cls(
            node_id=node.node_id,
            name=node.name,
            state=state,
            host=info.host,
            addresses=info.addresses,
            labels=node.capacity.labels,
            num_actors=node.num_actors,
            used_cpus=(node.total_cpus - node.free_cpus) / ONE,
            total_cpus=None if math.isinf(node.capacity.cpus) else node.capacity.cpus,
            used_gpus=[(ONE - free) / ONE for free in node.free_gpus],
            used_memory_bytes=node.capacity.memory_bytes - node.free_memory,
            total_memory_bytes=node.capacity.memory_bytes,
        )


class DriverSummary(msgspec.Struct, frozen=True):
    driver_id: str
    name: str
    is_connected: bool


class ActorSummary(msgspec.Struct, frozen=True):
    """An actor that has a place."""

    actor_id: str
    name: str
    driver_id: str
    node_id: str
    state: str
    """granted or started."""
    demand: Demand
    gpu_ids: list[int]

    @classmethod
    def of(cls, lease: Lease, *, is_started: bool) -> ActorSummary:
        return cls(
            actor_id=lease.actor_id,
            name=lease.actor_name,
            driver_id=lease.driver_id,
            node_id=lease.node_id,
            state="started" if is_started else "granted",
            demand=lease.demand,
            gpu_ids=lease.gpu_ids,
        )


class WaitingSummary(msgspec.Struct, frozen=True):
    """An actor that has none yet, in the order of arrival."""

    actor_id: str
    name: str
    driver_id: str
    demand: Demand
    waiting_s: float
    reason: str

    @classmethod
    def of(cls, waiting: WaitingDemand, now: float, reason: str) -> WaitingSummary:
        return cls(
            actor_id=waiting.actor_id,
            name=waiting.actor_name,
            driver_id=waiting.driver_id,
            demand=waiting.demand,
            waiting_s=now - waiting.since,
            reason=reason,
        )


class ClusterView(msgspec.Struct, frozen=True):
    """Everything there is to see."""

    nodes: list[NodeSummary]
    drivers: list[DriverSummary]
    actors: list[ActorSummary]
    waiting: list[WaitingSummary]
