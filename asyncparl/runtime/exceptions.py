"""Exceptions across a link: packed where they are raised, rebuilt where they are awaited."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any

from asyncparl.errors import (
    AuthenticationError,
    ProtocolError,
    RemoteError,
    RemoteTraceback,
    ResourceError,
    SerializationError,
)
from asyncparl.machine import out_of_files
from asyncparl.protocol.frames import Frame
from asyncparl.protocol.messages import ErrorReport, Raised
from asyncparl.protocol.owned import in_one_piece
from asyncparl.protocol.values import NOTHING, Encoded, decode_value, encode_value

_MAX_TEXT = 64 * 1024

# What a node or a master raises on purpose; one sentence each, so that nothing is lost.
_OURS: dict[str, type[Exception]] = {
    f"{kind.__module__}.{kind.__qualname__}": kind for kind in (ResourceError, AuthenticationError, ProtocolError)
} | {"ValueError": ValueError, "OSError": OSError}


def pack_exception(error: BaseException, *, note: str, skip_frames: int = 0) -> tuple[ErrorReport, Encoded]:
    """An exception in words and, if it survives a round trip here, as itself.

    Args:
        note: who raised it, for the reader at the other end.
        skip_frames: leading traceback entries of our own to leave out.
    """
    return describe_exception(error, note=note, skip_frames=skip_frames), _pack_if_rebuildable(error)


def describe_exception(error: BaseException, *, note: str, skip_frames: int = 0) -> ErrorReport:
    """An exception in words alone: what nodes and masters, which read no pickle, tell each other."""
    tb = traceback_of(error)
    for _ in range(skip_frames):
        tb = tb.tb_next if tb is not None else None
    formatted = format_exception(error, tb)
    if limit := out_of_files(error, "that process"):  # the caller cannot see it
        note = f"{note}\n{limit}"
    return ErrorReport(qualified_name(type(error)), text_of(error), _shortened(formatted), note)


def traceback_of(error: BaseException) -> TracebackType | None:
    """Where it was raised, whatever its class says."""
    tb: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return tb


def format_exception(error: BaseException, tb: TracebackType | None) -> str:
    """As the interpreter shows it; where its class does not let us, with less."""
    try:
        return "".join(traceback.format_exception(type(error), error, tb))
    except Exception as second:
        frames = "".join(traceback.format_tb(tb))
        why = f"(the rest cannot be shown: that raised {qualified_name(type(second))})"
        return f"Traceback (most recent call last):\n{frames}{qualified_name(type(error))}: {text_of(error)}\n{why}\n"


def rebuild_exception(frame: Frame) -> BaseException:
    """The exception of a `Raised` frame, as its own type if possible, else a `RemoteError`.

    Its cause shows the remote traceback, its last note names the actor.
    """
    assert isinstance(frame.message, Raised)
    report = frame.message.error
    if len(frame.payload):
        try:
            rebuilt = decode_value(frame.payload, frame.buffers)
        except SerializationError:
            rebuilt = None  # its module is missing here, say; the words are enough
        if isinstance(rebuilt, BaseException) and _annotate(rebuilt, report):
            return rebuilt
    error = RemoteError(report.type_name, report.text, report.traceback)
    _annotate(error, report)
    return error


def _annotate(error: BaseException, report: ErrorReport) -> bool:
    """Add what is known of the other side; False if its class does not let us (a frozen dataclass)."""
    try:
        error.__cause__ = RemoteTraceback(report.traceback)
        error.add_note(report.note)
    except Exception:
        return False
    return True


def rebuild_described(frame: Frame) -> BaseException:
    """The exception of a `Raised` frame from its words: one of ours if it was that, else a `RemoteError`."""
    assert isinstance(frame.message, Raised)
    report = frame.message.error
    if (ours := _OURS.get(report.type_name)) is not None:
        return ours(report.text)
    error = RemoteError(report.type_name, report.text, report.traceback)
    error.add_note(report.note)
    return error


def _pack_if_rebuildable(error: BaseException) -> Encoded:
    # Many exceptions with an __init__ of their own pickle well and fail when they are read: try both.
    for candidate in (error, _Bare(error)):
        try:
            value = encode_value(candidate)
            rebuilt = decode_value(in_one_piece(value.payload), [in_one_piece(buffer) for buffer in value.buffers])
        except Exception:  # whatever user code raises there
            continue
        if type(rebuilt) is type(error):
            return value
    return NOTHING


class _Bare:
    """An exception that is rebuilt without its `__init__`, which may want other arguments than those it keeps."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        args = self._error.args
        if isinstance(self._error, BaseExceptionGroup):
            args = (self._error.message, [_Bare(part) for part in self._error.exceptions])
        return _rebuild_bare, (type(self._error), args, self._error.__dict__)


def _rebuild_bare(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def qualified_name(kind: type) -> str:
    """With its module, whatever its metaclass says."""
    name: str = type.__dict__["__qualname__"].__get__(kind)
    module = type.__dict__["__module__"].__get__(kind)
    return name if module == "builtins" else f"{module}.{name}"


def _shortened(text: str) -> str:
    # The beginning says where, the end says what.
    half = _MAX_TEXT // 2
    return text if len(text) <= _MAX_TEXT else f"{text[:half]}\n...\n{text[-half:]}"


def text_of(error: BaseException) -> str:
    """What it says, whatever its class does about that."""
    try:
        return str(error)[:_MAX_TEXT]
    except Exception as second:
        return f"<str() of it raised {qualified_name(type(second))}>"
