"""The curves of runs, from their progress.csv: read, grouped, put on one axis. Knows no pictures."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncparl.training.csv_table import is_whole
from asyncparl.training.errors import ConfigError, RunFolderError
from asyncparl.training.run_files import EVALUATIONS_FILE, PROGRESS_FILE, read_config

NUM_POINTS = 400
"""Of a group's curve."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """One figure of one run."""

    path: Path
    config: Mapping[str, Any]
    x: Array  # [N] ascending
    y: Array  # [N] finite


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ in nothing that is looked at, mostly by their seeds: their mean, and how far they spread.

    Each run is interpolated at the points that all runs of the group have reached, so that no line ends in a jump
    where a run was shorter.
    """

    label: str
    num_runs: int
    x: Array  # [N]
    mean: Array  # [N], as those below
    lowest: Array
    highest: Array
    deviation: Array  # of the sample of runs; 0 where there is one


class NothingYet(RunFolderError):
    """The run has not come far enough for a curve."""


def read_curve(path: Path, *, x: str, y: str) -> Curve:
    """A column of a run's progress.csv, or evaluations.csv where only that has it, over another one.

    Rows without a value yet are left out, and a last row that was cut short by a crash.

    Raises:
        NothingYet: the column has no value yet.
        RunFolderError: there is no run in the folder, or no such column.
    """
    config = read_config(path)
    tables = {name: _read_table(path / name) for name in (PROGRESS_FILE, EVALUATIONS_FILE) if (path / name).is_file()}
    if not tables:
        raise NothingYet(f"{path} has no {PROGRESS_FILE}: nothing was reported yet")
    columns = next((columns for columns in tables.values() if x in columns and y in columns), None)
    if columns is None:
        missing = next((name for name in (y, x) if not any(name in table for table in tables.values())), None)
        what = f"no column {missing}" if missing is not None else f"no columns {x} and {y} in one table"
        known = "; ".join(f"{name} has {', '.join(table)}" for name, table in tables.items())
        raise RunFolderError(f"{path} has {what}: {known}")
    known_y = np.isfinite(columns[y])
    if not known_y.any():
        raise NothingYet(f"{path} has no {y} yet: {len(known_y)} rows, none with a value")
    return Curve(path, config, columns[x][known_y], columns[y][known_y])


def _read_table(path: Path) -> dict[str, Array]:
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows = [row for row in reader if is_whole(row)]
            names = list(reader.fieldnames or ())
        return {name: np.array([float(row[name]) for row in rows]) for name in names}
    except (OSError, ValueError, csv.Error) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error


def group_curves(curves: Sequence[Curve], by: Sequence[str]) -> list[tuple[str, list[Curve]]]:
    """Those with the same values of these settings, each group with a label that tells it from the others.

    Raises:
        ConfigError: a run has no such setting.
    """
    groups: dict[tuple[str, ...], list[Curve]] = {}
    for curve in curves:
        unknown = [name for name in by if name not in curve.config]
        if unknown:
            known = ", ".join(sorted(curve.config))
            raise ConfigError(f"{curve.path} has no setting {' and no setting '.join(unknown)}; there are {known}")
        groups.setdefault(tuple(str(curve.config[name]) for name in by), []).append(curve)
    return [(_label(by, values), members) for values, members in groups.items()]


def _label(by: Sequence[str], values: Sequence[str]) -> str:
    # What env and algorithm are called says what they are; a number needs its name.
    parts = [
        value if name in ("env", "algorithm") else f"{name}={value}" for name, value in zip(by, values, strict=True)
    ]
    return ", ".join(parts)


def combine(label: str, curves: Sequence[Curve], *, smooth: int = 1) -> Group:
    """The mean of the runs of a group and their spread.

    Args:
        label: of the group.
        curves: at least one.
        smooth: every value becomes the mean of so many rows of its run, itself the last of them.

    Raises:
        RunFolderError: the runs have no part of the x axis in common.
    """
    first = max(curve.x[0] for curve in curves)
    last = min(curve.x[-1] for curve in curves)
    if first > last:
        names = ", ".join(str(curve.path) for curve in curves)
        raise RunFolderError(f"the runs of {label} have no part of the x axis in common: {names}")
    single = len(curves) == 1
    x = curves[0].x if single else np.linspace(first, last, NUM_POINTS)
    values = np.array([np.interp(x, curve.x, moving_mean(curve.y, smooth)) for curve in curves])
    deviation = np.zeros(len(x)) if single else values.std(axis=0, ddof=1)
    return Group(label, len(curves), x, values.mean(axis=0), values.min(axis=0), values.max(axis=0), deviation)


def moving_mean(values: Array, window: int) -> Array:
    """[N] the mean of each value and the `window - 1` before it; of fewer at the start."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    means: Array = (sums[ends] - sums[starts]) / (ends - starts)
    return means
