"""What masters and nodes have noted, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from asyncparl.monitor.picture import EventRow
from asyncparl.protocol.figures import Happening

MAX_EVENTS = 1000
ACTOR_STARTS = "actor starts"
ACTOR_ENDED = "actor ended"
UNINTERESTING = frozenset({"program disconnected"})
"""The master says more of it."""

Fields = Mapping[str, str]

_TEXTS: dict[str, Callable[[Fields], str]] = {
    "node joined": lambda f: f"node {f['node']} joined{_from(f)}{_with_actors(f)}",
    "node left": lambda f: f"node {f['node']} left",
    "node lost": lambda f: f"node {f['node']} is lost: {f['reason']}",
    "node refused": lambda f: f"node {f['node']} was refused{_from(f)}: {f['reason']}",
    "program joined": lambda f: f"program {f['program']} joined{_from(f)}",
    "program gone": lambda f: f"program {f['program']} has gone",
    ACTOR_STARTS: lambda f: f"{f['actor']} {_starts(f)}",
    ACTOR_ENDED: lambda f: f"{f['actor']} ended: {f['reason']}",
}


def event_row(happening: Happening, source_id: str, where: str) -> EventRow:
    """An event of the master or of a node; `source_id` tells their numbers apart."""
    return EventRow(
        key=f"{source_id}-{happening.number}",
        time=happening.time,
        is_warning=happening.is_warning or is_failure(happening),
        kind=happening.event,
        text=_text(happening),
        actor_id=happening.fields.get("id", "") if happening.event in (ACTOR_STARTS, ACTOR_ENDED) else "",
        where=where,
    )


def is_failure(happening: Happening) -> bool:
    """Whether it is the end of an actor that nobody has asked for."""
    fields = happening.fields
    return (
        happening.event == ACTOR_ENDED
        and fields.get("was_asked") != "True"
        and (fields.get("signal", "None") != "None" or fields.get("exit_code", "0") != "0")
    )


def merged(old: Iterable[EventRow], new: Iterable[EventRow]) -> tuple[EventRow, ...]:
    """The newest of both, the newest first. One that is there already does not come twice."""
    by_key = {event.key: event for event in [*old, *new]}
    return tuple(sorted(by_key.values(), key=lambda event: event.time, reverse=True)[:MAX_EVENTS])


def _text(happening: Happening) -> str:
    try:
        return _TEXTS[happening.event](happening.fields)
    except KeyError:  # somebody notes something else than what we know
        details = ", ".join(f"{name} {value}" for name, value in happening.fields.items())
        return f"{happening.event}: {details}" if details else happening.event


def _from(fields: Fields) -> str:
    return f" from {fields['host']}" if fields.get("host") else ""


def _with_actors(fields: Fields) -> str:
    number = fields.get("actors", "0")
    return "" if number == "0" else f" with {number} actors"


def _starts(fields: Fields) -> str:
    number = fields.get("restarts", "0")
    return "starts" if number == "0" else f"is started again (restart {number})"
