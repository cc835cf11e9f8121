"""The actors of one node: who owns each, and where it is in its life. Decides; the node then does.

    STARTING --ready--> RUNNING --stop--> STOPPING
        |                  |                 |
        +------exited------+-----exited------+---> GONE (forgotten)

`stop` may come in STARTING too. Each of STARTING and STOPPING has a deadline; `overdue(now)` names the actors whose
processes must be killed. Time is given by the caller, in seconds of any monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class ActorState(Enum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    GONE = "gone"


MOVES: dict[tuple[ActorState, str], ActorState] = {
    (ActorState.STARTING, "ready"): ActorState.RUNNING,
    (ActorState.STARTING, "stop"): ActorState.STOPPING,
    (ActorState.STARTING, "exited"): ActorState.GONE,
    (ActorState.RUNNING, "stop"): ActorState.STOPPING,
    (ActorState.RUNNING, "exited"): ActorState.GONE,
    (ActorState.STOPPING, "ready"): ActorState.STOPPING,
    (ActorState.STOPPING, "stop"): ActorState.STOPPING,
    (ActorState.STOPPING, "exited"): ActorState.GONE,
}


@dataclass(slots=True)
class Member:
    """One actor of the node."""

    actor_id: str
    name: str
    owner: int
    """The link that asked for it."""
    deadline: float
    state: ActorState = ActorState.STARTING
    has_started: bool = False
    """Its process has answered."""
    failure: str = ""
    """Why we killed it, if we did and nobody asked for it."""


@dataclass(slots=True)
class Membership:
    """All actors that are not gone."""

    start_limit_s: float = 60.0
    _members: dict[str, Member] = field(default_factory=dict)

    def start(self, actor_id: str, name: str, owner: int, *, now: float) -> Member:
        """Enter a new actor.

        Raises:
            ValueError: the id is taken.
        """
        if actor_id in self._members:
            raise ValueError(f"actor {actor_id} exists already")
        member = Member(actor_id, name, owner, deadline=now + self.start_limit_s)
        self._members[actor_id] = member
        return member

    def ready(self, actor_id: str) -> None:
        """Its process answers. Ignored if it is gone meanwhile."""
        if member := self._members.get(actor_id):
            member.has_started = True
            self._move(member, "ready")
            if member.state is ActorState.RUNNING:
                member.deadline = float("inf")

    def stop(self, actor_id: str, *, grace_s: float, now: float) -> bool:
        """Somebody wants it stopped by `now + grace_s`; False if there is no such actor (any more).

        Asking again may bring the deadline forward, never put it off.
        """
        member = self._members.get(actor_id)
        if member is None:
            return False
        earlier = member.deadline if member.state is ActorState.STOPPING else float("inf")
        self._move(member, "stop")
        member.deadline = min(earlier, now + grace_s)
        return True

    def exited(self, actor_id: str) -> Member | None:
        """Its process has ended: forget it. None if that was known."""
        member = self._members.pop(actor_id, None)
        if member is not None:
            self._move(member, "exited")
        return member

    def owned_by(self, owner: int) -> list[Member]:
        """The actors that one link asked for."""
        return [member for member in self._members.values() if member.owner == owner]

    def overdue(self, *, now: float) -> list[Member]:
        """Actors to kill now. One that never got ready is marked as failed. Each is named until it has exited."""
        late = [member for member in self._members.values() if member.deadline <= now]
        for member in late:
            if member.state is ActorState.STARTING:
                member.failure = f"it did not start within {self.start_limit_s:g} s"
                self._move(member, "stop")
        return late

    def next_deadline(self) -> float:
        """When to look at `overdue` again; infinity if nothing is due."""
        return min((member.deadline for member in self._members.values()), default=float("inf"))

    def __len__(self) -> int:
        return len(self._members)

    def _move(self, member: Member, event: str) -> None:
        member.state = MOVES[member.state, event]
