"""What tests look at to know which arrays are in memory that processes share."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import trio

from asyncparl.transport.arena import Arena, _arenas

LARGE = 1 << 20
"""Bytes of an array that does not go through a socket."""
LIMIT_S = 60.0


def arenas() -> list[Arena]:
    """Those of this process whose channel is open."""
    gc.collect()
    return [arena for arena in list(_arenas) if arena._mapping is not None]


def mappings() -> list[tuple[int, int]]:
    """Where shared memory of ours is mapped in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "memfd:asyncparl" in line]
    return [(int(start, 16), int(end, 16)) for start, end in ranges]


def is_shared(thing: Any) -> bool:
    """Whether an array or tensor is in memory that processes share."""
    address = thing.ctypes.data if isinstance(thing, np.ndarray) else thing.data_ptr()
    return any(start <= address < end for start, end in mappings())


async def settled(source: Any, limit: int = 0) -> int:
    """How many blocks of an actor are in use, when it has been told of all that were let go here."""
    with trio.move_on_after(LIMIT_S):
        while (num := await source.num_in_use()) > limit:
            await trio.sleep(0.01)
            gc.collect()
    return int(num)
