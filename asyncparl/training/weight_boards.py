"""Weights travel once to each host, whatever the number of actors there.

The learner's process has a board of weights (`weight_board.py`) for the actors of its own host. On every other host the
first actor that has come there makes one, and writes to it what the learner sends; it and its neighbours are then told
the number of a slot. When that actor dies, or hangs, the next one that is due for weights makes another board.

An actor is told of weights by a call, and looks at them during that call only. So their slot may be written to again
when all calls that name it have ended, however they did: nothing is taken any more of an actor whose call was lost.
All of this happens in the event loop of the learner's process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import numpy as np
import trio
from numpy.typing import NDArray

import asyncparl
from asyncparl.training.weight_board import BoardAddress, BoardMemory, this_host

WRITE_LIMIT_S = 30.0
"""How long the actor that writes for its neighbours may take: they wait for it."""


class WeightBoard:
    """What the learner knows of one board.

    Args:
        address: of its memory.
        write: puts weights into a slot; whether there was memory for them. Raises `AsyncparlError` if nobody does so
            any more.
    """

    def __init__(self, address: BoardAddress, write: Callable[[int, NDArray[np.uint8]], Awaitable[bool]]) -> None:
        self.address = address
        self.is_lost = False
        """Whoever wrote to it is gone."""
        self._write = write
        self._versions: list[int | None] = [None] * address.num_slots
        self._num_readers = [0] * address.num_slots
        self._writing: dict[int, trio.Event] = {}  # by slot

    async def lend(self, version: int, packed: NDArray[np.uint8]) -> int | None:
        """The slot that has these weights, for one reader more, who owes a `give_back`. None: there is no room.

        Args:
            version: says whether they are there already, or on their way.
            packed: the weights.
        """
        slot = self._choose(version)
        if slot is None:
            return None
        self._num_readers[slot] += 1
        try:
            if slot in self._writing:
                await self._writing[slot].wait()
            elif self._versions[slot] != version:
                await self._fill(slot, version, packed)
            if self._versions[slot] == version:
                return slot
        except BaseException:
            self.give_back(slot)
            raise
        self.give_back(slot)
        return None

    def give_back(self, slot: int) -> None:
        """A reader will not look there any more."""
        self._num_readers[slot] -= 1

    def _choose(self, version: int) -> int | None:
        if self.is_lost:
            return None
        if version in self._versions:
            return self._versions.index(version)
        if 0 in self._num_readers:
            return self._num_readers.index(0)  # the lowest: what was used before is in the caches
        return None

    async def _fill(self, slot: int, version: int, packed: NDArray[np.uint8]) -> None:
        self._versions[slot] = version  # for others who want it
        self._writing[slot] = trio.Event()
        is_there = False
        try:
            is_there = await self._write(slot, packed)
        except asyncparl.AsyncparlError:
            self.is_lost = True
        finally:
            if not is_there:
                self._versions[slot] = None
            self._writing.pop(slot).set()


class WeightBoards:
    """Those of all hosts; open until its block ends.

    Args:
        num_bytes: of the weights.
        num_slots: of each board. With one more than there are actors there is always room.
    """

    def __init__(self, num_bytes: int, num_slots: int) -> None:
        self._num_bytes = num_bytes
        self._num_slots = num_slots
        self._boards: dict[str, WeightBoard | None] = {}
        """By host; None: it is being made, or there cannot be one."""
        self._memory: BoardMemory | None = None

    def __enter__(self) -> Self:
        try:
            memory = BoardMemory(self._num_bytes, self._num_slots)
        except OSError:
            self._boards[this_host()] = None
            return self

        async def write(slot: int, packed: NDArray[np.uint8]) -> bool:
            return memory.write(slot, packed)

        self._memory = memory
        self._boards[this_host()] = WeightBoard(memory.address, write)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._memory is not None:
            self._memory.close()

    async def find(self, actor: asyncparl.Proxy, host: str) -> WeightBoard | None:
        """That of its host, which the actor makes if there is none. None: this time, there is none to be had.

        Raises:
            AsyncparlError: the actor is gone.
        """
        board = self._boards.get(host)
        if host not in self._boards or (board is not None and board.is_lost):
            self._boards[host] = None  # nobody else is to make one meanwhile
            board = self._boards[host] = await self._make(actor, host)
        return board

    async def _make(self, actor: asyncparl.Proxy, host: str) -> WeightBoard | None:
        try:
            address = await actor.make_board(self._num_bytes, self._num_slots)
        except BaseException:
            del self._boards[host]
            raise
        if address is None:
            return None
        return WeightBoard(address, actor.write_to_board.options(timeout_s=WRITE_LIMIT_S))


class Seat:
    """The view that one actor has of the boards.

    Args:
        actor: has `make_board`, `open_board`, `write_to_board`.
        host: where it runs, see `this_host`.
    """

    def __init__(self, actor: asyncparl.Proxy, host: str, boards: WeightBoards) -> None:
        self._actor = actor
        self._host = host
        self._boards = boards
        self._looked_for: WeightBoard | None = None
        self._sees_it = False

    async def board(self) -> WeightBoard | None:
        """What the actor sees now.

        Raises:
            AsyncparlError: the actor is gone.
        """
        board = await self._boards.find(self._actor, self._host)
        if board is not self._looked_for:
            self._looked_for = board
            self._sees_it = board is not None and await self._actor.open_board(board.address)
        return board if self._sees_it else None
