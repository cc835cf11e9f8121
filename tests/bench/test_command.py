"""`asyncparl bench` as its users meet it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 240


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "asyncparl.cli", "bench", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_one_row_is_measured_shown_and_saved(tmp_path: Path) -> None:
    with start("start", "--no-peers", "--repeats", "1", "--save", "results", folder=tmp_path) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert "start (1 of 1): Actors, warm" in output
    assert (tmp_path / "results" / "start.md").read_text() in output
    record = json.loads((tmp_path / "results" / "start.json").read_text())
    names = [row["name"] for row in record["tables"][0]["rows"]]
    assert "warm actor, from its creation to its first answer" in names
    assert record["command"] == "asyncparl bench start --no-peers --repeats 1 --save results"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_was_measured_before_an_interruption_is_kept(number: signal.Signals, status: int, tmp_path: Path) -> None:
    with start("start", "footprint", "--no-peers", "--repeats", "1", "--save", ".", folder=tmp_path) as process:
        assert process.stdout is not None
        while "footprint (2 of 2)" not in (line := process.stdout.readline()):
            assert line, "it has ended"
        process.send_signal(number)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == status, output
    assert "warm actor, from its creation to its first answer" in output
    assert "warm actor, from its creation to its first answer" in (tmp_path / "start-footprint.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["no-such-row"], "'no-such-row' is not one of 'calls'"),
        (["--repeats", "0"], "'--repeats': 0 is not in the range x>=1"),
        (["--save", "file"], "'--save': Directory 'file' is a file"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[str], error: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with start(*arguments, folder=tmp_path) as process:
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert error in output and len(output.splitlines()) == 1
