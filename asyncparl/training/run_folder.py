"""The folder of one run: everything that it leaves behind.

    config.json      the settings, as they were used
    progress.csv     one row for each report; the header never changes
    events.out.*     the same for TensorBoard
    checkpoints/     see `checkpoint.py`

A resumed run goes on in the same files. What was reported after the checkpoint that it starts from is dropped first:
those steps will be taken, and reported, again.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from torch.utils.tensorboard import SummaryWriter

from asyncparl.training.errors import RunFolderError

CONFIG_FILE = "config.json"
PROGRESS_FILE = "progress.csv"
CHECKPOINT_FOLDER = "checkpoints"


def default_run_dir(algorithm: str, env: str, seed: int, *, now: datetime | None = None) -> Path:
    """`runs/impala-pong-20260131-120000-1`: sorts by algorithm, environment and date."""
    date = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    name = env.rsplit("/", maxsplit=1)[-1].replace(":", "-").lower()
    return Path("runs") / f"{algorithm}-{name}-{date}-{seed}"


class RunFolder:
    """One open run folder. `create` or `open` it; `close` it at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._progress_file: IO[str] | None = None
        self._progress: csv.DictWriter[str] | None = None
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
        if not (path / CONFIG_FILE).is_file():
            raise RunFolderError(f"{path} is no run folder: there is no {CONFIG_FILE} in it")
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
        """Replace config.json."""
        path = self.path / CONFIG_FILE
        new = path.with_suffix(".new")
        new.write_text(json.dumps(config, indent=2) + "\n")
        os.replace(new, path)

    def read_config(self) -> dict[str, Any]:
        """What config.json says.

        Raises:
            RunFolderError: it is not readable as such.
        """
        try:
            config = json.loads((self.path / CONFIG_FILE).read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.path / CONFIG_FILE} cannot be read: {error}") from error
        if not isinstance(config, dict):
            raise RunFolderError(f"{self.path / CONFIG_FILE} cannot be read: it holds no object")
        return config

    def start_reports(self, columns: Sequence[str], *, step_column: str, from_step: int | None = None) -> None:
        """Open progress.csv and the TensorBoard events.

        Args:
            columns: the header. step_column: the one that TensorBoard has on its x axis.
            from_step: a run is resumed here; later reports are dropped.

        Raises:
            RunFolderError: the progress.csv of the resumed run has another header.
        """
        rows = [] if from_step is None else self._rows_until(columns, step_column, from_step)
        path = self.path / PROGRESS_FILE
        _write_rows(path, columns, rows)
        self._progress_file = path.open("a", newline="")
        self._progress = csv.DictWriter(self._progress_file, columns)
        self._events = SummaryWriter(str(self.path), purge_step=None if from_step is None else from_step + 1)

    def report(self, row: Mapping[str, float], scalars: Mapping[str, float], *, step: int) -> None:
        """Add one row to progress.csv, and points at `step` to the curves of TensorBoard."""
        assert self._progress is not None and self._progress_file is not None, "start_reports comes first"
        self._progress.writerow({name: _rounded(value) for name, value in row.items()})
        self._progress_file.flush()
        for name, value in scalars.items():
            self._events.add_scalar(name, value, global_step=step)

    def close(self) -> None:
        """Write what is buffered and close the files. May be called twice."""
        if self._progress_file is not None:
            self._progress_file.close()
            self._progress_file = self._progress = None
        if self._events is not None:
            self._events.close()
            self._events = None

    def _rows_until(self, columns: Sequence[str], step_column: str, last_step: int) -> list[dict[str, str]]:
        path = self.path / PROGRESS_FILE
        if not path.exists():
            return []
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if list(reader.fieldnames or ()) != list(columns):
                raise RunFolderError(f"{path} has other columns than this version writes; move it away to go on")
            return [row for row in reader if _is_whole(row) and int(row[step_column]) <= last_step]


def _check_writable(path: Path) -> None:
    # Not os.access: root may everything, and a read-only mount says so only to a real write.
    probe = path / ".writable"
    probe.write_bytes(b"")
    probe.unlink()


def _write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    """Replace the file at once: a crash leaves the old one or the new one."""
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(new, path)


def _is_whole(row: Mapping[str | None, Any]) -> bool:
    """Whether the row has every column; a crash may have cut the last one short."""
    return None not in row and all(row.values())


def _rounded(value: float) -> float | str:
    return value if isinstance(value, int) else f"{value:.6g}"
