"""A CSV file that grows by a row at a time, and that a resumed run goes on with."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncparl.training.errors import RunFolderError


class CsvTable:
    """Open for writing. Rows are in the file before it is closed.

    Args:
        path: of the file; it is replaced.
        columns: the header.
        step_column: which of them counts the steps of the run.
        from_step: a run is resumed here: what the file has up to this step stays, and later rows are dropped.

    Raises:
        RunFolderError: the file of the resumed run has another header.
    """

    def __init__(self, path: Path, columns: Sequence[str], *, step_column: str, from_step: int | None) -> None:
        rows = [] if from_step is None else _rows_until(path, columns, step_column, from_step)
        _write_rows(path, columns, rows)
        self._file = path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, columns)

    def add(self, row: Mapping[str, float]) -> None:
        """One row more. Whole numbers stay whole; others are rounded to six figures."""
        self._writer.writerow({name: _rounded(value) for name, value in row.items()})
        self._file.flush()

    def close(self) -> None:
        """May be called twice."""
        self._file.close()


def _rows_until(path: Path, columns: Sequence[str], step_column: str, last_step: int) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        if list(reader.fieldnames or ()) != list(columns):
            raise RunFolderError(f"{path} has other columns than this version writes; move it away to go on")
        return [row for row in reader if is_whole(row) and int(row[step_column]) <= last_step]


def _write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    """Replace the file at once: a crash leaves the old one or the new one."""
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(new, path)


def is_whole(row: Mapping[str | None, Any]) -> bool:
    """Whether the row has every column; a crash may have cut the last one short."""
    return None not in row and all(row.values())


def _rounded(value: float) -> float | str:
    return value if isinstance(value, int) else f"{value:.6g}"
