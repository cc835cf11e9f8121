"""Runs the parts one after the other, each in processes of its own, and joins what they wrote down."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncparl.bench.installing import PEERS_FOLDER, NoPeer, cache_folder, install, version
from asyncparl.bench.parts import PARTS, PEERS, Part
from asyncparl.bench.processes import run_alone
from asyncparl.bench.report import Row, Table, render, save

TITLE = "asyncparl, side by side with its limits and its peers"
Say = Callable[[str], None]
_NUM_LAST_LINES = 15


class Benchmark:
    """One run.

    Args:
        names: keys of `PARTS`.
        with_peers: whether peers are measured too.
        repeats: samples of each row.
        save_as: where results are kept, also those of a run that was interrupted; a path without .md and .json.
        how: the command, as the results tell it.
        say: told what is going on.
    """

    def __init__(
        self, names: Sequence[str], *, with_peers: bool, repeats: int, save_as: Path | None, how: str, say: Say
    ) -> None:
        self._parts = {name: PARTS[name] for name in names}
        self._with_peers = with_peers
        self._repeats = repeats
        self._save_as = save_as
        self._how = how
        self._say = say
        self._started = time.monotonic()
        self._interpreters: dict[str, Path] = {}
        self._absent: dict[str, str] = {}
        self.tables: list[Table] = []
        self.num_failed = 0
        """Parts that asyncparl itself did not finish."""

    def run(self) -> None:
        """Everything; what was measured when this is interrupted has been saved, and is in `tables`."""
        with tempfile.TemporaryDirectory(prefix="asyncparl-bench-") as folder:
            if self._with_peers:
                self._install_peers()
            for number, (name, part) in enumerate(self._parts.items(), start=1):
                self._say(f"{self._clock()} {name} ({number} of {len(self._parts)}): {part.title}")
                self._run_part(name, part, Path(folder))
        self._say(f"{self._clock()} done")

    def text(self) -> str:
        """The tables so far."""
        return render(TITLE, self.tables, self._how)

    def _run_part(self, name: str, part: Part, folder: Path) -> None:
        table = Table(part.title)
        self.tables.append(table)
        own = [sys.executable, "-m", "asyncparl.bench.measure", name]
        output, environ = folder / name, {"TMPDIR": str(folder)}
        try:
            failure = self._measure([*own, "--output", str(output)], part.limit_s, environ)
        finally:  # of an interrupted one too
            table.rows = [_row(record) for record in written(output)]
            self._save()
        if failure:
            self.num_failed += 1
            table.remarks.append(f"asyncparl did not finish: {failure}")
            self._save()
        for key in part.peers if self._with_peers else ():
            self._run_peer(key, name, part, table, folder)
            self._save()

    def _run_peer(self, key: str, name: str, part: Part, table: Table, folder: Path) -> None:
        peer = PEERS[key]
        if key in self._absent:
            table.remarks.append(f"{peer.title} is left out: {self._absent[key]}")
            return
        self._say(f"{self._clock()}     {peer.title}")
        theirs = [str(self._interpreters[key]), "-m", f"{PEERS_FOLDER.name}.{peer.program}", name]
        # What they leave behind is removed with the folder.
        output, environ = folder / f"{name}-{key}", dict.fromkeys(("TMPDIR", "RAY_TMPDIR", "HOME"), str(folder))
        failure = self._measure([*theirs, "--output", str(output)], part.limit_s, environ, cwd=PEERS_FOLDER.parent)
        table.remarks += join(table.rows, peer.title, written(output))
        table.remarks.append(f"{peer.title}: {version(peer)}")
        if failure:
            table.remarks.append(f"{peer.title} did not finish: {failure}")

    def _measure(self, program: list[str], limit_s: float, environ: Mapping[str, str], cwd: Path | None = None) -> str:
        """Run a program that writes rows; why it did not write all of them, if it did not."""
        try:
            run_alone([*program, "--repeats", str(self._repeats)], limit_s=limit_s, cwd=cwd, environ=environ)
        except subprocess.TimeoutExpired:
            failure = f"it took longer than {limit_s:.0f} s"
        except subprocess.CalledProcessError as error:
            lines = [line for line in (error.output or "").splitlines() if line.strip()]
            self._say("\n".join(lines[-_NUM_LAST_LINES:]))
            failure = lines[-1] if lines else f"exit status {error.returncode}"
        else:
            return ""
        self._say(f"{self._clock()}     not finished: {failure}")
        return failure

    def _install_peers(self) -> None:
        for key in dict.fromkeys(key for part in self._parts.values() for key in part.peers):
            peer = PEERS[key]
            self._say(f"{self._clock()} {peer.title}: {cache_folder() / key}")
            try:
                self._interpreters[key] = install(key, peer, cache_folder())
            except NoPeer as error:
                self._absent[key] = str(error)
                self._say(f"{self._clock()}     left out: {error}")

    def _save(self) -> None:
        if self._save_as:
            save(TITLE, self.tables, self._how, self._save_as)

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        return f"{minutes:3d}:{seconds:02d}"


def written(path: Path) -> list[dict[str, Any]]:
    """The rows in a file; a line that was being written when its program ended is none."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def join(rows: Sequence[Row], title: str, records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Put a peer's samples beside ours; what has to be said about them."""
    by_name = {row.name: row for row in rows}
    for record in records:
        row = by_name.get(record["name"])
        if row is None:
            yield f"{title}, {record['name']}: asyncparl has no such figure here"
        elif row.unit != record["unit"]:
            yield f"{title}, {row.name}: in {record['unit']}, not in {row.unit}"
        else:
            row.peers[title] = record["samples"]
            if record["note"]:
                yield f"{title}, {row.name}: {record['note']}"


def _row(record: dict[str, Any]) -> Row:
    return Row(**{name: value for name, value in record.items() if name != "median"})
