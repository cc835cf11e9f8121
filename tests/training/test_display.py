"""The display: all figures on any terminal however narrow, plain lines everywhere else."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from asyncparl.training.display import PlainDisplay, figures, format_duration, make_display, plain_line
from asyncparl.training.metrics import Report

ROOT = Path(__file__).parents[2]


def report(**changes: object) -> Report:
    values: dict[str, object] = {
        "agent_steps": 12_800, "updates": 20, "episodes": 312, "elapsed_s": 65.0, "batches_waiting": 1,
        "rollouts_waiting": 3, "actors": 2, "actor_restarts": 0, "loop_lag_ms": 4.25, "steps_per_s": 2400.0,
        "mean_return": -14.25, "mean_length": 1234.0, "mean_lag": 1.5, "max_lag": 7, "policy_delay_s": 0.125,
        "max_policy_delay_s": 2.5, "waiting_share": 0.1, "copying_share": 0.02,
        "computing_share": 0.88, "environment_share": 0.6, "inference_share": 0.2,
        "losses": {"pg_loss": 1.25, "value_loss": 33.5, "entropy": 1.75, "mean_value": 0.5},
    }  # fmt: skip
    return Report(**(values | changes))  # type: ignore[arg-type]


def _drawn(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(figures(report(), "asyncparl: IMPALA on pong", 100_000, "runs/impala-pong-20260131-120000-1"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 28, 40, 80, 200])
def test_no_figure_is_lost_on_a_narrow_terminal(width: int) -> None:
    lines = _drawn(width)
    assert max(map(len, lines)) <= width
    text = re.sub(r"\s", "", "".join(line[11:] for line in lines))
    for figure in ("12,800", "100,000", "2,400/s", "0:01:05", "0:00:36", "-14.25", "1,234", "312", "1.50", "max7"):
        assert figure in text, figure
    for figure in (
        "median0.12,",
        "max2.50s",
        "1batcheswaiting",
        "3rollouts",
        "10%",
        "88%",
        "60%",
        "2atwork",
        "33.5",
        "4.2ms",
        "120000-1",
    ):
        assert figure in text, figure


def test_deaths_of_actors_are_shown() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(figures(report(actors=1, actor_restarts=4), "", 1, ""))
    assert isinstance(console.file, io.StringIO)
    assert "1 at work" in console.file.getvalue()
    assert "4 restarted" in console.file.getvalue()


def test_before_anybody_got_new_weights_there_is_no_delay() -> None:
    console = Console(file=io.StringIO(), width=100)
    nan = float("nan")
    console.print(figures(report(policy_delay_s=nan, max_policy_delay_s=nan), "", 1, ""))
    assert isinstance(console.file, io.StringIO)
    assert re.search(r"delay +none yet", console.file.getvalue())


def test_before_the_first_episode_there_is_no_return() -> None:
    assert "return none yet" in plain_line(report(mean_return=float("nan")), 100)


def test_plain_lines_come_at_intervals_and_at_the_end() -> None:
    stream = io.StringIO()
    with PlainDisplay(100_000, stream, interval_s=10.0) as display:
        for elapsed_s in (1.0, 2.0, 10.9, 11.0, 11.5, 21.2, 22.0):
            display.show(report(elapsed_s=elapsed_s))
        display.say("an actor died")
    times = [line.split()[0] for line in stream.getvalue().splitlines()]
    assert times == ["0:00:11", "0:00:21", "an", "0:00:22"]


def test_a_plain_line_is_one_line_without_escape_codes() -> None:
    line = plain_line(report(), 100_000)
    assert line == (
        "0:01:05  12,800/100,000 steps  2,400 steps/s  return -14.25  lag 1.5 (max 7)  batches waiting 1  actors 2  "
        "pg_loss 1.25  value_loss 33.5  entropy 1.75"
    )


def test_hours_are_not_cut() -> None:
    assert [format_duration(seconds) for seconds in (0, 59.9, 3_600, 360_061)] == [
        "0:00:00", "0:00:59", "1:00:00", "100:01:01",
    ]  # fmt: skip


def test_a_pipe_gets_plain_lines() -> None:
    assert isinstance(make_display("", 1, "", io.StringIO()), PlainDisplay)


PROGRAM = """
import sys
from asyncparl.training.display import make_display
from tests.training.test_display import report
with make_display("IMPALA on pong", 100_000, "runs/x", sys.stdout) as display:
    display.show(report(agent_steps=640))
    display.say("actor died")
    display.show(report(agent_steps=1280))
"""


def _run_on_terminal(**environ: str) -> str:
    """What the program above writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=theirs, stderr=theirs, cwd=ROOT, env=env | {"TERM": "xterm"} | environ
    ) as process:
        os.close(theirs)
        written = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                written += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
        os.close(ours)
        assert process.wait(60) == 0, written.decode()
    return written.decode()


@pytest.mark.slow
def test_a_terminal_is_drawn_in_place() -> None:
    written = _run_on_terminal()
    assert "1,280 of 100,000" in written
    assert "actor died" in written
    assert "\x1b[1A" in written  # back up, over the old figures
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1  # the cursor comes back


@pytest.mark.slow
@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_decoration_gets_plain_lines(environ: dict[str, str]) -> None:
    written = _run_on_terminal(**environ)
    assert "\x1b" not in written
    assert [line.split()[0] for line in written.splitlines()] == ["actor", "0:01:05"]
