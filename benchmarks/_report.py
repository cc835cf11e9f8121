"""One table for every benchmark: rows with a median and a spread, and where they were measured."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass
class Row:
    """One measured quantity. `target` and `limit` are in the same unit."""

    name: str
    unit: str
    samples: list[float]
    target: str = ""
    note: str = ""
    median: float = field(init=False)

    def __post_init__(self) -> None:
        self.median = statistics.median(self.samples)


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    versions = {}
    for package in ("trio", "pynng", "msgspec", "numpy", "torch", "ale-py", "gymnasium"):
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


def report(title: str, rows: Sequence[Row], *, save_as: str | None) -> None:
    """Print the table, and save it as Markdown and JSON under `results/`."""
    lines = [f"# {title}", "", "| | median | min | max | target | |", "|---|--:|--:|--:|--:|---|"]
    for row in rows:
        cells = [_number(row.median), _number(min(row.samples)), _number(max(row.samples))]
        lines.append(f"| {row.name} | {cells[0]} {row.unit} | {cells[1]} | {cells[2]} | {row.target} | {row.note} |")
    lines += ["", ", ".join(f"{key} {value}" for key, value in machine().items())]
    lines += [f"Command: `python {' '.join([Path(sys.argv[0]).as_posix(), *sys.argv[1:]])}`", ""]
    text = "\n".join(lines)
    print(text)
    if save_as:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{save_as}.md").write_text(text)
        record = {
            "title": title,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "rows": [asdict(row) for row in rows],
        }
        (RESULTS / f"{save_as}.json").write_text(json.dumps(record, indent=1) + "\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
