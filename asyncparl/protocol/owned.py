"""Memory of our own for what is large: copied piece by piece, so that other threads and links get their turn meanwhile.

A copy of 500 MB takes a quarter of a second and more. Where numpy is loaded it is asked to copy, because it lets other
threads run. Each piece goes back to the system as soon as it is not needed any more: not all of them at the end, for
that would take a tenth of a second.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

LARGE_BYTES = 2 << 20
"""What is larger than this is not copied at once, and does not travel in one message."""

PIECE_BYTES = 2 << 20
"""What the system gives, and takes back, at once: one of its large pages."""

_STEP_BYTES = 512 * 1024
"""Copied at a time without numpy: in between, others may have the interpreter."""

_Bytes = bytes | bytearray | memoryview


class Owned:
    """A buffer that nobody changes any more, in pieces that follow each other."""

    __slots__ = ("_num_bytes", "pieces")

    def __init__(self, pieces: list[_Bytes]) -> None:
        self.pieces = pieces
        self._num_bytes = sum(len(piece) for piece in pieces)

    def __len__(self) -> int:
        return self._num_bytes


def owned(buffer: _Bytes) -> Owned:
    """A copy of a buffer."""
    source = memoryview(buffer).cast("B")
    pieces = list[_Bytes]()
    for at in range(0, len(source), PIECE_BYTES):
        part = source[at : at + PIECE_BYTES]
        piece = _fresh_pages(len(part))
        copy_into(piece, part)
        pieces.append(piece)
    return Owned(pieces)


def in_one_piece(buffer: _Bytes | Owned) -> memoryview:
    """All of a buffer; copied only if it has several pieces."""
    pieces = buffer.pieces if isinstance(buffer, Owned) else [buffer]
    return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))


def copy_into(target: memoryview, source: _Bytes | Owned) -> None:
    """Copy bytes from one memory to another one of the same size."""
    start = 0
    for part in source.pieces if isinstance(source, Owned) else [source]:
        _copy(target[start : start + len(part)], memoryview(part).cast("B"))
        start += len(part)


def _copy(target: memoryview, source: memoryview) -> None:
    numpy = _numpy()
    if numpy is not None:
        numpy.copyto(numpy.frombuffer(target, numpy.uint8), numpy.frombuffer(source, numpy.uint8))
        return
    for at in range(0, len(source), _STEP_BYTES):
        target[at : at + _STEP_BYTES] = source[at : at + _STEP_BYTES]


def new_memory(num_bytes: int) -> memoryview:
    """Writable memory of one byte or more, with any content. It takes none of the system's before it is written to.

    Raises:
        MemoryError: there is not so much.
    """
    numpy = _numpy()
    try:
        return _fresh_pages(num_bytes) if numpy is None else memoryview(numpy.empty(num_bytes, numpy.uint8))
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"{num_bytes:,} bytes: {error}") from None


def _fresh_pages(num_bytes: int) -> memoryview:
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if num_bytes >= PIECE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


def _numpy() -> Any:
    """None if it is not loaded, or only half so."""
    numpy = sys.modules.get("numpy")
    return numpy if hasattr(numpy, "copyto") else None
