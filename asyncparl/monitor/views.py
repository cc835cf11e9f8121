"""What each page is told: a picture, cut to what that page shows. Pure.

A table is told as rows by key, in an order, one page of them at a time; `changes` leaves out the rows that its reader
has already. So neither a browser nor the network has to do with more than a screen, however many actors there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from asyncparl.monitor.observer import Observer
from asyncparl.monitor.picture import ActorRow, EventRow, NodeRow, Picture, RunRow
from asyncparl.monitor.runs import FRESH_S
from asyncparl.monitor.verdicts import verdicts

PAGE_ROWS = 50
_OVERVIEW_EVENTS = 8
_NUM_BUSIEST = 8
_STATE_ORDER = {"silent": 0, "waiting": 1, "starting": 2, "running": 3, "unknown": 4, "ended": 5}

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a reader wants to see."""

    page: int = 1
    sort: str = ""
    is_descending: bool = False
    text: str = ""
    state: str = ""
    key: str = ""
    """Which actor, or which run."""

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Query:
        """From the query of a URL; what makes no sense there is ignored."""
        page = values.get("page", "1")
        sort = values.get("sort", "")
        return cls(
            page=int(page) if page.isdecimal() and len(page) < 8 else 1,
            sort=sort.removeprefix("-")[:40],
            is_descending=sort.startswith("-"),
            text=values.get("q", "")[:200].strip().lower(),
            state=values.get("state", "")[:20],
            key=(values.get("id") or values.get("run") or "")[:64],
        )


def overview(observer: Observer, _query: Query) -> Message:
    """The figures of the whole cluster, and what needs somebody's attention."""
    picture = observer.picture
    actors = list(picture.actors.values())
    nodes = list(picture.nodes.values())
    return {
        "nodes": len(nodes),
        "nodes_ready": sum(node.state == "ready" for node in nodes),
        "actors": len(actors),
        "actors_by_state": _count(row.state for row in actors),
        "actors_failed": sum(row.is_failed for row in picture.ended.values()),
        "programs": len(picture.programs),
        "cpu_share": _mean([node.cpu_share for node in nodes]),
        "num_cpus": _sum([node.num_cpus for node in nodes]),
        "used_cpus": sum(node.used_cpus for node in nodes),
        "total_cpus": _sum([node.total_cpus for node in nodes]),
        "gpu_share": _mean([gpu["busy_share"] for node in nodes for gpu in node.gpus]),
        "used_gpus": sum(sum(node.used_gpus) for node in nodes),
        "total_gpus": sum(len(node.used_gpus) for node in nodes),
        "used_memory": _sum([node.used_memory_bytes for node in nodes]),
        "total_memory": _sum([node.total_memory_bytes for node in nodes]),
        "calls_per_s": _sum([node.calls_per_s for node in nodes]),
        "steps_per_s": observer.runs.steps_per_s(),
        "alarms": [asdict(alarm) for alarm in picture.alarms],
        "busiest": [_actor(row) for row in _busiest(actors)],
        "events": [asdict(event) for event in picture.events[:_OVERVIEW_EVENTS]],
        "runs": [_run(run) for run in picture.runs.values() if not run.is_over],
        "history": observer.history.curves(),
    }


def nodes(observer: Observer, query: Query) -> Message:
    """The table of nodes."""
    rows = list(observer.picture.nodes.values())
    table = _table(rows, query, key=lambda row: row.node_id, found=_node_found, sort_by=_node_sort, tell=asdict)
    return {**table, "has_gpus": any(row.used_gpus for row in rows)}


def actors(observer: Observer, query: Query) -> Message:
    """The table of actors; those that have ended come last."""
    picture = observer.picture
    by_name = _actor_sort["name"]
    rows = [*sorted(picture.actors.values(), key=by_name), *sorted(picture.ended.values(), key=by_name)]
    counts = _count(row.state for row in rows)
    if query.state:
        rows = [row for row in rows if row.state == query.state]
    table = _table(rows, query, key=lambda row: row.actor_id, found=_actor_found, sort_by=_actor_sort, tell=_actor)
    return {**table, "counts": counts}


def actor(observer: Observer, query: Query) -> Message:
    """One actor."""
    row = observer.picture.all_actors.get(query.key)
    events = [event for event in observer.picture.events if event.actor_id == query.key]
    return {"actor": None if row is None else _actor(row), "events": [asdict(event) for event in events[:20]]}


def runs(observer: Observer, query: Query) -> Message:
    """The training runs, and the curves of one of them: the chosen one, or the one that reported last."""
    picture = observer.picture
    rows = sorted(picture.runs.values(), key=lambda run: (run.is_over, run.age_s))
    chosen = query.key if query.key in picture.runs else (rows[0].run_id if rows else "")
    curves = observer.runs.history(chosen).curves() if chosen else {"x": []}
    run, actors = picture.runs.get(chosen), [row for row in picture.actors.values() if row.driver_id == chosen]
    return {
        "runs": [_run(run) for run in rows],
        "chosen": chosen,
        "num_actors": len(actors),
        "num_silent": sum(row.state == "silent" for row in actors),
        "verdicts": [] if run is None or run.is_over or run.age_s > FRESH_S else verdicts(run.values, actors, curves),
        "history": curves,
    }


def events(observer: Observer, query: Query) -> Message:
    """What has happened, the newest first."""
    rows = list(observer.picture.events)
    if query.state == "warnings":
        rows = [row for row in rows if row.is_warning]
    return _table(rows, query, key=lambda row: row.key, found=_event_found, sort_by={}, tell=asdict)


VIEWS: dict[str, Callable[[Observer, Query], Message]] = {
    "overview": overview,
    "nodes": nodes,
    "actors": actors,
    "actor": actor,
    "runs": runs,
    "events": events,
}


def attention(picture: Picture) -> Message:
    """What every page says of what needs somebody's attention."""
    first = [{"text": each.text, "link": each.link, "is_bad": each.is_bad} for each in picture.alarms[:1]]
    return {"num_alarms": len(picture.alarms), "first_alarm": first[0] if first else None}


def changes(old: Message | None, new: Message) -> Message:
    """What a reader that has `old` needs to have `new`: rows that are the same, and fields, are left out."""
    if old is None:
        return new
    told = {name: value for name, value in new.items() if name != "rows" and old.get(name) != value}
    if "rows" in new:
        before = old["rows"]
        rows = {key: row for key, row in new["rows"].items() if before.get(key) != row}
        if rows:
            told["rows"] = rows
    return told


def _table(
    rows: list[Any],
    query: Query,
    *,
    key: Callable[[Any], str],
    found: Callable[[Any, str], bool],
    sort_by: Mapping[str, Callable[[Any], Any]],
    tell: Callable[[Any], Message],
) -> Message:
    total = len(rows)
    if query.text:
        rows = [row for row in rows if found(row, query.text)]
    if (value := sort_by.get(query.sort)) is not None:
        known = [row for row in rows if value(row) is not None]
        rows = [
            *sorted(known, key=value, reverse=query.is_descending),
            *(row for row in rows if value(row) is None),
        ]
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    page = min(max(1, query.page), pages)
    shown = rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    return {
        "order": [key(row) for row in shown],
        "rows": {key(row): tell(row) for row in shown},
        "page": page,
        "pages": pages,
        "found": len(rows),
        "total": total,
    }


def _node_found(row: NodeRow, text: str) -> bool:
    labels = (f"{name}={value}" for name, value in row.labels.items())
    return any(text in each.lower() for each in (row.name, row.state, *labels))


def _actor_found(row: ActorRow, text: str) -> bool:
    return any(text in each.lower() for each in (row.name, row.actor_id, row.node, row.program, row.public_name))


def _event_found(row: EventRow, text: str) -> bool:
    return text in row.text.lower() or text in row.where.lower()


_node_sort: dict[str, Callable[[NodeRow], Any]] = {
    "name": lambda row: row.name.lower(),
    "state": lambda row: row.state,
    "actors": lambda row: row.num_actors,
    "cpu": lambda row: row.cpu_share,
    "memory": lambda row: row.used_memory_bytes,
    "calls": lambda row: row.calls_per_s,
}
_actor_sort: dict[str, Callable[[ActorRow], Any]] = {
    "name": lambda row: (row.class_name.lower(), len(row.name), row.name),
    "state": lambda row: (_STATE_ORDER.get(row.state, 9), row.name),
    "node": lambda row: row.node or None,
    "doing": lambda row: row.doing_s if row.silent_s is None else row.silent_s,
    "calls": lambda row: row.calls_per_s,
    "busy": lambda row: row.busy_share,
    "p50": lambda row: row.p50_s,
    "p99": lambda row: row.p99_s,
    "queue": lambda row: row.num_waiting,
    "cpu": lambda row: row.cpu_share,
    "memory": lambda row: row.memory_bytes,
    "restarts": lambda row: row.num_restarts,
}


def _actor(row: ActorRow) -> Message:
    return asdict(row)


def _run(run: RunRow) -> Message:
    # To the second: a reader is not told of what nobody sees.
    return {**asdict(run), "age_s": round(run.age_s)}


def _busiest(actors: list[ActorRow]) -> list[ActorRow]:
    """And those that have fallen silent, in the order of the table of actors."""
    busy = [row for row in actors if row.calls_per_s or row.state == "silent"]
    chosen = sorted(busy, key=lambda row: (row.state == "silent", row.calls_per_s or 0.0), reverse=True)
    return sorted(chosen[:_NUM_BUSIEST], key=_actor_sort["name"])


def _count(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _sum(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
