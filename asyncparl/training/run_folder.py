"""The folder of one run: everything that it leaves behind.

    config.json      the settings, as they were used
    progress.csv     one row for each report; the header never changes
    evaluations.csv  one row for each evaluation, if there are any
    events.out.*     the same for TensorBoard
    checkpoints/     see `checkpoint.py`

A resumed run goes on in the same files. What was reported after the checkpoint that it starts from is dropped first:
those steps will be taken, and reported, again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from asyncparl.training.csv_table import CsvTable
from asyncparl.training.errors import RunFolderError
from asyncparl.training.run_files import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    EVALUATIONS_FILE,
    PROGRESS_FILE,
    STEP_COLUMN,
    check_holds_run,
    read_config,
)


def default_run_dir(algorithm: str, env: str, seed: int, *, now: datetime | None = None) -> Path:
    """`runs/impala-pong-20260131-120000-1`: sorts by algorithm, environment and date."""
    date = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    name = env.rsplit("/", maxsplit=1)[-1].replace(":", "-").lower()
    return Path("runs") / f"{algorithm}-{name}-{date}-{seed}"


class RunFolder:
    """One open run folder. `create` or `open` it; `close` it at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tables: dict[str, CsvTable] = {}  # by file name
        self._events: Any = None

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new folder, or an empty one.

        Raises:
            RunFolderError: it cannot be written, or it holds a run.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / CHECKPOINT_FOLDER).mkdir(exist_ok=True)
            if (path / CONFIG_FILE).exists():
                raise RunFolderError(f"run folder {path} holds a run already: resume it, or choose another folder")
            _check_writable(path)
        except OSError as error:
            raise RunFolderError(f"run folder {path} cannot be written: {error.strerror or error}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an earlier run, to go on with it.

        Raises:
            RunFolderError: there is no run in it, or it cannot be written.
        """
        check_holds_run(path)
        try:
            (path / CHECKPOINT_FOLDER).mkdir(exist_ok=True)
            _check_writable(path)
            for unfinished in (path / CHECKPOINT_FOLDER).glob(".*.tmp"):
                unfinished.unlink()
        except OSError as error:
            raise RunFolderError(f"run folder {path} cannot be written: {error.strerror or error}") from error
        return cls(path)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINT_FOLDER

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace config.json.

        Raises:
            RunFolderError: there is no room for it.
        """
        path = self.path / CONFIG_FILE
        new = path.with_suffix(".new")
        try:
            new.write_text(json.dumps(config, indent=2) + "\n")
            os.replace(new, path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error

    def read_config(self) -> dict[str, Any]:
        """See the function of that name."""
        return read_config(self.path)

    def start_reports(self, columns: Sequence[str], *, from_step: int | None = None) -> None:
        """Open progress.csv and the TensorBoard events.

        Args:
            columns: the header; `agent_steps` is one of them.
            from_step: a run is resumed here; later reports are dropped.

        Raises:
            RunFolderError: the progress.csv of the resumed run has another header.
        """
        self._start_table(PROGRESS_FILE, columns, from_step)
        self._events = SummaryWriter(str(self.path), purge_step=None if from_step is None else from_step + 1)

    def start_evaluations(self, columns: Sequence[str], *, from_step: int | None = None) -> None:
        """Open evaluations.csv, likewise."""
        self._start_table(EVALUATIONS_FILE, columns, from_step)

    def _start_table(self, name: str, columns: Sequence[str], from_step: int | None) -> None:
        self._tables[name] = CsvTable(self.path / name, columns, step_column=STEP_COLUMN, from_step=from_step)

    def report(self, row: Mapping[str, float], scalars: Mapping[str, float], *, step: int) -> None:
        """Add one row to progress.csv, and points at `step` to the curves of TensorBoard."""
        self._add(PROGRESS_FILE, row, scalars, step)

    def report_evaluation(self, row: Mapping[str, float], scalars: Mapping[str, float], *, step: int) -> None:
        """The same to evaluations.csv."""
        self._add(EVALUATIONS_FILE, row, scalars, step)

    def _add(self, name: str, row: Mapping[str, float], scalars: Mapping[str, float], step: int) -> None:
        self._tables[name].add(row)
        for curve, value in scalars.items():
            self._events.add_scalar(curve, value, global_step=step)

    def close(self) -> None:
        """Write what is buffered and close the files. May be called twice."""
        for table in self._tables.values():
            table.close()
        self._tables.clear()
        if self._events is not None:
            self._events.close()
            self._events = None


def _check_writable(path: Path) -> None:
    # Not os.access: root may everything, and a read-only mount says so only to a real write.
    probe = path / ".writable"
    probe.write_bytes(b"")
    probe.unlink()
