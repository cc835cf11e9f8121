"""Remote classes whose methods take as long as a test wants, for the tests of time limits."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import trio

import asyncparl
from asyncparl import blocking


@asyncparl.remote_class(max_concurrency=2)
class Slow:
    def __init__(self, seconds: float = 0.0) -> None:
        time.sleep(seconds)
        self.begun: list[str] = []
        self.cancelled: list[str] = []

    def pid(self) -> int:
        return os.getpid()

    def add(self, a: int, b: int) -> int:
        return a + b

    def sleep(self, name: str, seconds: float) -> str:
        self.begun.append(name)
        time.sleep(seconds)
        return name

    @asyncparl.idempotent
    def look(self) -> list[str]:
        return self.begun

    async def nap(self, name: str, seconds: float) -> str:
        self.begun.append(name)
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            self.cancelled.append(name)
            raise
        return name

    async def nap_of(self, other: Any, name: str, seconds: float) -> str:
        """A call made by a call."""
        return str(await other.nap(name, seconds))

    async def nap_of_limited(self, other: Any, timeout_s: float) -> str:
        return str(await other.nap.options(timeout_s=timeout_s)("inner", 60))

    def sleep_of(self, other: Any, name: str, seconds: float) -> str:
        """The same without `async`."""
        return str(other.sleep(name, seconds).result())

    def items(self, *seconds: float) -> Iterator[int]:
        """An item after each of these pauses."""
        for number, pause_s in enumerate(seconds):
            time.sleep(pause_s)
            yield number

    async def items_later(self, *seconds: float) -> AsyncIterator[int]:
        for number, pause_s in enumerate(seconds):
            await self.nap(f"item {number}", pause_s)
            yield number

    async def fail_later(self, seconds: float) -> None:
        await trio.sleep(seconds)
        raise LookupError("too late")

    def itself(self) -> asyncparl.Proxy:
        return asyncparl.current_actor()

    def limits_of(self, other: Any) -> str:
        """What a call of an actor says when it takes too long; "": it has no limit. The actor, or its name."""
        other = blocking.get_actor(other) if isinstance(other, str) else other
        try:
            other.nap("limited", 0.3).result()
        except blocking.CallTimedOut as error:
            return str(error)
        return ""


@asyncparl.remote_class(max_restarts=5)
class Dying:
    """Each of its processes dies after a while; `get` may be called again."""

    @asyncparl.idempotent
    def get(self, seconds: float) -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)


class Exposed:
    """For `expose`."""

    async def nap(self, name: str, seconds: float) -> str:
        await trio.sleep(seconds)
        return name


@asyncparl.remote_class(max_concurrency=2)
class Hanging:
    """Its methods hang in all the ways there are."""

    def pid(self) -> int:
        return os.getpid()

    def in_python(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    def in_native_code(self, seconds: float) -> None:
        """Which looks at no signals."""
        start = time.monotonic()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)
        per_s = 200_000 / (time.monotonic() - start)
        hashlib.pbkdf2_hmac("sha256", b"", b"", int(seconds * per_s))

    async def in_the_event_loop(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # nobody should

    async def in_another_actor(self, other: Any, seconds: float) -> str:
        return str(await other.nap("hanging", seconds))
