"""What a node tells of itself to those who watch: asked for, measured then, and kept for the next who asks just now."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

import msgspec
import trio

from asyncparl.errors import ResourceError
from asyncparl.ids import class_of
from asyncparl.machine import is_stopped
from asyncparl.protocol.figures import ActorFigures, NodeFigures, WorkerFigures
from asyncparl.protocol.node_messages import ActorExited
from asyncparl.protocol.resources import Lease
from asyncparl.runtime.journal import Journal
from asyncparl.runtime.machine_figures import MachineFigures, MachineReader, ProcessFigures
from asyncparl.runtime.node_config import Workers

MAX_DEATHS = 200
"""Reports that are kept."""
_MAX_LINE_CHARS = 500
_NEW_FOR_S = 0.5


class NodeLookout:
    """Remembers what nobody could ask for later, and measures the rest when it is asked for."""

    def __init__(self, workers: Workers, leases: Mapping[str, Lease], gpus: Sequence[str], journal: Journal) -> None:
        self._workers = workers
        self._leases = leases
        self._gpus = gpus
        self._journal = journal
        self._machine = MachineReader()
        self._began: dict[str, float] = {}
        self._deaths: OrderedDict[str, ActorExited] = OrderedDict()
        self._turn = trio.Lock()
        self._last: tuple[float, MachineFigures, list[ActorFigures]] | None = None

    def begins(self, actor_id: str) -> None:
        """An actor is being started."""
        self._began[actor_id] = trio.current_time()

    def ended(self, report: ActorExited) -> None:
        """An actor has ended."""
        self._began.pop(report.actor_id, None)
        tail = [line[:_MAX_LINE_CHARS] for line in report.log_tail]
        self._deaths[report.actor_id] = msgspec.structs.replace(report, log_tail=tail)
        self._deaths.move_to_end(report.actor_id)
        if len(self._deaths) > MAX_DEATHS:
            self._deaths.popitem(last=False)

    def death(self, actor_id: str) -> ActorExited:
        """How an actor ended. Raises ResourceError."""
        if (death := self._deaths.get(actor_id)) is None:
            raise ResourceError("this node does not know how that actor ended")
        return death

    async def read(self, after: int) -> NodeFigures:
        """All there is to see, with what has happened after that number."""
        async with self._turn:
            if self._last is None or trio.current_time() > self._last[0] + _NEW_FOR_S:
                self._last = await self._measure()
        measured_at, machine, actors = self._last
        return NodeFigures(
            at=measured_at,
            cpu_share=machine.cpu_share,
            used_memory_bytes=machine.used_memory_bytes,
            total_memory_bytes=machine.total_memory_bytes,
            actors=actors,
            happenings=self._journal.after(after),
            gpus=machine.gpus,
            num_cpus=os.cpu_count() or 0,
        )

    async def _measure(self) -> tuple[float, MachineFigures, list[ActorFigures]]:
        pids = self._workers.pids()
        calls = await self._workers.figures()
        machine = await self._machine.read(_known(pids.values()), self._gpus)
        now = trio.current_time()
        actors = [
            self._actor(lease, pids.get(lease.actor_id, 0), machine, calls.get(lease.actor_id), now)
            for lease in self._leases.values()
        ]
        return now, machine, actors

    def _actor(
        self, lease: Lease, pid: int, machine: MachineFigures, calls: WorkerFigures | None, now: float
    ) -> ActorFigures:
        process = machine.processes.get(pid, ProcessFigures(0.0, 0))
        return ActorFigures(
            actor_id=lease.actor_id,
            name=lease.actor_name,
            class_name=_class_name(lease),
            pid=pid,
            num_restarts=lease.title.num_restarts,
            age_s=now - self._began.get(lease.actor_id, now),
            cpu_s=process.cpu_s,
            memory_bytes=process.memory_bytes,
            calls=calls,
            public_name=lease.title.public_name,
            is_detached=lease.title.is_detached,
            waits_for=self._workers.why_starting(lease.actor_id),
            is_stopped=calls is None and bool(pid) and is_stopped(pid),
        )


def _known(pids: Collection[int]) -> list[int]:
    return [pid for pid in pids if pid]


def _class_name(lease: Lease) -> str:
    # Pickled by the name under which its proxy class keeps it.
    name = lease.title.class_path[1].removesuffix(".__wrapped__")
    return name or class_of(lease.actor_name)
