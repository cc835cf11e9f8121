"""Which buffers go into the memory that a link shares with its peer, and how much there is of that."""

from __future__ import annotations

from collections.abc import Sequence

from asyncparl.protocol.frames import Buffer, Lent
from asyncparl.protocol.owned import LARGE_BYTES, Owned, copy_into, in_one_piece
from asyncparl.protocol.values import Encoded, large
from asyncparl.transport.arena import Arena

SHARED_BYTES = 256 << 20
"""How much each end of a link may lend the other, where both are on one host."""

MIN_LENT_BYTES = 64 * 1024
"""Smaller buffers are not worth it: see `benchmarks/arrays.py`."""

_STAYS_BYTES = 16 << 20
"""`bytes` and texts of more than this are sent from where they are, in fragments: nobody can change them, so that
nobody has to wait until they are copied."""


def lend_large(arena: Arena, buffers: Sequence[Buffer | Owned]) -> list[Buffer | Owned | Lent]:
    """The same buffers, those that are large in the arena, as far as there is room."""
    return [_lend(arena, buffer) if len(buffer) >= MIN_LENT_BYTES else buffer for buffer in buffers]


def _lend(arena: Arena, buffer: Buffer | Owned) -> Buffer | Owned | Lent:
    offset = arena.lend(in_one_piece(buffer))
    return buffer if offset is None else Lent(offset, len(buffer))


def hold_large(arena: Arena | None, value: Encoded) -> Encoded:
    """A large value as it can be sent: copied to the arena if there is room for it, else in fragments.

    For the thread that has the value, without any lock: it takes as long as copying does.
    """
    inline_bytes = len(value.payload) + sum(len(buffer) for buffer in value.buffers if len(buffer) < MIN_LENT_BYTES)
    stays = any(isinstance(buffer, (bytes, Owned)) and len(buffer) > _STAYS_BYTES for buffer in value.buffers)
    if arena is None or inline_bytes > LARGE_BYTES or stays:
        return large(value)
    held = _held(arena, value.buffers)
    return large(value) if held is None else value._replace(buffers=held)


def _held(arena: Arena, buffers: Sequence[Buffer | Owned]) -> list[Buffer | Owned] | None:
    """The buffers, copied to where `lend_large` finds them in their place; None: there is not enough room."""
    held, copies = list[Buffer | Owned](), list[tuple[memoryview, Buffer | Owned]]()
    for buffer in buffers:
        if len(buffer) < MIN_LENT_BYTES or (not isinstance(buffer, Owned) and arena.may_lend_in_place(buffer)):
            held.append(buffer)
            continue
        space = arena.reserve(len(buffer))
        if space is None:
            return None
        held.append(Owned([space.view]))
        copies.append((space.view, buffer))
    for view, buffer in copies:
        copy_into(view, buffer)
    return held
