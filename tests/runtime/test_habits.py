"""What people write at first, or by habit: it works, or says what to write instead."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import trio

import asyncparl


class EnvError(Exception):
    """Keeps other arguments than its constructor takes, as most exceptions with one of their own do."""

    def __init__(self, env: str, *, why: str) -> None:
        super().__init__(f"{env}: {why}")
        self.env = env


@asyncparl.remote_class
class Subject:
    def fail(self) -> None:
        raise EnvError("pong", why="broke")

    async def wait(self, seconds: float) -> str:
        await trio.sleep(seconds)
        return "waited"

    def shout(self, num_lines: int) -> None:
        for number in range(num_lines):
            print("line", number)


async def test_an_exception_with_a_constructor_of_its_own_keeps_its_type() -> None:
    async with asyncparl.connect():
        with pytest.raises(EnvError, match="pong: broke") as raised:
            await Subject().fail()
        assert raised.value.env == "pong"


async def test_a_timeout_cancels_a_call_that_an_abandoned_iteration_has_watched() -> None:
    async with asyncparl.connect():
        slow, quick = Subject().wait(600), Subject().wait(0)
        async for call in asyncparl.as_completed([slow, quick]):
            assert await call == "waited"
            break
        with trio.move_on_after(0.1):
            await slow
        assert slow.done()
        with pytest.raises(asyncparl.CallCancelled):
            await slow


async def test_all_output_of_finished_calls_appears(capfd: pytest.CaptureFixture[str]) -> None:
    async with asyncparl.connect():
        subjects = [Subject() for _ in range(3)]
        await asyncparl.gather([subject.shout(20_000) for subject in subjects])
    assert capfd.readouterr().out.count("line") == 60_000


def test_a_program_without_standard_output_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import asyncparl, pathlib, trio

            @asyncparl.remote_class
            class Talker:
                def talk(self):
                    print("hello")

            async def main():
                async with asyncparl.connect():
                    await Talker().talk()
                pathlib.Path("done").touch()

            if __name__ == "__main__":
                trio.run(main)
        """)
    )
    command = [sys.executable, str(script)]
    subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "done").exists()


def test_asyncio_is_told_apart() -> None:
    async def main() -> None:
        async with asyncparl.connect():
            pass

    with pytest.raises(RuntimeError, match=r"needs Trio: run the program with trio\.run\(main\)"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preload": "numpy"}, r"preload must be a list, not one text: preload=\['numpy'\]"),
        ({"files": "a.txt"}, "files must be a list"),
        ({"address": 8010}, "address must be text such as 'host:8010', not 8010"),
    ],
)
async def test_arguments_of_the_wrong_kind_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        async with asyncparl.connect(**arguments):
            pass


async def test_files_that_are_not_there_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"nothing/\*"):
        async with asyncparl.connect(files=["nothing/*"]):
            pass


async def test_a_method_that_was_not_called_is_no_call() -> None:
    async with asyncparl.connect():
        subject: Any = Subject()
        for gathering in (asyncparl.gather, asyncparl.as_completed):
            with pytest.raises(TypeError, match=r"expected calls such as actor\.method\(\.\.\.\), got <wait of"):
                result = gathering([subject.wait])
                if gathering is asyncparl.gather:
                    await result  # type: ignore[misc]


def test_options_of_the_wrong_kind_are_named() -> None:
    with pytest.raises(TypeError, match="num_cpus must be a number, not 'a'"):
        Subject.options(num_cpus="a")
