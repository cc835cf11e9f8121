"""The master: who is in the cluster, and which actor runs where.

Decisions are made in the pure `protocol/cluster.py`; this class speaks with nodes and drivers. It keeps nothing on
disk: after a restart everybody joins again and tells what there is. It carries no data and reads no pickle. Where a
driver cannot dial a node, both dial this port, and their sockets go to a relay process.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import trio

from asyncparl.errors import AuthenticationError, ProtocolError, ResourceError
from asyncparl.protocol.cluster import ClusterCore
from asyncparl.protocol.control import ALIVE_INTERVAL_S, Answer
from asyncparl.protocol.decisions import DemandRefused, DriverGone, NodeLost, Refused
from asyncparl.protocol.figures import News, PutReport, ReadNews
from asyncparl.protocol.master_messages import (
    AskPlace,
    AskTicket,
    Beat,
    CallBack,
    DescribeCluster,
    DescribedCluster,
    DialActor,
    DialRelay,
    DriverToMaster,
    EndActor,
    ExplainWait,
    Explanation,
    FindActor,
    FindNamed,
    Heartbeat,
    JoinDriver,
    Joined,
    JoinNode,
    KillActor,
    LeaseEnded,
    LeaseStarted,
    Leave,
    LeaveDriver,
    LeaveNode,
    NodeToMaster,
    OpenRelay,
    RelayOpened,
    StopCluster,
    WatchMaster,
    WithdrawActor,
)
from asyncparl.protocol.parties import Versions, version_fault
from asyncparl.protocol.resources import Lease
from asyncparl.protocol.tickets import ActorPass, read_pass
from asyncparl.runtime.accepting import may_control, take_in_all
from asyncparl.runtime.journal import Journal
from asyncparl.runtime.log import Log, Silence
from asyncparl.runtime.places import Places
from asyncparl.runtime.relay import RELAY_ROUTE, Relays
from asyncparl.runtime.reports import Reports
from asyncparl.runtime.serving import EventStream, Peer, RequestServer
from asyncparl.transport import Channel, Listener, Visitor

TICK_S = 0.5
_STOP_LIMIT_S = 10.0
_BEATS_PER_S = 250
_SLOWEST_BEAT_S = 2.0


def key_of(secrets: Mapping[str, bytes], key_id: str) -> bytes | None:
    """What opens a master: its secrets, and the passes of actors."""
    read = read_pass(key_id, secrets["node"]) if "node" in secrets else None
    return secrets.get(key_id) if read is None else read[1]


class _Member(Peer):
    """A node, a driver, or somebody who has not said yet which of them it is."""

    node_id = ""
    incarnation = 0
    driver_id = ""
    name = ""
    """Of a driver."""

    def __init__(self, key_id: str, host: str) -> None:
        super().__init__(key_id, host)
        self.orders = EventStream()


class Master:
    """Serves nodes and drivers until it is cancelled, or until `over` is set because somebody stopped the cluster."""

    def __init__(
        self,
        nursery: trio.Nursery,
        versions: Versions,
        *,
        secrets: Mapping[str, bytes] | None = None,
        log: Log | None = None,
    ) -> None:
        self._nursery = nursery
        self._log = Journal(log or Silence())
        self._reports = Reports()
        self._secrets = secrets
        self.cluster_id = os.urandom(6).hex()
        self._clock_offset = time.time() - trio.current_time()
        self._versions = versions
        self._core = ClusterCore(versions, now=trio.current_time())
        self._places = Places(self._core, secrets["node"] if secrets else b"", self._cluster_time)
        self._nodes: dict[str, _Member] = {}
        self._drivers: dict[str, _Member] = {}
        self._tokens: dict[str, str] = {}
        """By which a driver that comes back is known to be the same."""
        self._is_stopping = False
        self._relays = Relays(nursery)
        self._server = RequestServer("master", nursery, self._answer, {WatchMaster: self._watch})
        self._node_left = trio.Event()
        self.over = trio.Event()

    async def run(self, listeners: Sequence[Listener]) -> None:
        """Serve until cancelled."""
        for listener in listeners:
            self._nursery.start_soon(take_in_all, listener, self._take_in)
        try:
            while True:
                await trio.sleep(TICK_S)
                self._tick()
        finally:
            self._relays.close()

    def key(self, key_id: str) -> bytes | None:
        """The secrets that open this master. For listeners."""
        return None if self._secrets is None else key_of(self._secrets, key_id)

    async def stop(self) -> None:
        """Send every node home, and set `over` when they have left, or have not for too long."""
        self._is_stopping = True
        for member in self._nodes.values():
            member.orders.send(Leave())
        with trio.move_on_after(_STOP_LIMIT_S):
            while self._core.num_nodes:
                await self._node_left.wait()
        self.over.set()

    # --- who comes ------------------------------------------------------------------------------------------

    def _take_in(self, visitor: Visitor) -> None:
        if visitor.route.startswith(RELAY_ROUTE):
            self._relays.arrived(visitor)
        elif may_control(visitor, "master"):
            member = _Member(visitor.key_id, visitor.peer_host)
            self._nursery.start_soon(self._serve, member, visitor.open())

    async def _serve(self, member: _Member, channel: Channel) -> None:
        await self._server.serve(channel, member)
        now = trio.current_time()
        if member.node_id and self._nodes.get(member.node_id) is member:
            del self._nodes[member.node_id]
            self._core.node_disconnected(member.node_id, member.incarnation, now)
        if member.driver_id and self._drivers.get(member.driver_id) is member:
            del self._drivers[member.driver_id]
            self._core.driver_disconnected(member.driver_id, now)

    def _tick(self) -> None:
        for decision in self._core.tick(trio.current_time()):
            match decision:
                case NodeLost(node_id=node_id):
                    self._log.warning("node lost", node=decision.name, reason=decision.reason)
                    if (member := self._nodes.pop(node_id, None)) is not None:
                        member.disconnect()
                    self._tell_node_left()
                case DemandRefused(actor_id=actor_id, reason=reason):
                    self._places.refuse(actor_id, reason)
                case DriverGone():
                    self._forget_driver(decision)
        self._places.hand_out()

    # --- what is asked --------------------------------------------------------------------------------------

    def _answer(self, member: _Member, request: Any) -> Answer | Coroutine[Any, Any, Answer | None] | None:
        if isinstance(request, NodeToMaster):
            return self._answer_node(member, request)
        if isinstance(request, DriverToMaster):
            return self._answer_driver(member, request)
        raise ProtocolError(f"{type(request).__name__} is nothing to ask of a master")

    def _answer_node(self, member: _Member, request: NodeToMaster) -> Answer | None:
        self._check_role(member, "node")
        now = trio.current_time()
        if isinstance(request, JoinNode):
            return self._join_node(member, request, now)
        if self._nodes.get(member.node_id) is not member:
            raise ResourceError("this node has to join again")
        match request:
            case Heartbeat():
                self._core.heard_node(member.node_id, now)
                return Beat(self._cluster_time(), self._beat_interval_s())
            case LeaseStarted(lease):
                if not self._core.actors.lease_started(member.node_id, lease.actor_id, lease):
                    member.orders.send(_end_process(lease))
            case LeaseEnded(actor_id, num_restarts):
                self._forget_driver(self._core.actor_ended(member.node_id, actor_id, num_restarts))
            case LeaveNode(is_over=False):
                self._core.drain_node(member.node_id)
            case LeaveNode():
                self._log.info("node left", node=self._node_name(member))
                self._core.leave_node(member.node_id)
                del self._nodes[member.node_id]
                self._tell_node_left()
            case WatchMaster():
                raise AssertionError("served as a stream")
        self._places.hand_out()
        return None

    def _join_node(self, member: _Member, request: JoinNode, now: float) -> Joined:
        decision = self._core.join_node(request.info, request.incarnation, request.leases, now)
        if isinstance(decision, Refused):
            self._log.warning("node refused", node=request.info.name, host=member.host, reason=decision.reason)
            raise ResourceError(f"this node cannot join: {decision.reason}")
        if (old := self._nodes.get(request.info.node_id)) is not None and old is not member:
            old.disconnect()
        for lease in decision.unwanted:
            member.orders.send(_end_process(lease))
        member.node_id, member.incarnation = request.info.node_id, request.incarnation
        self._nodes[member.node_id] = member
        if request.is_draining:
            self._core.drain_node(member.node_id)
        if self._is_stopping:
            member.orders.send(Leave())
        self._log.info("node joined", node=decision.name, host=member.host, actors=len(request.leases))
        self._places.hand_out()
        return Joined(self.cluster_id, decision.name, self._cluster_time())

    def _join_driver(self, member: _Member, request: JoinDriver, now: float) -> Joined:
        self._check_role(member, "driver")
        if (fault := version_fault(self._versions, request.versions)) is not None:
            raise ResourceError(f"this program cannot join: {fault}")
        if member.driver_id not in ("", request.driver_id):
            raise ProtocolError("one link is one program")
        actor_pass = self._pass_of(member)
        if actor_pass is not None and actor_pass.actor_id != request.driver_id:
            raise AuthenticationError("this pass is for another actor")
        known_token = self._tokens.get(request.driver_id, request.token)
        if actor_pass is None and self._secrets and not hmac.compare_digest(known_token, request.token):
            raise AuthenticationError("another program has this id")
        if known_token != request.token:
            # The next process of an actor that is started again: what the last one has asked for is void.
            self._core.leave_driver(request.driver_id)
        program_id = request.program_id if actor_pass is None else actor_pass.program_id
        decision = self._core.join_driver(request.driver_id, request.name, now, program_id)
        if isinstance(decision, Refused):
            raise ResourceError(decision.reason)
        if (old := self._drivers.get(request.driver_id)) is not None and old is not member:
            old.disconnect()
        self._tokens[request.driver_id] = request.token
        member.driver_id, member.name = request.driver_id, decision.name
        self._drivers[member.driver_id] = member
        self._log.info("program joined", program=decision.name, host=member.host)
        return Joined(self.cluster_id, decision.name, self._cluster_time())

    def _answer_driver(
        self, member: _Member, request: DriverToMaster
    ) -> Answer | Coroutine[Any, Any, Answer | None] | None:
        """At once, in the order of the requests; only the wait for a place is a task."""
        if isinstance(request, JoinDriver):
            return self._join_driver(member, request, trio.current_time())
        if isinstance(request, DescribeCluster):
            return DescribedCluster(self.cluster_id, self._core.describe(trio.current_time()))
        if isinstance(request, ReadNews):
            return News(self.cluster_id, self._log.after(request.after), self._reports.read())
        if isinstance(request, StopCluster):
            self._check_role(member, "node")  # not for everybody who may run a program here
            self._nursery.start_soon(self.stop)
            return None
        if not member.driver_id:
            raise ResourceError("this program has to join first")
        return self._answer_joined(member, request)

    def _answer_joined(
        self, member: _Member, request: DriverToMaster
    ) -> Answer | Coroutine[Any, Any, Answer | None] | None:
        match request:
            case AskPlace():
                return self._places.ask(member.driver_id, request)
            case ExplainWait(actor_id):
                return Explanation(self._core.actors.why_waiting(actor_id) or "")
            case AskTicket(node_id):
                return self._places.ticket(member.driver_id, node_id)
            case OpenRelay(node_id, may_stall):
                return self._open_relay(node_id, may_stall=may_stall)
            case FindActor() | FindNamed() | KillActor() | CallBack():
                return self._answer_about(member, request)
            case WithdrawActor(actor_id, is_over):
                if self._core.actors.owner_of(actor_id) == member.driver_id:
                    (self._places.withdraw if is_over else self._places.give_back)(actor_id)
            case PutReport(report):
                self._reports.put(member.driver_id, member.name, report)
            case LeaveDriver():
                self._forget_driver(self._core.leave_driver(member.driver_id))
                self._places.hand_out()
        return None

    def _answer_about(
        self, member: _Member, request: FindActor | FindNamed | KillActor | CallBack
    ) -> Answer | Coroutine[Any, Any, Answer | None] | None:
        """What concerns processes of others."""
        match request:
            case FindActor(actor_id):
                return self._places.find(member.driver_id, actor_id)
            case FindNamed(name):
                return self._places.find_named(member.driver_id, name)
            case KillActor(actor_id):
                return self._kill_actor(actor_id)
            case CallBack(driver_id, actor_id):
                if (driver := self._drivers.get(driver_id)) is None:
                    raise ResourceError("that program is not in the cluster")
                driver.orders.send(DialActor(actor_id))
        return None

    def _kill_actor(self, actor_id: str) -> Coroutine[Any, Any, None]:
        """The answer comes once nothing of it can run any more: who has killed it and calls it then is refused."""
        node = self._nodes.get(self._core.actors.node_of(actor_id) or "")
        if node is not None:
            node.orders.send(EndActor(actor_id, is_final=True))
        self._places.kill(actor_id)
        return self._places.wait_ended(actor_id)

    def _watch(self, member: _Member, _request: WatchMaster) -> EventStream:
        return member.orders

    def _forget_driver(self, gone: DriverGone | None) -> None:
        if gone is None:
            return
        self._tokens.pop(gone.driver_id, None)
        self._reports.gone(gone.driver_id)
        self._log.info("program gone", program=gone.name)
        if (member := self._drivers.pop(gone.driver_id, None)) is not None:
            member.driver_id = ""

    def _open_relay(self, node_id: str, *, may_stall: bool) -> RelayOpened:
        node = self._nodes.get(node_id)
        if node is None:
            raise ResourceError(f"node {node_id} is not connected")
        route = self._relays.open(may_stall=may_stall)
        node.orders.send(DialRelay(route))
        return RelayOpened(route)

    # --- inside ---------------------------------------------------------------------------------------------

    def _tell_node_left(self) -> None:
        self._node_left.set()
        self._node_left = trio.Event()

    def _node_name(self, member: _Member) -> str:
        info = self._core.node_info(member.node_id)
        return info.name if info is not None else member.node_id

    def _pass_of(self, member: _Member) -> ActorPass | None:
        """By which an actor came, which has proved it."""
        read = None if self._secrets is None else read_pass(member.key_id, self._secrets["node"])
        return None if read is None else read[0]

    def _check_role(self, member: _Member, role: str) -> None:
        if self._secrets is not None and member.key_id != role and (role != "driver" or not self._pass_of(member)):
            raise AuthenticationError(f"this takes the secret of a {role}; the peer has that of a {member.key_id}")

    def _beat_interval_s(self) -> float:
        """Many nodes tell less often that they live; every silence is still noticed."""
        return min(max(ALIVE_INTERVAL_S, len(self._nodes) / _BEATS_PER_S), _SLOWEST_BEAT_S)

    def _cluster_time(self) -> float:
        return trio.current_time() + self._clock_offset


def _end_process(lease: Lease) -> EndActor:
    return EndActor(lease.actor_id, num_restarts=lease.title.num_restarts)
