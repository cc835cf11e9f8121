"""Arrays that are made where they are to be sent from, so that sending them copies nothing."""

from __future__ import annotations

import math
import weakref
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncparl.runtime.lending import MIN_LENT_BYTES
from asyncparl.runtime.link import Link

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

served_link: ContextVar[Link | None] = ContextVar("served_link", default=None)
"""The link of the call that is being served here: that is where its result goes."""


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = float) -> NDArray[Any]:
    """An array without content, as `numpy.empty`, for a method of an actor to fill and to return.

    Where the caller is on the same host, its memory is shared with the caller, and returning it, or yielding it, copies
    nothing. It may be part of a larger result, and a part of it may be returned. It is given away by that: from then on
    it belongs to the caller, and **this array is read-only**. Make a new one for the next result; that costs next to
    nothing.

    An array that is sent to somebody else than the caller, or is small, or was made outside of a call, is copied as any
    other, and stays writable. So is one for which there is no room, because the caller keeps so many.

    Args:
        shape: the number of elements along each axis.
        dtype: of the elements.

    Raises:
        ValueError: the shape is impossible.
        TypeError: there is no such dtype.
    """
    import numpy as np

    element = np.dtype(dtype)
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    num_bytes = count * element.itemsize
    link = served_link.get()
    if link is None or num_bytes < MIN_LENT_BYTES or element.hasobject:
        return np.empty(shape, element)
    space = link.reserve(num_bytes)
    if space is None:
        return np.empty(shape, element)
    array = np.frombuffer(space.view, element).reshape(shape)
    space.call_when_lent(partial(_make_read_only, weakref.ref(array)))
    return array


def _make_read_only(reference: weakref.ref[np.ndarray[Any, Any]]) -> None:
    if (array := reference()) is not None:
        array.setflags(write=False)
