"""`--protocol`, `--env-option NAME=VALUE` and the options in a file, as values of the right type."""

from __future__ import annotations

import difflib
import json
import typing
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any

from asyncparl.training.environments import EnvironmentOptions, check_given_options
from asyncparl.training.errors import ConfigError
from asyncparl.training.protocols import ProtocolName


def make_env_options(
    env: str | None, protocol: ProtocolName | None, from_file: Mapping[str, Any], texts: Sequence[str]
) -> EnvironmentOptions | None:
    """Those of the protocol, but for those of a file, but for those of the command line; None if there are none at all.

    Values on the command line are JSON; what is no JSON is a text.

    Args:
        env: what they are for, if that is known.

    Raises:
        ConfigError: one line for the first that is wrong, or that means nothing to this environment.
    """
    values = {name: _checked("env_options in the file", name, value) for name, value in from_file.items()}
    values |= dict(_parse(text) for text in texts)
    if not values and protocol is None:
        return None
    try:
        if env is not None:
            check_given_options(env, values)
        return EnvironmentOptions(**values) if protocol is None else EnvironmentOptions.for_protocol(protocol, **values)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _parse(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--env-option {text}: write it as NAME=VALUE")
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    return name, _checked(f"--env-option {text}", name, parsed)


def _checked(where: str, name: str, value: Any) -> Any:
    """The value, if it is of the type of the option."""
    types = typing.get_type_hints(EnvironmentOptions)
    if name not in types:
        close = difflib.get_close_matches(name, types, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(types))}"
        raise ConfigError(f"{where}: no option is called {name!r}; {hint}")
    value = tuple(value) if isinstance(value, list) else value
    if not _fits(value, types[name]):
        raise ConfigError(f"{where}: {name} must be {_describe(types[name])}")
    return value


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
