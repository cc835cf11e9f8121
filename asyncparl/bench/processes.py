"""Programs that are run to their end, of which nothing is left then."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_END_S = 5


def run_alone(
    program: list[str], *, limit_s: float, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> str:
    """Run a program in a process group of its own, which has been killed when this returns or raises.

    Args:
        environ: what its environment has besides ours.

    Returns:
        What it wrote.

    Raises:
        CalledProcessError: its exit status is not 0; with what it wrote.
        TimeoutExpired: it took too long.
    """
    with tempfile.TemporaryFile("w+") as log, _group(program, log.fileno(), cwd, environ or {}) as process:
        status = process.wait(limit_s)
        log.seek(0)
        output = log.read()
        if status:
            raise subprocess.CalledProcessError(status, program, output)
        return output


@contextmanager
def _group(
    program: list[str], output: int, cwd: Path | None, environ: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Ctrl-C does not reach it: it is asked to end, and killed if it does not."""
    process = subprocess.Popen(
        program,
        cwd=cwd,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)  # also what it has left behind
    except ProcessLookupError:
        pass
    process.wait()
