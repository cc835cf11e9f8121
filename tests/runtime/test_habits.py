"""What people write at first, or by habit: it works, or says what to write instead."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

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


WRONG_OPTIONS = [
    {"num_cpus": "a"},
    {"num_cpus": True},
    {"num_cpus": -1},
    {"num_cpus": float("nan")},
    {"num_cpus": 0.0001},
    {"num_gpus": None},
    {"num_gpus": -1},
    {"num_gpus": 1.5},
    {"max_memory": 1.5},
    {"max_memory": "2 parsecs"},
    {"max_memory": -1},
    {"max_memory": 0},
    {"max_restarts": "a"},
    {"max_restarts": -1},
    {"restart_window_s": "a"},
    {"restart_window_s": 0},
    {"max_concurrency": "2"},
    {"max_concurrency": 1.5},
    {"max_concurrency": 0},
    {"labels": "zone=b"},
    {"labels": {"zone": 1}},
    {"labels": {"zone": "\udcff"}},
    {"placement": []},
    {"placement": "scatter"},
    {"name": 5},
    {"name": "x" * 201},
    {"name": "\udcff"},
    {"name": ""},
    {"name": "two\nlines"},
    {"name": "\x1b[31mred"},
    {"name": "x\0"},
    {"name": "\x85"},
    {"name": "\u2028"},
    {"detached": "yes", "name": "x"},
    {"detached": True},
    {"detached": True, "name": "x", "max_restarts": 1},
    {"call_timeout_s": "a"},
    {"call_timeout_s": -1},
]


@pytest.mark.parametrize("options", WRONG_OPTIONS, ids=repr)
def test_what_an_option_cannot_be_is_an_error_that_begins_with_its_name(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{next(iter(options))}\b"):
        Subject.options(**options)


@pytest.mark.parametrize(
    "arguments",
    [
        {"address": 8010},
        {"secret_file": 5},
        {"cpus": "a"},
        {"cpus": float("nan")},
        {"cpus": -1},
        {"cpus": 1 << 70},
        {"files": 5},
        {"files": [5]},
        {"preload": 5},
        {"preload": [5]},
        {"start_method": 5},
    ],
    ids=repr,
)
async def test_what_an_argument_of_connect_cannot_be_is_an_error_that_begins_with_its_name(
    arguments: dict[str, Any],
) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{next(iter(arguments))}\b"):
        async with asyncparl.connect(**arguments):
            pass


HUGE = {"beyond all floats": 10**400, "below all floats": -(10**400), "too long to be printed": 10**5000}


@pytest.mark.parametrize("number", HUGE)
async def test_a_number_that_no_float_can_be_is_one_clear_error(number: str) -> None:
    def refused(name: str) -> Any:
        return pytest.raises(ValueError, match=rf"^{name} has too many digits$")

    for name in ("num_cpus", "num_gpus", "max_restarts", "restart_window_s", "max_concurrency", "call_timeout_s"):
        with refused(name):
            Subject.options(**{name: HUGE[number]})
    with refused("max_memory: a size"):
        Subject.options(max_memory=HUGE[number])
    for name in ("cpus", "warn_after_s", "max_value_bytes"):
        with refused("a size" if name == "max_value_bytes" else name):
            async with asyncparl.connect(**cast("Any", {name: HUGE[number]})):
                pass
    for name in ("max_restarts", "restart_window_s"):
        with refused(name):
            async with asyncparl.supervise(**cast("Any", {name: HUGE[number]})):
                pass
    async with asyncparl.connect():
        with refused("timeout_s"):
            Subject().wait.options(timeout_s=HUGE[number])
        with refused("max_concurrency"):
            asyncparl.expose([], max_concurrency=HUGE[number])


async def test_a_time_limit_may_be_a_number_that_the_wire_has_only_as_a_float() -> None:
    async with asyncparl.connect():
        assert await Subject.options(call_timeout_s=1 << 70)().wait(0) == "waited"


async def test_mistaken_arguments_of_functions_are_named_and_harm_nothing() -> None:
    async with asyncparl.connect():
        subject, ours = Subject(), cast("Any", asyncparl)
        mistakes: list[tuple[Callable[[], Any], str]] = [
            (lambda: ours.get_actor(5), "name must be a text, not 5"),
            (lambda: ours.get_actor(""), "name must not be empty"),
            (lambda: ours.get_actor("two\nlines"), r"name must have no control characters: 'two\\nlines'"),
            (lambda: ours.close(subject.wait), "expected an actor, not <wait of"),
            (lambda: ours.kill("subject"), "expected an actor, not 'subject'"),
            (lambda: ours.set_attribute(Subject, "x", 1), "expected an actor, not <asyncparl.remote"),
            (lambda: ours.set_attribute(subject, 5, 1), "the name of an attribute is a text, not 5"),
            (lambda: ours.expose([], max_concurrency=0), "max_concurrency must be 1 or more, not 0"),
        ]
        for mistake, text in mistakes:
            with pytest.raises((TypeError, ValueError), match=text):
                await mistake()
        assert await subject.wait(0) == "waited"
