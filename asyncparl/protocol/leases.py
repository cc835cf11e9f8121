"""Who has a place: the leases that were given or are known to be used, in the books of their nodes.

    GRANTED --started--> STARTED
       |                    |
       +---- freed ---------+--> forgotten

A node that tells of an actor which was never granted here has it booked as STARTED at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncparl.protocol.nodes import Held
from asyncparl.protocol.resources import Lease
from asyncparl.protocol.roster import Roster

START_LIMIT_S = 60.0
"""An actor that has not started by then has lost its place."""


class Leases:
    """At most one lease for each actor."""

    def __init__(self, nodes: Roster) -> None:
        self._nodes = nodes
        self._held: dict[str, Held] = {}
        self._unstarted: dict[str, Held] = {}
        """Those of `_held` that are only granted."""

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

    def grant(self, held: Held) -> None:
        """Give the place to an actor that has none."""
        self._book(held)
        self._unstarted[held.lease.actor_id] = held

    def adopt(self, lease: Lease) -> None:
        """An actor that has no place here runs on its node."""
        self._book(Held(lease))

    def renew(self, actor_id: str, now: float) -> None:
        """If it has not started: its place is still wanted, and kept for another while."""
        if (held := self._unstarted.get(actor_id)) is not None:
            held.granted_at = now

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
        return [
            actor_id
            for actor_id, held in self._unstarted.items()
            if held.granted_at is not None and now - held.granted_at >= START_LIMIT_S
        ]

    def _book(self, held: Held) -> None:
        self._nodes[held.lease.node_id].book(held)
        self._held[held.lease.actor_id] = held
