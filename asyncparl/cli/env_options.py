"""`--env-option NAME=VALUE`, as values of the right type."""

from __future__ import annotations

import difflib
import json
import typing
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any

from asyncparl.training.environments import EnvironmentOptions
from asyncparl.training.errors import ConfigError


def parse_env_options(texts: Sequence[str]) -> EnvironmentOptions | None:
    """None if there are none. Values are JSON; what is no JSON is a text.

    Raises:
        ConfigError: one line for the first that is wrong.
    """
    if not texts:
        return None
    values = dict(_parse(text) for text in texts)
    try:
        return EnvironmentOptions(**values)
    except ValueError as error:
        raise ConfigError(f"--env-option: {error}") from error


def _parse(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--env-option {text}: write it as NAME=VALUE")
    types = typing.get_type_hints(EnvironmentOptions)
    if name not in types:
        close = difflib.get_close_matches(name, types, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(types))}"
        raise ConfigError(f"--env-option {text}: no option is called {name!r}; {hint}")
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    if isinstance(parsed, list):
        parsed = tuple(parsed)
    if not _fits(parsed, types[name]):
        raise ConfigError(f"--env-option {text}: {name} must be {_describe(types[name])}")
    return name, parsed


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, UnionType):
        return any(_fits(value, part) for part in typing.get_args(kind))
    origin = typing.get_origin(kind)
    if origin is tuple:
        parts = typing.get_args(kind)
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_fits, value, parts))
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, dict if origin is Mapping else kind)


def _describe(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
    if isinstance(kind, UnionType):
        return " or ".join(_describe(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"[{', '.join(_describe(part) for part in typing.get_args(kind))}]"
    return names.get(kind, "a JSON object")
