"""Places for the demands that wait: who gets one now, who waits for what, and who waits in vain.

Whose turn it is says the queue (`waiting.py`), and which node it gets `placement.py`. A demand that no node could hold,
even if all were empty, is refused; but not while a node may still come that could.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncparl.protocol.cluster_view import WaitingSummary
from asyncparl.protocol.decisions import DemandRefused, Granted
from asyncparl.protocol.leases import Leases
from asyncparl.protocol.nodes import Held
from asyncparl.protocol.placement import choose, waiting_reason
from asyncparl.protocol.resources import ONE, ActorTitle, Demand, Lease, Need, check_demand, need_of
from asyncparl.protocol.roster import Roster
from asyncparl.protocol.waiting import WaitingDemand, WaitingQueue


class Scheduler:
    """Turns demands into `leases` on `nodes`."""

    def __init__(self, nodes: Roster, leases: Leases) -> None:
        self._nodes = nodes
        self._leases = leases
        self._waiting = WaitingQueue()
        self._untold: dict[str, None] = {}
        """Actors that got a place which `take_grants` has to tell of, in order; some may have lost it again."""
        self._may_be_impossible = False
        """Whether demands may wait for nodes that are not there."""

    def waiting(self, actor_id: str) -> WaitingDemand | None:
        """The demand of an actor that has no place yet."""
        return self._waiting.get(actor_id)

    def waiting_of(self, driver_id: str) -> list[str]:
        """The actors of this driver that wait."""
        return [waiting.actor_id for waiting in self._waiting if waiting.driver_id == driver_id]

    # --- who gets a place

    def add(
        self, actor_id: str, actor_name: str, driver_id: str, demand: Demand, now: float, title: ActorTitle
    ) -> None:
        """Enter a demand without `fault`. It may get its place at once, and others with it."""
        self._waiting.add(actor_id, actor_name, driver_id, demand, now, title)
        self._place(now)

    def remove(self, actor_id: str) -> bool:
        """It does not wait any more; False if it did not."""
        return self._waiting.remove(actor_id) is not None

    def runs_already(self, actor_id: str) -> None:
        """If it waits: a node has the actor, so that there is nothing to wait for."""
        if self.remove(actor_id):
            self._untold[actor_id] = None

    def told(self, actor_id: str) -> None:
        """Its owner knows of its place, if it has one: `take_grants` need not tell of it."""
        self._untold.pop(actor_id, None)

    def take_grants(self, now: float) -> list[Granted]:
        """The demands that got a place since the last call, each once."""
        self._place(now)
        grants = [Granted(held.lease) for actor_id in self._untold if (held := self._leases.get(actor_id)) is not None]
        self._untold.clear()
        return grants

    def something_is_free(self) -> None:
        """A place was given back: others may fit now."""
        self._waiting.something_is_free()

    def nodes_changed(self) -> None:
        """A node came, or one takes no more actors."""
        self.something_is_free()
        self._may_be_impossible = True

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
        self._leases.grant(Held(lease, now))
        self._untold[lease.actor_id] = None
        return True

    # --- who waits for what, or in vain

    def fault(self, demand: Demand, now: float) -> str | None:
        """Why a demand must not wait: there can be no such thing, or no node that could hold it."""
        try:
            check_demand(demand)
        except ValueError as error:
            return str(error)
        return self._never(demand, now)

    def impossible(self, now: float) -> list[DemandRefused]:
        """Those that wait in vain. They do so until they are removed, but are told once."""
        if not self._may_be_impossible:
            return []
        self._may_be_impossible = False
        lines = [(line, self._never(line[0].demand, now)) for line in self._waiting.lines()]
        return [DemandRefused(each.actor_id, reason) for line, reason in lines if reason is not None for each in line]

    def why_waiting(self, actor_id: str) -> str | None:
        """What a demand waits for, for people; None if it does not wait."""
        waiting = self._waiting.get(actor_id)
        return None if waiting is None else waiting_reason(waiting.demand, self._nodes.present())

    def describe(self, now: float) -> list[WaitingSummary]:
        """All that wait, for people."""
        present = self._nodes.present()
        reasons = {line[0].shape: waiting_reason(line[0].demand, present) for line in self._waiting.lines()}
        return [WaitingSummary.of(waiting, now, reasons[waiting.shape]) for waiting in self._waiting]

    def _never(self, demand: Demand, now: float) -> str | None:
        """Why a demand cannot be met by the nodes that are there; None if it can, or if a node may still come."""
        if self._nodes.could_hold(demand):
            return None
        self._may_be_impossible = True
        return self._nodes.why_never(demand, now)
