"""The actors of driver.py. A module of its own, so that it has to be sent to nodes on other hosts."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

import asyncparl


@asyncparl.remote_class
class Probe:
    def __init__(self, failure: str = "") -> None:
        self.num_restarts = 0
        if failure:
            raise ValueError(failure)

    def where(self) -> dict[str, Any]:
        """Where it runs."""
        return {"pid": os.getpid(), "network": os.readlink("/proc/self/ns/net"), "cwd": os.getcwd()}

    def on_restart(self, num_restarts: int) -> None:
        self.num_restarts = num_restarts

    def pid(self) -> int:
        return os.getpid()

    def echo(self, value: Any) -> Any:
        return value

    def environ(self) -> dict[str, str]:
        return dict(os.environ)

    def invert(self, array: Any) -> Any:
        return 255 - array

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    async def nap(self, path: str) -> None:
        """For ever; when it is cancelled, that is noted in a file."""
        try:
            await trio.sleep_forever()
        finally:
            Path(path).write_text("cancelled")

    def say(self, text: str) -> None:
        print(text, flush=True)

    def say_twice(self, text: str) -> None:
        print(text + text, flush=True)

    def shoot(self, last_words: str) -> None:
        print(last_words, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self, code: int) -> None:
        sys.exit(code)

    def count(self, num: int, pause_s: float = 0) -> Iterator[int]:
        """The numbers below `num`; for ever if it is negative."""
        i = 0
        while i != num:
            yield i
            i += 1
            time.sleep(pause_s)


@asyncparl.remote_class(max_concurrency=8)
class Holder:
    """Uses an actor that somebody else owns."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def where(self) -> int:
        return os.getpid()

    async def ask(self, method: str, *args: Any) -> Any:
        return await getattr(self.actor, method)(*args)
