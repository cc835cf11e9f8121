"""The worker processes of one node: started by zygotes, watched until the last line of their output is read.

`WorkerPool` acts; what is due when is decided by the pure `protocol/membership.py`. Each of its workers is in
`worker_process.py`.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from functools import partial

import trio

from asyncparl.errors import ResourceError
from asyncparl.machine import num_oom_kills
from asyncparl.protocol.figures import WorkerFigures
from asyncparl.protocol.membership import ActorState, Membership
from asyncparl.protocol.node_messages import ActorExited, ActorOutput, ActorStarted
from asyncparl.protocol.resources import format_bytes
from asyncparl.runtime import zygote
from asyncparl.runtime.memory import memory_of_groups
from asyncparl.runtime.worker_figures import WorkerAsker
from asyncparl.runtime.worker_process import Worker, WorkerSpec, open_worker
from asyncparl.runtime.zygote_client import ZygoteClient, ZygoteKind
from asyncparl.runtime.zygote_start import StartedZygote
from asyncparl.transport import Admission

_MAX_ZYGOTES = 8
_SETTLE_S = 0.5
"""How long the output of a dead worker is waited for: a grandchild may hold its pipes open."""
_LOOK_AT_MEMORY_S = 1.0


class WorkerPool:
    """All workers of this node. `run` must be running; `close` ends whatever is left."""

    def __init__(self, nursery: trio.Nursery, folder: str = "") -> None:
        """`folder`: that of the node, which its zygotes remove if the node is killed."""
        self._nursery = nursery
        self._folder = folder
        self._membership = Membership()
        self._workers: dict[str, Worker] = {}
        self._zygotes: dict[ZygoteKind, ZygoteClient] = {}
        self._deadlines_changed = trio.Event()
        self._num_oom_kills = num_oom_kills()
        self._is_watching_memory = False
        self._asker = WorkerAsker()

    def warm(self, kind: ZygoteKind) -> None:
        """Start the zygote for workers of this kind, before the first of them is asked for."""
        self._zygote(kind)

    def adopt(self, kind: ZygoteKind, started: StartedZygote) -> None:
        """Have this one fork the workers of its kind, before the first of them is asked for."""
        self._follow(kind, ZygoteClient(kind, started))

    async def start(
        self, spec: WorkerSpec, on_output: Callable[[ActorOutput], None], on_exit: Callable[[ActorExited], None]
    ) -> ActorStarted:
        """Start a worker; returns when it listens. `on_exit` is called once, after the last output.

        Raises:
            ResourceError: it did not start; the reason in words. `on_exit` is called all the same.
            OSError: too many files are open; nothing was started.
            ValueError: the id is taken, or the program's arguments are too long.
        """
        worker, fds = self._enter(spec, on_output, on_exit)
        try:
            await worker.fork(fds)
        except ResourceError as error:
            self._ended(worker, failure=str(error))
        except BaseException:
            self._ended(worker, failure="its start was cancelled")  # nothing was forked
            raise
        finally:
            for fd in fds:
                os.close(fd)
        address = ""
        with trio.move_on_after(self._membership.start_limit_s):
            address = await worker.read_address()
            await worker.forked.wait()
            if not address:
                await worker.exited.wait()
        if not address or not worker.pid:
            raise ResourceError(f"{spec.name} did not start: {worker.reason}")
        self._membership.ready(spec.actor_id)
        return ActorStarted(address, worker.pid)

    def owner_of(self, actor_id: str) -> int | None:
        """Which driver it was started for, if it lives."""
        worker = self._workers.get(actor_id)
        return None if worker is None else worker.member.owner

    async def stop(self, actor_id: str, grace_s: float, *, is_final: bool = False) -> None:
        """SIGTERM, then SIGKILL after `grace_s` (at once if 0, or if its zygote imports still, and has not forked it).

        Returns when it has ended and was reported.
        """
        worker = self._workers.get(actor_id)
        if worker is None:
            return
        worker.was_asked = True
        worker.is_final = worker.is_final or is_final
        await worker.look()
        if worker.zygote.may_import:
            grace_s = 0.0
        if self._membership.stop(actor_id, grace_s=grace_s, now=trio.current_time()):
            self._deadlines_changed.set()
            if grace_s > 0:
                await worker.send_signal(signal.SIGTERM)
        await worker.reported.wait()

    async def stop_owned_by(self, owner: int, grace_s: float, reason: str, *, is_gone: bool) -> None:
        """Stop the workers of one driver, but not the detached ones; their reports say why.

        If it is gone, nobody makes the objects of those that do not listen yet: then they end too, detached or not.
        """
        async with trio.open_nursery() as nursery:
            for member in self._membership.owned_by(owner):
                worker = self._workers.get(member.actor_id)
                if worker is not None and not (worker.spec.is_detached and (member.has_started or not is_gone)):
                    worker.failure = worker.failure or reason
                    nursery.start_soon(self.stop, member.actor_id, grace_s)

    async def stop_all(self, grace_s: float, reason: str, *, is_final: bool = False) -> None:
        """Stop every worker; their reports say why."""
        async with trio.open_nursery() as nursery:
            for worker in list(self._workers.values()):
                worker.failure = worker.failure or reason
                nursery.start_soon(partial(self.stop, worker.member.actor_id, grace_s, is_final=is_final))

    def hand_over(self, actor_id: str, connection: socket.socket, admission: Admission) -> bool:
        """Give a worker a connection that the node has let in; False if there is no such worker."""
        with connection:
            worker = self._workers.get(actor_id)
            return worker is not None and worker.hand_over(connection, admission)

    def pids(self) -> dict[str, int]:
        """The process of each actor; 0 while it is being started."""
        return {
            actor_id: 0 if worker.member.state is ActorState.STARTING else worker.pid
            for actor_id, worker in self._workers.items()
        }

    def why_starting(self, actor_id: str) -> str:
        """What keeps an actor's process from being there, for people; empty if nothing unusual does."""
        worker = self._workers.get(actor_id)
        if worker is None or worker.member.state is not ActorState.STARTING:
            return ""
        return worker.why_starting()

    async def figures(self) -> dict[str, WorkerFigures]:
        """What the actors that run do, as far as they answer."""
        return await self._asker.ask(
            {
                actor_id: worker.control
                for actor_id, worker in self._workers.items()
                if worker.member.state is ActorState.RUNNING
            }
        )

    async def run(self) -> None:
        """Kill what is overdue, for ever."""
        while True:
            wait_s = self._membership.next_deadline() - trio.current_time()
            with trio.move_on_after(max(0.0, wait_s)):
                await self._deadlines_changed.wait()
            self._deadlines_changed = trio.Event()
            overdue = self._membership.overdue(now=trio.current_time())
            for member in overdue:
                if (worker := self._workers.get(member.actor_id)) is not None:
                    await self._kill(worker)
            if overdue:
                await trio.sleep(0.05)  # until the zygote reports them, they stay overdue

    def close(self) -> None:
        """End every process that is left. After `run` and its nursery were cancelled."""
        for worker in self._workers.values():
            worker.control.close()
        for client in self._zygotes.values():
            client.close()

    # --- inside ---------------------------------------------------------------------------------------------

    def _enter(
        self, spec: WorkerSpec, on_output: Callable[[ActorOutput], None], on_exit: Callable[[ActorExited], None]
    ) -> tuple[Worker, tuple[int, ...]]:
        """The new worker, and the descriptors of its own ends."""
        client = self._zygote(spec.kind)
        member = self._membership.start(spec.actor_id, spec.name, spec.owner, now=trio.current_time())
        try:
            worker, fds = open_worker(spec, member, client, on_output, on_exit)
        except (OSError, ValueError):
            self._membership.exited(spec.actor_id)
            raise
        self._deadlines_changed.set()
        self._workers[spec.actor_id] = worker
        self._nursery.start_soon(self._follow_worker, worker)
        if spec.memory_bytes and not self._is_watching_memory:
            self._is_watching_memory = True
            self._nursery.start_soon(self._watch_memory)
        return worker, fds

    def _zygote(self, kind: ZygoteKind) -> ZygoteClient:
        client = self._zygotes.get(kind)
        if client is None:
            self._make_room()
            client = ZygoteClient.start(kind, self._folder)
            self._follow(kind, client)
        return client

    def _follow(self, kind: ZygoteKind, client: ZygoteClient) -> None:
        self._zygotes[kind] = client
        self._nursery.start_soon(self._follow_zygote, client)

    async def _kill(self, worker: Worker) -> None:
        if worker.was_killed and worker.zygote.may_import:
            return  # it has been told, and reads that after the order to fork
        worker.was_killed = True
        siblings = [other for other in self._workers.values() if other.zygote is worker.zygote]
        if worker.zygote.may_import and all(sibling.was_killed for sibling in siblings):
            # What it imports takes its time, and nobody waits for the processes that it would start then.
            for sibling in siblings:
                sibling.failure = sibling.failure or "it was stopped before it had a process"
            self._zygotes = {kind: other for kind, other in self._zygotes.items() if other is not worker.zygote}
            worker.zygote.kill()
        else:
            await worker.send_signal(signal.SIGKILL)

    def _make_room(self) -> None:
        """Drop the oldest zygote without workers, if there are many."""
        if len(self._zygotes) < _MAX_ZYGOTES:
            return
        busy = {worker.zygote for worker in self._workers.values()}
        for kind, client in self._zygotes.items():
            if client not in busy:
                del self._zygotes[kind]
                client.hang_up()
                return

    async def _follow_worker(self, worker: Worker) -> None:
        """Forward its output, and report its end after the last line."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.output.run)
            await worker.exited.wait()
            nursery.cancel_scope.deadline = trio.current_time() + _SETTLE_S
        del self._workers[worker.spec.actor_id]
        worker.hear_last_word()
        worker.close()
        worker.on_exit(worker.report())
        worker.reported.set()

    async def _watch_memory(self) -> None:
        """Kill what has more memory than it may; until there is nobody left who has a limit."""
        while limited := [worker for worker in self._workers.values() if worker.spec.memory_bytes]:
            groups = {worker.pid: worker for worker in limited if worker.pid}
            marks = {worker.mark: pid for pid, worker in groups.items()}
            used = await trio.to_thread.run_sync(memory_of_groups, list(groups), marks, abandon_on_cancel=True)
            for pid, num_bytes in used.items():
                worker = groups[pid]
                limit = worker.spec.memory_bytes
                if num_bytes > limit and not worker.exited.is_set():
                    worker.failure = (
                        f"it used {format_bytes(num_bytes)} of memory; its max_memory is {format_bytes(limit)}"
                    )
                    await worker.send_signal(signal.SIGKILL)
            await trio.sleep(_LOOK_AT_MEMORY_S)
        self._is_watching_memory = False

    async def _follow_zygote(self, client: ZygoteClient) -> None:
        while (message := await client.receive()) is not None:
            worker = self._workers.get(message.actor_id)
            if worker is None:
                continue
            match message:
                case zygote.Forked(_, pid, mark):
                    worker.pid, worker.mark = pid, mark
                    worker.forked.set()
                case zygote.ForkFailed(_, reason):
                    self._ended(worker, failure=reason)
                case zygote.Exited(_, exit_code, signal_number):
                    worker.exit_code, worker.signal = exit_code, signal_number
                    self._ended(worker, failure=self._why_killed(worker))
        self._zygotes = {kind: other for kind, other in self._zygotes.items() if other is not client}
        self._nursery.start_soon(client.reap)
        # The kernel kills its workers; make sure of it, then say so.
        for worker in [worker for worker in self._workers.values() if worker.zygote is client]:
            worker.kill_group()
            self._ended(worker, failure="the process that starts workers has died")

    def _ended(self, worker: Worker, failure: str = "") -> None:
        worker.failure = worker.failure or failure
        self._membership.exited(worker.member.actor_id)
        worker.forked.set()
        worker.exited.set()

    def _why_killed(self, worker: Worker) -> str:
        """What there is to say of a SIGKILL that was not ours; empty if nothing."""
        if worker.signal != signal.SIGKILL or worker.was_signalled:
            return ""
        num_before, self._num_oom_kills = self._num_oom_kills, num_oom_kills()
        return "killed by the kernel: there was no memory left" if self._num_oom_kills > num_before else ""
