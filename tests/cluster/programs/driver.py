"""A program that does what a test tells it. Its argument, as JSON, is how to connect; or with "listen", as a manager.

One command a line comes on standard input, as JSON: [number, name, arguments]. An answer is a line that begins with
"@": [number, when, result, failure]. Commands run at the same time; what they do at once happens in their order.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable
from functools import partial
from typing import Any

import msgspec
import trio
import workload  # type: ignore[import-not-found]  # it lies beside this script

import asyncparl


class Stream:
    """What a stream has given so far."""

    def __init__(self, call: asyncparl.Call[Any]) -> None:
        self.items: list[Any] = []
        self._call = call
        self._news = trio.Event()

    async def collect(self) -> list[Any]:
        async for item in self._call:
            self.items.append(item)
            self._news.set()
            self._news = trio.Event()
        return self.items

    async def wait_for(self, num: int) -> int:
        while len(self.items) < num:
            await self._news.wait()
        return len(self.items)


class Commands:
    """What a test may ask for. `cluster` is a `Cluster`, or the `Manager` of a `RemoteManager`."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._actors: dict[str, asyncparl.Proxy] = {}
        self._streams: dict[str, Stream] = {}
        self._crowd: list[asyncparl.Proxy] = []
        self._trained = trio.Semaphore(0)

    def create(self, name: str, options: dict[str, Any], *args: Any) -> Awaitable[Any]:
        """Make an actor; where it is."""
        self._actors[name] = workload.Probe.options(**options)(*args)
        return self._actors[name].where()

    def lend(self, name: str, actor: str, options: dict[str, Any]) -> Awaitable[Any]:
        """Make an actor that holds another one; where it is."""
        self._actors[name] = workload.Holder.options(**options)(self._actors[actor])
        return self._actors[name].where()

    async def find(self, name: str, public_name: str) -> str:
        """The actor that another program has made; what it is for people."""
        self._actors[name] = await asyncparl.get_actor(public_name)
        return repr(self._actors[name])

    def call(self, name: str, method: str, *args: Any) -> Awaitable[Any]:
        return getattr(self._actors[name], method)(*args)  # type: ignore[no-any-return]

    def call_within(self, timeout_s: float, name: str, method: str, *args: Any) -> Awaitable[Any]:
        return getattr(self._actors[name], method).options(timeout_s=timeout_s)(*args)  # type: ignore[no-any-return]

    def stream(self, name: str, *args: Any) -> Awaitable[Any]:
        """All items of `count`, once it has ended."""
        return self.collect(name, "count", *args)

    def collect(self, name: str, method: str, *args: Any) -> Awaitable[Any]:
        """All items of a stream, once it has ended."""
        self._streams[name] = Stream(getattr(self._actors[name], method)(*args))
        return self._streams[name].collect()

    def wait_for(self, name: str, num: int) -> Awaitable[int]:
        """Until a stream has given so many items; how many those are."""
        return self._streams[name].wait_for(num)

    def close(self, name: str) -> Awaitable[None]:
        return asyncparl.close(self._actors[name])

    def kill(self, name: str) -> Awaitable[None]:
        return asyncparl.kill(self._actors[name])

    async def kill_all(self) -> None:
        for actor in self._actors.values():
            await asyncparl.kill(actor)
        self._actors.clear()

    async def view(self) -> Any:
        return msgspec.to_builtins(await self._cluster.describe())

    async def take(self, name: str) -> str:
        """The next object that is offered; what it is for people."""
        self._actors[name] = await self._cluster.get_remote()
        return repr(self._actors[name])

    async def get(self, name: str, attribute: str) -> Any:
        return await getattr(self._actors[name], attribute)

    async def make_crowd(self, num: int) -> int:
        """Make so many actors that take no CPU; how many processes they are."""
        self._crowd = [workload.Probe.options(num_cpus=0)() for _ in range(num)]
        return len(set(await asyncparl.gather([actor.pid() for actor in self._crowd])))

    async def close_crowd(self) -> None:
        async with trio.open_nursery() as nursery:
            for actor in self._crowd:
                nursery.start_soon(asyncparl.close, actor)

    async def train(self, num_slots: int, num_items: int) -> list[list[list[int]]]:
        """Stream items in each slot until there are enough; a dead actor is replaced. By slot and actor."""
        received: list[list[list[int]]] = [[] for _ in range(num_slots)]
        async with trio.open_nursery() as nursery:
            for slot in range(num_slots):
                nursery.start_soon(self._fill, received[slot], num_items)
        return received

    async def _fill(self, received: list[list[int]], num_items: int) -> None:
        while (missing := num_items - sum(map(len, received))) > 0:
            received.append([])
            try:
                async with workload.Probe() as actor:
                    async for item in actor.count(missing, 0.01):
                        received[-1].append(item)
                        self._trained.release()
            except asyncparl.ActorDied as death:
                print(f"{death.actor} died: {death.reason}", flush=True)
            except asyncparl.ResourceError as error:
                print(f"no actor: {error}", flush=True)
                await trio.sleep(1)

    async def wait_trained(self, num: int) -> None:
        """Until so many items more have come."""
        for _ in range(num):
            await self._trained.acquire()

    async def exchange(self, name: str, num_bytes: int) -> float:
        """Send an array and get it back inverted; the seconds that this took."""
        import numpy as np

        array = np.random.default_rng(num_bytes).integers(0, 256, num_bytes, np.uint8)
        start = time.monotonic()
        answer = await self._actors[name].invert(array)
        took_s = time.monotonic() - start
        assert np.array_equal(answer, 255 - array)
        return took_s


async def answer(number: int, result: Awaitable[Any]) -> None:
    value = failure = None
    try:
        value = await result
    except Exception as error:
        failure = {"type": type(error).__name__, "text": str(error), **vars(error)}
    # Nothing but plain values; an enum, for example, as what it says.
    say([number, time.monotonic(), value, failure])


def say(value: Any) -> None:
    sys.stdout.write(f"@{json.dumps(value, default=str)}\n")
    sys.stdout.flush()


async def main() -> None:
    options = json.loads(sys.argv[1])
    connect = asyncparl.RemoteManager if "listen" in options else asyncparl.connect
    options = {"address" if name == "listen" else name: value for name, value in options.items()}
    async with connect(**options) as cluster, trio.open_nursery() as nursery:
        commands = Commands(cluster)
        say("ready")
        lines = trio.wrap_file(sys.stdin)
        while line := await lines.readline():
            number, name, arguments = json.loads(line)
            start = partial(getattr(commands, name), *arguments)
            nursery.start_soon(answer, number, start())
        nursery.cancel_scope.cancel()


trio.run(main)
