"""The run folder: what is written can be read at once, by others too, and resumed runs go on in it."""

from __future__ import annotations

import csv
import errno
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncparl.training import RunFolderError, run_lock
from asyncparl.training.checkpoint import Checkpoint, Counters, Score
from asyncparl.training.run_folder import RunFolder, default_run_dir

COLUMNS = ["agent_steps", "mean_return"]


def _read(path: Path) -> list[list[str]]:
    with (path / "progress.csv").open(newline="") as file:
        return list(csv.reader(file))


def _curve(path: Path) -> list[tuple[int, float]]:
    """What TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars("episodes/mean_return")]


def _started(path: Path, *, steps: list[int]) -> RunFolder:
    folder = RunFolder.create(path)
    folder.write_config({"env": "pong"})
    folder.start_reports(COLUMNS)
    for step in steps:
        folder.report({"agent_steps": step, "mean_return": step / 10}, {"episodes/mean_return": step / 10}, step=step)
    return folder


def test_the_name_tells_algorithm_environment_date_and_seed() -> None:
    path = default_run_dir("impala", "ALE/Pong-v5", 3, now=datetime(2026, 1, 31, 12, 0, 5))
    assert path == Path("runs/impala-pong-v5-20260131-120005-3")


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    # Below a regular file not even root can make a folder.
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"^run folder .*/file/run cannot be written: Not a directory$"):
        RunFolder.create(tmp_path / "file" / "run")


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    _started(tmp_path / "run", steps=[10]).close()
    with pytest.raises(RunFolderError, match="holds a run already"):
        RunFolder.create(tmp_path / "run")
    assert len(_read(tmp_path / "run")) == 2


def test_rows_are_in_the_file_before_it_is_closed(tmp_path: Path) -> None:
    folder = _started(tmp_path, steps=[10, 20])
    assert _read(tmp_path) == [COLUMNS, ["10", "1"], ["20", "2"]]
    folder.close()


def test_tensorboard_can_read_the_curves(tmp_path: Path) -> None:
    folder = _started(tmp_path, steps=[10, 20])
    assert _curve(tmp_path) == [(10, 1.0), (20, 2.0)]  # before it is closed
    folder.close()


def test_a_resumed_run_goes_on_after_its_checkpoint(tmp_path: Path) -> None:
    _started(tmp_path, steps=[10, 20, 30]).close()
    with (tmp_path / "progress.csv").open("a") as file:
        file.write("1")  # cut short by a crash
    folder = RunFolder.open(tmp_path)
    folder.start_reports(COLUMNS, from_step=20)
    folder.report({"agent_steps": 25, "mean_return": 9.0}, {"episodes/mean_return": 9.0}, step=25)
    folder.close()
    assert _read(tmp_path) == [COLUMNS, ["10", "1"], ["20", "2"], ["25", "9"]]


def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path: Path) -> None:
    _started(tmp_path, steps=[10, 20, 30]).close()
    folder = RunFolder.open(tmp_path)
    folder.start_reports(COLUMNS, from_step=20)
    folder.report({"agent_steps": 25, "mean_return": 9.0}, {"episodes/mean_return": 9.0}, step=25)
    folder.close()
    assert [step for step, _ in _curve(tmp_path)] == [10, 20, 25]


def test_a_progress_file_with_other_columns_is_left_alone(tmp_path: Path) -> None:
    _started(tmp_path, steps=[10]).close()
    before = (tmp_path / "progress.csv").read_bytes()
    folder = RunFolder.open(tmp_path)
    with pytest.raises(RunFolderError, match="has other columns"), folder.closed_on_error():
        folder.start_reports([*COLUMNS, "new"], from_step=10)
    assert (tmp_path / "progress.csv").read_bytes() == before


def test_only_the_folder_of_a_run_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no run folder: there is no config\.json in it"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_damaged_config_is_one_clear_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    folder = RunFolder.open(tmp_path)
    with pytest.raises(RunFolderError, match=r"config\.json cannot be read"), folder.closed_on_error():
        folder.read_config()


# --- one owner at a time

OWNER = """
import os, sys
from pathlib import Path
from asyncparl.training.run_folder import RunFolder

folder = RunFolder.create(Path(sys.argv[1]))
folder.write_config({"env": "pong"})
if not os.fork():
    print(os.getpid(), flush=True)
sys.stdin.read()
os._exit(0)
"""


@contextmanager
def _owner(path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that has the folder, and a fork of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdin is not None and process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()
            process.stdin.close()
            process.stdout.read()  # until the fork has ended too


@pytest.mark.slow
def test_a_folder_is_its_owners_until_he_is_killed_whoever_was_forked_from_him(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with _owner(path) as (owner, child):
        line = (
            rf"^the run in {path} is in use by process {owner.pid} on {socket.gethostname()}: "
            "stop it first, or copy the folder$"
        )
        with pytest.raises(RunFolderError, match=line):
            RunFolder.open(path)
        with pytest.raises(RunFolderError, match=line):
            RunFolder.create(path)
        owner.kill()
        owner.wait()
        os.kill(child, 0)  # is alive
        RunFolder.open(path).close()
    assert not list(path.glob(".lock"))


def test_nobody_takes_a_folder_twice_in_one_process_either(tmp_path: Path) -> None:
    folder = _started(tmp_path, steps=[10])
    with pytest.raises(RunFolderError, match=f"is in use by process {os.getpid()} on"):
        RunFolder.open(tmp_path)
    copy = os.dup(folder._lock._file.fileno())  # as a fork has it that C code made
    folder.close()
    folder.close()
    RunFolder.open(tmp_path).close()
    os.close(copy)


def test_a_refused_folder_is_left_to_others(tmp_path: Path) -> None:
    _started(tmp_path, steps=[10]).close()
    with pytest.raises(RunFolderError, match="holds a run already"):
        RunFolder.create(tmp_path)
    RunFolder.open(tmp_path).close()


def test_a_file_that_its_owner_removes_meanwhile_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _started(tmp_path, steps=[10])
    flock = run_lock.fcntl.flock
    calls: list[int] = []

    def owner_ends_first(file: int, operation: int) -> None:
        calls.append(operation)
        if len(calls) == 1:  # the file is open, and not yet locked
            folder.close()
        flock(file, operation)

    monkeypatch.setattr(run_lock.fcntl, "flock", owner_ends_first)
    next_one = RunFolder.open(tmp_path)
    monkeypatch.undo()
    next_one.check_in_place()
    with pytest.raises(RunFolderError, match="is in use by"):
        RunFolder.open(tmp_path)
    next_one.close()


def test_where_there_are_no_locks_the_run_goes_on_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_file: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(run_lock, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=0, LOCK_NB=0))
    first = _started(tmp_path, steps=[10])
    second = RunFolder.open(tmp_path)
    assert (
        first.lock_problem
        == second.lock_problem
        == (
            f"{tmp_path} is in a file system without locks (No locks available): "
            "no other process that writes to it would be noticed"
        )
    )
    second.close()
    first.check_in_place()
    first.close()


# --- what cannot be written


@contextmanager
def _no_file_larger_than(num_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("cut_bytes", [0, 7])
def test_what_could_not_be_written_is_raised_and_written_with_the_next_report(cut_bytes: int, tmp_path: Path) -> None:
    folder = _started(tmp_path, steps=[10])
    (events,) = tmp_path.glob("events.out.*")
    with _no_file_larger_than(events.stat().st_size + cut_bytes), pytest.raises(OSError, match="File too large"):
        folder.report({"agent_steps": 20, "mean_return": 2.0}, {"episodes/mean_return": 2.0}, step=20)
    folder.report({"agent_steps": 30, "mean_return": 3.0}, {"episodes/mean_return": 3.0}, step=30)
    folder.close()
    assert _read(tmp_path) == [COLUMNS, ["10", "1"], ["20", "2"], ["30", "3"]]
    assert _curve(tmp_path) == [(10, 1.0), (20, 2.0), (30, 3.0)]


def test_files_that_cannot_be_begun_are_one_clear_line(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    (tmp_path / "progress.csv").mkdir()
    with pytest.raises(RunFolderError, match=f"^run folder {tmp_path} cannot be written: Is a directory$"):
        folder.start_reports(COLUMNS)
    (tmp_path / "progress.csv").rmdir()
    with _no_file_larger_than(30), pytest.raises(RunFolderError, match=r"cannot be written: File too large$"):
        folder.start_reports(COLUMNS)
    folder.close()


def test_files_that_cannot_be_finished_are_one_clear_line_and_closed(tmp_path: Path) -> None:
    folder = _started(tmp_path, steps=[10])
    with _no_file_larger_than(1):
        with pytest.raises(OSError, match="File too large"):
            folder.report({"agent_steps": 20, "mean_return": 2.0}, {}, step=20)
        with pytest.raises(RunFolderError, match=f"^run folder {tmp_path} cannot be written: File too large$"):
            folder.close()
    RunFolder.open(tmp_path).close()


@pytest.mark.parametrize("how", ["removed", "emptied", "moved", "replaced"])
def test_a_folder_that_has_gone_is_one_clear_line_and_not_made_anew(how: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder = _started(path, steps=[10])
    other: RunFolder | None = None
    if how == "removed":
        shutil.rmtree(path)
    elif how == "emptied":  # as `rm -r run/*` does
        shutil.rmtree(path / "checkpoints")
        (path / "config.json").unlink()
    else:
        path.rename(tmp_path / "old")
        other = _started(path, steps=[]) if how == "replaced" else None
    before = sorted(tmp_path.rglob("*"))
    checkpoint = Checkpoint(Counters(), {}, {})
    for write in (
        lambda: folder.report({"agent_steps": 20, "mean_return": 2.0}, {"episodes/mean_return": 2.0}, step=20),
        lambda: folder.save_checkpoint(checkpoint),
        lambda: folder.save_best(checkpoint, Score(1.0, "training")),
    ):
        with pytest.raises(RunFolderError, match=rf"^run folder {path} has gone: it was removed, moved or replaced"):
            write()
    folder.close()
    assert [each for each in sorted(tmp_path.rglob("*")) if each.name != ".lock"] == [
        each for each in before if each.name != ".lock"
    ]
    if other is not None:
        with pytest.raises(RunFolderError, match="is in use by"):
            RunFolder.open(path)
        other.close()
