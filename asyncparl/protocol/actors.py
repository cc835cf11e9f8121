"""The actors of a cluster: which wait for a place, which have one, and where the others are.

    WAITING --placed--> GRANTED --started--> STARTED
       |                   |                    |
       |                   |                    +-- ended; node lost or left; node does not report it --> forgotten
       |                   +-- withdrawn; driver gone; ended; node left, or lost for 60 s; 60 s over --> forgotten
       +-- withdrawn; driver gone; no node can hold it any more ----------------------------------------> forgotten

What a node says about its actors is the truth: an actor that it reports is booked even if it was never granted here,
because a master that restarted has forgotten everything. Only an actor that has another place already must end there,
and one whose owner has asked for a later process of it: no two processes are ever the same actor. Nor have two actors
the same name: who comes back to find that another one was given it must end too.

Places are in `leases.py`, turns in `scheduler.py`, names and ends in `directory.py`; this file keeps the three in step.
"""

from __future__ import annotations

from collections.abc import Collection

from asyncparl.protocol.decisions import DemandRefused, Ended, Found, Granted, Named, Refused, StillHeld, Waiting
from asyncparl.protocol.directory import Directory
from asyncparl.protocol.drivers import Drivers
from asyncparl.protocol.leases import START_LIMIT_S, Leases
from asyncparl.protocol.nodes import Held, Node
from asyncparl.protocol.parties import id_fault
from asyncparl.protocol.resources import UNTITLED, ActorTitle, Capacity, Demand, Lease, lease_fault
from asyncparl.protocol.roster import Roster
from asyncparl.protocol.scheduler import Scheduler


class Actors:
    """See the head of this file. Of its parts `nodes` and `drivers` are changed elsewhere, the others only here."""

    def __init__(self, nodes: Roster, drivers: Drivers, leases: Leases, scheduler: Scheduler) -> None:
        self._nodes = nodes
        self._drivers = drivers
        self._leases = leases
        self._scheduler = scheduler
        self._directory = Directory()
        self._refused: list[DemandRefused] = []
        """Not told yet."""
        self._outstanding: dict[str, Held] = {}
        """Places on nodes that were lost, by actor. Their owners may not know that, and start with them if the node
        comes back in time."""

    # --- what owners ask

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
        self._outstanding.pop(actor_id, None)  # its owner knows that it is lost, whatever the answer is
        if self._holds_earlier(actor_id, title):
            if not self._leases.is_unstarted(actor_id):
                return StillHeld(actor_id)
            self._free(actor_id)
        if actor_id not in self._leases and self._scheduler.waiting(actor_id) is None:
            fault = self._scheduler.fault(demand, now) or self._directory.name_fault(actor_id, title)
            if fault is not None:
                self._directory.ended(actor_id, f"it was never started: {fault}")  # others may hold its proxy already
                return Refused(fault)
            self._directory.known(actor_id, actor_name, driver_id, title)
            self._scheduler.add(actor_id, actor_name, driver_id, demand, now, title)
        self._scheduler.told(actor_id)
        self._leases.renew(actor_id, now)
        held = self._leases.get(actor_id)
        return Waiting(actor_id) if held is None else Granted(held.lease)

    def take_grants(self, now: float) -> list[Granted]:
        """The waiting demands that got a place since the last call. For after anything that may have freed something.

        Each is told once, here or as the answer of `ask`.
        """
        return self._scheduler.take_grants(now)

    def why_waiting(self, actor_id: str) -> str | None:
        """What a demand waits for, for people; None if it does not wait."""
        held = self._leases.get(actor_id)
        if held is None or self._leases.is_unstarted(actor_id):
            return self._scheduler.why_waiting(actor_id)
        return f"its last process may still run on {self._nodes[held.lease.node_id].name}"

    def give_back(self, actor_id: str) -> None:
        """The owner does not take the place, or the turn, and may ask for another one."""
        self._stop_waiting(actor_id)
        self._outstanding.pop(actor_id, None)
        if self._leases.is_unstarted(actor_id):
            self._free(actor_id)

    def withdraw(self, actor_id: str) -> None:
        """Its owner says that it is over: its name is free. If it has started, its node says when it has ended."""
        self.give_back(actor_id)
        self._directory.given_up(actor_id)
        self._will_not_restart(actor_id, "its owner has given it up")

    def driver_left(self, driver_id: str) -> None:
        """What it waits for, or has not started, is dropped."""
        for actor_id in self._scheduler.waiting_of(driver_id):
            self._stop_waiting(actor_id)
        for actor_id in self._leases.unstarted_of(driver_id):
            self._free(actor_id)
        self._owner_ended(driver_id)

    # --- what everybody may ask

    def kill(self, actor_id: str) -> None:
        """Somebody has ended the actor for good, and its owner may not know it yet."""
        self.give_back(actor_id)
        self._directory.ended(actor_id, "it was killed", is_final=True)

    def owner_of(self, actor_id: str) -> str | None:
        """The driver whose actor it is, while it waits, has a place, or may be started again."""
        if (held := self._leases.get(actor_id)) is not None:
            return held.lease.driver_id
        waiting = self._scheduler.waiting(actor_id)
        return self._directory.restarter(actor_id) if waiting is None else waiting.driver_id

    def node_of(self, actor_id: str) -> str | None:
        """Where the actor has its place."""
        held = self._leases.get(actor_id)
        return None if held is None else held.lease.node_id

    def find(self, actor_id: str) -> Found | Ended | None:
        """Where an actor runs; None: it will run somewhere, or nothing is known of it (yet)."""
        held = self._leases.get(actor_id)
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
        actor_id = self._directory.find_named(name, self._drivers.program_of(driver_id))
        known = None if actor_id is None else self._directory.get(actor_id)
        if actor_id is None or known is None:
            return None
        return Named(actor_id, known.name, known.title.class_path, known.title.call_timeout_s)

    # --- what nodes say

    def lease_started(self, node_id: str, actor_id: str, lease: Lease | None = None) -> bool:
        """The node runs the actor. `lease`: what it started with, which may not be known here (any more).

        False: the node must end the actor, because it has another place, or nothing that it could have started with.
        """
        node = self._nodes.get(node_id)
        if node is None:
            return True  # it has to join first, and reports the actor then
        held = node.held.get(actor_id)
        if held is not None and (lease is None or lease.process == held.lease.process):
            self._leases.started(held)
            return True
        if lease is None or lease.actor_id != actor_id or lease_fault(lease, node_id, node.capacity) is not None:
            return False
        return self.adopt(node, lease)

    def lease_ended(self, node_id: str, actor_id: str, num_restarts: int = 0) -> bool:
        """The actor is over, or could not be started. False if a later process, or another node, has its place."""
        held = self._leases.get(actor_id)
        if held is None or held.lease.node_id != node_id or held.lease.title.num_restarts != num_restarts:
            return False
        self._free(actor_id)
        return True

    def adopt(self, node: Node, lease: Lease) -> bool:
        """Book an actor that the node runs, with a lease without fault; whether it may stay."""
        held = self._leases.get(lease.actor_id)
        if held is not None and held.lease.node_id != node.node_id:
            return False
        if self._wants_later(lease) or self._directory.why_never_again(lease.actor_id) is not None:
            return False
        if not self._may_have_name(lease):
            return False
        if held is not None:
            self._free(lease.actor_id)
        self._scheduler.runs_already(lease.actor_id)
        self._leases.adopt(lease)
        self._directory.known(lease.actor_id, lease.actor_name, lease.driver_id, lease.title)
        if lease.title.may_restart:
            # We may be a new master: whoever lives joins us too. If he does not, nobody starts the actor again.
            self._drivers.expect(lease.driver_id)
        return True

    def node_rejoins(self, node: Node, reported: Collection[Lease], capacity: Capacity) -> None:
        """It will be there with empty books: free what it was believed to run, but not what it may still start."""
        running = {lease.process for lease in reported}
        for held in list(node.held.values()):
            lease = held.lease
            has_started = lease.process in running or held.granted_at is None
            if has_started or lease_fault(lease, lease.node_id, capacity) is not None:
                self._free(lease.actor_id)

    def node_left(self, node: Node) -> None:
        """Nothing runs there any more. To be called while it is still among the nodes."""
        for actor_id in list(node.held):
            self._free(actor_id)

    def node_lost(self, node: Node) -> None:
        """What it runs nobody knows. As `node_left`, but what may still start there is remembered."""
        self._outstanding |= {held.lease.actor_id: held for held in node.held.values() if held.granted_at is not None}
        self.node_left(node)

    def node_is_back(self, node: Node) -> None:
        """It was lost, or was never here. Places on it that are outstanding are given once more, to the same actors.

        For no longer than before: perhaps an actor has come and gone there while nobody told us.
        """
        for held in [held for held in self._outstanding.values() if held.lease.node_id == node.node_id]:
            lease = held.lease
            del self._outstanding[lease.actor_id]
            is_free = lease.actor_id not in self._leases and self._scheduler.waiting(lease.actor_id) is None
            if is_free and lease.driver_id in self._drivers and not lease_fault(lease, node.node_id, node.capacity):
                self._directory.known(lease.actor_id, lease.actor_name, lease.driver_id, lease.title)
                self._leases.grant(held)

    # --- time

    def tick(self, now: float) -> list[DemandRefused]:
        """As of the cluster: who has no owner any more, has not started in time, or waits in vain."""
        for driver_id in self._drivers.take_missed(now):
            self._owner_ended(driver_id)
        for actor_id in self._leases.overdue(now):
            self._free(actor_id)  # if its owner still wants it, he asks again
        for actor_id, held in list(self._outstanding.items()):
            if held.granted_at is None or now - held.granted_at >= START_LIMIT_S:
                del self._outstanding[actor_id]
        refused = self._scheduler.impossible(now)
        for demand in refused:
            self._stop_waiting(demand.actor_id)
        refused += self._refused
        self._refused = []
        return refused

    # --- inside

    def _ask_fault(self, driver_id: str, actor_id: str) -> str | None:
        if driver_id not in self._drivers:
            return f"driver {driver_id} has not joined"
        held, waiting = self._leases.get(actor_id), self._scheduler.waiting(actor_id)
        owner = waiting if held is None else held.lease
        if owner is not None and owner.driver_id != driver_id:
            return f"actor {actor_id} belongs to another driver"
        return self._directory.why_never_again(actor_id) or id_fault("an actor", actor_id)

    def _holds_earlier(self, actor_id: str, title: ActorTitle) -> bool:
        held = self._leases.get(actor_id)
        return held is not None and held.lease.title.num_restarts < title.num_restarts

    def _wants_later(self, lease: Lease) -> bool:
        """Whether a later process of the actor waits for a place, or has one."""
        waiting, held = self._scheduler.waiting(lease.actor_id), self._leases.get(lease.actor_id)
        titles = [*([] if waiting is None else [waiting.title]), *([] if held is None else [held.lease.title])]
        return any(title.num_restarts > lease.title.num_restarts for title in titles)

    def _may_have_name(self, lease: Lease) -> bool:
        """Whether no other actor is called so. One that only waits is refused: we, a new master, had not known better.

        One that was given a place meanwhile is who people mean by that name; nobody could reach the other one.
        """
        other = self._directory.namesake(lease.actor_id, lease.title)
        if other is None:
            return True
        if not self._stop_waiting(other):
            return False
        reason = f"an actor named {lease.title.public_name!r} exists already"
        self._directory.ended(other, f"it was never started: {reason}")
        self._refused.append(DemandRefused(other, reason))
        return True

    def _owner_ended(self, driver_id: str) -> None:
        for actor_id in self._directory.restarting(driver_id):
            self._will_not_restart(actor_id, "its owner has ended")

    def _will_not_restart(self, actor_id: str, reason: str) -> None:
        if actor_id in self._leases:
            self._directory.will_not_restart(actor_id)
            self._directory.release_name(actor_id)
        else:
            self._directory.ended(actor_id, reason)

    def _stop_waiting(self, actor_id: str) -> bool:
        """False if it did not wait."""
        if not self._scheduler.remove(actor_id):
            return False
        self._directory.over(actor_id, "it was never started")
        return True

    def _free(self, actor_id: str) -> None:
        self._directory.over(actor_id, "it has ended")
        self._leases.free(actor_id)
        self._scheduler.something_is_free()
