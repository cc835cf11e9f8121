"""The run folder: what is written can be read at once, by others too, and resumed runs go on in it."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

import pytest

from asyncparl.training import RunFolderError
from asyncparl.training.run_folder import RunFolder, default_run_dir

COLUMNS = ["agent_steps", "mean_return"]


def _read(folder: RunFolder) -> list[list[str]]:
    with (folder.path / "progress.csv").open(newline="") as file:
        return list(csv.reader(file))


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
    assert len(_read(RunFolder(tmp_path / "run"))) == 2


def test_rows_are_in_the_file_before_it_is_closed(tmp_path: Path) -> None:
    folder = _started(tmp_path, steps=[10, 20])
    assert _read(folder) == [COLUMNS, ["10", "1"], ["20", "2"]]
    folder.close()


def test_tensorboard_can_read_the_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _started(tmp_path, steps=[10, 20]).close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(point.step, point.value) for point in events.Scalars("episodes/mean_return")] == [(10, 1.0), (20, 2.0)]


def test_a_resumed_run_goes_on_after_its_checkpoint(tmp_path: Path) -> None:
    _started(tmp_path, steps=[10, 20, 30]).close()
    with (tmp_path / "progress.csv").open("a") as file:
        file.write("1")  # cut short by a crash
    folder = RunFolder.open(tmp_path)
    folder.start_reports(COLUMNS, from_step=20)
    folder.report({"agent_steps": 25, "mean_return": 9.0}, {"episodes/mean_return": 9.0}, step=25)
    folder.close()
    assert _read(folder) == [COLUMNS, ["10", "1"], ["20", "2"], ["25", "9"]]


def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _started(tmp_path, steps=[10, 20, 30]).close()
    folder = RunFolder.open(tmp_path)
    folder.start_reports(COLUMNS, from_step=20)
    folder.report({"agent_steps": 25, "mean_return": 9.0}, {"episodes/mean_return": 9.0}, step=25)
    folder.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [point.step for point in events.Scalars("episodes/mean_return")] == [10, 20, 25]


def test_a_progress_file_with_other_columns_is_left_alone(tmp_path: Path) -> None:
    _started(tmp_path, steps=[10]).close()
    before = (tmp_path / "progress.csv").read_bytes()
    with pytest.raises(RunFolderError, match="has other columns"):
        RunFolder.open(tmp_path).start_reports([*COLUMNS, "new"], from_step=10)
    assert (tmp_path / "progress.csv").read_bytes() == before


def test_only_the_folder_of_a_run_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no run folder: there is no config\.json in it"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_damaged_config_is_one_clear_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"config\.json cannot be read"):
        RunFolder.open(tmp_path).read_config()
