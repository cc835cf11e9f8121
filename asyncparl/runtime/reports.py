"""What programs report of themselves: the master keeps the last report of each, for monitors, and reads none."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import trio

from asyncparl.errors import ProtocolError
from asyncparl.protocol.figures import MAX_REPORT_BYTES, ProgramReport

MAX_REPORTS = 100
"""Of programs, those that have gone included. The oldest is forgotten."""


@dataclass(slots=True)
class _Report:
    name: str
    at: float
    report: bytes
    is_over: bool = False


class Reports:
    """The last report of each program."""

    def __init__(self) -> None:
        self._reports: OrderedDict[str, _Report] = OrderedDict()

    def put(self, driver_id: str, name: str, report: bytes) -> None:
        """Keep a report instead of the last one.

        Raises:
            ProtocolError: it is too large.
        """
        if len(report) > MAX_REPORT_BYTES:
            raise ProtocolError(f"a report of {len(report):,} bytes; the limit is {MAX_REPORT_BYTES:,}")
        self._reports[driver_id] = _Report(name, trio.current_time(), report)
        self._reports.move_to_end(driver_id)
        if len(self._reports) > MAX_REPORTS:
            self._reports.popitem(last=False)

    def gone(self, driver_id: str) -> None:
        """The program has ended."""
        if (report := self._reports.get(driver_id)) is not None:
            report.is_over = True

    def read(self) -> list[ProgramReport]:
        """All of them."""
        now = trio.current_time()
        return [
            ProgramReport(driver_id, each.name, now - each.at, each.report, each.is_over)
            for driver_id, each in self._reports.items()
        ]
