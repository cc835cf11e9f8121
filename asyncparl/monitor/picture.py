"""The cluster as the pages show it: plain values, ready for JSON. Made by `observer.py`; never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node. None is what is not known."""

    node_id: str
    name: str
    state: str
    labels: dict[str, str]
    num_actors: int
    used_cpus: float
    total_cpus: float | None
    """None: without limit."""
    num_cpus: int | None
    """Of the machine."""
    used_gpus: list[float]
    leased_memory_bytes: int
    offered_memory_bytes: int | None
    cpu_share: float | None
    used_memory_bytes: int | None
    total_memory_bytes: int | None
    gpus: list[dict[str, Any]]
    calls_per_s: float | None
    fault: str
    """Why its figures are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorRow:
    """An actor that has a place, waits for one, or has ended a while ago. None is what is not known."""

    actor_id: str
    name: str
    class_name: str = ""
    public_name: str = ""
    driver_id: str = ""
    program: str = ""
    node_id: str = ""
    node: str = ""
    state: str
    """waiting, starting, running, silent, unknown or ended."""
    is_failed: bool = False
    """It has ended otherwise than by its owner."""
    doing: str = ""
    """What it runs or waits for, or why it ended."""
    doing_s: float | None = None
    silent_s: float | None = None
    """For how long it has been silent, as far as somebody has looked."""
    is_stopped: bool = False
    """It is silent because its process was stopped."""
    pid: int | None = None
    num_restarts: int = 0
    age_s: float | None = None
    calls_per_s: float | None = None
    num_calls: int | None = None
    num_failed: int | None = None
    num_waiting: int | None = None
    busy_share: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    cpu_share: float | None = None
    memory_bytes: int | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """Something that has happened."""

    key: str
    """Of this event alone."""
    time: float
    is_warning: bool
    kind: str
    text: str
    actor_id: str = ""
    where: str = ""
    """The node, or the master."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A training run, or another program that reports: its last report."""

    run_id: str
    program: str
    is_over: bool
    age_s: float
    """Of the report."""
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Alarm:
    """What somebody should look at, and where."""

    text: str
    """Stays the same as long as it is the same alarm."""
    link: str
    for_s: float | None = None
    """How long that has gone on."""
    is_bad: bool = True
    """Else it may be as somebody wants it: something waits."""

    @property
    def line(self) -> str:
        """All of it."""
        return self.text if self.for_s is None else f"{self.text} ({self.for_s:.0f} s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All of it, at one moment."""

    number: int = 0
    time: float = 0.0
    address: str = ""
    cluster_id: str = ""
    fault: str = ""
    """Why nothing newer is known."""
    nodes: dict[str, NodeRow] = field(default_factory=dict)
    actors: dict[str, ActorRow] = field(default_factory=dict)
    ended: dict[str, ActorRow] = field(default_factory=dict)
    programs: list[dict[str, Any]] = field(default_factory=list)
    events: tuple[EventRow, ...] = ()
    """The newest first."""
    runs: dict[str, RunRow] = field(default_factory=dict)
    alarms: tuple[Alarm, ...] = ()
    is_close: bool = False
    """Whether nodes and actors were ever looked at."""

    @property
    def all_actors(self) -> dict[str, ActorRow]:
        """Those that have ended too."""
        return {**self.ended, **self.actors}
