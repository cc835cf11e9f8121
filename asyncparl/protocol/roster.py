"""The nodes of a cluster, by their ids: who may join and under which name, and what they could ever hold.

The books of each node are its own (`nodes.py`); who is given what is decided in `scheduler.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asyncparl.protocol.liveness import Liveness
from asyncparl.protocol.nodes import RETURN_LIMIT_S, LostNodes, Node, NodeState
from asyncparl.protocol.parties import NodeInfo, Versions, id_fault, unique_name, version_fault
from asyncparl.protocol.placement import could_hold, missing
from asyncparl.protocol.resources import Demand, Lease, check_capacity, lease_fault, need_of


class Roster:
    """Nodes that are here or may come back, and what is remembered of those that were lost."""

    def __init__(self, versions: Versions, now: float) -> None:
        self._versions = versions
        self._started_at = now
        self._nodes: dict[str, Node] = {}
        self._lost = LostNodes()

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, node_id: str) -> Node:
        return self._nodes[node_id]

    def get(self, node_id: str) -> Node | None:
        """None if there is no such node, or not any more."""
        return self._nodes.get(node_id)

    # --- who comes and goes

    def join_fault(self, info: NodeInfo, incarnation: int, leases: Sequence[Lease]) -> str | None:
        """Why a node that says this of itself cannot join."""
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

    def join(self, info: NodeInfo, incarnation: int, now: float) -> Node:
        """Enter a node, with empty books, in place of its older incarnation."""
        old = self._nodes.get(info.node_id)
        node = Node(
            node_id=info.node_id,
            name=self._name(info, old),
            capacity=info.capacity,
            info=info,
            incarnation=incarnation,
            liveness=Liveness(limit_s=RETURN_LIMIT_S, now=now),
            state=old.state if old is not None else NodeState.LOST,
        )
        node.move("join")
        self._lost.remove(node.node_id)
        self._nodes[node.node_id] = node
        return node

    def leave(self, node: Node) -> None:
        """It goes in good order."""
        node.move("leave")
        del self._nodes[node.node_id]

    def lose(self, node: Node, now: float) -> None:
        """It is not believed to be there any more."""
        self._lost.add(node, now)
        node.move("lost")
        del self._nodes[node.node_id]

    def forget(self, now: float) -> None:
        """Drop what is too old of what is remembered."""
        self._lost.forget(now)

    def _name(self, info: NodeInfo, old: Node | None) -> str:
        if old is not None and old.info.name == info.name:
            return old.name
        return unique_name(info.name or "node", {node.name for node in self if node is not old})

    # --- what they can hold

    def present(self) -> list[Node]:
        """Those that take actors, now or when they are connected again."""
        return [node for node in self if node.state is NodeState.READY]

    def could_hold(self, demand: Demand) -> bool:
        """Whether one of those that are present could, if it were empty."""
        need = need_of(demand)
        return any(could_hold(need, node) for node in self.present())

    def why_never(self, demand: Demand, now: float) -> str | None:
        """Why a demand that none of them could hold cannot be met; None while a node may still come that could.

        Where there is no node at all, any may come.
        """
        need, present = need_of(demand), self.present()
        if not present or now - self._started_at < RETURN_LIMIT_S:
            return None
        if any(could_hold(need, node) for node in self._lost.missed(now)):
            return None
        return missing(demand, present)
