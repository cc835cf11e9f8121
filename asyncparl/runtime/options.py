"""The options of `@remote_class` and `.options()`: what one actor may use and how it is treated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
    name: str = ""
    detached: bool = False

    def __post_init__(self) -> None:
        for name in ("num_cpus", "num_gpus"):
            if not isinstance(getattr(self, name), (int, float)):
                raise TypeError(f"{name} must be a number, not {getattr(self, name)!r}")
        check_demand(self.demand())
        if self.max_memory is not None and not self.memory_bytes:
            raise ValueError("max_memory must be more than 0; None is no limit")
        if self.placement not in ("pack", "spread"):
            raise ValueError(f"placement must be 'pack' or 'spread', not {self.placement!r}")
        check_restarts(self.max_restarts, self.restart_window_s)
        if self.max_concurrency < 1:
            raise ValueError(f"max_concurrency must be 1 or more, not {self.max_concurrency}")
        if len(self.name.encode()) > _MAX_NAME_BYTES:
            raise ValueError(f"a name has at most {_MAX_NAME_BYTES} bytes: {self.name!r}")
        if self.detached and not self.name:
            raise ValueError("a detached actor needs a name, by which others find it")
        if self.detached and self.max_restarts:
            raise ValueError("a detached actor cannot have max_restarts: nobody may be there to restart it")

    @property
    def memory_bytes(self) -> int:
        """The limit of its memory; 0: none."""
        return 0 if self.max_memory is None else parse_bytes(self.max_memory)

    def demand(self) -> Demand:
        """What the actor asks of its node."""
        return Demand(self.num_cpus, self.num_gpus, self.memory_bytes, dict(self.labels), self.placement)


OPTION_NAMES = tuple(ActorOptions.__dataclass_fields__)
_MAX_NAME_BYTES = 200


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
