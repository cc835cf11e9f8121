"""Who has a place: the leases that were given or are known to be used, in the books of their nodes.

    GRANTED --started--> STARTED
       |                    |
       +---- freed ---------+--> forgotten

A node that tells of an actor which was never granted here has it booked as STARTED at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from asyncparl.protocol.nodes import Held, Node
from asyncparl.protocol.resources import Lease
from asyncparl.protocol.roster import Roster

START_LIMIT_S = 60.0
"""An actor that has not started by then has lost its place."""


class Leases:
    """At most one lease for each actor."""

    def __init__(self, nodes: Roster) -> None:
        self._nodes = nodes
        self._held: dict[str, Held] = {}
        self._unstarted: OrderedDict[str, Held] = OrderedDict()
        """Those of `_held` that are only granted, oldest first."""

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def __contains__(self, actor_id: str) -> bool:
        return actor_id in self._held

    def get(self, actor_id: str) -> Held | None:
        return self._held.get(actor_id)

    def is_unstarted(self, actor_id: str) -> bool:
        """Whether the actor has a place that nobody has taken yet."""
        return actor_id in self._unstarted

    def unstarted_of(self, driver_id: str) -> list[str]:
        """The actors of this driver that have places and have not started."""
        return [actor_id for actor_id, held in self._unstarted.items() if held.lease.driver_id == driver_id]

    def grant(self, lease: Lease, now: float) -> None:
        """Give the place to an actor that has none."""
        held = self._book(self._nodes[lease.node_id], Held(lease, now))
        self._unstarted[lease.actor_id] = held

    def adopt(self, node: Node, lease: Lease) -> None:
        """An actor that has no place here runs on the node."""
        self._book(node, Held(lease))

    def renew(self, actor_id: str, now: float) -> None:
        """If it has not started: its place is still wanted, and kept for another while."""
        if (held := self._unstarted.pop(actor_id, None)) is not None:
            held.granted_at = now
            self._unstarted[actor_id] = held

    def started(self, held: Held) -> None:
        """Its node says so, perhaps once more."""
        held.granted_at = None
        self._unstarted.pop(held.lease.actor_id, None)

    def free(self, actor_id: str) -> None:
        """The actor, which has a place, has it no longer."""
        held = self._held.pop(actor_id)
        self._nodes[held.lease.node_id].unbook(actor_id)
        self._unstarted.pop(actor_id, None)

    def overdue(self, now: float) -> list[str]:
        """The actors that should have started by now."""
        overdue = []
        for actor_id, held in self._unstarted.items():
            if held.granted_at is None or now - held.granted_at < START_LIMIT_S:
                break
            overdue.append(actor_id)
        return overdue

    def _book(self, node: Node, held: Held) -> Held:
        node.book(held)
        self._held[held.lease.actor_id] = held
        return held
