"""What actors print, and readers who do not read it: only what is printed waits for them."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.test_programs import LIMIT_S, REPOSITORY, run, write

SPAM = """
    import os, sys, time, trio, asyncparl
    from asyncparl import speaking

    speaking.EXIT_LIMIT_S = 1.0

    @asyncparl.remote_class
    class Loud:
        def ok(self): return 1
        def print(self, num, size):
            for number in range(num): print(number, "x" * size)
            sys.stdout.flush()

    async def main():
        async with asyncparl.connect():
            loud, other = Loud(), Loud()
            await other.ok()
            call = loud.print(int(sys.argv[1]), int(sys.argv[2]))
            await trio.sleep(0.5)
            began = time.monotonic()
            with trio.fail_after(2):
                await other.ok.options(timeout_s=1)()
            await call
        os.write(int(sys.argv[3]), f"{time.monotonic() - began:.2f}\\n".encode())

    trio.run(main)
"""


@contextlib.contextmanager
def spamming(folder: Path, num: int, size: int, stdout: int) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """The program, and how many seconds its block took to end once the actor had begun to print."""
    (folder / "spam.py").write_text(textwrap.dedent(SPAM))
    reader, writer = os.pipe()
    program = subprocess.Popen(
        [sys.executable, "spam.py", str(num), str(size), str(writer)],
        stdout=stdout,
        pass_fds=[writer],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    os.close(writer)
    try:
        with os.fdopen(reader) as told:
            assert select.select([told], [], [], LIMIT_S)[0], "the program stands still"
            yield program, float(told.readline())
    finally:
        program.kill()
        program.communicate()


def numbers(output: bytes) -> list[int]:
    return [int(number) for number in re.findall(r"^\[Loud#1\] (\d+) x", output.decode(), re.MULTILINE)]


def test_a_pipe_that_nobody_reads_yet_holds_up_no_call_and_loses_nothing(tmp_path: Path) -> None:
    with spamming(tmp_path, 300, 1000, subprocess.PIPE) as (program, took_s):
        assert took_s < 8
        output, _ = program.communicate(timeout=LIMIT_S)
        assert numbers(output) == list(range(300))
        assert program.returncode == 0


def test_of_more_than_fits_the_rest_is_dropped_and_counted(tmp_path: Path) -> None:
    with spamming(tmp_path, 3000, 1000, subprocess.PIPE) as (program, _):
        output, _ = program.communicate(timeout=LIMIT_S)
    seen = numbers(output)
    dropped = re.findall(r"\b(\d+) lines were dropped", output.decode())
    assert 1000 < len(seen) < 3000
    assert seen == sorted(set(seen))
    assert len(seen) + sum(map(int, dropped)) == 3000


def test_a_program_ends_although_nobody_ever_reads_what_its_actors_print(tmp_path: Path) -> None:
    with spamming(tmp_path, 300, 1000, subprocess.PIPE) as (program, _):
        began = time.monotonic()
        assert program.wait(timeout=LIMIT_S) == 0
        assert time.monotonic() - began < 10


def test_a_terminal_that_stands_still_holds_up_no_call(tmp_path: Path) -> None:
    """As after Ctrl-S."""
    master, terminal = pty.openpty()
    try:
        termios.tcflow(terminal, termios.TCOOFF)
        with spamming(tmp_path, 50, 100, terminal) as (program, took_s):
            assert took_s < 8
            assert program.wait(timeout=LIMIT_S) == 0
    finally:
        os.close(master)
        os.close(terminal)


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_program_without_standard_streams_has_its_actors_all_the_same(closed: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "program.py": """
            import pathlib, trio, asyncparl

            @asyncparl.remote_class
            class Echo:
                def echo(self, value):
                    print("heard by nobody")
                    return value

            async def main():
                async with asyncparl.connect():
                    pathlib.Path("answer").write_text(await Echo().echo("there"))

            trio.run(main)
            """
        },
    )
    command = f"{sys.executable} program.py {closed}"
    done = run("-c", f"import subprocess; raise SystemExit(subprocess.call({command!r}, shell=True))", cwd=tmp_path)
    assert (done.returncode, (tmp_path / "answer").read_text()) == (0, "there")
