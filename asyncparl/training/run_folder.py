"""The folder of one run: everything that it leaves behind.

    config.json      the settings, as they were used
    progress.csv     one row for each report; the header never changes
    evaluations.csv  one row for each evaluation, if there are any
    events.out.*     the same for TensorBoard
    checkpoints/     see `checkpoint.py`
    .lock            while somebody writes; see `run_lock.py`

A resumed run goes on in the same files. What was reported after the checkpoint that it starts from is dropped first:
those steps will be taken, and reported, again. A folder that goes while the run has it is not made anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from asyncparl.training.checkpoint import Checkpoint, Score, save_best, save_checkpoint
from asyncparl.training.csv_table import CsvTable
from asyncparl.training.errors import RunFolderError
from asyncparl.training.event_file import EventFile
from asyncparl.training.run_files import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    EVALUATIONS_FILE,
    PROGRESS_FILE,
    STEP_COLUMN,
    check_holds_run,
    read_config,
)
from asyncparl.training.run_lock import RunLock


def default_run_dir(algorithm: str, env: str, seed: int, *, now: datetime | None = None) -> Path:
    """`runs/impala-pong-20260131-120000-1`: sorts by algorithm, environment and date."""
    date = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    name = env.rsplit("/", maxsplit=1)[-1].replace(":", "-").lower()
    return Path("runs") / f"{algorithm}-{name}-{date}-{seed}"


class RunFolder:
    """One open run folder, which is nobody else's meanwhile. `create` or `open` it; `close` it at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RunLock(path)
        self._tables: dict[str, CsvTable] = {}  # by file name
        self._events: EventFile | None = None

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new folder, or an empty one.

        Raises:
            RunFolderError: it cannot be written, is in use, or holds a run.
        """
        with _told_of(path):
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path)
        with folder.closed_on_error(), _told_of(path):
            if (path / CONFIG_FILE).exists():
                raise RunFolderError(f"run folder {path} holds a run already: resume it, or choose another folder")
            folder.checkpoints.mkdir(exist_ok=True)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an earlier run, to go on with it.

        Raises:
            RunFolderError: there is no run in it, it is in use, or it cannot be written.
        """
        check_holds_run(path)
        with _told_of(path):
            folder = cls(path)
        with folder.closed_on_error(), _told_of(path):
            folder.checkpoints.mkdir(exist_ok=True)
            for unfinished in folder.checkpoints.glob(".*.tmp"):
                unfinished.unlink()
        return folder

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """A run that cannot begin, or go on, leaves the folder to others."""
        try:
            yield
        except BaseException:
            with suppress(RunFolderError):  # what ends the run says more
                self.close()
            raise

    @property
    def lock_problem(self) -> str | None:
        """What users should know if others are not kept away from the folder."""
        return self._lock.problem

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
            RunFolderError: the progress.csv of the resumed run has another header, or they cannot be written.
        """
        self._start_table(PROGRESS_FILE, columns, from_step)
        with _told_of(self.path):
            self._events = EventFile(self.path, purge_step=None if from_step is None else from_step + 1)

    def start_evaluations(self, columns: Sequence[str], *, from_step: int | None = None) -> None:
        """Open evaluations.csv, likewise."""
        self._start_table(EVALUATIONS_FILE, columns, from_step)

    def _start_table(self, name: str, columns: Sequence[str], from_step: int | None) -> None:
        with _told_of(self.path):
            self._tables[name] = CsvTable(self.path / name, columns, step_column=STEP_COLUMN, from_step=from_step)

    def report(self, row: Mapping[str, float], scalars: Mapping[str, float], *, step: int) -> None:
        """Add one row to progress.csv, and points at `step` to the curves of TensorBoard.

        Raises:
            RunFolderError: the folder has gone.
            OSError: it cannot be written now, such as for want of space. The next report tries it again.
        """
        self._add(PROGRESS_FILE, row, scalars, step)

    def report_evaluation(self, row: Mapping[str, float], scalars: Mapping[str, float], *, step: int) -> None:
        """The same to evaluations.csv."""
        self._add(EVALUATIONS_FILE, row, scalars, step)

    def _add(self, name: str, row: Mapping[str, float], scalars: Mapping[str, float], step: int) -> None:
        self.check_in_place()
        assert self._events is not None, "start_reports has opened it"
        self._tables[name].add(row)
        self._events.add(scalars, step=step)

    def save_checkpoint(self, checkpoint: Checkpoint) -> Path:
        """See the function of that name. Blocks: call it from a thread.

        Raises:
            RunFolderError: the folder has gone.
            OSError: it cannot be written now.
        """
        self.check_in_place()
        return save_checkpoint(checkpoint, self.checkpoints)

    def save_best(self, checkpoint: Checkpoint, score: Score) -> Path:
        """Likewise."""
        self.check_in_place()
        return save_best(checkpoint, score, self.checkpoints)

    def check_in_place(self) -> None:
        """Raise RunFolderError if the folder has gone: it, or another one in its place, is not ours to write."""
        if not self._lock.is_in_place() or not (self.path / CONFIG_FILE).is_file():
            raise RunFolderError(f"run folder {self.path} has gone: it was removed, moved or replaced during the run")

    def close(self) -> None:
        """Write what is buffered, close the files, and leave the folder to others. May be called twice.

        Raises:
            RunFolderError: something cannot be written. All is closed nevertheless.
        """
        files: list[CsvTable | EventFile] = [*self._tables.values()]
        if self._events is not None:
            files.append(self._events)
        self._tables.clear()
        self._events = None
        with _told_of(self.path), ExitStack() as closing:
            closing.callback(self._lock.release)  # the last one to be called
            for file in files:
                closing.callback(file.close)


@contextmanager
def _told_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"run folder {path} cannot be written: {error.strerror or error}") from error
