"""What users hold: the actors that they can call, and the calls that they have made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from asyncparl.runtime.limits import LAST_WORD_S
from tests.simulation.world import Driver

_SLACK_S = 0.01


@dataclass(slots=True, eq=False)
class Actor:
    """Something that can be called, as one program holds it."""

    driver: Driver
    proxy: Any
    name: str
    is_borrowed: bool = False
    is_doomed: bool = False
    """Somebody has ended it, or it never could be."""
    mood: str = "good"
    is_detached: bool = False
    is_exposed: bool = False
    is_dropped: bool = False
    max_restarts: int = 0
    actor_id: str = ""

    def __post_init__(self) -> None:
        self.actor_id = self.proxy._handle.reference().process_id


@dataclass(slots=True, eq=False)
class Made:
    """A call that was made."""

    number: int
    what: str
    actor: Actor
    call: Any
    at: float
    may_raise: tuple[type[BaseException], ...]
    outcome: str = ""
    is_given_up: bool = False
    is_told_late: bool = False
    never_started: bool = False
    """So it was said."""
    inner: list[int] = field(default_factory=list)
    """Calls that it makes itself."""
    timeout_s: float = float("inf")
    jumped_s: float = 0.0
    """By how much the clock had jumped when it was made."""

    def limit_at(self, jumped_s: float) -> float:
        """When it must be settled at the latest: those who look at a clock that has jumped look late."""
        return self.at + self.timeout_s + min(LAST_WORD_S, self.timeout_s) + _SLACK_S + jumped_s - self.jumped_s

    def __repr__(self) -> str:
        return f"call {self.number} ({self.what} of {self.actor.name} by {self.actor.driver.process})"

    @property
    def is_unsettled(self) -> bool:
        return self.call is not None and not self.call.done()
