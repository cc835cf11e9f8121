"""The node: one process per machine that starts workers for drivers and reports how they end.

It runs no user code and reads no pickle. It joins a master, and listens: drivers call it like any actor, with the
requests of `protocol/control.py`; a caller of one of its workers dials it too, and the connected socket is passed on,
so that data does not flow through here. A driver's actors end with the driver's link.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import trio

from asyncparl.errors import AuthenticationError, ProtocolError, ResourceError
from asyncparl.protocol.control import (
    ACTOR_ROUTE,
    ALIVE_INTERVAL_S,
    ActorExited,
    ActorOutput,
    ActorStarted,
    Answer,
    DialRelay,
    EndActor,
    FollowActor,
    Following,
    Job,
    JobOpened,
    LeaseEnded,
    LeaseStarted,
    Leave,
    LeaveNode,
    ListLogs,
    LogLines,
    LogList,
    NodeAlive,
    NodeEvent,
    OpenJob,
    Order,
    PutCode,
    ReadLog,
    ShutDown,
    StartActor,
    StopActor,
    WatchNode,
)
from asyncparl.protocol.figures import ReadDeath, ReadFigures, WorkerFigures
from asyncparl.protocol.parties import NodeInfo, id_fault
from asyncparl.protocol.resources import Lease
from asyncparl.protocol.tickets import ActorPass, Ticket, issue_pass, read_lease, read_ticket
from asyncparl.runtime.accepting import may_control, take_in_all
from asyncparl.runtime.code.store import CodeStore
from asyncparl.runtime.jobs import OpenedJob
from asyncparl.runtime.joining import NodeAtMaster
from asyncparl.runtime.journal import Journal
from asyncparl.runtime.log import Log, Silence
from asyncparl.runtime.logs import LogStore
from asyncparl.runtime.node_figures import NodeLookout
from asyncparl.runtime.serving import EventStream, Peer, RequestServer
from asyncparl.runtime.stopping import DRAIN_GRACE_S, KILL_LIMIT_S, LINK_LOST_GRACE_S
from asyncparl.runtime.worker_pass import WorkerPass
from asyncparl.runtime.workers import WorkerSpec
from asyncparl.transport import Admission, Listener, Visitor
from asyncparl.transport.base import Channel

MAX_CODE_BYTES = 2 << 30
"""What the packages of all programs may take on a node's disk."""

_MAX_EVENTS = 10_000
"""Output that a driver has not taken yet. Beyond it lines are dropped, and counted; deaths never are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """What a node is made of."""

    info: NodeInfo
    directory: str
    """Only its user may enter it: the socket files of workers are there."""
    master_address: str = ""
    """For actors that use other actors."""
    secret: bytes = b""
    """Empty in a private cluster: whoever can reach its socket files is let in."""
    gpus: Sequence[str] = ()
    """The names of its GPUs, in the order of their ids."""
    preload: tuple[str, ...] = ()
    store: CodeStore | None = None
    logs: LogStore | None = None
    log: Log = field(default_factory=Silence)
    dial_back: Callable[[str], Awaitable[None]] | None = None
    """Connect to the master's port with a relay route, and take in whoever is there."""


class Workers(Protocol):
    """What a node needs of its worker processes; `WorkerPool`, or a simulated one."""

    async def start(
        self, spec: WorkerSpec, on_output: Callable[[ActorOutput], None], on_exit: Callable[[ActorExited], None]
    ) -> ActorStarted: ...
    def owner_of(self, actor_id: str) -> int | None: ...
    def hand_over(self, actor_id: str, connection: socket.socket, admission: Admission) -> bool: ...
    async def stop(self, actor_id: str, grace_s: float, *, is_final: bool = False) -> None: ...
    async def stop_owned_by(self, owner: int, grace_s: float) -> None: ...
    async def stop_all(self, grace_s: float, reason: str, *, is_final: bool = False) -> None: ...
    def pids(self) -> dict[str, int]: ...
    async def figures(self) -> dict[str, WorkerFigures]: ...


class _Driver(Peer):
    """One connected driver: its program, and the events that it has not taken yet."""

    def __init__(self, number: int, driver_id: str, key_id: str, host: str) -> None:
        super().__init__(key_id, host)
        self.number = number
        self.driver_id = driver_id
        self.job: OpenedJob | None = None
        self.events = EventStream()
        self._num_dropped = 0
        self._actors: set[str] = set()
        self._idle = trio.Event()
        self.is_gone = False

    def actor_started(self, actor_id: str) -> None:
        """One more that runs for it."""
        self._actors.add(actor_id)

    def actor_ended(self, actor_id: str) -> None:
        """One less."""
        self._actors.discard(actor_id)
        if not self._actors:
            self._idle.set()
            self._idle = trio.Event()

    async def wait_idle(self) -> None:
        """Until nothing runs for it."""
        while self._actors:
            await self._idle.wait()

    def tell(self, event: NodeEvent) -> None:
        """Send it, now or when there is credit."""
        if self.is_gone:
            return
        if isinstance(event, ActorOutput):
            if self.events.num_waiting >= _MAX_EVENTS:
                self._num_dropped += len(event.lines)
                return
            if self._num_dropped:
                event = msgspec.structs.replace(event, num_dropped=event.num_dropped + self._num_dropped)
                self._num_dropped = 0
        elif isinstance(event, ActorExited) and self._num_dropped:
            self.events.send(ActorOutput(event.actor_id, is_error=True, lines=[], num_dropped=self._num_dropped))
            self._num_dropped = 0
        self.events.send(event)


class Node:
    """Serves drivers; `run` it, and `drain` to end it in good order."""

    def __init__(
        self,
        config: NodeConfig,
        workers: Workers,
        dial_master: Callable[[], Awaitable[Channel]],
        nursery: trio.Nursery,
    ) -> None:
        self._config = config
        self._workers = workers
        self._nursery = nursery
        self._leases: dict[str, Lease] = {}
        self._log = Journal(config.log)
        self._lookout = NodeLookout(workers, self._leases, config.gpus, self._log)
        self._drivers: set[_Driver] = set()
        self._followers: dict[str, set[_Driver]] = {}
        """Who wants to hear how an actor ends, beside its owner."""
        self._num_drivers = 0
        self._is_draining = False
        self.master = NodeAtMaster(config.info, self._running_leases, self._follow_order, dial_master, nursery)
        self.over = trio.Event()
        """Set when nothing is left and nothing will come: a drain has ended, or its one driver has."""
        self._server = RequestServer("node", nursery, self._answer, {WatchNode: self._watch, ReadLog: self._read_log})

    async def run(self, listeners: Sequence[Listener], *, join_within_s: float | None = None) -> None:
        """Serve until cancelled.

        Args:
            listeners: where drivers dial.
            join_within_s: how long the master may be unreachable at the start.

        Raises:
            AuthenticationError, ResourceError, OSError: the master cannot be joined.
        """
        for listener in listeners:
            self._nursery.start_soon(take_in_all, listener, self._take_in)
        self._nursery.start_soon(self._tell_alive)
        await self.master.run(once_within_s=join_within_s)

    async def drain(self, why: str, *, is_final: bool = False) -> None:
        """Take no more actors, end those that are here, tell the master, and set `over`.

        Final: nor are they to be started again elsewhere.
        """
        if self._is_draining:
            await self.over.wait()
            return
        self._is_draining = True
        self.master.tell(LeaveNode(is_over=False))
        with trio.move_on_after(DRAIN_GRACE_S + KILL_LIMIT_S):
            await self._workers.stop_all(DRAIN_GRACE_S, why, is_final=is_final)
        await self.master.leave()
        self.over.set()

    def key(self, key_id: str) -> bytes | None:
        """The key that a ticket stands for, None if the ticket is no good. For listeners."""
        read = read_ticket(key_id, self._config.info.node_id, self.master.cluster_time(), self._config.secret)
        return None if read is None else read[1]

    # --- who comes ------------------------------------------------------------------------------------------

    def _take_in(self, visitor: Visitor) -> None:
        if visitor.route.startswith(ACTOR_ROUTE):
            self._pass_on(visitor, visitor.route.removeprefix(ACTOR_ROUTE))
        elif may_control(visitor, "node"):
            ticket = self._ticket(visitor)
            self._num_drivers += 1
            driver_id = "" if ticket is None else ticket.driver_id
            driver = _Driver(self._num_drivers, driver_id, visitor.key_id, visitor.peer_host)
            self._nursery.start_soon(self._serve, driver, visitor.open())

    def _pass_on(self, visitor: Visitor, actor_id: str) -> None:
        # Whoever may come here and knows its id, which nobody can guess, was given a reference to it.
        if actor_id not in self._leases:
            visitor.refuse("that actor has ended")
            return
        self._workers.hand_over(actor_id, *visitor.hand_over())

    def _ticket(self, visitor: Visitor) -> Ticket | None:
        """The ticket that a visitor came with; it has proved that it has its key. None in a private cluster."""
        now = self.master.cluster_time()
        read = read_ticket(visitor.key_id, self._config.info.node_id, now, self._config.secret)
        return None if read is None else read[0]

    async def _serve(self, driver: _Driver, channel: Channel) -> None:
        self._drivers.add(driver)
        try:
            await self._server.serve(channel, driver)
        finally:
            self._drivers.discard(driver)
            driver.is_gone = True
        self._log.info("program disconnected", program=driver.driver_id)
        for followers in self._followers.values():
            followers.discard(driver)
        await self._workers.stop_owned_by(driver.number, LINK_LOST_GRACE_S)
        await driver.wait_idle()  # detached actors go on, in the folder of the job
        if driver.job is not None:
            await driver.job.close()

    # --- what drivers ask -----------------------------------------------------------------------------------

    async def _answer(self, driver: _Driver, request: Any) -> Answer | None:
        match request:
            case OpenJob(job):
                return self._open_job(driver, job)
            case PutCode():
                await self._job(driver).put(request)
                if request.is_last:
                    await self._trim_store()
            case StartActor():
                return await self._start(driver, request)
            case FollowActor(actor_id):
                return self._follow(driver, actor_id)
            case StopActor(actor_id, grace_s):
                if self._workers.owner_of(actor_id) in (driver.number, None):
                    await self._workers.stop(actor_id, grace_s)
            case ShutDown(grace_s):
                await self._shut_down(driver, grace_s)
            case ListLogs():
                return LogList(self._logs().infos())
            case ReadFigures(after):
                return await self._lookout.read(after)
            case ReadDeath(actor_id):
                return self._lookout.death(actor_id)
            case _:
                raise ProtocolError(f"{type(request).__name__} is nothing to ask of a node")
        return None

    async def _shut_down(self, driver: _Driver, grace_s: float) -> None:
        if self._config.secret:
            await self._workers.stop_owned_by(driver.number, grace_s)
        else:  # the cluster is the program's own: detached actors end with it
            await self._workers.stop_all(grace_s, "its cluster has ended", is_final=True)
            self.over.set()

    async def _start(self, driver: _Driver, request: StartActor) -> ActorStarted:
        now = self.master.cluster_time()
        lease = read_lease(self._config.secret, request.lease, self._config.info.node_id, now)
        if (fault := id_fault("an actor", lease.actor_id)) is not None:
            raise ProtocolError(fault)
        if lease.actor_id != request.actor_id or (driver.driver_id and lease.driver_id != driver.driver_id):
            raise AuthenticationError("this lease is for something else")
        if self._is_draining:
            raise ResourceError(f"{self._config.info.name} is shutting down")
        if lease.actor_id in self._leases:
            raise ResourceError(f"{request.name} has been started already")
        job = self._job(driver)
        setup = await job.setup()
        spec = WorkerSpec(
            lease.actor_id,
            request.name,
            driver.number,
            job.kind(self._config.preload),
            setup,
            lease.demand.cpus,
            {"CUDA_VISIBLE_DEVICES": ",".join(self._config.gpus[number] for number in lease.gpu_ids)},
            self._worker_pass(lease, job),
            is_detached=lease.title.is_detached,
            memory_bytes=lease.demand.memory_bytes,
            num_restarts=lease.title.num_restarts,
        )
        self._enter(lease, request.name)
        driver.actor_started(lease.actor_id)
        try:
            return await self._workers.start(
                spec, lambda output: self._wrote(driver, output), lambda report: self._exited(driver, report)
            )
        except (OSError, ValueError) as error:
            self._forget(lease.actor_id)
            driver.actor_ended(lease.actor_id)
            raise ResourceError(f"{request.name} cannot be started: {error}") from error

    def _worker_pass(self, lease: Lease, job: OpenedJob) -> WorkerPass:
        program_id = lease.title.program_id
        key_id, key = "", b""
        if self._config.secret:
            key_id, key = issue_pass(self._config.secret, ActorPass(lease.actor_id, program_id))
        title = lease.title
        return WorkerPass(
            self._config.master_address, key_id, key, program_id, title.class_path, job.job, title.num_restarts
        )

    def _open_job(self, driver: _Driver, job: Job) -> JobOpened:
        if driver.job is not None and not driver.job.needs_code:
            raise ProtocolError("a second OpenJob")
        driver.job = OpenedJob(job, self._config.store, self._config.directory)
        return JobOpened(driver.job.needs_code)

    def _follow(self, driver: _Driver, actor_id: str) -> Following:
        lease = self._leases.get(actor_id)
        if lease is None:
            raise ResourceError("it has ended")
        self._followers.setdefault(actor_id, set()).add(driver)
        return Following(lease.title.num_restarts)

    async def _trim_store(self) -> None:
        in_use = {driver.job.code for driver in self._drivers if driver.job is not None}
        if self._config.store is not None:
            await trio.to_thread.run_sync(self._config.store.trim, MAX_CODE_BYTES, in_use)

    def _watch(self, driver: _Driver, _request: WatchNode) -> EventStream:
        return driver.events

    def _read_log(self, driver: _Driver, request: ReadLog) -> EventStream:
        logs = self._logs()
        if not logs.has(request.actor_id):
            raise ResourceError(f"this node has no log of actor {request.actor_id}")
        stream = EventStream()
        lines = logs.read(request.actor_id, request.num_lines, follow=request.follow)
        self._nursery.start_soon(_send_log, lines, stream)
        return stream

    def _job(self, driver: _Driver) -> OpenedJob:
        if driver.job is None:
            raise ProtocolError("OpenJob comes first")
        return driver.job

    def _logs(self) -> LogStore:
        if self._config.logs is None:
            raise ResourceError("a private cluster keeps no logs, unless it has a monitor from its start")
        return self._config.logs

    # --- what becomes of actors -----------------------------------------------------------------------------

    def _enter(self, lease: Lease, name: str) -> None:
        if self._config.logs is not None:
            self._config.logs.open(lease.actor_id, name)
        self._log.info("actor starts", actor=name, id=lease.actor_id, restarts=lease.title.num_restarts)
        self._lookout.begins(lease.actor_id)
        self._leases[lease.actor_id] = lease
        self.master.tell(LeaseStarted(lease))

    def _forget(self, actor_id: str) -> None:
        if (lease := self._leases.pop(actor_id, None)) is not None:
            self.master.tell(LeaseEnded(actor_id, lease.title.num_restarts))
        if self._config.logs is not None:
            self._config.logs.end(actor_id)

    def _wrote(self, driver: _Driver, output: ActorOutput) -> None:
        if self._config.logs is not None:
            self._config.logs.append(output.actor_id, output.lines)
        driver.tell(output)

    def _exited(self, driver: _Driver, report: ActorExited) -> None:
        lease = self._leases.get(report.actor_id)
        self._log.info(
            "actor ended",
            actor=report.actor_id if lease is None else lease.actor_name,
            id=report.actor_id,
            reason=report.reason,
            exit_code=report.exit_code,
            signal=report.signal,
            was_asked=report.was_asked,
        )
        self._lookout.ended(report)
        self._forget(report.actor_id)
        driver.tell(report)
        driver.actor_ended(report.actor_id)
        for follower in self._followers.pop(report.actor_id, set()):
            follower.tell(report)

    def _running_leases(self) -> list[Lease]:
        return list(self._leases.values())

    async def _tell_alive(self) -> None:
        while True:
            await trio.sleep(ALIVE_INTERVAL_S)
            for driver in self._drivers:
                if not driver.events.num_waiting:  # otherwise it has something to hear anyway
                    driver.tell(NodeAlive())

    # --- what the master orders -----------------------------------------------------------------------------

    async def _follow_order(self, order: Order) -> None:
        match order:
            case EndActor(actor_id, is_final):
                await self._workers.stop(actor_id, 0.0, is_final=is_final)
            case Leave():
                await self.drain("the cluster was stopped", is_final=True)
            case DialRelay(route) if self._config.dial_back is not None:
                try:
                    await self._config.dial_back(route)
                except (OSError, AuthenticationError):
                    pass  # the driver hears of it from the master, which waits for both


async def _send_log(lines: AsyncGenerator[list[str], None], stream: EventStream) -> None:
    """Until it is told, or nobody reads it any more."""
    with stream.feeding, contextlib.suppress(OSError, KeyError):  # the log may be forgotten meanwhile
        async with contextlib.aclosing(lines):
            async for chunk in lines:
                stream.send(LogLines(chunk))
                await stream.wait_sent()
    stream.finish()
