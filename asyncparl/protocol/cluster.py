"""Who is in the cluster. Decides; the master then does.

A node:

    READY --drain--> DRAINING --leave--> GONE (forgotten; READY may leave too)
      |                 |
      +------lost-------+---> LOST --join with a higher incarnation--> READY

A node whose connection broke is not lost yet: it has 5 s to come back, and gets no actor meanwhile. Of a lost node only
the incarnation is remembered, for an hour, so that nothing of the old one is taken for news.

What becomes of a driver is in `drivers.py`, of an actor in `actors.py`.

Nothing here waits or reads a clock: `now` is in seconds of any monotonic clock. Calls about nodes, drivers and actors
that are not there, or not any more, change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncparl.protocol.actors import Actors
from asyncparl.protocol.cluster_view import ActorSummary, ClusterView, DriverSummary, NodeSummary
from asyncparl.protocol.decisions import Decision, DriverGone, DriverJoined, NodeJoined, NodeLost, Refused
from asyncparl.protocol.drivers import Drivers
from asyncparl.protocol.leases import Leases
from asyncparl.protocol.nodes import Node
from asyncparl.protocol.parties import NodeInfo, Versions, id_fault
from asyncparl.protocol.resources import Lease
from asyncparl.protocol.roster import Roster
from asyncparl.protocol.scheduler import Scheduler


class ClusterCore:
    """See the head of this file. `versions` are the master's own; `now` is when it started."""

    def __init__(self, versions: Versions, now: float) -> None:
        self._nodes = Roster(versions, now)
        self._drivers = Drivers()
        self._leases = Leases(self._nodes)
        self._scheduler = Scheduler(self._nodes, self._leases)
        self.actors = Actors(self._nodes, self._drivers, self._leases, self._scheduler)

    # --- nodes

    def join_node(self, info: NodeInfo, incarnation: int, leases: Sequence[Lease], now: float) -> NodeJoined | Refused:
        """A node says what it is and which actors it runs, on a new connection.

        That replaces whatever was believed of it, except for actors that were granted and have not started. A demand
        that waits for an actor which the node runs already is thereby granted.
        """
        if (fault := self._nodes.join_fault(info, incarnation, leases)) is not None:
            return Refused(fault)
        old = self._nodes.get(info.node_id)
        if old is not None:
            self.actors.node_rejoins(old, leases, info.capacity)
        node = self._nodes.join(info, incarnation, now)
        if old is None:
            self.actors.node_is_back(node)
        else:
            for held in old.held.values():
                node.book(held)
        unwanted = [lease for lease in leases if not self.actors.adopt(node, lease)]
        self._scheduler.nodes_changed()
        return NodeJoined(node.name, unwanted)

    def heard_node(self, node_id: str, now: float) -> None:
        """A sign of life on the node's present connection."""
        node = self._nodes.get(node_id)
        if node is not None and node.is_connected:
            node.liveness.heard(now)

    def node_disconnected(self, node_id: str, incarnation: int, now: float) -> None:
        """The connection of this incarnation broke. Ignored if a newer one has joined."""
        node = self._nodes.get(node_id)
        if node is not None and node.is_connected and node.incarnation == incarnation:
            node.liveness.heard(now)  # the 5 s begin
            node.disconnect()

    def drain_node(self, node_id: str) -> None:
        """Give the node no more actors. If it gets lost, that is forgotten."""
        if (node := self._nodes.get(node_id)) is not None:
            node.move("drain")
            self._scheduler.nodes_changed()

    def leave_node(self, node_id: str) -> None:
        """The node goes, and no actor of it runs any more."""
        if (node := self._nodes.get(node_id)) is not None:
            self.actors.node_left(node)
            self._nodes.leave(node)
            self._scheduler.nodes_changed()

    @property
    def num_nodes(self) -> int:
        """Nodes that are here, or may come back."""
        return len(self._nodes)

    def node_info(self, node_id: str) -> NodeInfo | None:
        """How a node introduced itself, but under its name in the cluster. Also while its connection is broken."""
        node = self._nodes.get(node_id)
        return None if node is None else msgspec.structs.replace(node.info, name=node.name)

    # --- drivers

    def join_driver(self, driver_id: str, name: str, now: float, program_id: str = "") -> DriverJoined | Refused:
        """A driver comes, or comes back on a new connection: then it keeps its name and what it has."""
        if (fault := id_fault("a driver", driver_id)) is not None:
            return Refused(fault)
        return DriverJoined(self._drivers.join(driver_id, name, program_id).name)

    def driver_disconnected(self, driver_id: str, now: float) -> None:
        """Its present connection broke. If it does not come back within 5 s, `tick` gives it up."""
        self._drivers.disconnected(driver_id, now)

    def leave_driver(self, driver_id: str) -> DriverGone | None:
        """The driver goes: what waits or has not started is dropped. None if it was gone."""
        driver = self._drivers.leave(driver_id)
        if driver is None:
            return None
        self.actors.driver_left(driver_id)
        return DriverGone(driver_id, driver.name)

    def actor_ended(self, node_id: str, actor_id: str, num_restarts: int = 0) -> DriverGone | None:
        """A node says that a process of an actor has ended. As a driver it does not come back: what was its is free."""
        if not self.actors.lease_ended(node_id, actor_id, num_restarts):
            return None
        return self.leave_driver(actor_id)

    # --- time

    def tick(self, now: float) -> list[Decision]:
        """To be called about once a second, after reading what has arrived: who is lost, gone, late, or waits in vain.

        A call that comes late makes nobody late who could not be heard meanwhile.
        """
        lost = [node for node in self._nodes if node.liveness.tick(now)]
        decisions: list[Decision] = [self._lose_node(node, now) for node in lost]
        decisions += [gone for driver_id in self._drivers.overdue(now) if (gone := self.leave_driver(driver_id))]
        decisions += self.actors.tick(now)
        self._nodes.forget(now)
        return decisions

    def describe(self, now: float) -> ClusterView:
        """All there is, for people."""
        return ClusterView(
            nodes=[
                NodeSummary.of(node, node.info, node.state.value if node.is_connected else "disconnected")
                for node in self._nodes
            ],
            drivers=[DriverSummary(each.driver_id, each.name, each.absence is None) for each in self._drivers],
            actors=[ActorSummary.of(held.lease, is_started=held.granted_at is None) for held in self._leases],
            waiting=self._scheduler.describe(now),
        )

    def _lose_node(self, node: Node, now: float) -> NodeLost:
        silence = f"{node.liveness.silence(now):.0f} s"
        reason = (
            f"nothing was heard of it for {silence}"
            if node.is_connected
            else f"its connection broke, and it did not come back within {silence}"
        )
        self.actors.node_lost(node)
        self._nodes.lose(node, now)
        self._scheduler.nodes_changed()
        return NodeLost(node.node_id, node.name, reason)
