"""What drivers ask of a node, what it answers, and what it tells them of their actors.

| by      | requests                                                                                         |
|---------|--------------------------------------------------------------------------------------------------|
| driver  | OpenJob, PutCode, StartActor, FollowActor, StopActor, WatchNode, ShutDown, ListLogs, ReadLog;    |
|         | ExplainWait                                                                                      |
| monitor | ReadFigures, ReadDeath                                                                           |

How they travel is in `control.py`; figures and deaths are in `figures.py`; `ExplainWait` is that of a master.
Fields may be added at the end, with a default.
"""

from __future__ import annotations

import msgspec

from asyncparl.protocol.figures import NodeFigures, ReadDeath, ReadFigures
from asyncparl.protocol.master_messages import ExplainWait, Explanation
from asyncparl.protocol.tickets import SignedLease

# --- requests ------------------------------------------------------------------------------------------------


class Job(msgspec.Struct, frozen=True):
    """A driver's program, as its workers need to know it. With `code`, paths are relative to that package.

    Paths and arguments are escaped (`machine.escape_text`), for they may be any bytes.
    """

    sys_path: list[str]
    argv: list[str]
    main_path: str | None
    main_module: str | None
    preload: list[str]
    start_method: str
    cwd: str = ""
    code: str = ""
    """Digest of the package that holds the program; empty: same machine, same files."""
    encrypt: bool = False
    """Whether calls and data between machines are encrypted."""
    max_value_bytes: int | None = 4 << 30
    """The largest value that its processes send and take; None: there is no limit but memory."""


class OpenJob(msgspec.Struct, tag=True, frozen=True):
    """First request of a driver to a node. Answered with `JobOpened`."""

    job: Job


class PutCode(msgspec.Struct, tag=True, frozen=True):
    """The next piece of the package that the node does not have; in order, `is_last` ends it."""

    digest: str
    data: bytes
    is_last: bool
    size: int
    """Of the whole package."""


class StartActor(msgspec.Struct, tag=True, frozen=True):
    """Start a worker process for an actor. Answered with `ActorStarted` or `PlaceTaken`, or raised."""

    actor_id: str
    name: str
    lease: SignedLease


class FollowActor(msgspec.Struct, tag=True, frozen=True):
    """Tell me also how an actor ends that is not mine. Answered with `Following`, raised if it does not run here."""

    actor_id: str


class StopActor(msgspec.Struct, tag=True, frozen=True):
    """SIGTERM, then SIGKILL after `grace_s` (at once if 0). Answered when it is over."""

    actor_id: str
    grace_s: float


class WatchNode(msgspec.Struct, tag=True, frozen=True):
    """Stream the `NodeEvent`s of my actors."""


class ShutDown(msgspec.Struct, tag=True, frozen=True):
    """Stop every actor of mine, then answer. The node of a private cluster then exits."""

    grace_s: float


class ListLogs(msgspec.Struct, tag=True, frozen=True):
    """Which actors, living or not, has this node logs of? Answered with `LogList`."""


class ReadLog(msgspec.Struct, tag=True, frozen=True):
    """Stream an actor's log: its last lines and, with `follow`, what is added until the actor ends."""

    actor_id: str
    num_lines: int
    follow: bool


NodeRequest = (
    OpenJob
    | PutCode
    | StartActor
    | FollowActor
    | StopActor
    | WatchNode
    | ShutDown
    | ListLogs
    | ReadLog
    | ReadFigures
    | ReadDeath
    | ExplainWait
)


# --- answers -------------------------------------------------------------------------------------------------


class JobOpened(msgspec.Struct, tag=True, frozen=True):
    needs_code: bool


class ActorStarted(msgspec.Struct, tag=True, frozen=True):
    """The worker listens at `address`, for callers on its own machine; others dial the node."""

    address: str
    pid: int


class PlaceTaken(msgspec.Struct, tag=True, frozen=True):
    """Others have what the lease names, so nothing was started: two masters, one after the other, gave it away."""


class Following(msgspec.Struct, tag=True, frozen=True):
    """You will hear of this process of the actor, the one after `num_restarts` others."""

    num_restarts: int


class LogInfo(msgspec.Struct, frozen=True):
    actor_id: str
    name: str
    size_bytes: int
    is_running: bool
    public_name: str = ""


class LogList(msgspec.Struct, tag=True, frozen=True):
    logs: list[LogInfo]


# --- streams -------------------------------------------------------------------------------------------------


class ActorOutput(msgspec.Struct, tag=True, frozen=True):
    """Lines that an actor's process wrote. `num_dropped` lines before these were lost: it wrote too fast."""

    actor_id: str
    is_error: bool
    lines: list[str]
    num_dropped: int = 0


class ActorExited(msgspec.Struct, tag=True, frozen=True):
    """The death report of an actor's process, sent once, after all its output."""

    actor_id: str
    reason: str
    exit_code: int | None
    signal: int | None
    log_tail: list[str]
    num_restarts: int = 0
    """Which process of the actor it was: the one after so many others."""
    is_final: bool = False
    """It was ended on purpose, so it must not be started again."""
    was_asked: bool = False
    """Somebody wanted it to end."""
    running: str = ""
    """The method that it was running when its node made it end, if it had been doing so for long."""
    running_s: float = 0.0

    def explain(self, reason: str = "") -> str:
        """Why it ended, for people; `reason` is what is known better than by its node."""
        reason = reason or self.reason
        if not self.running:
            return reason
        return f"{reason}, when it had been running {self.running} for {self.running_s:.0f} s"


class NodeAlive(msgspec.Struct, tag=True, frozen=True):
    """Once a second, so that silence means something."""


class LogLines(msgspec.Struct, tag=True, frozen=True):
    lines: list[str]


NodeEvent = ActorOutput | ActorExited | NodeAlive
NodeAnswer = (
    JobOpened | ActorStarted | PlaceTaken | Following | LogList | LogLines | NodeFigures | Explanation | NodeEvent
)
