"""Offers an object to a `RemoteManager`, and withdraws it when its standard input ends.

python agent.py NAME ADDRESS SECRET-FILE
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator

import trio

import asyncparl


class Agent:
    def __init__(self, name: str) -> None:
        self.name = name
        self.total = 0

    def add(self, number: int) -> int:
        self.total += number
        return self.total

    async def double(self, number: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * number

    def count(self, num: int) -> Iterator[int]:
        yield from range(num)

    async def forever(self) -> AsyncIterator[int]:
        number = 0
        while True:
            yield number
            number += 1
            await trio.sleep(0.01)

    def pid(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        raise LookupError(self.name)


async def withdraw(scope: trio.CancelScope) -> None:
    await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    print("withdraws", flush=True)
    scope.cancel()


async def main() -> None:
    name, address, secret_file = sys.argv[1:]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(withdraw, nursery.cancel_scope)
        await asyncparl.as_remote(Agent(name), address, secret_file=secret_file)
        print("let go", flush=True)
        nursery.cancel_scope.cancel()


trio.run(main)
