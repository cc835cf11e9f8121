"""The options of `@remote_class` and `.options()`: what one actor may use and how it is treated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from asyncparl.protocol.deadlines import check_timeout
from asyncparl.protocol.numbers import check_digits
from asyncparl.protocol.resources import Demand, check_demand, parse_bytes
from asyncparl.protocol.restarts import check_restarts


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorOptions:
    """See `remote_class`."""

    num_cpus: float = 1
    num_gpus: float = 0
    max_memory: int | str | None = None
    max_restarts: int = 0
    restart_window_s: float | None = 60.0
    max_concurrency: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    placement: Literal["pack", "spread"] = "pack"
    name: str | None = None
    detached: bool = False
    call_timeout_s: float | None = None

    def __post_init__(self) -> None:
        self._check_types()
        check_demand(self.demand())
        if self.max_memory is not None and not self.memory_bytes:
            raise ValueError("max_memory must be more than 0; None is no limit")
        if self.placement not in ("pack", "spread"):
            raise ValueError(f"placement must be 'pack' or 'spread', not {self.placement!r}")
        check_restarts(self.max_restarts, self.restart_window_s)
        # As a float: the wire has no integers of more than 64 bits.
        object.__setattr__(self, "call_timeout_s", check_timeout("call_timeout_s", self.call_timeout_s))
        check_concurrency(self.max_concurrency)
        if self.name is not None:
            check_name(self.name)
        if self.detached and self.name is None:
            raise ValueError("detached needs a name too, by which others find the actor")
        if self.detached and self.max_restarts:
            raise ValueError("detached and max_restarts exclude each other: nobody may be there to restart the actor")

    def _check_types(self) -> None:
        for name, (types, what) in _TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
                raise TypeError(f"{name} must be {what}, not {value!r}")
        for key, value in self.labels.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"labels must map texts to texts, not {key!r} to {value!r}")
            _utf8("labels", key + value)

    @property
    def memory_bytes(self) -> int:
        """The limit of its memory; 0: none."""
        try:
            return 0 if self.max_memory is None else parse_bytes(self.max_memory)
        except (TypeError, ValueError) as error:
            raise type(error)(f"max_memory: {error}") from None

    def demand(self) -> Demand:
        """What the actor asks of its node."""
        return Demand(self.num_cpus, self.num_gpus, self.memory_bytes, dict(self.labels), self.placement)


OPTION_NAMES = tuple(ActorOptions.__dataclass_fields__)
_MAX_NAME_BYTES = 200
_CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f\u2028\u2029]")
"""What would do something to the terminals and lists that names are shown in, such as ending a line."""
_TYPES: dict[str, tuple[Any, str]] = {
    "num_cpus": ((int, float), "a number"),
    "num_gpus": ((int, float), "a number"),
    "labels": (Mapping, "a mapping such as {'zone': 'b'}"),
    "placement": (str, "'pack' or 'spread'"),
    "detached": (bool, "True or False"),
}
"""What type checkers would have said. The other options have checks of their own."""


def check_concurrency(max_concurrency: object) -> None:
    """Raise TypeError or ValueError if so many methods cannot run at a time."""
    if not isinstance(max_concurrency, int) or isinstance(max_concurrency, bool):
        raise TypeError(f"max_concurrency must be a whole number, not {max_concurrency!r}")
    check_digits("max_concurrency", max_concurrency)
    if max_concurrency < 1:
        raise ValueError(f"max_concurrency must be 1 or more, not {max_concurrency}")


def check_name(name: object) -> None:
    """Raise TypeError or ValueError if that cannot be the name of an actor."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a text, not {name!r}")
    if not name:
        raise ValueError("name must not be empty")
    if _CONTROL.search(name):
        raise ValueError(f"name must have no control characters: {name!r}")
    if len(_utf8("name", name)) > _MAX_NAME_BYTES:
        raise ValueError(f"name must have at most {_MAX_NAME_BYTES} bytes: {name!r}")


def _utf8(option: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{option} must be text that UTF-8 can express, not {text!r}") from None


def checked_options(base: ActorOptions, options: dict[str, Any]) -> ActorOptions:
    """The same with some of them changed.

    Raises:
        TypeError: an unknown option.
        ValueError: an option that makes no sense.
    """
    for name in options:
        if name not in OPTION_NAMES:
            raise TypeError(f"unknown option {name!r}; a remote class takes {', '.join(OPTION_NAMES)}")
    return replace(base, **options)
