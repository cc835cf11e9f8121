"""The actors of a node, from the lease that one is started with to the report of its end.

Their processes are the concern of `Workers`. Here is who may have one, what it may use, and who is told of its end:
the driver that started it and those that follow it, the master, the log, and whoever watches the node.
"""

from __future__ import annotations

from asyncparl.errors import AuthenticationError, ProtocolError, ResourceError
from asyncparl.machine import explain
from asyncparl.protocol.master_messages import LeaseEnded, LeaseStarted
from asyncparl.protocol.node_messages import ActorExited, ActorOutput, ActorStarted, Following, PlaceTaken, StartActor
from asyncparl.protocol.parties import id_fault
from asyncparl.protocol.placement import NodeView
from asyncparl.protocol.resources import Lease
from asyncparl.protocol.tickets import ActorPass, issue_pass, read_lease
from asyncparl.runtime.connected_driver import ConnectedDriver
from asyncparl.runtime.jobs import OpenedJob
from asyncparl.runtime.joining import NodeAtMaster
from asyncparl.runtime.journal import Journal
from asyncparl.runtime.node_config import NodeConfig, Workers
from asyncparl.runtime.node_figures import NodeLookout
from asyncparl.runtime.worker_pass import WorkerPass
from asyncparl.runtime.worker_process import WorkerSpec


class NodeActors:
    """See the head of this file."""

    def __init__(self, config: NodeConfig, workers: Workers, master: NodeAtMaster, log: Journal) -> None:
        self._config = config
        self._workers = workers
        self._master = master
        self._log = log
        self._leases: dict[str, Lease] = {}
        self._books = NodeView(config.info.node_id, config.info.name, config.info.capacity)
        self._followers: dict[str, set[ConnectedDriver]] = {}
        """Who wants to hear how an actor ends, beside its owner."""
        self.lookout = NodeLookout(workers, self._leases, config.gpus, log)
        self.is_closed = False
        """Set when no more are to be started."""

    def __contains__(self, actor_id: str) -> bool:
        return actor_id in self._leases

    def runs(self, actor_id: str, num_restarts: int | None) -> bool:
        """Whether this process of the actor runs here, or is being started; None: whether any does."""
        lease = self._leases.get(actor_id)
        return lease is not None and num_restarts in (None, lease.title.num_restarts)

    def leases(self) -> list[Lease]:
        """Of those that run, or are being started."""
        return list(self._leases.values())

    async def start(self, driver: ConnectedDriver, request: StartActor) -> ActorStarted | PlaceTaken:
        """Start a worker process; returns when it listens, or at once if there is no room for it.

        Raises:
            AuthenticationError: the lease is not the master's, or for something else.
            ProtocolError: the driver has not said what its program is, or its id is none.
            ResourceError: it could not be started; the reason in words.
        """
        now = self._master.cluster_time()
        lease = read_lease(self._config.secret, request.lease, self._config.info.node_id, now)
        if (fault := id_fault("an actor", lease.actor_id)) is not None:
            raise ProtocolError(fault)
        if lease.actor_id != request.actor_id or (driver.driver_id and lease.driver_id != driver.driver_id):
            raise AuthenticationError("this lease is for something else")
        spec = await self._spec(lease, request.name, driver.number, driver.opened_job())
        if self.is_closed:
            raise ResourceError(f"{self._config.info.name} is shutting down")
        if lease.actor_id in self._leases:
            raise ResourceError(f"{request.name} has been started already")
        if not self._books.has_room_for(lease):
            self._log.warning("place taken", actor=request.name, id=lease.actor_id)
            return PlaceTaken()
        self._enter(lease, request.name)
        driver.actor_started(lease.actor_id)
        try:
            return await self._workers.start(
                spec, lambda output: self._wrote(driver, output), lambda report: self._exited(driver, report)
            )
        except (OSError, ValueError) as error:
            self._forget(lease.actor_id)
            driver.actor_ended(lease.actor_id)
            raise ResourceError(f"{request.name} cannot be started: {explain(error, 'its node')}") from error

    def follow(self, driver: ConnectedDriver, actor_id: str) -> Following:
        """Tell this driver too how the actor ends. Raises ResourceError if it does not run here."""
        lease = self._leases.get(actor_id)
        if lease is None:
            raise ResourceError("it has ended")
        self._followers.setdefault(actor_id, set()).add(driver)
        return Following(lease.title.num_restarts)

    def why_starting(self, actor_id: str) -> str:
        """What keeps its process from being there, for people; empty if nothing unusual does."""
        reason = self._workers.why_starting(actor_id)
        if reason and (lease := self._leases.get(actor_id)) is not None:
            self._log.warning("actor waits", actor=lease.actor_name, id=actor_id, reason=reason)
        return reason

    def driver_left(self, driver: ConnectedDriver) -> None:
        """It follows nobody any more."""
        for followers in self._followers.values():
            followers.discard(driver)

    async def _spec(self, lease: Lease, name: str, owner: int, job: OpenedJob) -> WorkerSpec:
        return WorkerSpec(
            lease.actor_id,
            name,
            owner,
            job.kind(self._config.preload),
            await job.setup(),
            lease.demand.cpus,
            {"CUDA_VISIBLE_DEVICES": ",".join(self._config.gpus[number] for number in lease.gpu_ids)},
            self._worker_pass(lease, job),
            is_detached=lease.title.is_detached,
            memory_bytes=lease.demand.memory_bytes,
            num_restarts=lease.title.num_restarts,
        )

    def _worker_pass(self, lease: Lease, job: OpenedJob) -> WorkerPass:
        program_id = lease.title.program_id
        key_id, key = "", b""
        if self._config.secret:
            key_id, key = issue_pass(self._config.secret, ActorPass(lease.actor_id, program_id))
        title = lease.title
        return WorkerPass(
            self._config.master_address,
            key_id,
            key,
            program_id,
            title.class_path,
            job.job,
            title.num_restarts,
            title.call_timeout_s,
        )

    def _enter(self, lease: Lease, name: str) -> None:
        if self._config.logs is not None:
            self._config.logs.open(lease.actor_id, name, lease.title.public_name)
        self._log.info("actor starts", actor=name, id=lease.actor_id, restarts=lease.title.num_restarts)
        self.lookout.begins(lease.actor_id)
        self._leases[lease.actor_id] = lease
        self._books.take(lease)
        self._master.tell(LeaseStarted(lease))

    def _forget(self, actor_id: str) -> None:
        if (lease := self._leases.pop(actor_id, None)) is not None:
            self._books.give_back(lease)
            self._master.tell(LeaseEnded(actor_id, lease.title.num_restarts))
        if self._config.logs is not None:
            self._config.logs.end(actor_id)

    def _wrote(self, driver: ConnectedDriver, output: ActorOutput) -> None:
        if self._config.logs is not None:
            self._config.logs.append(output.actor_id, output.lines)
        driver.tell(output)

    def _exited(self, driver: ConnectedDriver, report: ActorExited) -> None:
        lease = self._leases.get(report.actor_id)
        self._log.info(
            "actor ended",
            actor=report.actor_id if lease is None else lease.actor_name,
            id=report.actor_id,
            reason=report.explain(),
            exit_code=report.exit_code,
            signal=report.signal,
            was_asked=report.was_asked,
        )
        self.lookout.ended(report)
        self._forget(report.actor_id)
        driver.tell(report)
        driver.actor_ended(report.actor_id)
        for follower in self._followers.pop(report.actor_id, set()):
            follower.tell(report)
