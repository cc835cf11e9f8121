"""Which node gets an actor, and in words why none does. Pure functions of a demand and of what the nodes have.

`NodeView` keeps the books of one node in whole numbers. Those of the master may be over-booked: after a restart it
learns of leases that it did not give. Then less than nothing is free, and only who asks for nothing fits. Those of the
node itself never are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from asyncparl.protocol.resources import (
    ONE,
    UNLIMITED,
    Capacity,
    Demand,
    Lease,
    Need,
    format_bytes,
    need_of,
    thousandths,
)


@dataclass(slots=True)
class NodeView:
    """What a node has and what of it is free, in thousandths and bytes."""

    node_id: str
    name: str
    capacity: Capacity
    is_ready: bool = True
    """Whether it takes new actors now."""
    num_actors: int = 0
    total_cpus: int = field(init=False)
    free_cpus: int = field(init=False)
    free_memory: int = field(init=False)
    free_gpus: list[int] = field(init=False)
    """By GPU id."""

    def __post_init__(self) -> None:
        self.total_cpus = self.free_cpus = thousandths(self.capacity.cpus)
        self.free_memory = self.capacity.memory_bytes
        self.free_gpus = [ONE] * self.capacity.num_gpus

    def has_room_for(self, lease: Lease) -> bool:
        """Whether nobody has what the lease names."""
        need = need_of(lease.demand)
        return (
            (not need.cpus or need.cpus <= self.free_cpus)
            and (not need.memory_bytes or need.memory_bytes <= self.free_memory)
            and all(self.free_gpus[gpu_id] >= need.gpu_share for gpu_id in lease.gpu_ids)
        )

    def take(self, lease: Lease) -> None:
        """Book a lease of this node."""
        self._book(lease, 1)

    def give_back(self, lease: Lease) -> None:
        """Undo `take`. Once for each: that is the caller's care."""
        self._book(lease, -1)

    def _book(self, lease: Lease, sign: int) -> None:
        need = need_of(lease.demand)
        self.num_actors += sign
        self.free_cpus -= sign * need.cpus
        self.free_memory -= sign * need.memory_bytes
        for gpu_id in lease.gpu_ids:
            self.free_gpus[gpu_id] -= sign * need.gpu_share


class Placement(NamedTuple):
    """Where an actor goes, and which GPUs it gets there."""

    node_id: str
    gpu_ids: list[int]


def choose(demand: Demand, nodes: Iterable[NodeView], older: Sequence[Need] = ()) -> Placement | None:
    """The node for an actor, or None if it does not fit anywhere now.

    Only nodes that are ready, have every label, and have enough of everything free. Among them:

    * An actor without GPUs goes to a node without GPUs, if there is one.
    * "pack": the fullest node; for an actor with GPUs the one with the least GPU free, then with the fewest CPUs free.
    * "spread": the emptiest node: the other way round. Then, or first if it asks for no CPU, the fewest actors.
    * In a tie the one that comes first in `nodes`.

    Whole GPUs are GPUs that nobody uses, lowest ids first. A share of a GPU is taken from the GPU with the least
    free share that is enough, so that other GPUs stay whole; never from two.

    Args:
        demand: a valid one.
        nodes: in a stable order.
        older: needs that come first. On a node that could hold one of them when empty, the actor may use only what
            that one does not need: it gets no GPU if that one wants any, and leaves it enough CPUs and memory.
    """
    need = need_of(demand)
    best: NodeView | None = None
    best_rank: tuple[int, ...] = ()
    for node in nodes:
        if not fits(need, node) or (older and any(takes_from(need, node, first) for first in older)):
            continue
        rank = _rank(need, demand.strategy == "spread", node)
        if best is None or rank < best_rank:
            best, best_rank = node, rank
    return None if best is None else Placement(best.node_id, _pick_gpus(need, best))


def fits(need: Need, node: NodeView) -> bool:
    """Whether an actor can be placed on the node now."""
    return (
        node.is_ready
        and (not need.cpus or need.cpus <= node.free_cpus)
        and (not need.memory_bytes or need.memory_bytes <= node.free_memory)
        and (not need.num_gpus or _num_gpus_with(need.gpu_share, node) >= need.num_gpus)
        and (not need.labels or _has_labels(need, node))
    )


def could_hold(need: Need, node: NodeView) -> bool:
    """Whether an actor could be placed on the node if it were empty and ready."""
    return (
        need.cpus <= node.total_cpus
        and need.memory_bytes <= node.capacity.memory_bytes
        and need.num_gpus <= node.capacity.num_gpus
        and _has_labels(need, node)
    )


def takes_from(need: Need, node: NodeView, first: Need) -> bool:
    """Whether an actor on this node would use something that `first` needs there and would then lack."""
    if not could_hold(first, node):
        return False
    return bool(
        (need.cpus and first.cpus and node.free_cpus - need.cpus < first.cpus)
        or (need.memory_bytes and first.memory_bytes and node.free_memory - need.memory_bytes < first.memory_bytes)
        or (need.num_gpus and first.num_gpus)
    )


def missing(demand: Demand, nodes: Iterable[NodeView]) -> str | None:
    """Why no node could hold an actor even if all were empty, for people; None if one could."""
    need, nodes = need_of(demand), list(nodes)
    if not nodes:
        return "there is no node yet that takes actors"
    if any(could_hold(need, node) for node in nodes):
        return None
    matching = [node for node in nodes if _has_labels(need, node)]
    if not matching:
        return _missing_labels(need, nodes)
    where = f" and the {_labels(need)}" if need.labels else ""
    asked = [resource for resource in _RESOURCES if resource.needed(need)]
    for resource in asked:
        best = max(matching, key=resource.total)
        if resource.total(best) < resource.needed(need):
            text = resource.text(resource.needed(need))
            return (
                f"needs {text}{where}; the node with the most has {resource.number(resource.total(best))} ({best.name})"
            )
    nearest = max(matching, key=lambda node: sum(each.total(node) >= each.needed(need) for each in asked))
    offer = _join(each.text(each.total(nearest)) for each in asked)
    return f"needs {_texts(asked, need)}{where} on one node; the nearest is {nearest.name} with {offer}"


def waiting_reason(demand: Demand, nodes: Iterable[NodeView]) -> str:
    """Why an actor has to wait, for people: what it needs, and how much of that is in use."""
    need, nodes = need_of(demand), list(nodes)
    able = [node for node in nodes if could_hold(need, node)]
    if not able:
        return str(missing(demand, nodes))
    ready = [node for node in able if node.is_ready]
    if not ready:
        return f"only {_join(node.name for node in able[:3])} could hold it, and is not connected now"
    if any(fits(need, node) for node in ready):
        return f"needs {_texts(_RESOURCES, need)}: what is free is kept for others that have waited longer"
    asked = [resource for resource in _RESOURCES if resource.needed(need)]
    short = [each for each in asked if not any(each.fits(need, node) for node in ready)]
    where = "" if short else " on one node"
    short = short or asked
    text = _join(each.usage(ready, with_unit=len(short) > 1) for each in short)
    count = "1 node" if len(ready) == 1 else f"{len(ready)} nodes"
    return f"needs {_texts(short, need)}{where}: {text} are in use on {count}"


def _rank(need: Need, spread: bool, node: NodeView) -> tuple[int, ...]:
    """The least is the best."""
    if not need.num_gpus:
        preferred, gpus = len(node.free_gpus) > 0, 0
    else:
        preferred, gpus = False, sum(node.free_gpus)
    if not spread:
        return preferred, gpus, node.free_cpus
    if not need.cpus:
        return preferred, -gpus, node.num_actors, -node.free_cpus
    return preferred, -gpus, -node.free_cpus, node.num_actors


def _num_gpus_with(share: int, node: NodeView) -> int:
    return sum(free >= share for free in node.free_gpus)


def _pick_gpus(need: Need, node: NodeView) -> list[int]:
    enough = [gpu_id for gpu_id, free in enumerate(node.free_gpus) if free >= need.gpu_share]
    return sorted(enough, key=lambda gpu_id: node.free_gpus[gpu_id])[: need.num_gpus]


def _has_labels(need: Need, node: NodeView) -> bool:
    return all(node.capacity.labels.get(key) == value for key, value in need.labels)


# --- in words ---------------------------------------------------------------------------------------------------


def _amount(number: int) -> str:
    if number >= UNLIMITED // 2:
        return "unlimited"
    return f"{number / ONE:.3f}".rstrip("0").rstrip(".")


class _Resource(NamedTuple):
    """How to speak of one kind of resource."""

    unit: str
    number: Callable[[int], str]
    needed: Callable[[Need], int]
    total: Callable[[NodeView], int]
    free: Callable[[NodeView], int]
    fits: Callable[[Need, NodeView], bool]

    def text(self, number: int) -> str:
        if self.unit == "memory":
            return f"{self.number(number)} of memory"
        return f"{self.number(number)} {self.unit}{'' if number == ONE else 's'}"

    def usage(self, nodes: Sequence[NodeView], *, with_unit: bool) -> str:
        total = sum(map(self.total, nodes))
        used = total - sum(map(self.free, nodes))
        return f"{self.number(used)} of {self.text(total) if with_unit else self.number(total)}"


_RESOURCES = (
    _Resource(
        unit="CPU",
        number=_amount,
        needed=lambda need: need.cpus,
        total=lambda node: node.total_cpus,
        free=lambda node: node.free_cpus,
        fits=lambda need, node: need.cpus <= node.free_cpus,
    ),
    _Resource(
        unit="GPU",
        number=_amount,
        needed=lambda need: need.num_gpus * need.gpu_share,
        total=lambda node: node.capacity.num_gpus * ONE,
        free=lambda node: sum(node.free_gpus),
        fits=lambda need, node: _num_gpus_with(need.gpu_share, node) >= need.num_gpus,
    ),
    _Resource(
        unit="memory",
        number=format_bytes,
        needed=lambda need: need.memory_bytes,
        total=lambda node: node.capacity.memory_bytes,
        free=lambda node: node.free_memory,
        fits=lambda need, node: need.memory_bytes <= node.free_memory,
    ),
)


def _texts(resources: Iterable[_Resource], need: Need) -> str:
    return _join(each.text(each.needed(need)) for each in resources if each.needed(need)) or "nothing"


def _labels(need: Need) -> str:
    words = _join(f"{key}={value}" for key, value in need.labels)
    return f"label{'s' if len(need.labels) > 1 else ''} {words}"


def _missing_labels(need: Need, nodes: Sequence[NodeView]) -> str:
    for key, value in need.labels:
        if not any(node.capacity.labels.get(key) == value for node in nodes):
            return f"no node has the label {key}={value}"
    return f"no node has all of the {_labels(need)}"


def _join(words: Iterable[str]) -> str:
    *first, last = [*words] or [""]
    return f"{', '.join(first)} and {last}" if first else last
