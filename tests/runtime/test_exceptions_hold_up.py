"""Exceptions of every kind, from every kind of method: they arrive, say where they come from, and harm nobody."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self

import numpy as np
import pytest
import trio
import trio.lowlevel

import asyncparl
from asyncparl.errors import RemoteTraceback

LIMIT_S = 30.0


class OwnInit(Exception):
    def __init__(self, env: str, *, seed: int) -> None:
        super().__init__(f"{env}, seed {seed}")
        self.seed = seed


class OwnNew(Exception):
    def __new__(cls, first: str, second: str) -> Self:
        return super().__new__(cls, first, second)

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


class WithSlots(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


@dataclasses.dataclass
class Data(Exception):
    number: int
    text: str = "text"


@dataclasses.dataclass(frozen=True)
class FrozenData(Exception):
    number: int


class Frozen(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("frozen")


class Holds(Exception):
    """What it holds may not pickle."""

    def __init__(self, text: str, held: object) -> None:
        super().__init__(text)
        self.held = held


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    def __repr__(self) -> str:
        raise ValueError("no text")


class OddClass(type):
    def __repr__(cls) -> str:
        raise ValueError("no text")


class OfOddClass(Exception, metaclass=OddClass):
    pass


class Secretive(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__qualname__", "__name__"):
            raise RuntimeError(f"no {name}")
        return super().__getattribute__(name)


class OfSecretiveClass(Exception, metaclass=Secretive):
    pass


class NoCause(Exception):
    @property
    def __cause__(self) -> None:  # type: ignore[override]
        raise RuntimeError("no cause")


class NoNotes(Exception):
    @property
    def __notes__(self) -> None:  # type: ignore[override]
        raise RuntimeError("no notes")


class NoNumber(OSError):
    @property
    def errno(self) -> None:  # type: ignore[override]
        raise RuntimeError("no number")


class LiesWhatItIs(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("5",)


class LiesHowToCall(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return os.getpid, (1, 2, 3)


class CannotBeReduced(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        raise RuntimeError("no")


class LeavesWhenItIsRead(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (3,)


class LeavesWhenItIsShown(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Ends(BaseException):
    pass


def local_class() -> Exception:
    class Local(Exception):
        pass

    return Local("local")


def deep_chain() -> Exception:
    error = ValueError(0)
    for number in range(1, 2000):
        error, error.__cause__ = ValueError(number), error
    return error


def circular_chain() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def group(*parts: Exception) -> Exception:
    return ExceptionGroup("group", [KeyError("key"), ExceptionGroup("inner", [*parts, LookupError("last")])])


# These arrive as what they are.
SAME: dict[str, Callable[[], Exception]] = {
    "own __init__": lambda: OwnInit("pong", seed=3),
    "slots": lambda: WithSlots(3),
    "dataclass": lambda: Data(1),
    "local class": local_class,
    "group": lambda: group(ValueError("part")),
    "group with own __init__": lambda: group(OwnInit("pong", seed=3)),
    "array": lambda: Holds("array", np.zeros(1_000_000)),
    "huge": lambda: ValueError("x" * 5_000_000),
    "no arguments": ValueError,
    "deep chain": deep_chain,
    "circular chain": circular_chain,
    "reduces to something else": lambda: LiesWhatItIs("text"),
    "reduces to what fails": lambda: LiesHowToCall("text"),
    "cannot be reduced": lambda: CannotBeReduced("text"),
    "odd class": lambda: OfOddClass("text"),
    "surrogates": lambda: ValueError("\udcff"),
    "file": lambda: FileNotFoundError(2, "No such file or directory", "name"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "syntax": lambda: SyntaxError("invalid syntax", ("file", 1, 2, "a b")),
    "key": lambda: KeyError("key"),
    "memory": MemoryError,
    "recursion": RecursionError,
    "assertion": lambda: AssertionError("text"),
    "timeout": lambda: TimeoutError("text"),
    "trio's": lambda: trio.TooSlowError("text"),
    "warning": lambda: UserWarning("text"),
    "ours": lambda: asyncparl.SerializationError("not of the runtime"),
    "death of another": lambda: asyncparl.ActorDied("another", "text"),
    "attribute": lambda: AttributeError("text"),
    "not implemented": NotImplementedError,
}
# Of these there are words only.
WORDS: dict[str, tuple[Callable[[], Exception], str, str]] = {
    "what does not pickle": (lambda: Holds("text", threading.Lock()), "Holds", "text"),
    "group with what does not pickle": (lambda: group(Holds("text", threading.Lock())), "ExceptionGroup", "group"),
    "own __new__": (lambda: OwnNew("first", "second"), "OwnNew", "first"),
    "frozen": (lambda: Frozen("text"), "Frozen", "text"),
    "frozen dataclass": (lambda: FrozenData(3), "FrozenData", "3"),
    "no cause": (lambda: NoCause("text"), "NoCause", "text"),
    "no notes": (lambda: NoNotes("text"), "NoNotes", "text"),
}
HOSTILE: dict[str, type[Exception]] = {"secretive class": OfSecretiveClass, "no number": NoNumber}
# These end the process, as they end any program: (exit code, what it writes).
ENDS: dict[str, tuple[Callable[[], BaseException], int, str]] = {
    "SystemExit": (lambda: SystemExit(7), 7, ""),
    "SystemExit without a code": (SystemExit, 0, ""),
    "SystemExit with a text": (lambda: SystemExit("good bye"), 1, "good bye"),
    "KeyboardInterrupt": (KeyboardInterrupt, 1, "KeyboardInterrupt"),
    "GeneratorExit": (GeneratorExit, 1, "GeneratorExit"),
    "of BaseException": (lambda: Ends("text"), 1, "Ends: text"),
    "group of BaseExceptions": (lambda: BaseExceptionGroup("g", [Ends("text")]), 1, "Ends: text"),
}


def make(name: str) -> BaseException:
    if name in HOSTILE:
        return HOSTILE[name]("text")
    return (SAME[name] if name in SAME else (WORDS.get(name) or ENDS[name])[0])()


@asyncparl.remote_class(max_concurrency=4)
class Failing:
    def __init__(self, name: str = "") -> None:
        if name:
            raise make(name)

    def method(self, name: str) -> None:
        raise make(name)

    async def async_method(self, name: str) -> None:
        await trio.lowlevel.checkpoint()
        raise make(name)

    async def late_method(self, name: str) -> None:
        async def fail_late() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise make(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_late)
            nursery.start_soon(trio.sleep_forever)

    def stream(self, name: str) -> Iterator[str]:
        yield "item"
        raise make(name)

    async def async_stream(self, name: str) -> AsyncIterator[str]:
        yield "item"
        raise make(name)

    def ok(self) -> str:
        return "ok"

    def call(self, function: Any) -> Any:
        return function()

    @property
    def broken(self) -> None:
        raise OwnInit("pong", seed=3)

    @broken.setter
    def broken(self, value: object) -> None:
        raise OwnInit("pong", seed=4)

    def with_note(self) -> None:
        error = ValueError("noted")
        error.add_note("a note of its own")
        raise error

    def chained(self) -> None:
        try:
            try:
                {}["missing"]
            except KeyError as error:
                raise ValueError("because of it") from error
        except ValueError:
            raise LookupError("while that was handled")  # noqa: B904

    async def ask(self, other: Any, name: str) -> None:
        await other.method(name)

    def drop(self) -> str:
        class Dropped:
            def __del__(self) -> None:
                raise ValueError("raised in __del__")

        Dropped()
        thread = threading.Thread(target=self.method, args=("memory",))
        thread.start()
        thread.join()
        return "went on"

    def show(self) -> str:
        return repr(NoText())


async def result_of(call: asyncparl.Call[Any], method: str) -> None:
    """Await it, or take its items."""
    with trio.fail_after(LIMIT_S):
        if method.endswith("stream"):
            assert await anext(call) == "item"
            await anext(call)
        else:
            await call


every_method = pytest.mark.parametrize("method", ["method", "async_method", "stream", "async_stream"])


@every_method
async def test_an_exception_arrives_as_what_it_is_and_the_actor_lives_on(method: str) -> None:
    async with asyncparl.connect():
        failing = Failing()
        for name in SAME:
            expected = make(name)
            with pytest.raises(type(expected) if name != "local class" else Exception) as caught:
                await result_of(getattr(failing, method)(name), method)
            assert type(caught.value).__name__ == type(expected).__name__, name
            assert str(caught.value) == str(expected), name
            assert isinstance(caught.value.__cause__, RemoteTraceback), name
            assert f"in {method}" in str(caught.value.__cause__), name
            assert "asyncparl/runtime" not in str(caught.value.__cause__), name
            assert caught.value.__notes__[-1].startswith("raised in Failing#1"), name
            assert await failing.ok() == "ok", name


@every_method
async def test_of_an_exception_that_cannot_travel_there_are_words_and_the_actor_lives_on(method: str) -> None:
    async with asyncparl.connect():
        failing = Failing()
        for name, (_, type_name, text) in WORDS.items():
            with pytest.raises(asyncparl.RemoteError) as caught:
                await result_of(getattr(failing, method)(name), method)
            assert caught.value.type_name.endswith(type_name), name
            assert text in caught.value.text, name
            assert f"in {method}" in caught.value.traceback, name
            assert await failing.ok() == "ok", name


@every_method
async def test_an_exception_whose_class_tells_nothing_of_itself_leaves_the_actor_alive(method: str) -> None:
    async with asyncparl.connect():
        failing = Failing()
        for name, kind in HOSTILE.items():
            with pytest.raises(Exception) as caught:  # noqa: PT011 - some have no name that could be told here
                await result_of(getattr(failing, method)(name), method)
            assert isinstance(caught.value, (kind, asyncparl.RemoteError)), name
            assert await failing.ok() == "ok", name


@every_method
async def test_what_ends_any_program_ends_an_actor_which_says_what_it_was(method: str) -> None:
    async with asyncparl.connect():
        failing = {name: Failing() for name in ENDS}
        calls = {name: getattr(failing[name], method)(name) for name in ENDS}
        for name, (_, code, text) in ENDS.items():
            with pytest.raises(asyncparl.ActorDied, match=f"exited with code {code}") as caught:
                await result_of(calls[name], method)
            assert caught.value.exit_code == code, name
            assert text in "\n".join(caught.value.log_tail), name
            with pytest.raises(asyncparl.ActorDied, match="never started"):
                await failing[name].ok()


async def test_an_exception_beside_the_cancellation_of_its_call_does_not_end_the_actor() -> None:
    async with asyncparl.connect():
        failing = Failing()
        assert await failing.ok() == "ok"
        with trio.move_on_after(0.5) as patience:
            await failing.late_method("own __init__")
        assert patience.cancelled_caught
        assert await failing.ok() == "ok"
        await asyncparl.close(failing)  # after the method


async def test_an_exception_of_a_constructor_arrives_as_what_it_is() -> None:
    async with asyncparl.connect() as cluster:
        for names in (["own __init__", "group with own __init__", "syntax"], ["reduces to what fails", "memory"]):
            actors = {name: Failing(name) for name in names}
            for name, actor in actors.items():
                with trio.fail_after(LIMIT_S), pytest.raises(type(make(name))) as caught:
                    await actor.ok()
                assert str(caught.value) == str(make(name))
        with trio.fail_after(LIMIT_S):
            while cluster.num_actors:
                await trio.sleep(0.01)


async def test_exceptions_of_properties_arrive_as_those_of_methods() -> None:
    async with asyncparl.connect():
        failing = Failing()
        with pytest.raises(OwnInit, match="seed 3"):
            await failing.broken
        with pytest.raises(OwnInit, match="seed 4"):
            await asyncparl.set_attribute(failing, "broken", 1)
        assert await failing.ok() == "ok"


async def test_attributes_and_notes_of_an_exception_are_kept() -> None:
    async with asyncparl.connect():
        failing = Failing()
        with pytest.raises(OwnInit) as caught:
            await failing.method("own __init__")
        assert caught.value.seed == 3
        with pytest.raises(ValueError, match="noted") as noted:
            await failing.with_note()
        own, ours = noted.value.__notes__
        assert own == "a note of its own"
        assert ours.startswith("raised in Failing#1 (pid ")


async def test_parts_of_a_group_can_be_told_apart() -> None:
    async with asyncparl.connect():
        failing = Failing()
        parts: list[Exception] = []
        try:
            await failing.method("group with own __init__")
        except* OwnInit as found:
            parts += found.exceptions
        except* LookupError as found:
            parts += found.exceptions
        texts = [str(part) for part in parts]
        assert any("pong, seed 3" in text or "inner" in text for text in texts)


async def test_the_remote_traceback_shows_the_whole_chain_and_nothing_of_the_runtime() -> None:
    async with asyncparl.connect():
        with pytest.raises(LookupError) as caught:
            await Failing().chained()
        text = str(caught.value.__cause__)
        for expected in (
            "KeyError: 'missing'",
            "direct cause of the following exception",
            "ValueError: because of it",
            "During handling of the above exception",
            "LookupError: while that was handled",
        ):
            assert expected in text
        assert "in chained" in text
        assert "asyncparl/runtime" not in text


async def test_an_exception_that_went_through_several_actors_names_them_all() -> None:
    async with asyncparl.connect():
        first, second = Failing(), Failing()
        with pytest.raises(OwnInit) as caught:
            await first.ask(second, "own __init__")
        assert [note.partition(" (")[0] for note in caught.value.__notes__] == [
            "raised in Failing#2",
            "raised in Failing#1",
        ]
        with pytest.raises(asyncparl.RemoteError, match="Holds: text"):
            await first.ask(second, "what does not pickle")
        assert await asyncparl.gather([first.ok(), second.ok()]) == ["ok", "ok"]


async def test_an_exception_can_be_awaited_again_and_does_not_grow() -> None:
    async with asyncparl.connect():
        call = Failing().method("own __init__")
        for _ in range(3):
            with pytest.raises(OwnInit) as caught:
                await call
            assert len(caught.value.__notes__) == 1


async def test_an_exception_that_cannot_be_shown_is_an_exception_like_others() -> None:
    async with asyncparl.connect():
        failing = Failing()
        with pytest.raises(ValueError, match="no text"):
            await failing.show()
        with pytest.raises(NoText):
            await failing.call(raise_no_text)
        assert await failing.ok() == "ok"


async def test_what_is_raised_in_del_or_in_a_thread_is_nobodys_exception(capfd: pytest.CaptureFixture[str]) -> None:
    async with asyncparl.connect():
        failing = Failing()
        assert await failing.drop() == "went on"
        assert await failing.ok() == "ok"
    assert "raised in __del__" in capfd.readouterr().err


async def test_stop_iteration_is_a_runtime_error_as_in_any_coroutine() -> None:
    async with asyncparl.connect():
        failing = Failing()
        with pytest.raises(RuntimeError, match="StopIteration") as caught:
            await failing.call(raise_stop_iteration)
        assert isinstance(caught.value.__cause__, StopIteration)
        assert await failing.ok() == "ok"


@pytest.mark.parametrize("kind", [LeavesWhenItIsRead, LeavesWhenItIsShown])
async def test_an_exception_that_exits_when_it_is_handled_settles_its_call(kind: type[Exception]) -> None:
    async with asyncparl.connect():
        failing = Failing()
        with trio.fail_after(LIMIT_S), pytest.raises(asyncparl.ActorDied):
            await failing.call(Raiser(kind))


class Raiser:
    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind

    def __call__(self) -> None:
        raise self.kind("text")


def raise_no_text() -> None:
    raise NoText


def raise_stop_iteration() -> None:
    raise StopIteration("text")
