"""`asyncparl top`: whole where it is piped, and as much as fits on a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from asyncparl.monitor.observer import Observer
from asyncparl.monitor.source import Sight
from asyncparl.monitor.top import duration, plain_lines, screen
from tests.cluster.clusters import COMMAND, Cluster
from tests.monitor.fakes import crowd, news, node, node_figures, view, waiting


@pytest.fixture
def busy() -> Observer:
    observer = Observer("alpha:8010", "own")
    for at in (1.0, 2.0):
        observer.observe(crowd(30, at), now=at, wall_time=at)
    return observer


def drawn(observer: Observer, width: int, height: int, **options: object) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=height, force_terminal=True, **options)  # type: ignore[arg-type]
    console.print(screen(observer, width=width, height=height))
    return stream.getvalue().rstrip("\n").split("\n")


def test_a_pipe_gets_everything_as_wide_as_it_is(busy: Observer) -> None:
    lines = plain_lines(busy)
    assert lines[0] == "cluster at alpha:8010: 10 nodes, 1 programs, 30 actors (30 running, 0 waiting, 0 silent)"
    assert sum(line.startswith("Sim#") for line in lines) == 30
    (head,) = [line for line in lines if line.startswith("ACTOR ")]
    assert head.split() == [
        "ACTOR", "STATE", "NODE", "CALLS/S", "BUSY", "P50", "P99", "QUEUE", "CPU", "MEMORY", "RESTARTS", "PID", "DOING",
        "PROGRAM",
    ]  # fmt: skip
    assert not any("\x1b" in line or "…" in line for line in lines)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("height", [5, 12, 24, 50])
def test_a_terminal_gets_what_fits(busy: Observer, width: int, height: int) -> None:
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in drawn(busy, width, height)]
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert any(line.startswith("ACTOR") for line in lines)
    assert any(line.startswith("Sim#") for line in lines) or height < 8
    if width >= 60:
        (head,) = [line for line in lines if line.startswith("ACTOR")]
        assert head.split()[:3] == ["ACTOR", "STATE", "CALLS/S"] or "NODE" in head


def test_nothing_is_said_by_colour_alone(busy: Observer) -> None:
    lines = drawn(busy, 100, 30, no_color=True, color_system=None)
    assert not any("\x1b[3" in line for line in lines)
    assert any("running" in line for line in lines)


def test_alarms_come_first() -> None:
    observer = Observer("alpha:8010", "own")
    sight = Sight(view=view(node(), waiting(3)), nodes={"node-alpha": node_figures(1.0)}, news=news())
    observer.observe(sight, now=1, wall_time=1)
    assert "! Sim#3 waits for a place: no node has a free CPU (40 s)" in plain_lines(observer)[2]
    observer.observe(Sight(fault="the master does not answer"), now=2, wall_time=2)
    assert "! the master does not answer" in plain_lines(observer)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0us"), (2.5e-6, "2.5us"), (0.0123, "12.3ms"), (1.5, "1.5s"), (99, "99s"), (100, "1min"),
     (7199, "119min"), (7200, "2h")],
)  # fmt: skip
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("top")) as cluster:
        cluster.start_master()
        cluster.start_node("one", "--cpus", "2")
        yield cluster


@pytest.mark.slow
def test_the_command_prints_once_into_a_pipe_and_draws_on_a_terminal(cluster: Cluster) -> None:
    driver = cluster.start_driver()
    driver.create("a")
    done = cluster.asyncparl("top")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^Probe#1 +running +one ", done.stdout, re.MULTILINE)
    screen_text = on_terminal([*COMMAND, "top", "--master", cluster.address], cluster, "Probe#1")
    assert "one" in screen_text and "\x1b[?1049h" in screen_text and "\x1b[?1049l" in screen_text


@pytest.mark.slow
def test_a_master_that_is_not_there_is_said_in_one_line(cluster: Cluster) -> None:
    cluster.address = "127.0.0.1:1"
    secret = next(cluster.state.glob("*/driver-secret"))
    done = cluster.run([*COMMAND, "top", "--master", "127.0.0.1:1", "--secret-file", str(secret)])
    assert done.returncode == 1
    assert done.stderr == "error: no master answers at 127.0.0.1:1: Connection refused\n"


def on_terminal(command: list[str], cluster: Cluster, text: str) -> str:
    """What a command writes to a terminal until the text is there; then it gets Ctrl-C, and must end well."""
    ours, theirs = pty.openpty()
    environ = {**cluster.environ(), "TERM": "xterm", "COLUMNS": "70", "LINES": "20"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True)
    os.close(theirs)
    written = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                written += os.read(ours, 1 << 16)
            except OSError:  # it has ended
                break
            if text.encode() in written and process.poll() is None:
                process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0, written
    os.close(ours)
    return written.decode()
