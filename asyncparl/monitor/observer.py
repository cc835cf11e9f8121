"""From what a source has seen to a `Picture`. Pure: it is told the time, waits for nothing, and does not grow.

What is counted since an actor began becomes rates here, by comparing two looks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from asyncparl.monitor.actors import ActorRows
from asyncparl.monitor.alarms import find_alarms, silence
from asyncparl.monitor.events import ACTOR_ENDED, UNINTERESTING, event_row, is_failure, merged
from asyncparl.monitor.history import History
from asyncparl.monitor.picture import ActorRow, EventRow, NodeRow, Picture
from asyncparl.monitor.runs import Runs
from asyncparl.monitor.source import Sight
from asyncparl.monitor.totals import Totals
from asyncparl.protocol.cluster_view import ClusterView, NodeSummary
from asyncparl.protocol.figures import GpuFigures, Happening, NodeFigures
from asyncparl.protocol.resources import MAX_BYTES

MAX_ENDED = 200
"""Actors that have ended, and are still shown."""
_NOTE_EVERY_S = 3.0
"""Readers are sent the curves whenever there is a new point."""
_SILENCE_IS_NEWS_S = 3.0
"""Shorter ones are no events: on a busy machine there are many of them."""


class Observer:
    """See the top of this file.

    Args:
        address: of the cluster, for people.
        own_id: the driver that the monitor itself is.
    """

    def __init__(self, address: str = "", own_id: str = "") -> None:
        self.picture = Picture(address=address)
        self.runs = Runs()
        self.totals = Totals()
        self.history = History()
        """Of the whole cluster."""
        self._noted_at = float("-inf")
        self._own_id = own_id
        self._actors = ActorRows(self.totals)
        self._ended: OrderedDict[str, ActorRow] = OrderedDict()
        self._silent: dict[str, int | None] = {}
        """Actors whose silence is among the events, and their processes."""
        self._num_silences = 0

    def observe(self, sight: Sight, *, now: float, wall_time: float) -> Picture:
        """The picture after one more look.

        Args:
            now: of a clock that only goes on. wall_time: of the one on the wall.
        """
        old = self.picture
        if sight.fault:
            self.picture = replace(old, number=old.number + 1, time=wall_time, fault=sight.fault)
            return self.picture
        news = self._news(old, sight)
        events = merged(old.events, news)
        runs = self.runs.update(sight.news.reports if sight.news is not None else [], now=now)
        changes: dict[str, Any] = {"events": events, "runs": runs, "fault": "", "number": old.number + 1}
        changes["time"] = wall_time
        if sight.news is not None:
            changes["cluster_id"] = sight.news.cluster_id
        if sight.view is not None:
            changes |= self._look_closely(sight.view, sight.nodes, wall_time)
            changes["events"] = merged(events, self._note_silences(changes["actors"], wall_time))
        picture = replace(old, **changes)
        self.picture = replace(picture, alarms=find_alarms(picture, wall_time=wall_time))
        if sight.view is not None:
            self._note_history(self.picture)
        return self.picture

    # --- events ---------------------------------------------------------------------------------------------

    def _news(self, old: Picture, sight: Sight) -> list[EventRow]:
        rows: list[EventRow] = []
        if sight.news is not None:
            rows += [event_row(each, sight.news.cluster_id, "master") for each in sight.news.happenings]
        names = {node.node_id: node.name for node in sight.view.nodes} if sight.view is not None else {}
        for node_id, figures in sight.nodes.items():
            for happening in figures.happenings if isinstance(figures, NodeFigures) else ():
                if happening.event in UNINTERESTING:
                    continue
                rows.append(event_row(happening, node_id, names.get(node_id, node_id)))
                if happening.event == ACTOR_ENDED:
                    self._bury(old, happening, node_id, names.get(node_id, node_id))
        return rows

    def _note_silences(self, actors: Mapping[str, ActorRow], wall_time: float) -> list[EventRow]:
        """Which actors have fallen silent, and which answer again. Nobody but us notices that."""
        events: list[EventRow] = []
        for actor_id, row in actors.items():
            if row.silent_s is None:
                if row.pid is not None and self._silent.pop(actor_id, None) == row.pid:  # not the next process of it
                    events.append(self._silence_event(row, wall_time))
            elif actor_id not in self._silent and (row.is_stopped or row.silent_s >= _SILENCE_IS_NEWS_S):
                self._silent[actor_id] = row.pid
                events.append(self._silence_event(row, wall_time))
        self._silent = {actor_id: pid for actor_id, pid in self._silent.items() if actor_id in actors}
        return events

    def _silence_event(self, row: ActorRow, wall_time: float) -> EventRow:
        self._num_silences += 1
        is_silent = row.state == "silent"
        return EventRow(
            key=f"silence-{self._num_silences}",
            time=wall_time,
            is_warning=is_silent,
            kind="actor silent" if is_silent else "actor answers",
            text=silence(row) if is_silent else f"{row.name} answers again",
            actor_id=row.actor_id,
            where="this monitor",
        )

    def _bury(self, old: Picture, happening: Happening, node_id: str, node: str) -> None:
        """Keep a row of an actor that has ended."""
        fields = happening.fields
        actor_id = fields.get("id", "")
        row = old.actors.get(actor_id) or self._actors.unknown(actor_id, fields.get("actor", actor_id), node_id, node)
        self._keep_ended(
            _ended(row, reason=fields.get("reason", ""), is_failed=is_failure(happening), at=happening.time)
        )

    def _keep_ended(self, row: ActorRow) -> None:
        self._ended[row.actor_id] = row
        self._ended.move_to_end(row.actor_id)
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    # --- nodes and actors -----------------------------------------------------------------------------------

    def _look_closely(
        self, view: ClusterView, nodes: Mapping[str, NodeFigures | str], wall_time: float
    ) -> dict[str, Any]:
        actors = self._actors.update(view, nodes)
        for actor_id in self._ended.keys() & actors.keys():
            if actors[actor_id].pid is not None or actors[actor_id].state in ("waiting", "starting"):
                del self._ended[actor_id]  # it is started again
            else:
                del actors[actor_id]  # the master has not heard of its end yet
        self._bury_lost(view, actors, wall_time)
        return {
            "actors": actors,
            "ended": dict(self._ended),
            "nodes": {node.node_id: _node_row(node, nodes.get(node.node_id, ""), actors) for node in view.nodes},
            "programs": [
                {"id": driver.driver_id, "name": driver.name, "is_connected": driver.is_connected}
                for driver in view.drivers
                if driver.driver_id != self._own_id and driver.driver_id not in actors
            ],
            "is_close": True,
        }

    def _bury_lost(self, view: ClusterView, actors: Mapping[str, ActorRow], wall_time: float) -> None:
        """Of actors whose node has gone nobody tells that they have ended."""
        present = {node.node_id for node in view.nodes}
        for actor_id, row in self.picture.actors.items():
            if actor_id not in actors and actor_id not in self._ended and row.node_id and row.node_id not in present:
                self._keep_ended(_ended(row, reason=f"its node {row.node} is gone", is_failed=True, at=wall_time))

    def _note_history(self, picture: Picture) -> None:
        if picture.time < self._noted_at + _NOTE_EVERY_S:
            return
        self._noted_at = picture.time
        nodes = picture.nodes.values()
        shares = [node.cpu_share for node in nodes if node.cpu_share is not None]
        memory = [node.used_memory_bytes for node in nodes if node.used_memory_bytes is not None]
        calls = [node.calls_per_s for node in nodes if node.calls_per_s is not None]
        gpus = [gpu["busy_share"] for node in nodes for gpu in node.gpus]
        self.history.add(
            picture.time,
            {
                "cpu": sum(shares) / len(shares) if shares else None,
                "gpu": sum(gpus) / len(gpus) if gpus else None,
                "memory": sum(memory) if memory else None,
                "calls": sum(calls) if calls else None,
                "actors": len(picture.actors),
                "steps": self.runs.steps_per_s(),
            },
        )


def _ended(row: ActorRow, *, reason: str, is_failed: bool, at: float) -> ActorRow:
    return replace(
        row,
        state="ended",
        is_failed=is_failed,
        doing=reason,
        doing_s=None,
        silent_s=None,
        is_stopped=False,
        pid=None,
        calls_per_s=None,
        num_waiting=None,
        busy_share=None,
        cpu_share=None,
        memory_bytes=None,
        ended_at=at,
    )


def _node_row(node: NodeSummary, figures: NodeFigures | str, actors: Mapping[str, ActorRow]) -> NodeRow:
    seen = figures if isinstance(figures, NodeFigures) else None
    rates = [row.calls_per_s for row in actors.values() if row.node_id == node.node_id and row.calls_per_s is not None]
    is_limited = 0 < node.total_memory_bytes < MAX_BYTES
    return NodeRow(
        node_id=node.node_id,
        name=node.name,
        state=node.state,
        labels=node.labels,
        num_actors=node.num_actors,
        used_cpus=node.used_cpus,
        total_cpus=node.total_cpus,
        num_cpus=None if seen is None else seen.num_cpus or None,
        used_gpus=node.used_gpus,
        leased_memory_bytes=node.used_memory_bytes,
        offered_memory_bytes=node.total_memory_bytes if is_limited else None,
        cpu_share=None if seen is None else seen.cpu_share,
        used_memory_bytes=None if seen is None else seen.used_memory_bytes,
        total_memory_bytes=None if seen is None else seen.total_memory_bytes,
        gpus=[] if seen is None else [_gpu(gpu) for gpu in seen.gpus],
        calls_per_s=sum(rates) if seen is not None and (rates or not seen.actors) else None,
        fault="" if seen is not None else str(figures),
    )


def _gpu(gpu: GpuFigures) -> dict[str, Any]:
    memory = {"used": gpu.used_memory_bytes, "total": gpu.total_memory_bytes}
    return {"name": gpu.name, "busy_share": gpu.busy_share, **memory}
