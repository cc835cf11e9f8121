"""Tables of what was measured: medians with their spread, beside targets, limits and peers, and where it was."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

_PACKAGES = ("trio", "pynng", "msgspec", "numpy", "torch", "ale-py", "gymnasium")
_EXPLANATION = (
    "limit: by how many times what is possible is better, sample by sample. "
    "x beside a peer's median: by how many times asyncparl's is better; the peer ran right afterwards."
)


@dataclass
class Row:
    """One measured quantity.

    Attributes:
        unit: one that ends with "/s" is the better the higher it is, any other the lower.
        samples: at least one.
        target: in the same unit.
        limit: the name of the row of the same table that says what would be possible, in the same unit, with as
            many samples.
        peers: the samples of others who did the same, in the same unit, by their names.
    """

    name: str
    unit: str
    samples: list[float]
    target: str = ""
    note: str = ""
    limit: str = ""
    peers: dict[str, list[float]] = field(default_factory=dict)
    median: float = field(init=False)

    def __post_init__(self) -> None:
        self.median = statistics.median(self.samples)

    def times_worse(self, samples: Sequence[float], than: Sequence[float]) -> float:
        """How many times worse the first samples are than the others, each than the one that was taken with it."""
        pairs = zip(than, samples, strict=True) if self.unit.endswith("/s") else zip(samples, than, strict=True)
        return statistics.median(a / b if b else float("inf") for a, b in pairs)


Emit = Callable[[Row], None]
"""What a measurement calls with each row, as soon as it is there."""


@dataclass
class Table:
    """Rows that were measured together, and what has to be said about them."""

    title: str
    rows: list[Row] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": model,
        "cpus": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **versions,
    }


def report(title: str, rows: Sequence[Row], *, save_as: Path | None) -> None:
    """Print a table of the script that runs, and save it as Markdown and JSON.

    Args:
        save_as: the path of both files, without .md and .json.
    """
    sys.stdout.write(render(title, [Table("", list(rows))], command()) + "\n")
    if save_as:
        save(title, [Table("", list(rows))], command(), save_as)


def command() -> str:
    """How this process was started."""
    return shlex.join(["python", Path(sys.argv[0]).as_posix(), *sys.argv[1:]])


def render(title: str, tables: Sequence[Table], how: str) -> str:
    """All of it as Markdown."""
    lines = [f"# {title}", ""]
    for table in tables:
        if table.title:
            lines += [f"## {table.title}", ""]
        lines += [*_lines(table.rows), ""] if table.rows else []
        lines += [f"- {remark}" for remark in table.remarks]
        lines += [""] if table.remarks else []
    if any(row.limit or row.peers for table in tables for row in table.rows):
        lines += [_EXPLANATION, ""]
    lines += [", ".join(f"{key} {value}" for key, value in machine().items())]
    lines += [f"Command: `{how}`", ""]
    return "\n".join(lines)


def save(title: str, tables: Sequence[Table], how: str, save_as: Path) -> None:
    """Write both files; each is whole at any moment."""
    record = {
        "title": title,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": how,
        "machine": machine(),
        "tables": [asdict(table) for table in tables],
    }
    save_as.parent.mkdir(parents=True, exist_ok=True)
    _replace(save_as.with_name(f"{save_as.name}.md"), render(title, tables, how))
    _replace(save_as.with_name(f"{save_as.name}.json"), json.dumps(record, indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    """A column is there if a row has something to say in it."""
    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    has_limits = any(row.limit for row in rows)
    header = ["", "median", "min", "max", "target", *(["limit"] if has_limits else []), *peers, ""]
    yield _line(header)
    yield _line(["---", *["--:"] * (len(header) - 2), "---"])
    by_name = {row.name: row for row in rows}
    for row in rows:
        cells = [row.name, f"{_number(row.median)} {row.unit}".strip()]
        cells += [_number(min(row.samples)), _number(max(row.samples)), row.target]
        if has_limits:
            cells.append(_over_limit(row, by_name[row.limit]) if row.limit in by_name else "")
        cells += [_beside(row, row.peers[name]) if name in row.peers else "" for name in peers]
        yield _line([*cells, row.note])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _beside(row: Row, samples: Sequence[float]) -> str:
    theirs = statistics.median(samples)
    return f"{_number(theirs)} {row.unit} ({_number(row.times_worse([theirs], [row.median]))}x)"


def _over_limit(row: Row, limit: Row) -> str:
    return f"{_number(row.times_worse(row.samples, limit.samples))}x"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
