"""Rows of actors, from what master and nodes tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from asyncparl.ids import class_of
from asyncparl.monitor.picture import ActorRow
from asyncparl.monitor.totals import Totals
from asyncparl.protocol.cluster_view import ActorSummary, ClusterView, WaitingSummary
from asyncparl.protocol.figures import ActorFigures, Histogram, NodeFigures, WorkerFigures

_KEEP = 0.8
"""Of the weight of durations, from one look to the next: percentiles are those of the last calls."""


@dataclass(slots=True)
class _Memory:
    """Of an actor, from one look to the next."""

    figures: ActorFigures
    calls: WorkerFigures | None
    """The last that are known."""
    at: float
    """By the node's clock."""
    silent_since: float | None = None
    """When that was seen first, by the same clock."""
    recent: Histogram = field(default_factory=Histogram)
    calls_per_s: float | None = None
    busy_share: float | None = None
    cpu_share: float | None = None


class ActorRows:
    """Makes them, and remembers what it needs to tell rates."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._memories: dict[str, _Memory] = {}

    def update(self, view: ClusterView, nodes: Mapping[str, NodeFigures | str]) -> dict[str, ActorRow]:
        """The rows after one more look, those that wait last."""
        drivers = {driver.driver_id: driver.name for driver in view.drivers}
        names = {node.node_id: node.name for node in view.nodes}
        listed: set[str] = set()
        for node_id, node in nodes.items():
            if isinstance(node, NodeFigures):
                listed |= {figures.actor_id for figures in node.actors}
                for figures in node.actors:
                    self._remember(figures, names.get(node_id, ""), node.at)
        rows = {actor.actor_id: _base_row(actor, drivers, names, nodes.get(actor.node_id)) for actor in view.actors}
        for actor_id in listed & rows.keys():
            rows[actor_id] = _known_row(rows[actor_id], self._memories[actor_id])
        for waiting in view.waiting:
            rows[waiting.actor_id] = _waiting_row(waiting, drivers)
        for actor_id in self._memories.keys() - rows.keys():
            del self._memories[actor_id]
        return rows

    @staticmethod
    def unknown(actor_id: str, name: str, node_id: str, node: str) -> ActorRow:
        """An actor of which only this is known."""
        return ActorRow(
            actor_id=actor_id, name=name, class_name=class_of(name), node_id=node_id, node=node, state="unknown"
        )

    def _remember(self, new: ActorFigures, node: str, at: float) -> None:
        memory = self._memories.get(new.actor_id)
        if memory is None or memory.figures.pid != new.pid:
            memory = self._memories[new.actor_id] = _Memory(new, None, at)
            if new.calls is not None:
                memory.recent.add(new.calls.durations)
        elif at <= memory.at:
            return  # measured before
        else:
            _compare(memory, new, at)
        if new.calls is not None:
            self._totals.add(new.class_name, node, memory.calls, new.calls)
            memory.calls = new.calls
        if not new.pid or new.calls is not None:
            memory.silent_since = None
        elif memory.silent_since is None:
            memory.silent_since = at
        memory.figures, memory.at = new, at


def _base_row(
    actor: ActorSummary, drivers: Mapping[str, str], names: Mapping[str, str], node: NodeFigures | str | None
) -> ActorRow:
    return ActorRow(
        actor_id=actor.actor_id,
        name=actor.name,
        class_name=class_of(actor.name),
        driver_id=actor.driver_id,
        program=drivers.get(actor.driver_id, "?"),
        node_id=actor.node_id,
        node=names.get(actor.node_id, "?"),
        state="starting" if actor.state == "granted" else "running",
        doing=node if isinstance(node, str) else "its node does not tell of it yet",
    )


def _known_row(base: ActorRow, memory: _Memory) -> ActorRow:
    figures, calls = memory.figures, memory.calls
    since = memory.silent_since
    doing, doing_s = _doing(memory)
    # How long calls took before it fell silent says nothing of now.
    recent = memory.recent if since is None else Histogram()
    return replace(
        base,
        class_name=figures.class_name,
        public_name=figures.public_name,
        state="starting" if not figures.pid else "running" if since is None else "silent",
        doing=doing,
        doing_s=doing_s,
        silent_s=None if since is None else memory.at - since,
        is_stopped=figures.is_stopped,
        pid=figures.pid or None,
        num_restarts=figures.num_restarts,
        age_s=figures.age_s,
        calls_per_s=memory.calls_per_s,
        num_calls=None if calls is None else sum(calls.durations),
        num_failed=None if calls is None else calls.num_failed,
        num_waiting=None if figures.calls is None else figures.calls.num_waiting,
        busy_share=memory.busy_share,
        p50_s=recent.quantile(0.5),
        p95_s=recent.quantile(0.95),
        p99_s=recent.quantile(0.99),
        cpu_share=memory.cpu_share,
        memory_bytes=figures.memory_bytes or None,
    )


def _waiting_row(waiting: WaitingSummary, drivers: Mapping[str, str]) -> ActorRow:
    return ActorRow(
        actor_id=waiting.actor_id,
        name=waiting.name,
        class_name=class_of(waiting.name),
        driver_id=waiting.driver_id,
        program=drivers.get(waiting.driver_id, "?"),
        state="waiting",
        doing=f"waits for a place: {waiting.reason}",
        doing_s=waiting.waiting_s,
    )


def _doing(memory: _Memory) -> tuple[str, float | None]:
    figures, calls = memory.figures, memory.figures.calls
    if not figures.pid:
        starting = "its process is being started"
        return (f"{starting}: {figures.waits_for}", figures.age_s) if figures.waits_for else (starting, None)
    if calls is None:
        reason = "stopped (SIGSTOP)" if figures.is_stopped else "native code of it may hold Python's lock"
        return f"{reason}{'' if memory.calls is None else '; it ' + _past(memory.calls.doing()[0])}", None
    return calls.doing()


def _past(doing: str) -> str:
    """What an actor did when it was heard of last."""
    return doing.replace("runs ", "was running ", 1).replace("waits ", "was waiting ", 1)


def _compare(memory: _Memory, new: ActorFigures, at: float) -> None:
    """Rates, from what was known before to what is known now."""
    span_s = at - memory.at
    memory.cpu_share = max(0.0, new.cpu_s - memory.figures.cpu_s) / span_s
    old = memory.calls
    if new.calls is None:
        memory.calls_per_s = memory.busy_share = None
    elif old is not None:
        added = [max(0, after - before) for after, before in zip(new.calls.durations, old.durations, strict=False)]
        memory.calls_per_s = sum(added) / span_s
        memory.busy_share = min(1.0, max(0.0, new.calls.busy_s - old.busy_s) / span_s)
        if any(added):
            memory.recent.add(added, keep=_KEEP)
