"""Remote classes that die, for the tests of restarts: what each process did is kept in a file."""

from __future__ import annotations

import atexit
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

import asyncparl


@asyncparl.remote_class(max_restarts=3, max_concurrency=8)
class Mortal:
    """`diary` outlives it. `fails_from`: the constructor raises in the process of that number, and later ones."""

    def __init__(self, diary: str, data: Any = None, fails_from: int = 99) -> None:
        self.diary = Path(diary)
        self.data = data
        self.restarts = 0
        num_before = self.write("born").count("born") - 1
        if num_before >= fails_from:
            raise ValueError(f"no process {num_before}")

    def on_restart(self, num_restarts: int) -> None:
        self.restarts = num_restarts
        self.write(f"restart {num_restarts}")

    def write(self, text: str) -> list[str]:
        with self.diary.open("a") as file:
            file.write(f"{text}\n")
        return self.diary.read_text().splitlines()

    def pid(self) -> int:
        return os.getpid()

    def shoot(self) -> None:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def shoot_once(self, text: str) -> None:
        """Dies in the first process only."""
        self.write(text)
        if not self.restarts:
            self.shoot()

    @asyncparl.idempotent
    def read(self, text: str) -> int:
        self.write(text)
        if text == "shoot" and not self.restarts:
            self.shoot()
        return self.restarts

    @asyncparl.idempotent
    async def read_later(self, text: str) -> int:
        self.write(text)
        if not self.restarts:
            await trio.sleep_forever()
        return self.restarts

    def leave(self, code: int) -> None:
        sys.exit(code)

    def sleep(self, seconds: float) -> None:
        self.write("sleep")
        time.sleep(seconds)

    def forever(self) -> Iterator[int]:
        i = 0
        while True:
            yield i
            i += 1

    def itself(self) -> asyncparl.Proxy:
        return asyncparl.current_actor()

    def expose(self, value: int) -> asyncparl.Proxy:
        return asyncparl.expose(Thing(value))


class Thing:
    def __init__(self, value: int) -> None:
        self.value = value


@asyncparl.remote_class(max_restarts=1)
class SlowlyRestored:
    """Its `on_restart` is `async`, and takes its time."""

    def __init__(self, seconds: float = 0.2) -> None:
        self.restarts = 0
        self.seconds = seconds

    async def on_restart(self, num_restarts: int) -> None:
        print(f"restart in {os.getpid()}", flush=True)
        await trio.sleep(self.seconds)
        self.restarts = num_restarts

    def get(self) -> int:
        return self.restarts

    def shoot(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@asyncparl.remote_class(max_restarts=1)
class Bereft:
    """Its constructor raises what looks like its own death."""

    def __init__(self) -> None:
        raise asyncparl.ActorDied("somebody else", "of old age")

    def get(self) -> None:
        """Never reached."""


@asyncparl.remote_class
class Friend:
    """Holds an actor of somebody else."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    async def ask(self, method: str, *args: Any) -> Any:
        return await getattr(self.actor, method)(*args)

    async def kill(self) -> None:
        await asyncparl.kill(self.actor)

    async def close(self) -> None:
        await asyncparl.close(self.actor)


@asyncparl.remote_class
class Parent:
    """Has an actor of its own, and lends it."""

    def __init__(self, diary: str) -> None:
        self.child = Mortal(diary)

    def lend(self) -> Any:
        return self.child

    def pid(self) -> int:
        return os.getpid()


def take_a_while(path: str) -> None:
    Path(path).write_text("begun")
    time.sleep(0.5)
    Path(path).write_text("done")


@asyncparl.remote_class
class Stubborn:
    """Does not end when it is asked to."""

    def pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float, path: str) -> None:
        try:
            time.sleep(seconds)
        finally:
            Path(path).write_text("finally")

    def clean_up_slowly(self, path: str) -> None:
        try:
            time.sleep(600)
        finally:
            take_a_while(path)

    def flush_slowly(self, path: str) -> None:
        class Slow:
            def flush(self) -> None:
                take_a_while(path)

        sys.stdout = Slow()  # type: ignore[assignment]
        time.sleep(600)

    def ignore_sigterm(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def exit_slowly(self, seconds: float) -> None:
        atexit.register(time.sleep, seconds)

    def spawn_grandchild(self) -> int:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
            os._exit(0)
        return pid


@asyncparl.remote_class(max_memory="64MiB")
class Hog:
    """Takes memory."""

    def __init__(self, num_bytes: int = 0) -> None:
        self.hoard: list[bytearray] = []
        self.take(num_bytes)

    def take(self, num_bytes: int) -> None:
        self.hoard.append(bytearray(os.urandom(1024)) * (num_bytes // 1024))

    def take_in_grandchild(self, num_bytes: int) -> int:
        pid = os.fork()
        if pid == 0:
            self.take(num_bytes)
            time.sleep(600)
            os._exit(0)
        return pid

    def take_in_session(self, num_bytes: int, *, is_orphan: bool) -> None:
        """In a process that has a session of its own, and perhaps no parent any more."""
        program = f"import time; taken = bytearray(b'x' * {num_bytes}); time.sleep(600)"
        command = f"exec {shlex.join([sys.executable, '-c', program])}"
        subprocess.Popen(["setsid", "sh", "-c", f"({command}) & wait" if not is_orphan else f"({command}) &"])

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"
