"""A master's core with a clock and short words, for the tests of what it decides."""

from __future__ import annotations

from typing import Any

from asyncparl.protocol.cluster import ClusterCore
from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.protocol.decisions import Decision, Granted, NodeJoined, Refused, Waiting
from asyncparl.protocol.parties import NodeInfo, Versions
from asyncparl.protocol.resources import Capacity, Demand, Lease

VERSIONS = Versions("0.3.0", "3.12.4", "2.1.0")
INF = float("inf")


def info(node_id: str = "n1", cpus: float = 4, name: str = "", num_gpus: int = 0, **labels: str) -> NodeInfo:
    capacity = Capacity(cpus, num_gpus, labels=labels)
    return NodeInfo(node_id, name or f"name of {node_id}", capacity, [f"tcp://{node_id}:1"], "host", VERSIONS)


def lease(actor_id: str, node_id: str = "n1", driver_id: str = "d1", cpus: float = 1) -> Lease:
    return Lease(actor_id, f"name of {actor_id}", driver_id, node_id, Demand(cpus), [], 0.0)


class Cluster(ClusterCore):
    """A core that started at 0, long ago, with driver d1; and a clock, so that the tests are short."""

    def __init__(self, *infos: NodeInfo, now: float = 100.0) -> None:
        super().__init__(VERSIONS, 0.0)
        self.now = now
        self.silent: set[str] = set()
        self.join_driver("d1", "train.py", now)
        for node in infos:
            assert isinstance(self.join_node(node, 1, [], now), NodeJoined)

    def want(self, actor_id: str, cpus: float = 1, driver_id: str = "d1", **demand: Any) -> str:
        """Ask, and the answer as text: the node's id, "waits" or the refusal."""
        answer = self.actors.ask(driver_id, actor_id, f"name of {actor_id}", Demand(cpus, **demand), self.now)
        match answer:
            case Granted(granted):
                assert granted.actor_id == actor_id
                return granted.node_id
            case Waiting(waiting_id):
                assert waiting_id == actor_id
                return "waits"
            case Refused(reason):
                return reason

    def granted(self) -> list[str]:
        return [f"{grant.lease.actor_id} on {grant.lease.node_id}" for grant in self.actors.take_grants(self.now)]

    def wait(self, seconds: int) -> list[Decision]:
        """Time passes: the nodes that are not silent are heard, and the core ticks, every second."""
        decisions = []
        for _ in range(seconds):
            self.now += 1.0
            for node in self.view().nodes:
                if node.node_id not in self.silent:
                    self.heard_node(node.node_id, self.now)
            decisions += self.tick(self.now)
        return decisions

    def view(self) -> ClusterView:
        return self.describe(self.now)

    def used(self) -> dict[str, float]:
        return {node.node_id: node.used_cpus for node in self.view().nodes}

    def placed(self) -> dict[str, str]:
        return {actor.actor_id: f"{actor.state} on {actor.node_id}" for actor in self.view().actors}

    def waiting(self) -> list[str]:
        return [waiting.actor_id for waiting in self.view().waiting]
