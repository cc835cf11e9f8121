"""`asyncparl top`: the cluster on a terminal. What does not fit is left out, least important first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncparl.monitor.observer import Observer
from asyncparl.monitor.picture import ActorRow, NodeRow, Picture
from asyncparl.protocol.resources import format_bytes

_NONE = "-"
_MAX_NODES = 8
_MAX_ALARMS = 3
_STYLES = {"running": "green", "ready": "green", "waiting": "yellow", "starting": "yellow", "silent": "red"}
_PADDING = 2


class _Column(NamedTuple):
    name: str
    width: int
    """That it takes at least. It gets it in the order of `rank`."""
    rank: int
    is_number: bool
    of: Callable[[ActorRow], str]


def doing(row: ActorRow) -> str:
    """What it runs or waits for, and for how long."""
    if row.silent_s is not None:
        return f"silent for {duration(row.silent_s)}: {row.doing}"
    return row.doing if row.doing_s is None else f"{row.doing} ({duration(row.doing_s)})"


_COLUMNS = (
    _Column("ACTOR", 16, 0, False, lambda row: row.name),
    _Column("STATE", 8, 1, False, lambda row: row.state),
    _Column("NODE", 12, 6, False, lambda row: row.node or _NONE),
    _Column("CALLS/S", 8, 2, True, lambda row: _number(row.calls_per_s)),
    _Column("BUSY", 5, 4, True, lambda row: _share(row.busy_share)),
    _Column("P50", 7, 7, True, lambda row: duration(row.p50_s)),
    _Column("P99", 7, 5, True, lambda row: duration(row.p99_s)),
    _Column("QUEUE", 5, 8, True, lambda row: _NONE if row.num_waiting is None else str(row.num_waiting)),
    _Column("CPU", 5, 9, True, lambda row: _share(row.cpu_share)),
    _Column("MEMORY", 9, 10, True, lambda row: short_bytes(row.memory_bytes)),
    _Column("RESTARTS", 8, 11, True, lambda row: str(row.num_restarts)),
    _Column("PID", 7, 12, True, lambda row: _NONE if row.pid is None else str(row.pid)),
    _Column("DOING", 22, 3, False, doing),
)


def plain_lines(observer: Observer) -> list[str]:
    """All there is, for a pipe: as wide as it is, without colours."""
    picture = observer.picture
    columns = [*_COLUMNS, _Column("PROGRAM", 0, 99, False, lambda row: row.program)]
    rows = [[column.of(row) for column in columns] for row in _sorted(picture)]
    lines = [*_summary(observer), *(f"! {alarm.line}" for alarm in picture.alarms)]
    if picture.nodes:
        heads = ["NODE", "STATE", "CPU", "MEMORY", "ACTORS", "CALLS/S"]
        lines += ["", *_aligned(heads, [_node_cells(node) for node in picture.nodes.values()])]
    return [*lines, "", *(_aligned([column.name for column in columns], rows) if rows else ["no actors"])]


def screen(observer: Observer, *, width: int, height: int) -> RenderableType:
    """As much as fits on a terminal of this size."""
    picture = observer.picture
    lines = [Text(line, overflow="ellipsis", no_wrap=True) for line in _summary(observer)]
    alarms = [f"! {alarm.line}" for alarm in picture.alarms[:_MAX_ALARMS]]
    lines += [Text(line, style="red", overflow="ellipsis", no_wrap=True) for line in alarms]
    parts: list[RenderableType] = [*lines]
    room = height - len(lines) - 1
    num_nodes = min(_MAX_NODES, len(picture.nodes), room // 3)
    if num_nodes > 0:
        parts += [_nodes_table(picture, width, num_nodes), Text("")]
        room -= num_nodes + 2
    parts.append(_actors_table(picture, width, max(1, room - 1)))
    return Group(*parts)


def duration(seconds: float | None) -> str:
    """Three digits, as 1.25ms."""
    if seconds is None:
        return _NONE
    for unit, size in (("us", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if seconds < 1000 * size and (unit != "s" or seconds < 100):
            return f"{seconds / size:.3g}{unit}"
    minutes = int(seconds / 60)
    return f"{minutes}min" if minutes < 120 else f"{minutes // 60}h"


def short_bytes(number: int | None) -> str:
    """To one digit after the point."""
    if number is None:
        return _NONE
    value, unit = format_bytes(number).split(" ")
    return f"{float(value):.1f}{unit}"


def _summary(observer: Observer) -> list[str]:
    picture = observer.picture
    nodes, actors = list(picture.nodes.values()), list(picture.actors.values())
    states = [f"{sum(row.state == state for row in actors)} {state}" for state in ("running", "waiting", "silent")]
    counts = f"{len(nodes)} nodes, {len(picture.programs)} programs, {len(actors)} actors ({', '.join(states)})"
    lines = [f"cluster at {picture.address}: {counts}"]
    shares = [node.cpu_share for node in nodes if node.cpu_share is not None]
    calls = sum(node.calls_per_s or 0.0 for node in nodes)
    used = sum(node.used_memory_bytes or 0 for node in nodes)
    parts = [f"CPU {sum(shares) / len(shares):.0%}" if shares else "CPU ?", f"memory {short_bytes(used)}"]
    parts.append(f"{_number(calls)} calls/s")
    for run in picture.runs.values():
        steps = run.values.get("steps_per_s")
        if not run.is_over and isinstance(steps, (int, float)):
            parts.append(f"{run.values.get('title', run.program)}: {_number(steps)} steps/s")
    lines.append("  ".join(parts))
    return [*lines, f"! {picture.fault}"] if picture.fault else lines


def _sorted(picture: Picture) -> list[ActorRow]:
    rows = sorted(picture.actors.values(), key=lambda row: row.name)
    return sorted(rows, key=lambda row: (row.busy_share or 0.0, row.calls_per_s or 0.0), reverse=True)


def _nodes_table(picture: Picture, width: int, num_rows: int) -> Table:
    table = _table(width)
    for head in ("NODE", "STATE", "CPU", "MEMORY", "ACTORS", "CALLS/S"):
        table.add_column(head, no_wrap=True, overflow="ellipsis")
    for node in list(picture.nodes.values())[:num_rows]:
        table.add_row(*map(Text, _node_cells(node)))
    return table


def _actors_table(picture: Picture, width: int, num_rows: int) -> Table:
    columns = _fitting(width)
    table = _table(width)
    for column in columns:
        table.add_column(
            column.name,
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=min(column.width, width),
            ratio=1 if column.name in ("ACTOR", "DOING") else None,
        )
    for row in _sorted(picture)[:num_rows]:
        style = _STYLES.get(row.state, "")
        table.add_row(*(Text(column.of(row), style=style if column.name == "STATE" else "") for column in columns))
    return table


def _table(width: int) -> Table:
    return Table(box=None, padding=(0, _PADDING, 0, 0), pad_edge=False, header_style="bold", expand=True, width=width)


def _fitting(width: int) -> list[_Column]:
    chosen: list[_Column] = []
    for column in sorted(_COLUMNS, key=lambda column: column.rank):
        if chosen and sum(each.width + _PADDING for each in [*chosen, column]) > width + _PADDING:
            break
        chosen.append(column)
    return [column for column in _COLUMNS if column in chosen]


def _node_cells(node: NodeRow) -> list[str]:
    memory = f"{short_bytes(node.used_memory_bytes)}/{short_bytes(node.total_memory_bytes)}"
    return [node.name, node.state, _share(node.cpu_share), memory, str(node.num_actors), _number(node.calls_per_s)]


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    table = [list(heads), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _number(value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0%}"
