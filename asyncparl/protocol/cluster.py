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
because a master that restarted has forgotten everything. Only an actor that has another place already must end there,
and one whose owner has asked for a later process of it: no two processes are ever the same actor.

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
    Ended,
    Found,
    Granted,
    LeaseExpired,
    Named,
    NodeJoined,
    NodeLost,
    Refused,
    StillHeld,
    Waiting,
)
from asyncparl.protocol.directory import Directory
from asyncparl.protocol.liveness import Liveness
from asyncparl.protocol.nodes import RETURN_LIMIT_S, Held, Node, NodeState
from asyncparl.protocol.parties import NodeInfo, Versions, id_fault, unique_name
from asyncparl.protocol.placement import choose, waiting_reason
from asyncparl.protocol.resources import (
    ONE,
    UNTITLED,
    ActorTitle,
    Capacity,
    Demand,
    Lease,
    Need,
    check_demand,
    lease_fault,
    need_of,
)
from asyncparl.protocol.roster import Roster
from asyncparl.protocol.waiting import WaitingDemand, WaitingQueue

__all__ = ["ClusterCore", "ClusterView", "NodeInfo", "NodeState", "Versions"]

START_LIMIT_S = 60.0
"""An actor that has not started by then has lost its place."""


@dataclass(slots=True)
class _Driver:
    name: str
    program_id: str
    """The program that it belongs to: an actor that uses others is a driver too."""
    absence: Liveness | None = None
    """While its connection is broken."""


class ClusterCore:
    """See the head of this file. `versions` are the master's own; `now` is when it started."""

    def __init__(self, versions: Versions, now: float) -> None:
        self._nodes = Roster(versions, now)
        self._drivers: dict[str, _Driver] = {}
        self._held: dict[str, Held] = {}
        self._unstarted: OrderedDict[str, Held] = OrderedDict()
        """Those of `_held` that have not started, oldest first."""
        self._waiting = WaitingQueue()
        self._untold: dict[str, None] = {}
        """Actors that got a place which `take_grants` has to tell of, in order; some may have lost it again."""
        self._may_be_impossible = False
        """Whether demands may wait for nodes that are not there."""
        self._directory = Directory()
        self._refused: list[DemandRefused] = []
        """Not told yet."""
        self._missed: dict[str, Liveness | None] = {}
        """Owners who would start actors again, and have not joined since a node told of these; None: until the tick."""

    # --- nodes

    def join_node(self, info: NodeInfo, incarnation: int, leases: Sequence[Lease], now: float) -> NodeJoined | Refused:
        """A node says what it is and which actors it runs, on a new connection.

        That replaces whatever was believed of it, except for actors that were granted and have not started. A demand
        that waits for an actor which the node runs already is thereby granted.
        """
        if (fault := self._nodes.join_fault(info, incarnation, leases)) is not None:
            return Refused(fault)
        old = self._nodes.get(info.node_id)
        self._drop_believed(old, {lease.actor_id for lease in leases}, info.capacity)
        node = self._nodes.join(info, incarnation, now)
        for held in old.held.values() if old is not None else ():
            node.book(held)
        unwanted = [lease.actor_id for lease in leases if not self._adopt(node, lease)]
        self._nodes_changed()
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

    def drain_node(self, node_id: str) -> bool:
        """Give the node no more actors; False if there is no such node. If it gets lost, that is forgotten."""
        node = self._nodes.get(node_id)
        if node is None:
            return False
        node.move("drain")
        self._nodes_changed()
        return True

    def leave_node(self, node_id: str) -> None:
        """The node goes, and no actor of it runs any more."""
        if (node := self._nodes.get(node_id)) is not None:
            self._free_all(node)
            self._nodes.leave(node)
            self._nodes_changed()

    def node_info(self, node_id: str) -> NodeInfo | None:
        """How a node introduced itself, but under its name in the cluster. Also while its connection is broken."""
        node = self._nodes.get(node_id)
        return None if node is None else msgspec.structs.replace(node.info, name=node.name)

    # --- drivers

    def join_driver(self, driver_id: str, name: str, now: float, program_id: str = "") -> DriverJoined | Refused:
        """A driver comes, or comes back on a new connection: then it keeps its name and what it has."""
        if (fault := id_fault("a driver", driver_id)) is not None:
            return Refused(fault)
        driver = self._drivers.get(driver_id)
        if driver is None:
            unique = unique_name(name or "driver", {other.name for other in self._drivers.values()})
            driver = _Driver(unique, program_id or driver_id)
            self._drivers[driver_id] = driver
        driver.absence = None
        self._missed.pop(driver_id, None)
        return DriverJoined(driver.name)

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
            self._stop_waiting(waiting.actor_id)
        for held in [held for held in self._unstarted.values() if held.lease.driver_id == driver_id]:
            self._free(held.lease.actor_id)
        self._owner_ended(driver_id)
        return DriverGone(driver_id, driver.name)

    # --- actors

    def ask(
        self,
        driver_id: str,
        actor_id: str,
        actor_name: str,
        demand: Demand,
        now: float,
        title: ActorTitle = UNTITLED,
    ) -> Granted | Waiting | StillHeld | Refused:
        """A place for an actor. Asking again gives the same lease, or keeps the turn, whatever the demand now says.

        But for an actor that is started again the owner asks anew, once it has no process as far as the owner knows.
        """
        if (fault := self._ask_fault(driver_id, actor_id)) is not None:
            return Refused(fault)
        if self._holds_earlier(actor_id, title):
            if actor_id not in self._unstarted:
                return StillHeld(actor_id)
            self._free(actor_id)
        if actor_id not in self._held and self._waiting.get(actor_id) is None:
            if (fault := self._demand_fault(demand, now)) is not None:
                return Refused(fault)
            if (fault := self._directory.name_fault(actor_id, title)) is not None:
                return Refused(fault)
            self._directory.known(actor_id, actor_name, driver_id, title)
            self._waiting.add(actor_id, actor_name, driver_id, demand, now, title)
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
        """The driver whose actor it is, while it waits, has a place, or may be started again."""
        if (held := self._held.get(actor_id)) is not None:
            return held.lease.driver_id
        waiting = self._waiting.get(actor_id)
        return self._directory.restarter(actor_id) if waiting is None else waiting.driver_id

    def node_of(self, actor_id: str) -> str | None:
        """Where the actor has its place."""
        held = self._held.get(actor_id)
        return None if held is None else held.lease.node_id

    def give_back(self, actor_id: str) -> None:
        """The owner does not take the place, or the turn, and may ask for another one."""
        self._stop_waiting(actor_id)
        if actor_id in self._unstarted:
            self._free(actor_id)

    def withdraw(self, actor_id: str) -> None:
        """Its owner says that it is over: its name is free. If it has started, its node says when it has ended."""
        self.give_back(actor_id)
        self._will_not_restart(actor_id, "its owner has given it up")

    def kill(self, actor_id: str) -> None:
        """Somebody has ended the actor for good, and its owner may not know it yet."""
        self.give_back(actor_id)
        self._directory.ended(actor_id, "it was killed", is_final=True)

    def find(self, actor_id: str) -> Found | Ended | None:
        """Where an actor runs; None: it will run somewhere, or nothing is known of it (yet)."""
        held = self._held.get(actor_id)
        if held is not None and held.granted_at is None:
            is_reached = self._nodes[held.lease.node_id].is_connected
            # A node that is away is back soon, or lost; then the actor is started elsewhere if its owner does so.
            return Found(held.lease.node_id) if is_reached or not self._directory.restarter(actor_id) else None
        reason = self._directory.why_ended(actor_id)
        return None if reason is None else Ended(reason)

    def is_known(self, actor_id: str) -> bool:
        """Whether `find` has an answer for the actor, now or later."""
        return self._directory.get(actor_id) is not None

    def find_named(self, name: str, driver_id: str) -> Named | None:
        """The actor with a public name, of the program of this driver or a detached one; whether or not it runs now."""
        driver = self._drivers.get(driver_id)
        program_id = driver_id if driver is None else driver.program_id
        actor_id = self._directory.find_named(name, program_id)
        known = None if actor_id is None else self._directory.get(actor_id)
        return None if actor_id is None or known is None else Named(actor_id, known.name, known.title.class_path)

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

    def lease_ended(self, node_id: str, actor_id: str, num_restarts: int = 0) -> None:
        """The actor is over, or could not be started. Ignored if a later process, or another node, has its place."""
        held = self._held.get(actor_id)
        if held is not None and held.lease.node_id == node_id and held.lease.title.num_restarts == num_restarts:
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
        if waiting is not None:
            return waiting_reason(waiting.demand, self._nodes.present())
        held = self._held.get(actor_id)
        if held is None or held.granted_at is not None:
            return None
        return f"its last process may still run on {self._nodes[held.lease.node_id].name}"

    # --- time

    def tick(self, now: float) -> list[Decision]:
        """To be called about once a second, after reading what has arrived: who is lost, gone, late, or waits in vain.

        A call that comes late makes nobody late who could not be heard meanwhile.
        """
        lost = [node for node in self._nodes if node.liveness.tick(now)]
        decisions: list[Decision] = [self._lose_node(node, now) for node in lost]
        for driver_id, driver in list(self._drivers.items()):
            if driver.absence is not None and driver.absence.tick(now) and (gone := self.leave_driver(driver_id)):
                decisions.append(gone)
        self._give_up_missed(now)
        decisions += self._expire_unstarted(now)
        decisions += self._refuse_impossible(now)
        decisions += self._refused
        self._refused = []
        self._nodes.forget(now)
        return decisions

    def describe(self, now: float) -> ClusterView:
        """All there is, for people."""
        return ClusterView(
            nodes=[
                NodeSummary.of(node, node.info, node.state.value if node.is_connected else "disconnected")
                for node in self._nodes
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
        placement = choose(waiting.demand, self._nodes, first)
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
            title=waiting.title,
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
        if self._wants_later(lease) or self._directory.why_never_again(lease.actor_id) is not None:
            return False
        if held is not None:
            self._free(lease.actor_id)
        if self._waiting.remove(lease.actor_id) is not None:
            self._untold[lease.actor_id] = None
        self._refuse_namesake(lease)
        held = Held(lease)
        node.book(held)
        self._held[lease.actor_id] = held
        self._directory.known(lease.actor_id, lease.actor_name, lease.driver_id, lease.title)
        if lease.title.may_restart and lease.driver_id not in self._drivers:
            # We may be a new master: whoever lives joins us too. If he does not, nobody starts the actor again.
            self._missed.setdefault(lease.driver_id, None)
        return True

    def _refuse_namesake(self, lease: Lease) -> None:
        """One that runs comes before one that waits and was called so while we, a new master, knew nothing of it."""
        other = self._directory.namesake(lease.actor_id, lease.title)
        waiting = None if other is None else self._waiting.get(other)
        if waiting is not None:
            self._stop_waiting(waiting.actor_id)
            reason = f"an actor named {lease.title.public_name!r} exists already"
            self._refused.append(DemandRefused(waiting.driver_id, waiting.actor_id, reason))

    def _holds_earlier(self, actor_id: str, title: ActorTitle) -> bool:
        held = self._held.get(actor_id)
        return held is not None and held.lease.title.num_restarts < title.num_restarts

    def _wants_later(self, lease: Lease) -> bool:
        """Whether a later process of the actor waits for a place, or has one."""
        waiting, held = self._waiting.get(lease.actor_id), self._held.get(lease.actor_id)
        titles = [*([] if waiting is None else [waiting.title]), *([] if held is None else [held.lease.title])]
        return any(title.num_restarts > lease.title.num_restarts for title in titles)

    def _give_up_missed(self, now: float) -> None:
        for driver_id, absence in list(self._missed.items()):
            if absence is None:
                self._missed[driver_id] = Liveness(limit_s=RETURN_LIMIT_S, now=now)
            elif absence.tick(now):
                del self._missed[driver_id]
                self._owner_ended(driver_id)

    def _owner_ended(self, driver_id: str) -> None:
        for actor_id in self._directory.restarting(driver_id):
            self._will_not_restart(actor_id, "its owner has ended")

    def _will_not_restart(self, actor_id: str, reason: str) -> None:
        if actor_id in self._held:
            self._directory.will_not_restart(actor_id)
            self._directory.release_name(actor_id)
        else:
            self._directory.ended(actor_id, reason)

    def _stop_waiting(self, actor_id: str) -> None:
        if self._waiting.remove(actor_id) is not None:
            self._directory.over(actor_id, "it was never started")

    def _free(self, actor_id: str) -> Lease:
        self._directory.over(actor_id, "it has ended")
        held = self._held.pop(actor_id)
        self._nodes[held.lease.node_id].unbook(actor_id)
        self._unstarted.pop(actor_id, None)
        self._waiting.something_is_free()
        return held.lease

    def _drop_believed(self, old: Node | None, reported: Collection[str], capacity: Capacity) -> None:
        """Free what a node was believed to run, but for what it may still start."""
        for held in list(old.held.values()) if old is not None else ():
            lease = held.lease
            has_started = lease.actor_id in reported or held.granted_at is None
            if has_started or lease_fault(lease, lease.node_id, capacity) is not None:
                self._free(lease.actor_id)

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
        return self._directory.why_never_again(actor_id) or id_fault("an actor", actor_id)

    def _demand_fault(self, demand: Demand, now: float) -> str | None:
        try:
            check_demand(demand)
        except ValueError as error:
            return str(error)
        return self._never(demand, now)

    def _never(self, demand: Demand, now: float) -> str | None:
        """Why a demand cannot be met by the nodes that are there; None if it can, or if a node may still come."""
        if self._nodes.could_hold(demand):
            return None
        self._may_be_impossible = True
        return self._nodes.why_never(demand, now)

    def _refuse_impossible(self, now: float) -> list[DemandRefused]:
        if not self._may_be_impossible:
            return []
        self._may_be_impossible = False
        refused = []
        for line in self._waiting.lines():
            reason = self._never(line[0].demand, now)
            for waiting in line if reason is not None else ():
                self._stop_waiting(waiting.actor_id)
                refused.append(DemandRefused(waiting.driver_id, waiting.actor_id, str(reason)))
        return refused

    def _describe_waiting(self, now: float) -> list[WaitingSummary]:
        present = self._nodes.present()
        reasons = {line[0].shape: waiting_reason(line[0].demand, present) for line in self._waiting.lines()}
        return [WaitingSummary.of(waiting, now, reasons[waiting.shape]) for waiting in self._waiting]

    # --- nodes that come and go

    def _nodes_changed(self) -> None:
        self._waiting.something_is_free()
        self._may_be_impossible = True

    def _lose_node(self, node: Node, now: float) -> NodeLost:
        silence = f"{node.liveness.silence(now):.0f} s"
        reason = (
            f"nothing was heard of it for {silence}"
            if node.is_connected
            else f"its connection broke, and it did not come back within {silence}"
        )
        self._free_all(node)
        self._nodes.lose(node, now)
        self._nodes_changed()
        return NodeLost(node.node_id, node.name, node.incarnation, reason)

    def _free_all(self, node: Node) -> None:
        for actor_id in list(node.held):
            self._free(actor_id)
