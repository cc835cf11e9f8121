"""What calls carry in a simulation: small things, and arrays that go through the memory that a link shares."""

from __future__ import annotations

from typing import Any

import numpy as np

MIN_LENT_BYTES = 2048
ROOM_BYTES = 4 * 4096
"""Four arrays each way, so that there is often no room."""


def content(number: int, size: int) -> Any:
    """What the call of this number carries; mostly it is small, for messages with arrays are not joined."""
    if number % 16:
        return "x" * (size % 50)
    return np.full(MIN_LENT_BYTES + size, number % 251, np.uint8)


def is_content(number: int, thing: Any) -> bool:
    """Whether this may be what the call of this number carried."""
    if isinstance(thing, np.ndarray):
        return len(thing) >= MIN_LENT_BYTES and bool((thing == number % 251).all())
    return isinstance(thing, str) and (thing == "in time" or not thing.strip("x"))
