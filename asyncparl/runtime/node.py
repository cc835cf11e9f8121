"""The node: one process per machine that starts workers for drivers and reports how they end.

It runs no user code and reads no pickle. It joins a master, and listens: drivers call it like any actor, with the
requests of `protocol/node_messages.py`; a caller of one of its workers dials it too, and the connected socket is
passed on, so that data does not flow through here. A driver's actors end with the driver's link.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import trio

from asyncparl.errors import AuthenticationError, ProtocolError, ResourceError
from asyncparl.protocol.control import ACTOR_ROUTE, ALIVE_INTERVAL_S, Answer
from asyncparl.protocol.figures import ReadDeath, ReadFigures
from asyncparl.protocol.master_messages import (
    DialRelay,
    EndActor,
    ExplainWait,
    Explanation,
    Leave,
    LeaveNode,
    Order,
)
from asyncparl.protocol.node_messages import (
    FollowActor,
    Job,
    JobOpened,
    ListLogs,
    LogLines,
    LogList,
    NodeAlive,
    OpenJob,
    PutCode,
    ReadLog,
    ShutDown,
    StartActor,
    StopActor,
    WatchNode,
)
from asyncparl.protocol.resources import Lease
from asyncparl.protocol.tickets import Ticket, read_ticket
from asyncparl.runtime.accepting import may_control, take_in_all
from asyncparl.runtime.connected_driver import ConnectedDriver
from asyncparl.runtime.jobs import OpenedJob
from asyncparl.runtime.joining import NodeAtMaster
from asyncparl.runtime.journal import Journal
from asyncparl.runtime.logs import LogStore
from asyncparl.runtime.node_actors import NodeActors
from asyncparl.runtime.node_config import NodeConfig, Workers
from asyncparl.runtime.serving import EventStream, RequestServer
from asyncparl.runtime.stopping import DRAIN_GRACE_S, KILL_LIMIT_S, LINK_LOST_GRACE_S
from asyncparl.transport import Listener, Visitor
from asyncparl.transport.base import Channel

MAX_CODE_BYTES = 2 << 30
"""What the packages of all programs may take on a node's disk."""
_OWNER_ENDED = "its owner has ended, or has lost it"


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
        self._log = Journal(config.log)
        self._drivers: set[ConnectedDriver] = set()
        self._num_drivers = 0
        self.master = NodeAtMaster(config.info, self._running_leases, self._follow_order, dial_master, nursery)
        self._actors = NodeActors(config, workers, self.master, self._log)
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
        if self._actors.is_closed:
            await self.over.wait()
            return
        self._actors.is_closed = True
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
            driver = ConnectedDriver(self._num_drivers, driver_id, visitor.key_id, visitor.peer_host)
            self._nursery.start_soon(self._serve, driver, visitor.open())

    def _pass_on(self, visitor: Visitor, actor_id: str) -> None:
        # Whoever may come here and knows its id, which nobody can guess, was given a reference to it.
        if actor_id not in self._actors:
            visitor.refuse("that actor has ended")
            return
        self._workers.hand_over(actor_id, *visitor.hand_over())

    def _ticket(self, visitor: Visitor) -> Ticket | None:
        """The ticket that a visitor came with; it has proved that it has its key. None in a private cluster."""
        now = self.master.cluster_time()
        read = read_ticket(visitor.key_id, self._config.info.node_id, now, self._config.secret)
        return None if read is None else read[0]

    async def _serve(self, driver: ConnectedDriver, channel: Channel) -> None:
        self._drivers.add(driver)
        try:
            await self._server.serve(channel, driver)
        finally:
            self._drivers.discard(driver)
            driver.is_gone = True
        self._log.info("program disconnected", program=driver.driver_id)
        self._actors.driver_left(driver)
        await self._workers.stop_owned_by(driver.number, LINK_LOST_GRACE_S, _OWNER_ENDED, is_gone=True)
        await driver.wait_idle()  # detached actors go on, in the folder of the job
        if driver.job is not None:
            await driver.job.close()

    # --- what drivers ask -----------------------------------------------------------------------------------

    async def _answer(self, driver: ConnectedDriver, request: Any) -> Answer | None:
        match request:
            case OpenJob(job):
                return self._open_job(driver, job)
            case PutCode():
                await driver.opened_job().put(request)
                if request.is_last:
                    await self._trim_store()
            case StartActor():
                return await self._actors.start(driver, request)
            case FollowActor(actor_id):
                return self._actors.follow(driver, actor_id)
            case StopActor(actor_id, grace_s):
                if self._workers.owner_of(actor_id) in (driver.number, None):
                    await self._workers.stop(actor_id, grace_s)
            case ShutDown(grace_s):
                await self._shut_down(driver, grace_s)
            case _:
                return await self._tell(request)
        return None

    async def _tell(self, request: Any) -> Answer:
        """What changes nothing."""
        match request:
            case ExplainWait(actor_id):
                return Explanation(self._actors.why_starting(actor_id))
            case ListLogs():
                return LogList(self._logs().infos())
            case ReadFigures(after):
                return await self._actors.lookout.read(after)
            case ReadDeath(actor_id):
                return self._actors.lookout.death(actor_id)
            case _:
                raise ProtocolError(f"{type(request).__name__} is nothing to ask of a node")

    async def _shut_down(self, driver: ConnectedDriver, grace_s: float) -> None:
        if self._config.secret:
            await self._workers.stop_owned_by(driver.number, grace_s, _OWNER_ENDED, is_gone=False)
        else:  # the cluster is the program's own: detached actors end with it
            await self._workers.stop_all(grace_s, "its cluster has ended", is_final=True)
            self.over.set()

    def _open_job(self, driver: ConnectedDriver, job: Job) -> JobOpened:
        if driver.job is not None and not driver.job.needs_code:
            raise ProtocolError("a second OpenJob")
        driver.job = OpenedJob(job, self._config.store, self._config.directory)
        return JobOpened(driver.job.needs_code)

    async def _trim_store(self) -> None:
        in_use = {driver.job.code for driver in self._drivers if driver.job is not None}
        if self._config.store is not None:
            await trio.to_thread.run_sync(self._config.store.trim, MAX_CODE_BYTES, in_use)

    def _watch(self, driver: ConnectedDriver, _request: WatchNode) -> EventStream:
        return driver.events

    def _read_log(self, driver: ConnectedDriver, request: ReadLog) -> EventStream:
        logs = self._logs()
        if not logs.has(request.actor_id):
            raise ResourceError(f"this node has no log of actor {request.actor_id}")
        stream = EventStream()
        lines = logs.read(request.actor_id, request.num_lines, follow=request.follow)
        self._nursery.start_soon(_send_log, lines, stream)
        return stream

    def _logs(self) -> LogStore:
        if self._config.logs is None:
            raise ResourceError("a private cluster keeps no logs, unless it has a monitor from its start")
        return self._config.logs

    def _running_leases(self) -> list[Lease]:
        return self._actors.leases()

    async def _tell_alive(self) -> None:
        while True:
            await trio.sleep(ALIVE_INTERVAL_S)
            for driver in self._drivers:
                if not driver.events.num_waiting:  # otherwise it has something to hear anyway
                    driver.tell(NodeAlive())

    # --- what the master orders -----------------------------------------------------------------------------

    async def _follow_order(self, order: Order) -> None:
        match order:
            case EndActor(actor_id, is_final, num_restarts):
                if self._actors.runs(actor_id, num_restarts):
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
