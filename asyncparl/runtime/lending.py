"""Which buffers go into the memory that a link shares with its peer, and how much there is of that."""

from __future__ import annotations

from collections.abc import Sequence

from asyncparl.protocol.frames import Buffer, Lent
from asyncparl.transport.arena import Arena

SHARED_BYTES = 256 << 20
"""How much each end of a link may lend the other, where both are on one host."""

MIN_LENT_BYTES = 64 * 1024
"""Smaller buffers are not worth it: see `benchmarks/arrays.py`."""


def lend_large(arena: Arena, buffers: Sequence[Buffer]) -> list[Buffer | Lent]:
    """The same buffers, those that are large in the arena, as far as there is room."""
    return [_lend(arena, buffer) if len(buffer) >= MIN_LENT_BYTES else buffer for buffer in buffers]


def _lend(arena: Arena, buffer: Buffer) -> Buffer | Lent:
    offset = arena.lend(buffer)
    return buffer if offset is None else Lent(offset, len(buffer))
