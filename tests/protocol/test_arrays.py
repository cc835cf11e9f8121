"""Numpy arrays of every kind arrive equal, in the same memory order, and writable."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.protocol.strategies import WRAPPINGS, few, many, travel, wrapped

NUMBERS = ["?", "b", "B", "<i2", "<u4", "<i8", "<f2", "<f4", "<f8", "g", "<c8", "<c16", ">i4", ">f8", ">c8"]
OTHERS = ["<M8[us]", ">m8[25s]", "m8", "S3", "<U2", ">U2", "V3"]
STRUCTURED = ["i4,f8", "i4,(2,3)f4", [("a", "<i2"), ("inner", [("b", "S3"), ("c", ">f8")])]]
dtypes = st.sampled_from([np.dtype(name) for name in (*NUMBERS, *OTHERS, *STRUCTURED)])
shapes = st.lists(st.integers(0, 4) | st.just(40), max_size=3)


def array_of(dtype: np.dtype[Any], shape: list[int], seed: int) -> np.ndarray[Any, Any]:
    """An array with any bytes at all in its memory."""
    memory = np.random.default_rng(seed).bytes(dtype.itemsize * math.prod(shape))
    return np.ndarray(tuple(shape), dtype, bytearray(memory))


def read_only(array: Any) -> Any:
    array = array.copy(order="K")
    array.flags.writeable = False
    return array


def broadcast(array: Any) -> Any:
    return np.broadcast_to(array, (2, *array.shape))


# Each needs at least one axis.
LAYOUTS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "transposed": lambda array: np.ascontiguousarray(array).T,
    "reversed": lambda array: array[::-1],
    "with gaps": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "axes in another order": lambda array: np.moveaxis(np.ascontiguousarray(array), 0, -1),
    "broadcast": broadcast,
    "read-only": read_only,
    "read-only, Fortran": lambda array: read_only(np.asfortranarray(array)),
}

arrays = st.builds(array_of, dtypes, shapes, st.integers(0, 2**32))
layouts = st.sampled_from(list(LAYOUTS.values()))


@many
@given(arrays, layouts, st.sampled_from(WRAPPINGS))
def test_any_array_arrives_equal_and_writable(array: Any, layout: Any, wrapping: Any) -> None:
    wrap, unwrap = wrapping
    array = layout(array) if array.ndim else array
    got = unwrap(travel(wrap(array)))
    assert type(got) is np.ndarray
    assert (got.dtype, got.dtype.str, got.shape) == (array.dtype, array.dtype.str, array.shape)
    assert got.tobytes() == array.tobytes()
    assert got.flags.writeable


@few
@given(arrays, layouts, st.sampled_from(WRAPPINGS))
def test_a_contiguous_array_keeps_its_memory_order(array: Any, layout: Any, wrapping: Any) -> None:
    wrap, unwrap = wrapping
    array = layout(array) if array.ndim else array
    assume(array.flags.c_contiguous or array.flags.f_contiguous)
    got = unwrap(travel(wrap(array)))
    assert (got.flags.c_contiguous, got.flags.f_contiguous) == (array.flags.c_contiguous, array.flags.f_contiguous)


@pytest.mark.parametrize(
    "array",
    [
        np.array([{"a": 1}, None, "text"], dtype=object),
        np.array([[1, [2]], [(3,), {4}]], dtype=object),
        np.array([], dtype=object),
        np.array([(1, {2}), (3, None)], dtype=[("a", "<i4"), ("b", object)]),
        np.array(["a", "long" * 10, ""], dtype=np.dtypes.StringDType()),
        np.rec.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.ma.masked_array(np.arange(4), mask=[0, 1, 0, 1]),
        np.ma.masked_array(np.arange(400.0), mask=np.arange(400) % 2 == 0),
    ],
    ids=lambda array: f"{type(array).__name__} {array.dtype}",
)
def test_arrays_of_objects_or_of_a_special_type_arrive_as_they_were(array: Any) -> None:
    got = travel(array)
    assert (type(got), got.dtype, got.shape) == (type(array), array.dtype, array.shape)
    assert got.tolist() == array.tolist()
    assert got.flags.writeable


@wrapped
def test_strings_of_length_0_arrive(wrap: Any, unwrap: Any) -> None:
    array = np.zeros(3, [("empty", "S0"), ("number", "i4")])["empty"]
    assert array.dtype.itemsize == 0
    assert unwrap(travel(wrap(array))).tolist() == [b"", b"", b""]


def test_a_masked_array_keeps_what_is_under_the_mask() -> None:
    got = travel(np.ma.masked_array([1, 2], mask=[False, True], fill_value=7))
    assert (got.data.tolist(), got.mask.tolist(), got.fill_value) == ([1, 2], [False, True], 7)


def test_objects_inside_an_object_array_are_shared_as_before() -> None:
    shared = [1]
    got = travel(np.array([shared, shared, None], dtype=object))
    assert got[0] is got[1]
