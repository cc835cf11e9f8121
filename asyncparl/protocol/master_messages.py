"""What drivers and nodes ask of a master, what it answers, and what it orders.

| by     | requests                                                                                                   |
|--------|------------------------------------------------------------------------------------------------------------|
| driver | JoinDriver, AskPlace, ExplainWait, WithdrawActor, FindActor, FindNamed, KillActor, CallBack, LeaveDriver,  |
|        | AskTicket, OpenRelay, WatchMaster; PutReport                                                               |
| node   | JoinNode, Heartbeat, LeaseStarted, LeaseEnded, LeaveNode, WatchMaster                                      |
| others | DescribeCluster, StopCluster; ReadNews                                                                     |

How they travel is in `control.py`; reports and news are in `figures.py`.
Fields may be added at the end, with a default.
"""

from __future__ import annotations

import msgspec

from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.protocol.figures import News, PutReport, ReadNews
from asyncparl.protocol.parties import NodeInfo, Versions
from asyncparl.protocol.resources import UNTITLED, ActorTitle, Demand, Lease
from asyncparl.protocol.tickets import SignedLease

# --- asked by drivers ----------------------------------------------------------------------------------------


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
    """Why has `AskPlace` no answer yet, or at a node `StartActor`? Answered with `Explanation`."""

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


# --- asked by nodes ------------------------------------------------------------------------------------------


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


# --- answers -------------------------------------------------------------------------------------------------


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
    call_timeout_s: float | None = None


class Placed(msgspec.Struct, tag=True, frozen=True):
    lease: SignedLease
    ticket: NodeTicket


class Explanation(msgspec.Struct, tag=True, frozen=True):
    reason: str
    """Empty: there is nothing to tell."""


class RelayOpened(msgspec.Struct, tag=True, frozen=True):
    """Dial the master with this route, and you are connected to the node."""

    route: str


class DescribedCluster(msgspec.Struct, tag=True, frozen=True):
    cluster_id: str
    view: ClusterView


# --- orders --------------------------------------------------------------------------------------------------


class DialRelay(msgspec.Struct, tag=True, frozen=True):
    """Master to node: dial me with this route, and serve whoever is there."""

    route: str


class EndActor(msgspec.Struct, tag=True, frozen=True):
    """Master to node: this actor has another place, or somebody wants it to end."""

    actor_id: str
    is_final: bool = False
    """The latter: nor may its owner start it again."""
    num_restarts: int | None = None
    """The process that is meant: the next one may have started when this arrives. None: whichever runs."""


class DialActor(msgspec.Struct, tag=True, frozen=True):
    """Master to driver: this actor wants to call what you have exposed, so dial it."""

    actor_id: str


class Leave(msgspec.Struct, tag=True, frozen=True):
    """Master to node: the cluster ends. Stop everything and exit."""


Order = DialRelay | EndActor | DialActor | Leave
MasterAnswer = (
    Joined | Beat | NodeTicket | NamedActor | Placed | Explanation | RelayOpened | DescribedCluster | News | Order
)  # fmt: skip
