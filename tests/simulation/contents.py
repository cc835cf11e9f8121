"""What calls carry in a simulation: small things, arrays in the memory that a link shares, and what is larger still."""

from __future__ import annotations

from typing import Any

import numpy as np

MIN_LENT_BYTES = 2048
ROOM_BYTES = 4 * 4096
"""Four arrays each way, so that there is often no room."""
LARGE_BYTES = 4000
"""What is larger than this, and finds no room, travels in fragments."""
FRAGMENT_BYTES = 2048
WINDOW_BYTES = 3 * FRAGMENT_BYTES
_SIZES = (MIN_LENT_BYTES, 2 * LARGE_BYTES, 2 * ROOM_BYTES)


def content(number: int, size: int) -> Any:
    """What the call of this number carries; mostly it is small, for messages with arrays are not joined."""
    if number % 16:
        return "x" * (size % 50)
    return np.full(_SIZES[number // 16 % 3] + size, number % 251, np.uint8)


def is_content(number: int, thing: Any) -> bool:
    """Whether this may be what the call of this number carried."""
    if isinstance(thing, np.ndarray):
        return len(thing) >= _SIZES[number // 16 % 3] and bool((thing == number % 251).all())
    return isinstance(thing, str) and (thing == "in time" or not thing.strip("x"))
