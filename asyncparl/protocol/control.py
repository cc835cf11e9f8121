"""What drivers, nodes and the master say to each other: the payloads of `CallKind.CONTROL` calls and their streams.

They are plain structs, never pickles: neither a node nor the master reads anything that could run code. `decode_*` turn
any bytes into the expected struct or one `ProtocolError`.

| asked    | by     | requests                                                                             |
|----------|--------|--------------------------------------------------------------------------------------|
| a master | driver | JoinDriver, AskPlace, ExplainWait, WithdrawActor, AskTicket, OpenRelay, LeaveDriver  |
| a master | node   | JoinNode, Heartbeat, LeaseStarted, LeaseEnded, LeaveNode, WatchMaster                |
| a master | others | DescribeCluster, StopCluster                                                         |
| a node   | driver | OpenJob, PutCode, StartActor, StopActor, WatchNode, ShutDown, ListLogs, ReadLog      |
"""

from __future__ import annotations

from typing import Any

import msgspec

from asyncparl.errors import ProtocolError
from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.protocol.figures import News, NodeFigures, PutReport, ReadDeath, ReadFigures, ReadNews
from asyncparl.protocol.frames import MSGPACK_ERRORS, Buffer
from asyncparl.protocol.parties import NodeInfo, Versions
from asyncparl.protocol.resources import UNTITLED, ActorTitle, Demand, Lease
from asyncparl.protocol.tickets import SignedLease
from asyncparl.protocol.values import Encoded

ALIVE_INTERVAL_S = 1.0
"""Nodes tell the master and their drivers that often that they live."""
SILENCE_LIMIT_S = 4.5
"""A silence as long as this is the end of the link to a node or to a master: it is noticed within 5 s."""
ACTOR_ROUTE = "actor/"
"""With the id of an actor: what to dial at a node to be connected to the worker."""

_encode = msgspec.msgpack.Encoder().encode


# --- driver to master ---------------------------------------------------------------------------------------


class JoinDriver(msgspec.Struct, tag=True, frozen=True):
    """First request of a driver, again after each reconnect. Answered with `Joined`, or raised."""

    driver_id: str
    name: str
    versions: Versions
    token: str
    """Chosen by the driver at its first join; nobody else knows it, so nobody else can join in its name."""
    program_id: str = ""
    """Of an actor that uses others: the driver at the root of its owners."""


class AskPlace(msgspec.Struct, tag=True, frozen=True):
    """Where may this actor run? Answered with `Placed` once there is room; raised if there can never be.

    Asking again, after a reconnect, keeps the place or the turn.
    """

    actor_id: str
    name: str
    demand: Demand
    title: ActorTitle = UNTITLED


class ExplainWait(msgspec.Struct, tag=True, frozen=True):
    """Why has `AskPlace` no answer yet? Answered with `Explanation`."""

    actor_id: str


class WithdrawActor(msgspec.Struct, tag=True, frozen=True):
    """Give the actor's turn, or the place that it never took, to others."""

    actor_id: str
    is_over: bool = True
    """Nor will its owner ever ask for it again."""


class FindActor(msgspec.Struct, tag=True, frozen=True):
    """Where does this actor run? Answered with `NodeTicket` once it runs somewhere; raised if it has ended."""

    actor_id: str


class FindNamed(msgspec.Struct, tag=True, frozen=True):
    """Which actor has this public name? Answered with `NamedActor`, or raised."""

    name: str


class KillActor(msgspec.Struct, tag=True, frozen=True):
    """End an actor, whoever owns it. No error if it has ended."""

    actor_id: str


class CallBack(msgspec.Struct, tag=True, frozen=True):
    """Have a driver dial an actor, which cannot dial it. Answered when the driver was told; raised if it is gone."""

    driver_id: str
    actor_id: str


class LeaveDriver(msgspec.Struct, tag=True, frozen=True):
    """This program ends. What it waits for, and what it was given and did not take, is free."""


class AskTicket(msgspec.Struct, tag=True, frozen=True):
    """How can I reach this node? Answered with `NodeTicket`."""

    node_id: str


class OpenRelay(msgspec.Struct, tag=True, frozen=True):
    """I cannot dial this node: have it dial back. Answered with `RelayOpened`."""

    node_id: str
    may_stall: bool
    """As of `dial`."""


class DescribeCluster(msgspec.Struct, tag=True, frozen=True):
    """Answered with a `ClusterView`."""


class StopCluster(msgspec.Struct, tag=True, frozen=True):
    """End the whole cluster: every node leaves, then the master."""


# --- node to master -----------------------------------------------------------------------------------------


class JoinNode(msgspec.Struct, tag=True, frozen=True):
    """First request of a node, again after each reconnect with the next incarnation number and what it runs."""

    info: NodeInfo
    incarnation: int
    leases: list[Lease]
    is_draining: bool
    """It takes no more actors."""


class Heartbeat(msgspec.Struct, tag=True, frozen=True):
    """As often as the last `Beat` says. Answered with `Beat`."""


class LeaseStarted(msgspec.Struct, tag=True, frozen=True):
    """The actor of this lease has a process."""

    lease: Lease


class LeaseEnded(msgspec.Struct, tag=True, frozen=True):
    """The actor's process, the one after `num_restarts` others, is gone; what it used is free."""

    actor_id: str
    num_restarts: int = 0


class LeaveNode(msgspec.Struct, tag=True, frozen=True):
    """No more actors here. `is_over`: and the last one has ended."""

    is_over: bool


class WatchMaster(msgspec.Struct, tag=True, frozen=True):
    """Stream the `Order`s for me. Also asked by drivers."""


# --- driver to node -----------------------------------------------------------------------------------------


class Job(msgspec.Struct, frozen=True):
    """A driver's program, as its workers need to know it. With `code`, paths are relative to that package."""

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
    """Start a worker process for an actor. Answered with `ActorStarted`, or raised."""

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


DriverToMaster = (
    JoinDriver
    | AskPlace
    | ExplainWait
    | WithdrawActor
    | FindActor
    | FindNamed
    | KillActor
    | CallBack
    | LeaveDriver
    | AskTicket
    | OpenRelay
    | DescribeCluster
    | PutReport
    | ReadNews
    | StopCluster
)
NodeToMaster = JoinNode | Heartbeat | LeaseStarted | LeaseEnded | LeaveNode | WatchMaster
MasterRequest = DriverToMaster | NodeToMaster
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
)
Request = MasterRequest | NodeRequest


# --- answers ------------------------------------------------------------------------------------------------


class Joined(msgspec.Struct, tag=True, frozen=True):
    """The master took a driver or a node in, under a name that is unique in the cluster."""

    cluster_id: str
    name: str
    cluster_time: float
    """The master's clock, in seconds; tickets expire by it."""


class Beat(msgspec.Struct, tag=True, frozen=True):
    """The master hears you; tell it again in `interval_s`."""

    cluster_time: float
    interval_s: float


class NodeTicket(msgspec.Struct, tag=True, frozen=True):
    """How a driver reaches a node, and the key that proves it. Both empty in a private cluster."""

    node: NodeInfo
    ticket: bytes
    key: bytes


class NamedActor(msgspec.Struct, tag=True, frozen=True):
    """An actor with a public name; `class_path` is module and qualified name of its class."""

    actor_id: str
    name: str
    class_path: tuple[str, str]


class Placed(msgspec.Struct, tag=True, frozen=True):
    lease: SignedLease
    ticket: NodeTicket


class Explanation(msgspec.Struct, tag=True, frozen=True):
    reason: str


class RelayOpened(msgspec.Struct, tag=True, frozen=True):
    """Dial the master with this route, and you are connected to the node."""

    route: str


class JobOpened(msgspec.Struct, tag=True, frozen=True):
    needs_code: bool


class ActorStarted(msgspec.Struct, tag=True, frozen=True):
    """The worker listens at `address`, for callers on its own machine; others dial the node."""

    address: str
    pid: int


class Following(msgspec.Struct, tag=True, frozen=True):
    """You will hear of this process of the actor, the one after `num_restarts` others."""

    num_restarts: int


class LogInfo(msgspec.Struct, frozen=True):
    actor_id: str
    name: str
    size_bytes: int
    is_running: bool


class LogList(msgspec.Struct, tag=True, frozen=True):
    logs: list[LogInfo]


class DescribedCluster(msgspec.Struct, tag=True, frozen=True):
    cluster_id: str
    view: ClusterView


# --- streams ------------------------------------------------------------------------------------------------


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


class NodeAlive(msgspec.Struct, tag=True, frozen=True):
    """Once a second, so that silence means something."""


class DialRelay(msgspec.Struct, tag=True, frozen=True):
    """Master to node: dial me with this route, and serve whoever is there."""

    route: str


class EndActor(msgspec.Struct, tag=True, frozen=True):
    """Master to node: this actor has its place elsewhere, or somebody wants it to end."""

    actor_id: str
    is_final: bool = False
    """The latter: nor may its owner start it again."""


class DialActor(msgspec.Struct, tag=True, frozen=True):
    """Master to driver: this actor wants to call what you have exposed, so dial it."""

    actor_id: str


class Leave(msgspec.Struct, tag=True, frozen=True):
    """Master to node: the cluster ends. Stop everything and exit."""


class LogLines(msgspec.Struct, tag=True, frozen=True):
    lines: list[str]


NodeEvent = ActorOutput | ActorExited | NodeAlive
Order = DialRelay | EndActor | Leave | DialActor
Answer = (
    Joined | Beat | NodeTicket | NamedActor | Placed | Explanation | RelayOpened | JobOpened | ActorStarted | Following
    | LogList | DescribedCluster | NodeEvent | Order | LogLines | NodeFigures | News
)  # fmt: skip

_request_decoder = msgspec.msgpack.Decoder(Request)
_answer_decoder = msgspec.msgpack.Decoder(Answer)


def encode_control(struct: Request | Answer) -> Encoded:
    """The payload of a control message."""
    return Encoded(_encode(struct))


def decode_request(payload: Buffer) -> Request:
    """Read what is asked of a node or of the master.

    Raises:
        ProtocolError: it is no `Request`.
    """
    try:
        return _request_decoder.decode(payload)
    except MSGPACK_ERRORS as error:
        raise ProtocolError(f"not a request to a node or a master: {error}") from None


def decode_answer(payload: Buffer, _buffers: object = ()) -> Any:
    """Read an `Answer`, or an item of a stream; None for an empty answer.

    Raises:
        ProtocolError: it is none of these.
    """
    if not payload:
        return None
    try:
        return _answer_decoder.decode(payload)
    except MSGPACK_ERRORS as error:
        raise ProtocolError(f"not the answer of a node or a master: {error}") from None
