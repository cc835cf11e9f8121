"""Values of Python's own types, and what only pickle can carry. Arrays and tensors have files of their own."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import pathlib
import pickle
import sys
import threading
import types
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from asyncparl.errors import SerializationError
from asyncparl.protocol.values import NOTHING, decode_value, encode_value
from tests.protocol.strategies import Batch, is_same, many, plain_values, received, travel


class Point(NamedTuple):
    x: int
    y: Any


class Colour(enum.IntEnum):
    RED = 1


class Word(str):
    __slots__ = ()


class Stack(list[Any]):
    note = ""


# --- plain values -----------------------------------------------------------------------------------------------


@many
@given(plain_values)
@example([1, 1.0, True, 0.0, -0.0, None, float("nan"), "1", b"1", 2**63 - 1, -(2**63), 2**63, 2**64, -(2**63) - 1])
@example([[], (), {}, [[]], ((),), {(): ()}, ([],), [()]])
@example({1: "int", "1": "str", b"1": "bytes", None: 0, 2.0: 0, (3, (True,)): [], False: 0, frozenset([3]): 0})
@example("name of a file: \udcff")
def test_plain_values_arrive_as_they_were_to_the_type(value: Any) -> None:
    assert is_same(travel(value), value)


@pytest.mark.parametrize("num_items", [0, 1, 15, 16, 510, 511, 512, 513, 70_000])
@pytest.mark.parametrize("make", [list, tuple, lambda items: dict(zip(items, items, strict=True))])
def test_containers_of_any_length_arrive(num_items: int, make: Any) -> None:
    assert is_same(travel(make(range(num_items))), make(range(num_items)))


@pytest.mark.parametrize("depth", [10, 200, 255, 256, 300])
def test_deep_nesting_arrives(depth: int) -> None:
    value: Any = "bottom"
    for _ in range(depth):
        value = [value]
    assert is_same(travel(value), value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, "two", (3.0, b"4"), {"five": True, (6,): None}],
        np.arange(6.0).reshape(2, 3),
        [np.zeros(5000), {"weights": np.zeros((3, 0)), "names": np.array(["a", "bc"])}],
        (torch.zeros(5000), torch.zeros((), dtype=torch.bfloat16)),
    ],
)
def test_plain_values_never_pass_through_pickle(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt("pickle was used")  # which no handler of `Exception` swallows

    monkeypatch.setattr(cloudpickle, "CloudPickler", refuse)
    for name in ("Pickler", "Unpickler", "dumps", "loads", "load"):
        monkeypatch.setattr(pickle, name, refuse)
    encoded = encode_value(value)
    assert not encoded.payload.startswith(b"P")
    decode_value(*received(encoded))


def test_none_is_no_bytes_at_all() -> None:
    assert encode_value(None) is NOTHING
    assert NOTHING == (b"", ())
    assert decode_value(b"") is None


# --- everything else --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        Point(1, [2]),
        Colour.RED,
        Word("word"),
        Stack([1, 2]),
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, a=[1]),
        collections.Counter("hello"),
        collections.deque([1, 2], maxlen=3),
        {1, 2},
        frozenset([1, 2]),
        bytearray(b"bytes"),
        1 + 2j,
        range(3),
        slice(1, None),
        Ellipsis,
        decimal.Decimal("1.10"),
        fractions.Fraction(1, 3),
        datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
        uuid.UUID(int=5),
        pathlib.PurePosixPath("a/b"),
        Batch((1, 2)),
        Batch,
        len,
        np.float32(1.5),
        np.int64(3),
        np.dtype("f4"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [{"key": (value,)}]], ids=["alone", "nested"])
def test_other_types_arrive_as_themselves(value: Any, wrap: Any) -> None:
    got = travel(wrap(value))
    inner = got if wrap(0) == 0 else got[0]["key"][0]
    assert type(inner) is type(value)
    assert got == wrap(value)


def test_a_bool_a_string_or_an_enum_stays_one_when_it_is_a_key() -> None:
    [(key, _), *rest] = travel({True: 1, Word("w"): 2, Colour.RED + 1: 3}).items()
    assert key is True
    assert [type(key) for key, _ in rest] == [Word, int]


def test_attributes_of_a_subclass_of_list_arrive() -> None:
    stack = Stack([1])
    stack.note = "kept"
    assert travel(stack).note == "kept"


def test_an_exception_arrives_with_its_arguments_and_notes() -> None:
    error = KeyError("missing", 3)
    error.add_note("a note")
    got = travel(error)
    assert (type(got), got.args, got.__notes__) == (KeyError, ("missing", 3), ["a note"])


def test_lambdas_and_local_classes_travel_by_value() -> None:
    class Local:
        def __init__(self, size: int) -> None:
            self.size = size

    offset = 10
    assert travel({"f": lambda x: x + offset})["f"](1) == 11
    got = travel(Local(3))
    assert (type(got).__qualname__, got.size) == (Local.__qualname__, 3)


def test_functions_of_main_travel_by_name_or_as_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(x: int) -> int:
        return 2 * x

    double.__module__, double.__qualname__ = "__main__", "double"
    monkeypatch.setattr(sys.modules["__main__"], "double", double, raising=False)
    by_name, as_code = encode_value({"f": double}), encode_value({"f": double}, main_names=frozenset())
    assert decode_value(*received(by_name))["f"] is double

    # where `__main__` is another program
    monkeypatch.delattr(sys.modules["__main__"], "double")
    with pytest.raises(SerializationError, match="double"):
        decode_value(*received(by_name))
    assert decode_value(*received(as_code))["f"](4) == 8


# --- shared and cyclic references -------------------------------------------------------------------------------


def outline(value: Any) -> Any:
    """The structure with every list and dict numbered by its first visit, so that "the same one" is visible."""
    numbers: dict[int, int] = {}

    def visit(part: Any) -> Any:
        if not isinstance(part, list | dict | tuple):
            return part
        if not isinstance(part, tuple):
            if id(part) in numbers:
                return f"again {numbers[id(part)]}"
            numbers[id(part)] = len(numbers)
        inner = part.values() if isinstance(part, dict) else part
        return type(part).__name__, [visit(element) for element in inner]

    return visit(value)


@st.composite
def graphs(draw: st.DrawFn) -> Any:
    """Lists and dicts that contain one another in any way, some of them through tuples."""
    nodes: list[Any] = [draw(st.sampled_from([list, dict]))() for _ in range(draw(st.integers(1, 5)))]
    places = st.integers(0, len(nodes) - 1)
    for start, end, through_tuple in draw(st.lists(st.tuples(places, places, st.booleans()), max_size=8)):
        child = (nodes[end],) if through_tuple else nodes[end]
        if isinstance(nodes[start], list):
            nodes[start].append(child)
        else:
            nodes[start][len(nodes[start])] = child
    return nodes[0]


@many
@given(graphs())
def test_shared_and_cyclic_references_keep_their_structure(graph: Any) -> None:
    assert outline(travel(graph)) == outline(graph)


def test_an_array_that_occurs_twice_arrives_as_one() -> None:
    array, tensor = np.arange(1000), torch.arange(1000)
    first, second, [third] = travel([array, array, [array]])
    assert first is second is third
    first, second = travel((tensor, tensor))
    assert first is second


def test_tuples_within_tuples_do_not_grow_exponentially() -> None:
    value: Any = (1,)
    for _ in range(60):
        value = (value, value)
    encoded = encode_value(value)
    assert len(encoded.payload) < 2000
    got = decode_value(*received(encoded))
    assert got[0] is got[1]


# --- what cannot travel -----------------------------------------------------------------------------------------


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        (threading.Lock(), "lock"),
        (numbers(), "generator"),
        (sys._getframe(), "frame"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_pickled_is_named(value: Any, type_name: str) -> None:
    with pytest.raises(SerializationError, match=f"a value of type {type_name} cannot be pickled") as caught:
        encode_value(value)
    assert isinstance(caught.value.__cause__, TypeError)

    # inside something else, the cause still names it
    with pytest.raises(SerializationError, match=rf"a value of type dict cannot be pickled: .*{type_name}"):
        encode_value({"key": [1, value]})


def test_an_open_file_is_refused_and_not_replaced_by_a_copy_of_its_content(tmp_path: pathlib.Path) -> None:
    with (tmp_path / "log").open("w+") as file:
        for value in (file, {"log": file}, lambda: file):
            with pytest.raises(SerializationError, match="an open file stays in its process: send its path, or what"):
                encode_value(value)


def test_the_streams_of_the_process_are_those_of_the_other_one() -> None:
    assert travel(lambda: sys.stderr)() is sys.stderr


def test_an_error_inside_the_users_own_pickling_is_a_serialization_error() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise ZeroDivisionError("no")

    with pytest.raises(SerializationError, match="Stubborn cannot be pickled: ZeroDivisionError: no"):
        encode_value(Stubborn())


def test_nesting_beyond_what_pickle_can_walk_is_a_serialization_error() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(SerializationError, match="RecursionError"):
        encode_value(value)


def test_libraries_that_are_half_imported_are_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("numpy", "torch"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert travel([{1}, bytearray(2)]) == [{1}, bytearray(2)]
