"""Where master and node say what happens, for those who run them. The commands give them a structlog logger."""

from __future__ import annotations

from typing import Any, Protocol


class Log(Protocol):
    """The part of a structlog logger that we use."""

    def info(self, event: str, **fields: Any) -> Any:
        """Something that an operator may want to know."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Something that an operator may want to change."""


class Silence:
    """Says nothing: a private cluster, whose program hears of everything anyway."""

    def info(self, event: str, **fields: Any) -> None:
        """Say nothing."""

    def warning(self, event: str, **fields: Any) -> None:
        """Say nothing."""
