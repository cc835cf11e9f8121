"""User values <-> bytes and raw buffers.

Two encodings, told apart by the first byte of the payload:

- *plain*: None, bool, int, float, str, bytes, list, tuple, dict, numpy arrays and CPU torch tensors, in any nesting
  of up to `_MAX_PLAIN_NODES` nodes. No pickle is involved on either side.
- *pickle*: anything else, by pickle 5 with out-of-band buffers; what the reader cannot reach by name (lambdas, classes
  of a notebook) travels as code, by cloudpickle. Reading a pickle runs code that the sender chose: a trust decision,
  which is why only drivers and workers read it, on links of their own cluster.

An array never passes through the payload unless it is tiny: its memory is handed on as a buffer, without a copy, and
the receiver builds its array on the memory that the message arrived in. Long `bytes`, texts and `bytearray` are buffers
too, from which the receiver makes its own; deep inside a pickle they stay where they are in it, but are not copied to
be sent either. Numpy and torch are never imported to encode (a value of theirs means that they are loaded), only to
decode a value that needs them.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import msgspec

from asyncparl.errors import SerializationError
from asyncparl.protocol.frames import MAX_BUFFERS, Buffer
from asyncparl.protocol.owned import LARGE_BYTES, Owned, new_bytes, owned, to_own, utf8_of

_PLAIN = b"M"
_PICKLE = b"P"

_MAX_PLAIN_NODES = 512
"""Walking a value costs about 0.2 us a node in Python; pickle's C code is faster for larger structures."""

_MIN_BUFFER_BYTES = 1024
"""Smaller arrays are cheaper inside the payload than as a buffer with its table entry and padding."""

_LONG_BYTES = 64 * 1024
"""From here on `bytes` and texts are buffers."""

_LIST, _TUPLE, _DICT, _ARRAY, _TENSOR, _BYTES, _TEXT, _BYTEARRAY = range(8)
_INT64 = range(-(2**63), 2**63)


class Encoded(NamedTuple):
    """A value ready for a frame. `buffers` may alias the caller's arrays: send, or `detach`, before they change."""

    payload: bytes | Owned
    buffers: Sequence[Buffer | Owned] = ()

    def detach(self) -> Encoded:
        """The same value with memory of its own."""
        return self._replace(buffers=[_detached(buffer) for buffer in self.buffers]) if self.buffers else self

    @property
    def num_bytes(self) -> int:
        """Of all of it."""
        return len(self.payload) + sum(len(buffer) for buffer in self.buffers)


class Large(Encoded):
    """One that is too large for one message, and travels in fragments.

    It has memory of its own, or is to get it (`own`) before the user has his arrays back.
    """

    __slots__ = ()

    def own(self, lock: AbstractContextManager[object], after_each: Callable[[], object]) -> None:
        """Copy what is the user's, and was not sent meanwhile. `after_each`: some of it was copied."""
        for buffer in reversed(self.buffers):
            while isinstance(buffer, Owned) and buffer.own_piece(lock):
                after_each()


def large(value: Encoded) -> Large:
    """The same, to be sent in fragments, from the user's memory while that is not copied. `value` stays as it is."""
    payload = value.payload
    return Large(
        Owned(payload.pieces) if isinstance(payload, Owned) else payload,
        [buffer if isinstance(buffer, bytes) else to_own(buffer) for buffer in value.buffers],
    )


def _detached(buffer: Buffer | Owned) -> Buffer | Owned:
    if isinstance(buffer, (Owned, bytes)):
        return buffer
    return owned(buffer) if len(buffer) > LARGE_BYTES else bytes(buffer)


NOTHING = Encoded(b"")
"""The encoding of None: no bytes at all."""


def encode_value(value: object, *, main_names: frozenset[str] | None = None) -> Encoded:
    """Encode any picklable value.

    Args:
        main_names: what the receiver finds in its `__main__`; other functions and classes of ours travel as code.
            None: all of it.

    Raises:
        SerializationError: the value cannot be pickled; the cause says why.
    """
    if value is None:
        return NOTHING
    buffers: list[Buffer | Owned] = []
    try:
        return Encoded(_PLAIN + _encode_tree(_Lowering(buffers).lower(value)), buffers)
    except (_NotPlain, ValueError):  # the latter: text that UTF-8 cannot express, or 4 GiB of it
        return _encode_by_pickle(value, main_names)


def decode_value(payload: Buffer, buffers: Sequence[memoryview] = ()) -> Any:
    """Rebuild a value. Arrays are views of `buffers`, writable where the buffers are.

    Raises:
        SerializationError: the bytes are no value, or rebuilding it failed here; the cause says why.
    """
    if not payload:
        return None
    view = memoryview(payload)
    try:
        if view[:1] == _PLAIN:
            return _raise_tree(_decode_tree(view[1:]), buffers)
        if view[:1] == _PICKLE:
            return pickle.loads(view[1:], buffers=buffers)
    except SerializationError:
        raise  # the value itself was one
    except Exception as error:
        raise SerializationError(f"a received value cannot be rebuilt: {type(error).__name__}: {error}") from error
    raise SerializationError(f"a received value starts with the unknown byte {bytes(view[:1])!r}")


# --- plain ------------------------------------------------------------------------------------------------------


class _NotPlain(Exception):
    """The value has a part that the plain encoding does not cover. Never leaves this file."""


_encode_tree = msgspec.msgpack.Encoder().encode
_decode_tree = msgspec.msgpack.Decoder().decode


class _Lowering:
    """One walk over a value: containers become tagged lists, large arrays become references to buffers."""

    __slots__ = ("_buffers", "_nodes", "_seen")

    def __init__(self, buffers: list[Buffer | Owned]) -> None:
        self._buffers = buffers
        self._nodes = 0
        self._seen: set[int] = set()

    def lower(self, value: Any) -> Any:
        kind = type(value)
        if kind is int:
            if value in _INT64:
                return value
            raise _NotPlain
        if kind is str or kind is bytes:
            return value if len(value) < _LONG_BYTES else self._lower_long(kind, value)
        if kind is float or kind is bool or value is None:
            return value
        self._count(value)
        if kind is tuple:
            return [_TUPLE, *map(self.lower, value)]
        if kind is list:
            return [_LIST, *map(self.lower, value)]
        if kind is dict:
            return [_DICT, *(self.lower(part) for pair in value.items() for part in pair)]
        return self._lower_array(kind, value)

    def _count(self, value: Any) -> None:
        if type(value) is not tuple:
            # The same list twice (or inside itself) must arrive as one list: pickle's memo does that.
            if id(value) in self._seen:
                raise _NotPlain
            self._seen.add(id(value))
        self._nodes += 1 + (len(value) if type(value) in (tuple, list, dict) else 0)
        if self._nodes > _MAX_PLAIN_NODES:
            raise _NotPlain

    def _lower_long(self, kind: type, value: Any) -> Any:
        if len(self._buffers) == MAX_BUFFERS:
            return value
        self._buffers.append(utf8_of(value) if kind is str else value)
        return [_TEXT if kind is str else _BYTES, len(self._buffers) - 1]

    def _lower_array(self, kind: type, value: Any) -> Any:
        if kind is _loaded("numpy", "ndarray") and _is_plain_array(value):
            *described, flat = _array_parts(value)
            return [_ARRAY, *described, self._reference(flat)]
        if kind is _loaded("torch", "Tensor") and _is_plain_tensor(value):
            *described, flat = _tensor_parts(value)
            return [_TENSOR, *described, self._reference(flat)]
        if kind is bytearray and len(value) >= _LONG_BYTES and len(self._buffers) < MAX_BUFFERS:
            return [_BYTEARRAY, self._reference(memoryview(value))]
        raise _NotPlain

    def _reference(self, flat: Any) -> int | bytes:
        """The buffer's index, or the bytes themselves if they are few."""
        if len(flat) < _MIN_BUFFER_BYTES or len(self._buffers) == MAX_BUFFERS:
            return flat.tobytes()  # type: ignore[no-any-return]
        self._buffers.append(memoryview(flat))
        return len(self._buffers) - 1


def _raise_tree(tree: Any, buffers: Sequence[memoryview]) -> Any:
    if type(tree) is not list:
        return tree
    tag = tree[0]
    if tag == _LIST:
        return [_raise_tree(part, buffers) for part in tree[1:]]
    if tag == _TUPLE:
        return tuple([_raise_tree(part, buffers) for part in tree[1:]])
    if tag == _DICT:
        parts = [_raise_tree(part, buffers) for part in tree[1:]]
        return dict(zip(parts[::2], parts[1::2], strict=True))
    if tag == _ARRAY:
        _, dtype, shape, fortran, reference = tree
        return _array_from(dtype, shape, fortran, _resolve(reference, buffers))
    if tag == _TENSOR:
        _, dtype_name, shape, reference = tree
        return _tensor_from(dtype_name, shape, _resolve(reference, buffers))
    if tag in _OF_LONG:
        return _OF_LONG[tag](buffers[tree[1]])
    raise ValueError(f"unknown tag {tag!r}")


def _text_of(buffer: memoryview) -> str:
    return str(buffer, "utf-8")


_OF_LONG: dict[int, Callable[[memoryview], Any]] = {_BYTES: new_bytes, _TEXT: _text_of, _BYTEARRAY: bytearray}


def _resolve(reference: int | bytes, buffers: Sequence[memoryview]) -> Buffer:
    # Bytes inside the payload are read-only; a received array must be writable.
    return buffers[reference] if isinstance(reference, int) else bytearray(reference)


# --- arrays and tensors -----------------------------------------------------------------------------------------


def _loaded(module: str, name: str) -> Any:
    """A type of a library; None if that is not imported, or only half so."""
    return getattr(sys.modules.get(module), name, None)


def _is_plain_array(array: Any) -> bool:
    # `dtype.str` says all about these; 2: a type of another library, such as ml_dtypes.
    dtype = array.dtype
    return dtype.kind in "biufcmMSU" and dtype.isbuiltin != 2 and dtype.itemsize > 0 and dtype.metadata is None


def _array_parts(array: Any) -> tuple[Any, ...]:
    """What `_array_from` takes. The last is a flat uint8 view of the array, or of a contiguous copy if it has gaps."""
    numpy = sys.modules["numpy"]
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    flat = numpy.ascontiguousarray(array.T if fortran else array).reshape(-1).view(numpy.uint8)
    return array.dtype.str, list(array.shape), fortran, flat


def _array_from(dtype: str, shape: list[int], fortran: bool, buffer: Buffer) -> Any:
    numpy = importlib.import_module("numpy")
    flat = numpy.frombuffer(buffer, dtype=numpy.dtype(dtype))
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _is_plain_tensor(tensor: Any) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is sys.modules["torch"].strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def _tensor_parts(tensor: Any) -> tuple[Any, ...]:
    """What `_tensor_from` takes, like `_array_parts`."""
    # Through uint8 because numpy knows no bfloat16.
    flat = tensor.contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
    return str(tensor.dtype)[6:], list(tensor.shape), flat


def _tensor_from(dtype_name: str, shape: list[int], buffer: Buffer) -> Any:
    torch = importlib.import_module("torch")
    dtype = getattr(torch, dtype_name)
    flat = torch.frombuffer(buffer, dtype=dtype) if len(buffer) else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


# --- pickle -----------------------------------------------------------------------------------------------------


def find_by_name(module: str, qualname: str) -> object | None:
    """What is there in this process by the path that a pickle has for a class or function. Nothing is imported."""
    name, *parts = qualname.split(".")
    found = vars(sys.modules[module]).get(name) if sys.modules.get(module) is not None else None
    for part in parts:
        found = getattr(found, part, None)
    return found


def _encode_by_pickle(value: object, main_names: frozenset[str] | None) -> Encoded:
    reads_all = main_names is None or vars(sys.modules["__main__"]).keys() <= main_names
    try:
        return _pickled_with(pickle.Pickler if reads_all else _code_pickler(), value, main_names)
    except Exception as error:
        # By far the most common reason is a lambda or a local class.
        try:
            return _pickled_with(_code_pickler(), value, main_names)
        except _OpenFile as open_file:
            reason = str(open_file)
        except Exception:
            reason = f"{type(error).__name__}: {error}"
        raise SerializationError(f"a value of type {type(value).__qualname__} cannot be pickled: {reason}") from error


class _OpenFile(Exception):
    """A value is an open file, or has one."""


@functools.cache
def _code_pickler() -> Any:
    cloud_pickler: Any = importlib.import_module("cloudpickle").CloudPickler

    class CodePickler(cloud_pickler):  # type: ignore[misc]
        """Takes the code of what the reader does not find by name. (cloudpickle alone would, of all in `__main__`.)"""

        main_names: frozenset[str] | None

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, io.TextIOWrapper) and value not in (sys.stdout, sys.stderr):
                # cloudpickle would send a copy of its content, which nothing that is written to it reaches.
                raise _OpenFile("an open file stays in its process: send its path, or what is in it")
            is_code = isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__"
            return NotImplemented if is_code and self._is_found(value) else super().reducer_override(value)

        def _is_found(self, code: Any) -> bool:
            is_there = self.main_names is None or code.__qualname__.partition(".")[0] in self.main_names
            return is_there and find_by_name("__main__", code.__qualname__) is code

    return CodePickler


def _pickled_with(pickler_type: Any, value: object, main_names: frozenset[str] | None) -> Encoded:
    parts: list[Any] = [_PICKLE]
    buffers: list[Buffer] = []

    def take_buffer(buffer: pickle.PickleBuffer) -> bool:
        """Whether to leave the buffer inside the pickle."""
        raw = buffer.raw()
        if len(raw) < _MIN_BUFFER_BYTES or len(buffers) == MAX_BUFFERS:
            return True
        buffers.append(raw)
        return False

    # To this file it hands over long `bytes` and texts themselves, and the rest in parts of 64 KiB.
    file = types.SimpleNamespace(write=parts.append)
    pickler = _array_aware(pickler_type)(file, protocol=5, buffer_callback=take_buffer)
    if pickler_type is not pickle.Pickler:
        pickler.main_names = main_names
    pickler.dump(value)
    return Encoded(_payload_of(parts), buffers)


def _payload_of(parts: list[Any]) -> bytes | Owned:
    """What a pickler has written; copied only where it is little, or may change."""
    if len(parts) == 2 or sum(map(len, parts)) <= LARGE_BYTES:
        return b"".join(parts)
    return Owned([part if type(part) is bytes else bytes(part) for part in parts])


_array_aware_types: dict[type, Any] = {}


def _array_aware(pickler_type: Any) -> Any:
    """The same pickler with `_reduce_array`, if there can be any array."""
    if _loaded("numpy", "ndarray") is None and _loaded("torch", "Tensor") is None:
        return pickler_type
    if pickler_type not in _array_aware_types:

        class ArrayAware(pickler_type):  # type: ignore[misc]
            def reducer_override(self, value: Any) -> Any:
                if (reduced := _reduce_array(value)) is not None:
                    return reduced
                inherited: Callable[[Any], Any] | None = getattr(super(), "reducer_override", None)
                return NotImplemented if inherited is None else inherited(value)

        _array_aware_types[pickler_type] = ArrayAware
    return _array_aware_types[pickler_type]


def _reduce_array(value: Any) -> Any:
    """How to pickle an array or tensor so that it arrives like one outside of a pickle; None: not our business.

    Numpy and torch themselves would copy tensors, dates and arrays with gaps into the pickle, turn big-endian numbers
    around, and make what was read-only here read-only there.
    """
    kind = type(value)
    if kind is _loaded("torch", "Tensor") and _is_plain_tensor(value):
        *described, flat = _tensor_parts(value)
        return _tensor_from, (*described, pickle.PickleBuffer(flat))
    if kind is _loaded("numpy", "ndarray"):
        writable = value if value.flags.writeable else value.copy(order="K")
        if _is_plain_array(writable):
            *described, flat = _array_parts(writable)
            return _array_from, (*described, pickle.PickleBuffer(flat))
        return None if writable is value else writable.__reduce_ex__(5)
    return None
