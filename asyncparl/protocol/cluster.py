"""Who is in the cluster, and who has what. Decides; the master then does.

A node:

    READY --drain--> DRAINING --leave--> GONE (forgotten; READY may leave too)
      |                 |
      +------lost-------+---> LOST --join with a higher incarnation--> READY

A node whose connection broke is not lost yet: it has 5 s to come back, and gets no actor meanwhile. Of a lost node only
the incarnation is remembered, for an hour, so that nothing of the old one is taken for news.

An actor:

    WAITING --placed--> GRANTED --started--> STARTED
       |                   |                    |
       |                   |                    +-- ended; node lost or left; node does not report it --> forgotten
       |                   +-- withdrawn; driver gone; ended; node lost or left; 60 s over -------------> forgotten
       +-- withdrawn; driver gone; no node can hold it any more ----------------------------------------> forgotten

What a node says about its actors is the truth: an actor that it reports is booked even if it was never granted here,
because a master that restarted has forgotten everything. Only an actor that has another place already must end there.

Nothing here waits or reads a clock: `now` is in seconds of any monotonic clock. Calls about nodes, drivers and actors
that are not there, or not any more, change nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from asyncparl.protocol.cluster_view import ActorSummary, ClusterView, DriverSummary, NodeSummary, WaitingSummary
from asyncparl.protocol.decisions import (
    Decision,
    DemandRefused,
    DriverGone,
    DriverJoined,
    Granted,
    LeaseExpired,
    NodeDrained,
    NodeJoined,
    NodeLost,
    Refused,
    Waiting,
)
from asyncparl.protocol.liveness import Liveness
from asyncparl.protocol.nodes import RETURN_LIMIT_S, Held, LostNodes, Node, NodeState
from asyncparl.protocol.parties import NodeInfo, Versions, id_fault, unique_name, version_fault
from asyncparl.protocol.placement import choose, could_hold, missing, waiting_reason
from asyncparl.protocol.resources import (
    ONE,
    Capacity,
    Demand,
    Lease,
    Need,
    check_capacity,
    check_demand,
    lease_fault,
    need_of,
)
from asyncparl.protocol.waiting import WaitingDemand, WaitingQueue

__all__ = ["ClusterCore", "ClusterView", "NodeInfo", "NodeState", "Versions"]

START_LIMIT_S = 60.0
"""An actor that has not started by then has lost its place."""


@dataclass(slots=True)
class _Driver:
    name: str
    absence: Liveness | None = None
    """While its connection is broken."""


class ClusterCore:
    """See the head of this file. `versions` are the master's own; `now` is when it started."""

    def __init__(self, versions: Versions, now: float) -> None:
        self._versions = versions
        self._started_at = now
        self._nodes: dict[str, Node] = {}
        self._lost = LostNodes()
        self._drivers: dict[str, _Driver] = {}
        self._held: dict[str, Held] = {}
        self._unstarted: OrderedDict[str, Held] = OrderedDict()
        """Those of `_held` that have not started, oldest first."""
        self._waiting = WaitingQueue()
        self._untold: dict[str, None] = {}
        """Actors that got a place which `take_grants` has to tell of, in order; some may have lost it again."""
        self._may_be_impossible = False
        """Whether demands may wait for nodes that are not there."""

    # --- nodes

    def join_node(self, info: NodeInfo, incarnation: int, leases: Sequence[Lease], now: float) -> NodeJoined | Refused:
        """A node says what it is and which actors it runs, on a new connection.

        That replaces whatever was believed of it, except for actors that were granted and have not started. A demand
        that waits for an actor which the node runs already is thereby granted.
        """
        if (fault := self._node_fault(info, incarnation, leases)) is not None:
            return Refused(fault)
        node_id, old = info.node_id, self._nodes.get(info.node_id)
        over = self._drop_believed(old, {lease.actor_id for lease in leases}, info.capacity)
        node = Node(
            node_id=node_id,
            name=self._name_node(info, old),
            capacity=info.capacity,
            info=info,
            incarnation=incarnation,
            liveness=Liveness(limit_s=RETURN_LIMIT_S, now=now),
            state=old.state if old is not None else NodeState.LOST,
        )
        node.move("join")
        self._lost.remove(node_id)
        self._nodes[node_id] = node
        for held in old.held.values() if old is not None else ():
            node.book(held)
        unwanted = [lease.actor_id for lease in leases if not self._adopt(node, lease)]
        self._nodes_changed()
        return NodeJoined(node.name, old.incarnation if old is not None and old.is_connected else None, over, unwanted)

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

    def drain_node(self, node_id: str) -> bool:
        """Give the node no more actors; False if there is no such node. If it gets lost, that is forgotten."""
        node = self._nodes.get(node_id)
        if node is None:
            return False
        node.move("drain")
        self._nodes_changed()
        return True

    def leave_node(self, node_id: str) -> list[Lease]:
        """The node goes, and no actor of it runs any more. The leases that are thereby over."""
        node = self._nodes.get(node_id)
        return [] if node is None else self._remove_node(node, "leave")

    def node_info(self, node_id: str) -> NodeInfo | None:
        """How a node introduced itself, but under its name in the cluster. Also while its connection is broken."""
        node = self._nodes.get(node_id)
        return None if node is None else msgspec.structs.replace(node.info, name=node.name)

    # --- drivers

    def join_driver(self, driver_id: str, name: str, now: float) -> DriverJoined | Refused:
        """A driver comes, or comes back on a new connection: then it keeps its name and what it has."""
        if (fault := id_fault("a driver", driver_id)) is not None:
            return Refused(fault)
        driver = self._drivers.get(driver_id)
        replaced = driver is not None and driver.absence is None
        if driver is None:
            driver = _Driver(unique_name(name or "driver", {other.name for other in self._drivers.values()}))
            self._drivers[driver_id] = driver
        driver.absence = None
        return DriverJoined(driver.name, replaced)

    def driver_disconnected(self, driver_id: str, now: float) -> None:
        """Its present connection broke. If it does not come back within 5 s, `tick` gives it up."""
        driver = self._drivers.get(driver_id)
        if driver is not None and driver.absence is None:
            driver.absence = Liveness(limit_s=RETURN_LIMIT_S, now=now)

    def leave_driver(self, driver_id: str) -> DriverGone | None:
        """The driver goes: what waits or has not started is dropped. None if it was gone."""
        driver = self._drivers.pop(driver_id, None)
        if driver is None:
            return None
        for waiting in [each for each in self._waiting if each.driver_id == driver_id]:
            self._waiting.remove(waiting.actor_id)
        dropped = [held.lease for held in self._unstarted.values() if held.lease.driver_id == driver_id]
        for lease in dropped:
            self._free(lease.actor_id)
        return DriverGone(driver_id, driver.name, dropped)

    # --- actors

    def ask(
        self, driver_id: str, actor_id: str, actor_name: str, demand: Demand, now: float
    ) -> Granted | Waiting | Refused:
        """A place for an actor. Asking again gives the same lease, or keeps the turn, whatever the demand now says."""
        if (fault := self._ask_fault(driver_id, actor_id)) is not None:
            return Refused(fault)
        if actor_id not in self._held and self._waiting.get(actor_id) is None:
            if (fault := self._demand_fault(demand, now)) is not None:
                return Refused(fault)
            self._waiting.add(actor_id, actor_name, driver_id, demand, now)
            self._place(now)
        self._untold.pop(actor_id, None)
        held = self._held.get(actor_id)
        if held is not None and held.granted_at is not None:
            held.granted_at = now  # it is still wanted
            self._unstarted[actor_id] = self._unstarted.pop(actor_id)
        return Waiting(actor_id) if held is None else Granted(held.lease)

    @property
    def num_nodes(self) -> int:
        """Nodes that are here, or may come back."""
        return len(self._nodes)

    def owner_of(self, actor_id: str) -> str | None:
        """The driver whose actor it is, while it waits or has a place."""
        if (held := self._held.get(actor_id)) is not None:
            return held.lease.driver_id
        waiting = self._waiting.get(actor_id)
        return None if waiting is None else waiting.driver_id

    def withdraw(self, actor_id: str) -> None:
        """The actor is not wanted any more. If it has started, its node says when it is over."""
        self._waiting.remove(actor_id)
        if actor_id in self._unstarted:
            self._free(actor_id)

    def lease_started(self, node_id: str, actor_id: str, lease: Lease | None = None) -> bool:
        """The node runs the actor. `lease`: what it started with, which may not be known here (any more).

        False: the node must end the actor, because it has another place, or nothing that it could have started with.
        """
        node = self._nodes.get(node_id)
        if node is None:
            return True  # it has to join first, and reports the actor then
        if (held := node.held.get(actor_id)) is not None:
            held.granted_at = None
            self._unstarted.pop(actor_id, None)
            return True
        if lease is None or lease.actor_id != actor_id or lease_fault(lease, node_id, node.capacity) is not None:
            return False
        return self._adopt(node, lease)

    def lease_ended(self, node_id: str, actor_id: str) -> None:
        """The actor is over, or could not be started. Ignored if it has its place on another node."""
        held = self._held.get(actor_id)
        if held is not None and held.lease.node_id == node_id:
            self._free(actor_id)

    def take_grants(self, now: float) -> list[Granted]:
        """The waiting demands that got a place since the last call. For after anything that may have freed something.

        Each is told once, here or as the answer of `ask`.
        """
        self._place(now)
        grants = [Granted(self._held[actor_id].lease) for actor_id in self._untold if actor_id in self._held]
        self._untold.clear()
        return grants

    def why_waiting(self, actor_id: str) -> str | None:
        """What a demand waits for, for people; None if it does not wait."""
        waiting = self._waiting.get(actor_id)
        return None if waiting is None else waiting_reason(waiting.demand, self._present())

    # --- time

    def tick(self, now: float) -> list[Decision]:
        """To be called about once a second, after reading what has arrived: who is lost, gone, late, or waits in vain.

        A call that comes late makes nobody late who could not be heard meanwhile.
        """
        decisions: list[Decision] = []
        for node in list(self._nodes.values()):
            if node.liveness.tick(now):
                decisions.append(self._lose_node(node, now))
            elif node.state is NodeState.DRAINING and node.is_connected and not node.held:
                decisions.append(NodeDrained(node.node_id))
        for driver_id, driver in list(self._drivers.items()):
            if driver.absence is not None and driver.absence.tick(now) and (gone := self.leave_driver(driver_id)):
                decisions.append(gone)
        decisions += self._expire_unstarted(now)
        decisions += self._refuse_impossible(now)
        self._lost.forget(now)
        return decisions

    def describe(self, now: float) -> ClusterView:
        """All there is, for people."""
        return ClusterView(
            nodes=[
                NodeSummary.of(node, node.info, node.state.value if node.is_connected else "disconnected")
                for node in self._nodes.values()
            ],
            drivers=[
                DriverSummary(driver_id, driver.name, driver.absence is None)
                for driver_id, driver in self._drivers.items()
            ],
            actors=[ActorSummary.of(held.lease, is_started=held.granted_at is None) for held in self._held.values()],
            waiting=self._describe_waiting(now),
        )

    # --- leases

    def _place(self, now: float) -> None:
        self._waiting.place(lambda waiting, first: self._grant(waiting, first, now), now)

    def _grant(self, waiting: WaitingDemand, first: Sequence[Need], now: float) -> bool:
        placement = choose(waiting.demand, self._nodes.values(), first)
        if placement is None:
            return False
        lease = Lease(
            actor_id=waiting.actor_id,
            actor_name=waiting.actor_name,
            driver_id=waiting.driver_id,
            node_id=placement.node_id,
            demand=waiting.demand,
            gpu_ids=placement.gpu_ids,
            gpu_share=need_of(waiting.demand).gpu_share / ONE,
        )
        held = Held(lease, now)
        self._nodes[placement.node_id].book(held)
        self._held[lease.actor_id] = self._unstarted[lease.actor_id] = held
        self._untold[lease.actor_id] = None
        return True

    def _adopt(self, node: Node, lease: Lease) -> bool:
        """Book an actor that the node runs; whether it may stay."""
        held = self._held.get(lease.actor_id)
        if held is not None and held.lease.node_id != node.node_id:
            return False
        if held is not None:
            self._free(lease.actor_id)
        if self._waiting.remove(lease.actor_id) is not None:
            self._untold[lease.actor_id] = None
        held = Held(lease)
        node.book(held)
        self._held[lease.actor_id] = held
        return True

    def _free(self, actor_id: str) -> Lease:
        held = self._held.pop(actor_id)
        self._nodes[held.lease.node_id].unbook(actor_id)
        self._unstarted.pop(actor_id, None)
        self._waiting.something_is_free()
        return held.lease

    def _drop_believed(self, old: Node | None, reported: Collection[str], capacity: Capacity) -> list[Lease]:
        """Free what a node was believed to run, but what it may still start; those that it does not report."""
        over = []
        for held in list(old.held.values()) if old is not None else ():
            lease = held.lease
            is_reported = lease.actor_id in reported
            if is_reported or held.granted_at is None or lease_fault(lease, lease.node_id, capacity) is not None:
                self._free(lease.actor_id)
                if not is_reported:
                    over.append(lease)
        return over

    def _expire_unstarted(self, now: float) -> list[LeaseExpired]:
        expired = []
        for actor_id, held in list(self._unstarted.items()):
            if held.granted_at is None or now - held.granted_at < START_LIMIT_S:
                break
            expired.append(LeaseExpired(self._free(actor_id)))
        return expired

    # --- demands

    def _ask_fault(self, driver_id: str, actor_id: str) -> str | None:
        if driver_id not in self._drivers:
            return f"driver {driver_id} has not joined"
        owner: Lease | WaitingDemand | None = self._waiting.get(actor_id)
        if held := self._held.get(actor_id):
            owner = held.lease
        if owner is not None and owner.driver_id != driver_id:
            return f"actor {actor_id} belongs to another driver"
        return id_fault("an actor", actor_id)

    def _demand_fault(self, demand: Demand, now: float) -> str | None:
        try:
            check_demand(demand)
        except ValueError as error:
            return str(error)
        return self._never(demand, now)

    def _never(self, demand: Demand, now: float) -> str | None:
        """Why a demand cannot be met by the nodes that are there; None if it can, or if a node may still come."""
        need, present = need_of(demand), self._present()
        if any(could_hold(need, node) for node in present):
            return None
        self._may_be_impossible = True
        if now - self._started_at < RETURN_LIMIT_S:
            return None
        if any(could_hold(need, node) for node in self._lost.missed(now)):
            return None
        return missing(demand, present) if present or not self._nodes else "all nodes are about to leave"

    def _refuse_impossible(self, now: float) -> list[DemandRefused]:
        if not self._may_be_impossible:
            return []
        self._may_be_impossible = False
        refused = []
        for line in self._waiting.lines():
            reason = self._never(line[0].demand, now)
            for waiting in line if reason is not None else ():
                self._waiting.remove(waiting.actor_id)
                refused.append(DemandRefused(waiting.driver_id, waiting.actor_id, str(reason)))
        return refused

    def _describe_waiting(self, now: float) -> list[WaitingSummary]:
        present = self._present()
        reasons = {line[0].shape: waiting_reason(line[0].demand, present) for line in self._waiting.lines()}
        return [WaitingSummary.of(waiting, now, reasons[waiting.shape]) for waiting in self._waiting]

    # --- nodes that come and go

    def _present(self) -> list[Node]:
        """The nodes that take actors, now or when they are connected again."""
        return [node for node in self._nodes.values() if node.state is NodeState.READY]

    def _nodes_changed(self) -> None:
        self._waiting.something_is_free()
        self._may_be_impossible = True

    def _node_fault(self, info: NodeInfo, incarnation: int, leases: Sequence[Lease]) -> str | None:
        fault = id_fault("a node", info.node_id) or version_fault(self._versions, info.versions)
        if fault is not None:
            return fault
        if (node := self._nodes.get(info.node_id)) is not None and incarnation <= node.incarnation:
            return f"node {info.node_id} has joined as incarnation {node.incarnation}; this is {incarnation}"
        if (lost := self._lost.incarnation(info.node_id)) is not None and incarnation <= lost:
            return f"incarnation {lost} of node {info.node_id} was declared lost; this is {incarnation}"
        try:
            check_capacity(info.capacity)
        except ValueError as error:
            return str(error)
        return next(
            (fault for lease in leases if (fault := lease_fault(lease, info.node_id, info.capacity)) is not None), None
        )

    def _name_node(self, info: NodeInfo, old: Node | None) -> str:
        if old is not None and old.info.name == info.name:
            return old.name
        return unique_name(info.name or "node", {node.name for node in self._nodes.values() if node is not old})

    def _lose_node(self, node: Node, now: float) -> NodeLost:
        silence = f"{node.liveness.silence(now):.0f} s"
        reason = (
            f"nothing was heard of it for {silence}"
            if node.is_connected
            else f"its connection broke, and it did not come back within {silence}"
        )
        self._lost.add(node, now)
        return NodeLost(node.node_id, node.name, node.incarnation, reason, self._remove_node(node, "lost"))

    def _remove_node(self, node: Node, event: str) -> list[Lease]:
        node.move(event)
        over = [self._free(actor_id) for actor_id in list(node.held)]
        del self._nodes[node.node_id]
        self._nodes_changed()
        return over
