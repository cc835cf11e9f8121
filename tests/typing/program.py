"""What users type, checked by mypy in strict mode with our plugin; see `test_typing.py`. It is not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import trio

import asyncparl

T = TypeVar("T")


@asyncparl.remote_class
class Simulator:
    def __init__(self, game: str) -> None:
        self.game = game
        self.frames = 0

    @asyncparl.idempotent
    def sample(self, n: int) -> list[int]:
        return list(range(n))

    def rollouts(self) -> Iterator[list[int]]:
        while True:
            yield self.sample(50)


@asyncparl.remote_class(num_cpus=2, max_concurrency=4, call_timeout_s=60)
class Fast:
    def go(self) -> None: ...


@asyncparl.remote_class
class Buffer(Generic[T]):
    def __init__(self, items: list[T]) -> None:
        self.items = items

    def first(self) -> T:
        return self.items[0]


class Plain:
    def size(self) -> int:
        return 1


Called = asyncparl.remote_class(Plain)


async def main() -> None:
    async with asyncparl.connect():
        sims = [Simulator("pong") for _ in range(8)]
        calls = [sim.sample(50) for sim in sims]
        first = await calls[0]
        print(first)
        async for call in asyncparl.as_completed(calls):
            print(await call)
        results = await asyncparl.gather(calls)
        print(len(results))
        with trio.fail_after(5):
            await sims[0].sample(50)
        await sims[0].sample.options(timeout_s=5)(50)
        print(await sims[0].frames.options(timeout_s=None))
        async for batch in sims[0].rollouts():
            print(batch)
        frames = await sims[0].frames
        print(frames)
        await asyncparl.set_attribute(sims[0], "frames", 0)
        await asyncparl.close(sims[0])
        async with Simulator("pong") as sim:
            await sim.sample(1)
        await asyncparl.kill(sims[1])
        async with asyncparl.supervise("one_for_all", max_restarts=3, restart_window_s=None) as group:
            sims = [group.add(Simulator, "pong") for _ in range(2)]
            await asyncparl.gather([sims[0].sample(1), group.add(Fast.options(num_cpus=1)).go()])
        await Simulator.options(num_cpus=2)("pong").sample(1)
        buffers = [Buffer([1]), Buffer[int]([1]), Buffer[int].options(num_cpus=1)([1])]
        await asyncparl.gather([buffer.first() for buffer in buffers])
        print(Simulator.__wrapped__("pong").frames, await Fast().go(), await Called().size())


trio.run(main)
