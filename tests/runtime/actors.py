"""Remote classes that the runtime tests use."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import trio
import trio.lowlevel

import asyncparl


class TwoArgumentError(Exception):
    """Cannot be rebuilt: it holds what does not pickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.lock = threading.Lock()


@asyncparl.remote_class
class Echo:
    def __init__(self, start: int = 0) -> None:
        self.total = start
        self.seen: list[int] = []

    def echo(self, value: Any = None) -> Any:
        return value

    def add(self, n: int) -> int:
        self.total += n
        self.seen.append(n)
        return self.total

    def pid(self) -> int:
        return os.getpid()

    def thread(self) -> int:
        return threading.get_ident()

    def is_main_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    def fail(self, text: str) -> None:
        raise ValueError(text)

    def fail_oddly(self) -> None:
        raise TwoArgumentError("one", "two")

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def unpicklable(self) -> Any:
        return threading.Lock()

    def leave(self, code: int) -> None:
        sys.exit(code)

    def shoot(self) -> None:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def say(self, text: str) -> None:
        print(text)

    def complain(self, text: str) -> None:
        print(text, file=sys.stderr)

    def count(self, n: int) -> Iterator[int]:
        for i in range(n):
            self.total = i + 1
            yield i

    def forever(self) -> Iterator[int]:
        try:
            i = 0
            while True:
                self.total = i + 1
                yield i
                i += 1
        finally:
            self.total = -1

    def fail_halfway(self) -> Iterator[int]:
        yield 1
        raise KeyError("half-way")

    def stop_halfway(self) -> Iterator[int]:
        yield 1
        raise StopAsyncIteration

    def same_array(self, n: int) -> Iterator[np.ndarray]:
        array = np.zeros(100_000, np.int64)
        for i in range(n):
            array[:] = i
            yield array

    def spawn_grandchild(self) -> int:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        return pid


@asyncparl.remote_class(max_concurrency=8)
class AsyncEcho:
    def __init__(self) -> None:
        self.cancelled = 0
        self.event = trio.Event()

    async def wait_for_event(self) -> str:
        try:
            await self.event.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        return "woken"

    async def set_event(self) -> None:
        self.event.set()

    async def fail(self) -> None:
        raise LookupError("async")

    async def nap(self, seconds: float) -> str:
        await trio.sleep(seconds)
        return "rested"

    async def count(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    def busy(self, seconds: float) -> str:
        time.sleep(seconds)
        return "done"


@asyncparl.remote_class
class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no such device")

    def work(self) -> None:
        """Never reached."""


@asyncparl.remote_class
class Recorder:
    """Its `async` methods run one at a time."""

    def __init__(self, seconds: float = 0) -> None:
        time.sleep(seconds)
        self.order: list[int] = []

    async def record(self, i: int) -> None:
        self.order.append(i)
        await trio.lowlevel.checkpoint()

    async def forever(self) -> None:
        self.order.append(-1)
        await trio.sleep_forever()

    def draw(self) -> float:
        return float(np.random.rand())  # noqa: NPY002  # the global state is what the test is about
