"""Training runs, and whatever else programs report of themselves: the last report, and the curves so far."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, TypeGuard

from asyncparl.monitor.history import History
from asyncparl.monitor.picture import RunRow
from asyncparl.protocol.figures import MAX_REPORT_BYTES, ProgramReport

MAX_RUNS = 20
_MAX_VALUES = 64
_MAX_CHARS = 200
FRESH_S = 60.0
"""A report that is older is late."""
LEARNER_SHARES = ("waiting_share", "copying_share", "computing_share")
"""Of its time. All are 0 if it has learned nothing within the window of the figures, which then say nothing."""
_OF_UPDATES = frozenset({*LEARNER_SHARES, "mean_lag", "max_lag", "batch_age_s"})


class Runs:
    """The newest `MAX_RUNS` of them. Reports are what others wrote: they are read as text and numbers, and cut."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, RunRow] = OrderedDict()
        self._histories: dict[str, History] = {}
        self._raw: dict[str, bytes] = {}

    def update(self, reports: Sequence[ProgramReport], *, now: float) -> dict[str, RunRow]:
        """The rows after one more look."""
        for report in reports:
            run_id = report.driver_id
            is_new = self._raw.get(run_id) != report.report
            values = read_report(report.report) if is_new or run_id not in self._rows else self._rows[run_id].values
            if values is None:
                continue
            self._rows[run_id] = RunRow(
                run_id=run_id, program=report.name, is_over=report.is_over, age_s=report.age_s, values=values
            )
            if is_new:
                self._raw[run_id] = report.report
                self._note(run_id, values, now - report.age_s)
        self._forget({report.driver_id for report in reports})
        return dict(self._rows)

    def history(self, run_id: str) -> History:
        """The curves of a run, over its agent steps; empty if there is none."""
        return self._histories.get(run_id, History())

    def steps_per_s(self) -> float | None:
        """Of all runs that report; None if there are none."""
        rates = [
            row.values["steps_per_s"]
            for row in self._rows.values()
            if not row.is_over and row.age_s < FRESH_S and is_number(row.values.get("steps_per_s"))
        ]
        return sum(rates) if rates else None

    def _note(self, run_id: str, values: dict[str, Any], at: float) -> None:
        steps = values.get("agent_steps")
        x = float(steps) if is_number(steps) else at
        numbers = {name: float(value) for name, value in values.items() if is_number(value)}
        history = self._histories.setdefault(run_id, History())
        if [numbers.get(name) for name in LEARNER_SHARES] == [0.0, 0.0, 0.0]:
            if not len(history):
                return  # it has not begun
            numbers = {name: value for name, value in numbers.items() if name not in _OF_UPDATES}
        history.add(x, numbers)

    def _forget(self, reported: set[str]) -> None:
        """A run that nobody tells of any more is over; the oldest of too many go."""
        for run_id in self._rows.keys() - reported:
            row = self._rows[run_id]
            self._rows[run_id] = RunRow(
                run_id=run_id, program=row.program, is_over=True, age_s=row.age_s, values=row.values
            )
        while len(self._rows) > MAX_RUNS:
            run_id = next((each for each, row in self._rows.items() if row.is_over), next(iter(self._rows)))
            for known in (self._rows, self._histories, self._raw):
                known.pop(run_id, None)


def read_report(report: bytes) -> dict[str, Any] | None:
    """Texts, numbers and truths by name, those in objects as "object/name"; None if it is no report."""
    try:
        read = json.loads(report[:MAX_REPORT_BYTES])
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, dict):
        return None
    values: dict[str, Any] = {}
    for name, value in read.items():
        inner = {f"{name}/{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        values |= {
            key[:_MAX_CHARS]: each[:_MAX_CHARS] if isinstance(each, str) else each
            for key, each in inner.items()
            if isinstance(each, (str, bool, int)) or is_number(each)
        }
    return dict(list(values.items())[:_MAX_VALUES])


def is_number(value: object) -> TypeGuard[float]:
    """Whether it can be drawn."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
