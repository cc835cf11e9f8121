"""The nodes of a cluster as its master knows them: state and leases of each, and what is remembered of lost ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from asyncparl.protocol.liveness import Liveness
from asyncparl.protocol.parties import NodeInfo
from asyncparl.protocol.placement import NodeView
from asyncparl.protocol.resources import Lease

RETURN_LIMIT_S = 5.0
"""How long a node may be silent, a connection may be broken, and a demand waits for a node that may still come."""
MEMORY_S = 3600.0
MAX_REMEMBERED = 10_000


class NodeState(Enum):
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"
    GONE = "gone"


NODE_MOVES: dict[tuple[NodeState, str], NodeState] = {
    (NodeState.READY, "join"): NodeState.READY,
    (NodeState.READY, "drain"): NodeState.DRAINING,
    (NodeState.READY, "leave"): NodeState.GONE,
    (NodeState.READY, "lost"): NodeState.LOST,
    (NodeState.DRAINING, "join"): NodeState.DRAINING,
    (NodeState.DRAINING, "drain"): NodeState.DRAINING,
    (NodeState.DRAINING, "leave"): NodeState.GONE,
    (NodeState.DRAINING, "lost"): NodeState.LOST,
    (NodeState.LOST, "join"): NodeState.READY,
}


@dataclass(slots=True)
class Held:
    """A lease that an actor has."""

    lease: Lease
    granted_at: float | None = None
    """None: the actor has started."""


@dataclass(slots=True, kw_only=True)
class Node(NodeView):
    """A node that has joined, in one incarnation. A new one starts with empty books."""

    info: NodeInfo
    incarnation: int
    liveness: Liveness
    state: NodeState
    is_connected: bool = True
    held: dict[str, Held] = field(default_factory=dict)

    def move(self, event: str) -> None:
        self.state = NODE_MOVES[self.state, event]
        self.is_ready = self.is_connected and self.state is NodeState.READY

    def disconnect(self) -> None:
        self.is_connected = self.is_ready = False

    def book(self, held: Held) -> None:
        self.held[held.lease.actor_id] = held
        self.take(held.lease)

    def unbook(self, actor_id: str) -> None:
        self.give_back(self.held.pop(actor_id).lease)


@dataclass(slots=True)
class LostNodes:
    """Lost nodes that have not come back. Their incarnations for an hour, what they had for `RETURN_LIMIT_S`."""

    _incarnations: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    _missed: dict[str, tuple[NodeView, float]] = field(default_factory=dict)

    def add(self, node: Node, now: float) -> None:
        """The node was lost. It is missed unless it would have taken no more actors."""
        self._incarnations[node.node_id] = node.incarnation, now
        if node.state is NodeState.READY:
            self._missed[node.node_id] = NodeView(node.node_id, node.name, node.capacity), now

    def remove(self, node_id: str) -> None:
        """It came back."""
        self._incarnations.pop(node_id, None)
        self._missed.pop(node_id, None)

    def incarnation(self, node_id: str) -> int | None:
        """The last incarnation of a node that was lost."""
        return self._incarnations[node_id][0] if node_id in self._incarnations else None

    def missed(self, now: float) -> Iterator[NodeView]:
        """Nodes that were lost just now, as if they were empty."""
        return (view for view, since in self._missed.values() if now - since < RETURN_LIMIT_S)

    def forget(self, now: float) -> None:
        """Drop what is too old, or too much: the oldest first."""
        for node_id in [node_id for node_id, (_, since) in self._missed.items() if now - since >= RETURN_LIMIT_S]:
            del self._missed[node_id]
        while self._incarnations:
            _, since = next(iter(self._incarnations.values()))
            if len(self._incarnations) <= MAX_REMEMBERED and now - since < MEMORY_S:
                break
            self._incarnations.popitem(last=False)

    def __len__(self) -> int:
        return len(self._incarnations)
