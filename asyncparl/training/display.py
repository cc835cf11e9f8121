"""How a run looks while it goes on: live on a terminal, plain lines elsewhere, or nothing.

The trainer calls `show` twice a second and `say` when something happens that people should read. Nothing here reads a
clock: time is what the report says.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from types import TracebackType
from typing import IO, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncparl.training.metrics import NUM_EPISODES, Report

PLAIN_INTERVAL_S = 10.0
_MAIN_LOSSES = ("pg_loss", "value_loss", "entropy")  # in a plain line; a terminal has room for all


class Display(ABC):
    """`with display:` around the run; what was shown last stays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def show(self, report: Report) -> None:
        """The newest figures."""

    @abstractmethod
    def say(self, line: str) -> None:
        """One line that stays."""

    @abstractmethod
    def close(self) -> None:
        """The run is over. May be called twice."""


class SilentDisplay(Display):
    """For programs that look at the reports themselves."""

    def show(self, report: Report) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass


class PlainDisplay(Display):
    """One line for each interval, and one for the end; for pipes, files and `NO_COLOR`."""

    def __init__(self, target_steps: int, stream: IO[str], *, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self._target_steps = target_steps
        self._stream = stream
        self._interval_s = interval_s
        self._next_s: float | None = None
        self._unwritten: Report | None = None

    def show(self, report: Report) -> None:
        if self._next_s is None:
            self._next_s = report.elapsed_s + self._interval_s
        self._unwritten = report
        if report.elapsed_s >= self._next_s:
            self._next_s += self._interval_s
            self._write_report()

    def say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def close(self) -> None:
        self._write_report()

    def _write_report(self) -> None:
        if self._unwritten is not None:
            self.say(plain_line(self._unwritten, self._target_steps))
            self._unwritten = None


class TerminalDisplay(Display):
    """A block of figures that is drawn anew in place; whatever the program prints appears above it."""

    def __init__(self, title: str, target_steps: int, run_dir: str, console: Console) -> None:
        self._title = title
        self._target_steps = target_steps
        self._run_dir = run_dir
        # Drawn by `show` alone: rich's own refreshing would be a thread.
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def show(self, report: Report) -> None:
        self._live.update(figures(report, self._title, self._target_steps, self._run_dir), refresh=True)

    def say(self, line: str) -> None:
        self._live.console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()


def make_display(title: str, target_steps: int, run_dir: str, stream: IO[str]) -> Display:
    """Live if `stream` is a terminal that may be written to freely, else plain lines."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return PlainDisplay(target_steps, stream)
    return TerminalDisplay(title, target_steps, run_dir, Console(file=stream))


def plain_line(report: Report, target_steps: int) -> str:
    """The most important figures, in one line."""
    parts = [
        format_duration(report.elapsed_s),
        f"{report.agent_steps:,}/{target_steps:,} steps",
        f"{report.steps_per_s:,.0f} steps/s",
        f"return {'none yet' if _has_no_return(report) else format(report.mean_return, '.2f')}",
        f"lag {report.mean_lag:.1f} (max {report.max_lag})",
        f"batches waiting {report.batches_waiting}",
        f"actors {report.actors}",
        *(f"{name} {report.losses[name]:.4g}" for name in _MAIN_LOSSES if name in report.losses),
    ]
    return "  ".join(parts)


def figures(report: Report, title: str, target_steps: int, run_dir: str) -> RenderableType:
    """All figures. Lines that are too long for the terminal are folded, so that no figure is lost."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for label, text in _lines(report, target_steps, run_dir):
        table.add_row(label, Text(text))
    done = Table.grid(expand=True)
    done.add_row(ProgressBar(total=max(target_steps, 1), completed=min(report.agent_steps, target_steps)))
    return Group(Text(title, style="bold", overflow="fold"), done, table)


def format_duration(seconds: float) -> str:
    """0:01:05; days are hours."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _lines(report: Report, target_steps: int, run_dir: str) -> list[tuple[str, str]]:
    losses = "  ".join(f"{name} {value:.4g}" for name, value in report.losses.items())
    return [
        ("steps", f"{report.agent_steps:,} of {target_steps:,}  {report.steps_per_s:,.0f}/s"),
        ("time", f"{format_duration(report.elapsed_s)} elapsed, {_remaining(report, target_steps)} remaining"),
        ("return", _return(report)),
        ("episodes", f"{report.episodes:,}"),
        ("policy lag", f"mean {report.mean_lag:.2f}, max {report.max_lag} updates"),
        ("delay", _policy_delay(report)),
        ("queue", f"{report.batches_waiting} batches waiting, {report.rollouts_waiting} rollouts without room"),
        ("learner", _learner(report)),
        ("actors", _actors(report)),
        ("losses", losses or "none yet"),
        ("event loop", f"held up for {report.loop_lag_ms:.1f} ms at most"),
        ("run folder", run_dir),
    ]


def _policy_delay(report: Report) -> str:
    if math.isnan(report.policy_delay_s):
        return "none yet"
    median, longest = report.policy_delay_s, report.max_policy_delay_s
    return f"median {median:.2f}, max {longest:.2f} s until new weights are played with"


def _learner(report: Report) -> str:
    return (
        f"{report.updates:,} updates  waiting {report.waiting_share:.0%}, copying {report.copying_share:.0%}, "
        f"computing {report.computing_share:.0%}"
    )


def _actors(report: Report) -> str:
    line = f"{report.actors} at work  environment {report.environment_share:.0%}, policy {report.inference_share:.0%}"
    return f"{line}, {report.actor_restarts} restarted" if report.actor_restarts else line


def _return(report: Report) -> str:
    if _has_no_return(report):
        return "none yet"
    return f"{report.mean_return:.2f}  mean of the last {NUM_EPISODES} episodes, length {report.mean_length:,.0f}"


def _has_no_return(report: Report) -> bool:
    return math.isnan(report.mean_return)


def _remaining(report: Report, target_steps: int) -> str:
    if report.steps_per_s <= 0:
        return "unknown"
    return format_duration(max(0, target_steps - report.agent_steps) / report.steps_per_s)
