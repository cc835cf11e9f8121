"""The work that all peers do, with a peer that does it in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from asyncparl.bench.peers import workloads
from asyncparl.bench.peers.workloads import PARTS, SIZES, Subject, System, quantile, writer
from asyncparl.bench.running import written


class Here(System):
    """No processes at all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create(self, num: int, *, num_threads: int = 1) -> list[Any]:
        return [Subject() for _ in range(num)]

    def end(self, actors: Sequence[Any]) -> None:
        pass

    def call(self, actor: Any, method: str, *arguments: Any) -> Any:
        return getattr(actor, method)(*arguments)

    def start(self, actor: Any, method: str, *arguments: Any) -> Any:
        return self.call(actor, method, *arguments)

    def is_done(self, call: Any) -> bool:
        return True

    def wait(self, calls: Sequence[Any]) -> list[Any]:
        return list(calls)

    def note(self, row: str) -> str:
        return "here" if row == workloads.PIPELINED else ""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work for a moment."""
    for name, value in {
        "NUM_ONE_AT_A_TIME": 2, "NUM_PIPELINED": 100, "IDLE_S": 0.01, "WEIGHT_BYTES": 8, "BUSY_BYTES": 8, "SETTLE_S": 0,
        "BYTES_PER_SAMPLE": 1,
    }.items():  # fmt: skip
        monkeypatch.setattr(workloads, name, value)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("part", "rows"),
    [
        ("calls", [workloads.ONE_AT_A_TIME, workloads.PIPELINED]),
        ("start", [workloads.CREATED]),
        ("many", [workloads.MANY_PIPELINED, workloads.MANY_MEMORY, workloads.IDLE_CPU]),
        ("arrays", [row.format(size) for size in SIZES for row in (workloads.ARRAY, workloads.ARRAYS)]),
        ("weights", [workloads.WEIGHTS]),
        ("busy-link", [workloads.BUSY_P50, workloads.BUSY_P99]),
    ],
)
def test_every_part_writes_its_rows(part: str, rows: list[str], tmp_path: Path) -> None:
    PARTS[part](Here(), 2, writer(tmp_path / "rows"))
    records = written(tmp_path / "rows")
    assert [record["name"] for record in records] == rows
    assert all(record["samples"] for record in records)


@pytest.mark.usefixtures("small")
def test_what_must_be_known_about_a_row_is_written_with_it(tmp_path: Path) -> None:
    PARTS["calls"](Here(), 1, writer(tmp_path / "rows"))
    assert [record["note"] for record in written(tmp_path / "rows")] == ["", "here"]


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [
        ([1.0], 0.99, 1.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([*map(float, range(1, 101))], 0.99, 99.0),
    ],
)
def test_a_quantile_is_a_sample(samples: list[float], share: float, expected: float) -> None:
    assert quantile(samples, share) == expected
