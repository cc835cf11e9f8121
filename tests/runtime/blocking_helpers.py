"""What the tests without `async` have in common."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import trio
import trio.lowlevel

from asyncparl import blocking
from tests.runtime.actors import Echo

LIMIT_S = 20.0


@blocking.remote_class(max_concurrency=4)
class User:
    """An actor that uses others, and itself, in methods without `async`."""

    def __init__(self, wait_for_itself: bool = False) -> None:
        if wait_for_itself:
            blocking.current_actor().later().result()
        self.value = 1

    def add_to(self, echo: Any, n: int) -> list[int]:
        return blocking.gather([echo.add(1) for _ in range(n)])

    def sum_of(self, echo: Any, n: int) -> int:
        return sum(echo.count(n)) + int(echo.total.result())

    def make(self, start: int) -> Any:
        self.echo = Echo.options(name=f"echo {start}")(start)
        assert self.echo.add(1).result() == start + 1
        return blocking.get_actor(f"echo {start}")

    def make_for_a_moment(self) -> int:
        with Echo(1) as echo:
            return int(echo.pid().result())

    def expose(self, start: int) -> Any:
        return blocking.expose(Plain(start))

    def in_thread(self, echo: Any) -> int:
        return in_threads(1, lambda _: echo.add(5).result())[0]  # type: ignore[no-any-return]

    def quick(self) -> int:
        return self.value

    async def later(self) -> int:
        await trio.lowlevel.checkpoint()
        return self.value

    def numbers(self) -> Iterator[int]:
        yield from range(3)

    def wait_for_itself(self, how: str) -> Any:
        me = blocking.current_actor()
        ways: dict[str, Callable[[], Any]] = {
            "method": lambda: me.quick().result(),
            "with a timeout": lambda: me.quick().result(timeout=600),
            "attribute": me.value.result,
            "stream": lambda: list(me.numbers()),
            "gather": lambda: blocking.gather([me.later(), me.quick()]),
            "async": lambda: me.later().result(),
        }
        return ways[how]()


class Plain:
    def __init__(self, start: int) -> None:
        self.start = start

    def plus(self, n: int) -> int:
        return self.start + n

    def ask(self, me: Any) -> Any:
        return me.plus(1).result()

    def total_of(self, echo: Any) -> Any:
        return echo.total.result()


def in_threads(num: int, function: Callable[[int], Any]) -> list[Any]:
    """What a function returns in several threads at once; the first exception is raised."""
    results: list[Any] = [None] * num
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = function(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


def until(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
