"""Curves of several runs: read from what runs write, grouped, and drawn without a display."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncparl.cli import main
from asyncparl.training import RunFolderError, TrainingConfig
from asyncparl.training.curves import Group, combine, group_curves, moving_mean, read_curve
from asyncparl.training.metrics import Report
from asyncparl.training.plot import draw
from asyncparl.training.run_folder import RunFolder

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib keeps the fonts that it has drawn with open: that is no leak of a test."""
    for suffix in (".png", ".svg"):
        group = Group("a, b=0.1", 1, *(np.zeros(2) for _ in range(5)))
        draw([group], tmp_path_factory.mktemp("fonts") / f"any{suffix}", x="x", y="y")


def _run(path: Path, returns: list[float], *, step: int = 100, **settings: Any) -> Path:
    """A run folder as the trainer leaves it, with one row for each return."""
    folder = RunFolder.create(path)
    folder.write_config(TrainingConfig(**({"env": "CartPole-v1"} | settings)).to_json())
    folder.start_reports(Report.columns())
    row = dict.fromkeys(Report.columns(), 0.0)
    for number, mean_return in enumerate(returns, start=1):
        row |= {"agent_steps": number * step, "elapsed_s": number * 3600.0, "mean_return": mean_return}
        folder.report(row, {}, step=number * step)
    folder.close()
    return path


def _steps(path: Path) -> Any:
    return read_curve(path, x="agent_steps", y="mean_return")


def test_a_curve_leaves_out_what_is_not_known_yet_and_a_row_that_was_cut_short(tmp_path: Path) -> None:
    path = _run(tmp_path / "run", [float("nan"), 1.0, 2.0])
    with (path / "progress.csv").open("a") as file:
        file.write("400,1")
    curve = _steps(path)
    assert (curve.x.tolist(), curve.y.tolist()) == ([200, 300], [1, 2])


def test_runs_are_grouped_by_their_settings(tmp_path: Path) -> None:
    curves = [
        _steps(_run(tmp_path / "1", [1.0], seed=1)),
        _steps(_run(tmp_path / "2", [1.0], algorithm="a2c")),
        _steps(_run(tmp_path / "3", [1.0], seed=2, learning_rate=0.1)),
    ]
    sizes = [(label, len(members)) for label, members in group_curves(curves, ["env", "algorithm"])]
    assert sizes == [("CartPole-v1, impala", 2), ("CartPole-v1, a2c", 1)]
    labels = [label for label, _ in group_curves(curves, ["learning_rate"])]
    assert labels == ["learning_rate=0.0006", "learning_rate=0.1"]


def test_mean_and_spread_are_of_the_steps_that_all_runs_have(tmp_path: Path) -> None:
    low = _steps(_run(tmp_path / "1", [0.0, 1.0, 2.0]))  # steps 100 to 300
    high = _steps(_run(tmp_path / "2", [4.0, 8.0], step=200))  # steps 200 to 400
    group = combine("both", [low, high])
    assert (group.x[0], group.x[-1], group.num_runs) == (200, 300, 2)
    np.testing.assert_allclose([group.lowest[-1], group.mean[-1], group.highest[-1]], [2, 4, 6])
    np.testing.assert_allclose(group.deviation[-1], 8**0.5)
    with pytest.raises(RunFolderError, match="no part of the x axis in common"):
        combine("both", [low, _steps(_run(tmp_path / "3", [1.0], step=1000))])


def test_a_single_run_is_drawn_as_it_is(tmp_path: Path) -> None:
    group = combine("one", [_steps(_run(tmp_path / "1", [1.0, 5.0, 3.0]))])
    assert (group.x.tolist(), group.mean.tolist()) == ([100, 200, 300], [1, 5, 3])


def test_smoothing_looks_back_only() -> None:
    assert moving_mean(np.array([1.0, 3.0, 5.0, 7.0]), 2).tolist() == [1, 2, 4, 6]
    assert moving_mean(np.array([1.0, 3.0]), 1).tolist() == [1, 3]


def _plot(arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["asyncparl", "plot", *arguments.split()])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("new/a.svg", b"<?xml")])
def test_the_command_draws_runs_and_folders_of_runs(
    name: str, begins: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        _run(tmp_path / "runs" / str(seed), [1.0 * seed, 3.0 * seed], seed=seed)
    _run(tmp_path / "other", [9.0, 9.0], algorithm="a2c")
    assert _plot(f"runs other runs/1 -o {name} --band std --smooth 2 --x time", monkeypatch) == 0
    assert capsys.readouterr().out.splitlines() == [
        "CartPole-v1, impala: 2 runs, mean 3 at the end",
        "CartPole-v1, a2c: 1 run, mean 9 at the end",
        f"plot: {name}",
    ]
    content = (tmp_path / name).read_bytes()
    assert content.startswith(begins)
    if name.endswith("svg"):
        assert b"hours" in content and b"mean return" in content


def test_of_a_folder_of_runs_those_that_have_no_curve_yet_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _run(tmp_path / "runs" / "1", [1.0, 3.0])
    _run(tmp_path / "runs" / "2", [float("nan")])
    assert _plot("runs", monkeypatch) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "CartPole-v1, impala: 1 run, mean 3 at the end"
    assert said.err == "left out: runs/2 has no mean_return yet: 1 rows, none with a value\n"


def test_lines_may_be_named_and_runs_kept_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        _run(tmp_path / "runs" / str(seed), [1.0, 3.0], seed=seed)
    assert _plot("runs --separate --label one --label two", monkeypatch) == 0
    assert capsys.readouterr().out.split(":")[0] == "one"
    assert (tmp_path / "plot.png").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("", "Missing argument 'RUN...'"),
        ("nowhere", "nowhere is no run folder: there is no config.json in it"),
        ("empty", "empty has no progress.csv: nothing was reported yet"),
        ("young", "young has no mean_return yet: 1 rows, none with a value"),
        ("good --y loss", "good has no column loss: progress.csv has agent_steps, updates, "),
        ("good --group-by colour", "good has no setting colour; there are algorithm, "),
        ("good -o a.bmp", "a plot is a file whose name ends with .png, .svg, .pdf, not 'a.bmp'"),
        ("good --label a --label b", "--label was given 2 times, and there are 1 lines: CartPole-v1, impala"),
        ("broken", "broken/progress.csv cannot be read: could not convert string to float: 'many'"),
        ("good -o good/config.json/plot.png", "plot good/config.json/plot.png cannot be written: "),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _run(tmp_path / "good", [1.0])
    _run(tmp_path / "young", [float("nan")])
    (_run(tmp_path / "empty", []) / "progress.csv").unlink()
    (_run(tmp_path / "broken", []) / "progress.csv").write_text("agent_steps,mean_return\nmany,1\n")
    assert _plot(arguments, monkeypatch) in (1, 2)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: {line}")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    _run(tmp_path / "run", [1.0])
    program = "import sys; sys.modules['matplotlib'] = None; sys.argv = ['asyncparl', 'plot', 'run']\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}from asyncparl.cli import main; main()"],
        check=False, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == "error: a plot needs matplotlib, which is not installed: pip install 'asyncparl[plot]'\n"
