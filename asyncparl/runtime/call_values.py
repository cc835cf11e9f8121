"""What calls take along and bring back. What cannot travel, or cannot be read, is an error that names the call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncparl.errors import SerializationError
from asyncparl.protocol.frames import Frame
from asyncparl.protocol.messages import CallKind
from asyncparl.protocol.values import NOTHING, Encoded, decode_value, encode_value


def encode_argument(call_name: str, kind: int, argument: Any, *, main_names: frozenset[str] | None) -> Encoded:
    """The argument of a call, in the form that its kind has.

    Raises:
        SerializationError: it cannot travel; the message names the call, the argument, its type and the reason.
    """
    if argument is None:
        return NOTHING
    try:
        return encode_value(argument, main_names=main_names)
    except SerializationError as error:
        whole = error
    for name, part in _parts(kind, argument):
        try:
            encode_value(part, main_names=main_names)
        except SerializationError as error:
            raise SerializationError(f"{name} of {call_name}: {error}{_hint(part, main_names)}") from error.__cause__
    raise SerializationError(f"the arguments of {call_name}: {whole}") from whole.__cause__  # each alone could


def decode_argument(method: str, frame: Frame) -> Any:
    """What came with a call of one of our methods.

    Raises:
        SerializationError: it cannot be read here; the message names the method.
    """
    try:
        return decode_value(frame.payload, frame.buffers)
    except SerializationError as error:
        raise SerializationError(f"the arguments of {method}: {error}") from error.__cause__


def encode_result(what: str, method: str, value: object, main_names: frozenset[str] | None) -> Encoded:
    """What a method gives: `what` is "the result of" or "an item of".

    Raises:
        SerializationError: it cannot travel; the message names the method.
    """
    try:
        return encode_value(value, main_names=main_names)
    except SerializationError as error:
        raise SerializationError(f"{what} {method}: {error}") from error.__cause__


def _parts(kind: int, argument: Any) -> Iterator[tuple[str, object]]:
    """Each of them, by the name under which the caller knows it."""
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = {}
    if kind == CallKind.CREATE:
        cls, _, args, kwargs = argument
        yield f"the class {cls.__name__}", cls
    elif kind == CallKind.METHOD:
        args, kwargs = argument
    else:
        yield "the value", argument
    for number, value in enumerate(args, start=1):
        yield f"argument {number}", value
    for keyword, value in kwargs.items():
        yield f"argument {keyword!r}", value


def _hint(part: object, main_names: frozenset[str] | None) -> str:
    if not main_names or not isinstance(part, type) or part.__module__ != "__main__":
        return ""
    if part.__qualname__.partition(".")[0] not in main_names:
        return ". It is defined after `connect()`, so its code has to travel with all that it uses: define it before"
    return ""
