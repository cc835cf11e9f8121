"""What the property tests feed in: any message, any plain value, and what "the same value" means."""

from __future__ import annotations

import math
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from asyncparl.protocol.messages import Message
from asyncparl.protocol.owned import in_one_piece
from asyncparl.protocol.values import Encoded, decode_value, encode_value

few = settings(max_examples=60)
many = settings(max_examples=300)

# --- structs ----------------------------------------------------------------------------------------------------

_texts = st.text(max_size=20)
_field_values: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    str: _texts,
    bytes: st.binary(max_size=20),
    type(None): st.none(),
}


def _values_of(kind: Any) -> st.SearchStrategy[Any]:
    if kind in _field_values:
        return _field_values[kind]
    arguments = get_args(kind)
    if get_origin(kind) is list:
        return st.lists(_values_of(arguments[0]), max_size=2)
    if get_origin(kind) is tuple:
        return st.tuples(*map(_values_of, arguments))
    if get_origin(kind) is dict:
        return st.dictionaries(_values_of(arguments[0]), _values_of(arguments[1]), max_size=2)
    if get_origin(kind) is Literal:
        return st.sampled_from(arguments)
    if arguments:
        return st.one_of([_values_of(argument) for argument in arguments])
    return instances_of(kind)


def instances_of(struct_type: type[Any]) -> st.SearchStrategy[Any]:
    """Any instance of a struct, every field given."""
    fields = msgspec.structs.fields(struct_type)
    return st.builds(struct_type, **{field.name: _values_of(field.type) for field in fields})


messages: st.SearchStrategy[Message] = st.one_of([instances_of(kind) for kind in get_args(Message)])

# --- values -----------------------------------------------------------------------------------------------------

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(),
    st.integers(2**63 - 2, 2**64 + 2).flatmap(lambda n: st.sampled_from([n, -n])),
    st.floats(),
    st.text(st.characters(), max_size=10),  # lone surrogates too: names of files may have them
    st.binary(max_size=10),
)
keys = st.recursive(leaves, lambda parts: st.lists(parts, max_size=3).map(tuple) | st.frozensets(leaves, max_size=2))
plain_values = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.lists(parts, max_size=5), st.lists(parts, max_size=5).map(tuple), st.dictionaries(keys, parts, max_size=4)
    ),
    max_leaves=20,
)


def is_same(left: Any, right: Any) -> bool:
    """Equal with equal types all the way down; NaN is itself, 0.0 is not -0.0, and dicts keep their order."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right) or (math.isnan(left) and math.isnan(right))
    if type(left) in (list, tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    if type(left) is dict:
        return is_same(list(left.items()), list(right.items()))
    if type(left) is frozenset:
        return is_same(sorted(left, key=repr), sorted(right, key=repr))
    return bool(left == right)


@dataclass
class Batch:
    """Something that only pickle carries, so that what is inside takes that way."""

    data: Any


WRAPPINGS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda data: data, lambda got: got),
    (lambda data: {"obs": [data, 1]}, lambda got: got["obs"][0]),
    (Batch, lambda got: got.data),
]
wrapped = pytest.mark.parametrize(("wrap", "unwrap"), WRAPPINGS, ids=["alone", "in plain containers", "in a dataclass"])


def travel(value: Any) -> Any:
    """A value encoded, its buffers copied into memory like a received message's, and decoded."""
    return decode_value(*received(encode_value(value)))


def received(encoded: Encoded) -> tuple[bytes, list[memoryview]]:
    """Payload and buffers as they arrive: in writable memory of their own."""
    return bytes(in_one_piece(encoded.payload)), [memoryview(bytearray(in_one_piece(each))) for each in encoded.buffers]


def peak_memory(function: Callable[[], Any]) -> int:
    """The most bytes that Python and numpy had allocated at once while a function ran."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
