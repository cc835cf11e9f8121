"""Processes of tests: what they write is read as it comes, and a driver does what it is told."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from asyncparl.protocol.cluster_view import ClusterView
from tests.hosts import Host

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 30.0
"""For what has to happen, on a machine that does other things too."""


class Failure(NamedTuple):
    """What a command of a driver raised."""

    type: str
    text: str
    more: dict[str, Any]
    """Its attributes."""


class Program:
    """A process whose lines are read as they come; its standard error goes to a file."""

    def __init__(self, command: Sequence[str], host: Host | None, log: Path, **popen: Any) -> None:
        self._log = log
        start = host.start if host is not None else _start_here
        with log.open("wb") as errors:
            self.process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, **popen)
        self._rest = b""
        self.lines: list[str] = []
        """All that it has written to standard output, as far as it was read."""

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def read_lines(self) -> None:
        """Read what is there."""
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], 0)[0]:
            if not (data := os.read(self.process.stdout.fileno(), 1 << 16)):
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.lines += [line.decode() for line in lines]

    def read_line(self, within_s: float = PATIENCE_S) -> str:
        """The next line; fails if there is none in time, or no more."""
        deadline = time.monotonic() + within_s
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                pytest.fail(f"{'silence' if not ready else 'the end'} instead of a line; errors:\n{self.errors()}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        self.lines.append(line.decode())
        return self.lines[-1]

    def wait_line(self, text: str, within_s: float = PATIENCE_S) -> str:
        """The next line that contains the text."""
        deadline = time.monotonic() + within_s
        while text not in (line := self.read_line(deadline - time.monotonic())):
            pass
        return line

    def wait_written(self, text: str, within_s: float = PATIENCE_S) -> str:
        """The first line of all that contains the text; perhaps one that has been read already."""
        read = next((line for line in self.lines if text in line), None)
        return read if read is not None else self.wait_line(text, within_s)

    def errors(self) -> str:
        """What it has written to standard error."""
        return self._log.read_text(errors="replace")

    def wait_errors(self, text: str, within_s: float = PATIENCE_S) -> None:
        """Until it has written the text to standard error."""
        until(lambda: text in self.errors(), within_s)

    def close_input(self) -> None:
        """End its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def send(self, number: signal.Signals) -> float:
        """Signal it; when that was."""
        self.process.send_signal(number)
        return time.monotonic()

    def end(self, number: signal.Signals = signal.SIGTERM, within_s: float = PATIENCE_S) -> int:
        """Signal it, and wait; its exit code."""
        self.send(number)
        return self.wait(within_s)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Until it has ended; its exit code."""
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it has not ended; errors:\n{self.errors()}")
        self.clean_up()
        return int(self.process.returncode)

    def ask_to_end(self) -> None:
        """For the end of a test: nodes leave in good order, and are not missed by the next one."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def clean_up(self, grace_s: float = 0.0) -> None:
        """Kill it if it goes on running, read what it has written, and close the pipes."""
        assert self.process.stdin is not None and self.process.stdout is not None
        if self.process.stdout.closed:
            return
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        # Somebody who lives on may have it open too.
        os.set_blocking(self.process.stdout.fileno(), False)
        self.lines += (self._rest + (self.process.stdout.read() or b"")).decode().splitlines()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


class Reply:
    """The answer of a driver to a command, which may not have come yet."""

    def __init__(self, driver: Driver, number: int) -> None:
        self._driver = driver
        self._number = number

    def value(self, within_s: float = PATIENCE_S) -> Any:
        """What it returned."""
        _, value, failure = self._driver.answer(self._number, within_s)
        assert failure is None, failure
        return value

    def failure(self, within_s: float = PATIENCE_S) -> Failure:
        """What it raised."""
        _, value, failure = self._driver.answer(self._number, within_s)
        assert failure is not None, value
        return Failure(failure.pop("type"), failure.pop("text"), failure)

    def value_or_none(self, within_s: float = PATIENCE_S) -> Any:
        """What it returned; None if it raised something."""
        return self._driver.answer(self._number, within_s)[1]

    def at(self, within_s: float = PATIENCE_S) -> float:
        """When it came, by `time.monotonic()`."""
        return self._driver.answer(self._number, within_s)[0]


class Driver(Program):
    """A process of programs/driver.py: does what it is told."""

    def __init__(self, options: Mapping[str, Any], host: Host | None, log: Path, **popen: Any) -> None:
        super().__init__([sys.executable, str(PROGRAMS / "driver.py"), json.dumps(options)], host, log, **popen)
        self._num_commands = 0
        self._answers: dict[int, tuple[float, Any, Any]] = {}

    def start(self, name: str, *arguments: Any) -> Reply:
        """Give a command."""
        self._num_commands += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([self._num_commands, name, arguments]).encode() + b"\n")
        self.process.stdin.flush()
        return Reply(self, self._num_commands)

    def do(self, name: str, *arguments: Any, within_s: float = PATIENCE_S) -> Any:
        """Give a command, and wait for what it returns."""
        return self.start(name, *arguments).value(within_s)

    def create(self, name: str, /, **options: Any) -> Any:
        """Make an actor; where it is, when it is there."""
        return self.do("create", name, options)

    def view(self) -> ClusterView:
        """The cluster, as the master sees it."""
        return msgspec.convert(self.do("view"), ClusterView)

    def answer(self, number: int, within_s: float) -> tuple[float, Any, Any]:
        deadline = time.monotonic() + within_s
        while number not in self._answers:
            line = self.wait_line("@", deadline - time.monotonic())
            answered, *answer = json.loads(line.removeprefix("@"))
            self._answers[answered] = (answer[0], answer[1], answer[2])
        return self._answers[number]

    def leave(self, within_s: float = PATIENCE_S) -> int:
        """End it as a program ends; its exit code."""
        self.close_input()
        return self.wait(within_s)


def until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> float:
    """Look again and again until it is true; how many seconds that took. For what no event tells."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, f"not within {within_s} s"
        time.sleep(0.02)
    return time.monotonic() - start


def _start_here(command: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen(command, start_new_session=True, **popen)
