"""Figures of a cluster, as a monitor shows them: counted where things happen, and fetched while somebody looks.

| asked    | by      | requests                         |
|----------|---------|----------------------------------|
| a master | driver  | PutReport                        |
| a master | monitor | ReadNews                         |
| a node   | monitor | ReadFigures, ReadDeath           |
| a worker | node    | a packet on its own socket       |

Fields may be added at the end, with a default.
"""

from __future__ import annotations

import msgspec

NUM_BUCKETS = 32
"""Of a histogram of durations. Bucket 0 is below 1.024 us; each of the next ones reaches twice as far."""
MAX_REPORT_BYTES = 16 << 10
"""Of what a program says of itself."""
MAX_HAPPENINGS = 1000
"""That a master, or a node, remembers."""


class WorkerFigures(msgspec.Struct, frozen=True):
    """What a worker has counted since its actor began. Durations are those of methods, without the wait for a turn."""

    num_failed: int
    """Calls that raised."""
    busy_s: float
    """For how long methods ran in the actor's own thread."""
    num_waiting: int
    """Calls that have not begun."""
    num_running: int
    running: str
    """The method that has run for longest; empty if none runs."""
    running_s: float
    durations: list[int]
    """Calls, and items of streams, by bucket."""
    num_awaited: int = 0
    """Calls of others' methods that it has made, and waits for."""
    awaited: str = ""
    """The one that it has waited for longest, as `Store#1.get`."""
    awaited_s: float = 0.0

    def doing(self) -> tuple[str, float | None]:
        """What the actor does, in words, and for how many seconds; None: it has nothing to do."""
        others = f" and {self.num_running - 1} more" if self.num_running > 1 else ""
        if self.num_awaited:
            more = f" and {self.num_awaited - 1} more" if self.num_awaited > 1 else ""
            inside = f", in {self.running}{others}" if self.num_running else ""
            return f"waits for {self.awaited}{more}{inside}", self.awaited_s
        if self.num_running:
            return f"runs {self.running}{others}", self.running_s
        return "waits for calls", None


class ActorFigures(msgspec.Struct, frozen=True):
    """An actor as its node knows it."""

    actor_id: str
    name: str
    class_name: str
    pid: int
    """0: its process is being started."""
    num_restarts: int
    age_s: float
    cpu_s: float
    """That its process has used."""
    memory_bytes: int
    """Of its own: what it shares with other processes is not counted. 0: not known yet."""
    calls: WorkerFigures | None
    """None: the process does not answer."""
    public_name: str = ""
    is_detached: bool = False
    waits_for: str = ""
    """What keeps its process from being there, if that takes longer than it should."""
    is_stopped: bool = False
    """It does not answer because its process was stopped (SIGSTOP)."""


class GpuFigures(msgspec.Struct, frozen=True):
    name: str
    busy_share: float
    used_memory_bytes: int
    total_memory_bytes: int


class Happening(msgspec.Struct, frozen=True):
    """Something that a master or a node has noted. `number` counts them; `time` is that of the machine's clock."""

    number: int
    time: float
    is_warning: bool
    event: str
    fields: dict[str, str]


class ReadFigures(msgspec.Struct, tag=True, frozen=True):
    """How is this node, and what do its actors do? Answered with `NodeFigures`."""

    after: int = 0
    """The number of the last happening that is known."""


class NodeFigures(msgspec.Struct, tag=True, frozen=True):
    """A node, measured a moment ago: at `at`, by a clock of its own."""

    at: float
    cpu_share: float
    """Of the machine's CPUs that was busy since somebody looked last, 0 to 1."""
    used_memory_bytes: int
    """Of the machine."""
    total_memory_bytes: int
    actors: list[ActorFigures]
    happenings: list[Happening]
    gpus: list[GpuFigures] = msgspec.field(default_factory=list)
    num_cpus: int = 0
    """Of the machine; 0: not known."""


class ReadDeath(msgspec.Struct, tag=True, frozen=True):
    """How did this actor end? Answered with `ActorExited`; raised if this node does not know (any more)."""

    actor_id: str


class PutReport(msgspec.Struct, tag=True, frozen=True):
    """What a program says of itself, for people: a JSON object. The master keeps the last one of each driver."""

    report: bytes


class ReadNews(msgspec.Struct, tag=True, frozen=True):
    """What has happened in the cluster, and what do its programs report? Answered with `News`."""

    after: int = 0
    """As of `ReadFigures`."""


class ProgramReport(msgspec.Struct, frozen=True):
    """The last report of a program, `age_s` old."""

    driver_id: str
    name: str
    age_s: float
    report: bytes
    is_over: bool = False
    """The program has gone."""


class News(msgspec.Struct, tag=True, frozen=True):
    cluster_id: str
    """Another one counts its happenings from 1 again."""
    happenings: list[Happening]
    reports: list[ProgramReport]


class Histogram:
    """Durations, in the buckets of this file."""

    __slots__ = ("counts",)

    def __init__(self, counts: list[int] | list[float] | None = None) -> None:
        self.counts: list[float] = [0.0] * NUM_BUCKETS if counts is None else [*counts]

    @property
    def total(self) -> float:
        """How many there are."""
        return sum(self.counts)

    def add(self, counts: list[int] | list[float], *, keep: float = 1.0) -> None:
        """Count more of them; `keep` is what the earlier ones still weigh."""
        self.counts = [old * keep + new for old, new in zip(self.counts, counts, strict=False)]

    def quantile(self, share: float) -> float | None:
        """The duration in seconds below which that share of them is, to within a bucket; None if there are none."""
        wanted = share * self.total - 1e-9  # so that half of two is the first of them
        if not self.total:
            return None
        passed = 0.0
        for bucket, count in enumerate(self.counts):
            if count and passed + count >= wanted:
                low = 0.0 if bucket == 0 else bucket_limit_s(bucket - 1)
                return low + (bucket_limit_s(bucket) - low) * (wanted - passed) / count
            passed += count
        return bucket_limit_s(NUM_BUCKETS - 1)


def bucket_limit_s(bucket: int) -> float:
    """The longest duration that is counted there."""
    return float(1024 << bucket) / 1e9
