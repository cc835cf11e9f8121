"""What is no value, or cannot become one here: one named error, and no memory by an announced size."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from asyncparl.errors import SerializationError
from asyncparl.protocol.values import Encoded, decode_value, encode_value
from tests.protocol.strategies import few, many, peak_memory, plain_values, travel


class FailsToRebuild:
    """Raises, where it arrives, what it carries."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __setstate__(self, state: dict[str, Exception]) -> None:
        raise state["error"]


def test_a_value_that_cannot_be_rebuilt_says_why() -> None:
    with pytest.raises(SerializationError, match="cannot be rebuilt: ZeroDivisionError: cannot live here") as caught:
        travel(FailsToRebuild(ZeroDivisionError("cannot live here")))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_serialization_error_while_rebuilding_is_not_wrapped_in_another() -> None:
    with pytest.raises(SerializationError, match=r"^it says why itself$"):
        travel(FailsToRebuild(SerializationError("it says why itself")))


def test_an_unknown_first_byte_is_refused() -> None:
    for first_byte in set(range(256)) - set(b"MP"):
        with pytest.raises(SerializationError, match="unknown byte"):
            decode_value(bytes([first_byte]) + b"\x01")


@few
@given(plain_values.map(lambda value: Encoded(*encode_value([{"set"}, value]))), st.integers(0))
def test_a_truncated_pickle_is_refused(encoded: Encoded, cut: int) -> None:
    kept = 1 + cut % (len(encoded.payload) - 1)
    with pytest.raises(SerializationError):
        decode_value(encoded.payload[:kept])


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"pickled": {1}, "value": value}])
@pytest.mark.parametrize("value", [np.zeros(1000), torch.zeros(1000)], ids=["numpy", "torch"])
def test_missing_buffers_are_refused(value: Any, wrap: Any) -> None:
    encoded = encode_value(wrap(value))
    assert len(encoded.buffers) == 1
    with pytest.raises(SerializationError):
        decode_value(encoded.payload, [])


def value_or_refusal(payload: bytes) -> None:
    try:
        decode_value(payload, [memoryview(bytearray(24))])
    except SerializationError:
        pass


texts = st.sampled_from(["<f8", "|O", "U0", "<U9", "float32", "Tensor"])
atoms = st.integers(-2, 6) | texts | st.sampled_from([b"", b"x" * 24, True, None])
trees = st.recursive(atoms | st.binary(max_size=9), lambda parts: st.lists(parts, max_size=6), max_leaves=12)
arrays = st.tuples(
    st.sampled_from([3, 4]), st.sampled_from(["<f8", "|O", "|S0", "float32", "bits8", "Size"]), trees, atoms, atoms
).flatmap(lambda parts: st.sampled_from([list(parts), list(parts[:4])]))


@many
@given(st.binary() | (trees | arrays).map(msgspec.msgpack.encode))
@example(msgspec.msgpack.encode([]))
@example(msgspec.msgpack.encode([2, 1]))
@example(msgspec.msgpack.encode([2, [0], 1]))
@example(b"\x91" * 100_000)
def test_garbage_is_refused_with_a_serialization_error_only(garbage: bytes) -> None:
    value_or_refusal(b"M" + garbage)


@pytest.mark.parametrize(
    "garbage",
    [
        [3, "<f8", [2**40], False, b""],
        [3, "<f8", [2**40], False, bytes(8)],
        [3, "<U1000000000", [1], False, bytes(8)],
        [4, "float32", [2**40], b""],
        [4, "float32", [2**30], b""],
        [4, "float32", [2**30], bytes(8)],
        [4, "get_default_dtype", [1], bytes(8)],
        [3, "|O", [1], False, bytes(8)],
        [5, 1],
    ],
    ids=str,
)
def test_arrays_that_promise_more_than_they_bring_are_refused(garbage: list[Any]) -> None:
    with pytest.raises(SerializationError):
        decode_value(b"M" + msgspec.msgpack.encode(garbage))


@few
@given(st.binary().map(lambda garbage: b"M" + garbage))
@example(b"M\xdd\xff\xff\xff\xff")
@example(b"M" + b"\xdc\xff\xff" * 300)
@example(b"M\xdf\xff\xff\xff\xff")
@example(b"M\xc6\xff\xff\xff\xff")
def test_garbage_allocates_nothing_by_an_announced_size(garbage: bytes) -> None:
    value_or_refusal(garbage)  # whatever is imported or cached is now
    assert peak_memory(lambda: value_or_refusal(garbage)) < 100_000 + 50 * len(garbage)
