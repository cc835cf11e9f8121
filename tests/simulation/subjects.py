"""The actors of a simulation. Every method tells the world that it runs, and for which call."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Generator
from typing import Any

import trio

import asyncparl
from tests.simulation.process import current_process


def _ran(call_id: int) -> None:
    process = current_process()
    process.world.witness.ran(call_id, process)


class Helper:
    """Exposed by programs and by actors, for others to call."""

    def __init__(self) -> None:
        self.last = 0

    def echo(self, call_id: int, value: object) -> object:
        _ran(call_id)
        self.last = call_id
        return value

    async def later(self, call_id: int, value: object, delay_s: float) -> object:
        _ran(call_id)
        await trio.sleep(delay_s)
        return value


@asyncparl.remote_class
class Subject:
    """Does what it is told."""

    def __init__(self, mood: str = "good") -> None:
        if mood == "raises":
            raise ValueError("a bad mood")
        if mood == "exits":
            sys.exit(3)
        self.number = 7
        self.children: list[Any] = []

    def echo(self, call_id: int, value: object) -> object:
        _ran(call_id)
        return value

    async def later(self, call_id: int, value: object, delay_s: float) -> object:
        _ran(call_id)
        await trio.sleep(delay_s)
        return value

    @asyncparl.idempotent
    async def again(self, call_id: int, value: object) -> object:
        """May run twice."""
        process = current_process()
        process.world.witness.ran(call_id, process, again=True)
        await trio.sleep(0.01)
        return value

    def fail(self, call_id: int) -> None:
        _ran(call_id)
        raise LookupError(call_id)

    async def fail_later(self, call_id: int, delay_s: float) -> None:
        _ran(call_id)
        await trio.sleep(delay_s)
        raise LookupError(call_id)

    def unsendable(self, call_id: int) -> object:
        _ran(call_id)
        return (number for number in [call_id]), Generator

    def items(self, call_id: int, num: int) -> Generator[tuple[int, int], None, None]:
        _ran(call_id)
        for number in range(num):
            yield call_id, number

    async def items_later(self, call_id: int, num: int, delay_s: float) -> AsyncGenerator[tuple[int, int], None]:
        _ran(call_id)
        for number in range(num):
            await trio.sleep(delay_s)
            yield call_id, number

    async def through(self, call_id: int, other: Any, inner_id: int, value: object) -> object:
        """Call somebody else, and return what he returns."""
        _ran(call_id)
        return await other.echo(inner_id, value)

    async def stream_through(self, call_id: int, other: Any, inner_id: int, num: int) -> int:
        """How many items somebody else's stream had."""
        _ran(call_id)
        count = 0
        async for _ in other.items(inner_id, num):
            count += 1
        return count

    async def bear(self, call_id: int, name: str, *, detached: bool) -> Any:
        """An actor of this actor; whoever is told of it may call it too."""
        _ran(call_id)
        cls: Any = Subject
        child = cls.options(num_cpus=0, name=name or None, detached=detached)()
        if not detached:
            self.children.append(child)
        return child

    async def offer(self, call_id: int) -> Any:
        """An object of this actor's."""
        _ran(call_id)
        return asyncparl.expose(Helper())

    def me(self, call_id: int) -> Any:
        _ran(call_id)
        return asyncparl.current_actor()

    def leave(self, call_id: int, code: int) -> None:
        _ran(call_id)
        sys.exit(code)


@asyncparl.remote_class(max_concurrency=4)
class Host(Subject):
    """The same, for several at once."""
