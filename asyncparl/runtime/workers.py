"""The worker processes of one node: started by zygotes, watched until the last line of their output is read.

`WorkerPool` acts; what is due when is decided by the pure `protocol/membership.py`.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec
import trio

from asyncparl.errors import ResourceError
from asyncparl.machine import num_oom_kills
from asyncparl.protocol.control import ActorExited, ActorOutput, ActorStarted
from asyncparl.protocol.figures import WorkerFigures
from asyncparl.protocol.membership import ActorState, Member, Membership
from asyncparl.protocol.resources import format_bytes
from asyncparl.runtime import zygote
from asyncparl.runtime.memory import memory_of_groups
from asyncparl.runtime.output import OutputReader
from asyncparl.runtime.worker_figures import WorkerAsker
from asyncparl.runtime.worker_pass import WorkerPass, encode_pass
from asyncparl.runtime.zygote_client import ZygoteClient, ZygoteKind
from asyncparl.transport import Admission

_MAX_ZYGOTES = 8
_ZYGOTE_LIMIT_S = 5.0
_SETTLE_S = 0.5
"""How long the output of a dead worker is waited for: a grandchild may hold its pipes open."""
_LOOK_AT_MEMORY_S = 1.0


class WorkerSpec(NamedTuple):
    """A worker to be started."""

    actor_id: str
    name: str
    owner: int
    """Which of the node's drivers it belongs to."""
    kind: ZygoteKind
    setup: zygote.WorkerSetup
    num_cpus: float
    environ: dict[str, str | None]
    worker_pass: WorkerPass
    is_detached: bool = False
    """It does not end with its owner."""
    memory_bytes: int = 0
    """How much memory it may have of its own; 0: no limit."""
    num_restarts: int = 0


@dataclass(slots=True, eq=False)
class Worker:
    """What the node holds of a worker process."""

    spec: WorkerSpec
    member: Member
    zygote: ZygoteClient
    control: socket.socket
    """Its address comes from here, and connections that were handed over go there."""
    output: OutputReader
    on_exit: Callable[[ActorExited], None]
    socket_file: str
    forked: trio.Event = field(default_factory=trio.Event)
    exited: trio.Event = field(default_factory=trio.Event)
    reported: trio.Event = field(default_factory=trio.Event)
    pid: int = 0
    was_signalled: bool = False
    """By us."""
    was_asked: bool = False
    is_final: bool = False
    """Both as of `ActorExited`."""
    failure: str = ""
    exit_code: int | None = None
    signal: int | None = None

    @property
    def reason(self) -> str:
        """Why it ended, or did not start, for people."""
        if failure := self.member.failure or self.failure:
            return failure
        if not self.exited.is_set():
            return "it took too long"
        if self.signal == signal.SIGKILL and not self.was_signalled:
            return "killed by SIGKILL; asyncparl did not do it"
        if self.signal is not None:
            return f"killed by {_signal_name(self.signal)}"
        return f"its process exited with code {self.exit_code}"


class WorkerPool:
    """All workers of this node. `run` must be running; `close` ends whatever is left."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
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

    async def start(
        self, spec: WorkerSpec, on_output: Callable[[ActorOutput], None], on_exit: Callable[[ActorExited], None]
    ) -> ActorStarted:
        """Start a worker; returns when it listens. `on_exit` is called once, after the last output.

        Raises:
            ResourceError: it did not start; the reason in words. `on_exit` is called all the same.
            OSError: too many files are open; nothing was started.
            ValueError: the id is taken.
        """
        worker, fds = self._enter(spec, on_output, on_exit)
        try:
            await worker.zygote.send(_fork_message(spec), fds)
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
            address = await _read_address(worker.control)
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
        """SIGTERM, then SIGKILL after `grace_s` (at once if 0). Returns when it has ended and was reported."""
        worker = self._workers.get(actor_id)
        if worker is None:
            return
        worker.was_asked = True
        worker.is_final = worker.is_final or is_final
        if self._membership.stop(actor_id, grace_s=grace_s, now=trio.current_time()):
            self._deadlines_changed.set()
            if grace_s > 0:
                await self._signal(worker, signal.SIGTERM)
        await worker.reported.wait()

    async def stop_owned_by(self, owner: int, grace_s: float) -> None:
        """Stop every worker of one driver."""
        async with trio.open_nursery() as nursery:
            for member in self._membership.owned_by(owner):
                if (worker := self._workers.get(member.actor_id)) is not None and not worker.spec.is_detached:
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
            if worker is None:
                return False
            try:
                socket.send_fds(worker.control, [msgspec.msgpack.encode(admission)], [connection.fileno()])
            except OSError:
                return False  # it has ended, or has not looked for so long that its queue is full
            return True

    def pids(self) -> dict[str, int]:
        """The process of each actor; 0 while it is being started."""
        return {
            actor_id: 0 if worker.member.state is ActorState.STARTING else worker.pid
            for actor_id, worker in self._workers.items()
        }

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
                    await self._signal(worker, signal.SIGKILL)
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
            (out_read, out_write), (err_read, err_write), (ours, theirs) = _open_ends()
        except OSError:
            self._membership.exited(spec.actor_id)
            raise
        self._deadlines_changed.set()
        output = OutputReader(out_read, err_read, spec.actor_id, on_output)
        control = socket.socket(fileno=ours)
        control.setblocking(False)
        control.send(encode_pass(spec.worker_pass))  # the first packet: there is room for it
        socket_file = f"{spec.setup.directory}/{spec.actor_id}"
        worker = Worker(spec, member, client, control, output, on_exit, socket_file)
        self._workers[spec.actor_id] = worker
        self._nursery.start_soon(self._follow_worker, worker)
        if spec.memory_bytes and not self._is_watching_memory:
            self._is_watching_memory = True
            self._nursery.start_soon(self._watch_memory)
        return worker, (out_write, err_write, theirs)

    def _zygote(self, kind: ZygoteKind) -> ZygoteClient:
        client = self._zygotes.get(kind)
        if client is None:
            self._make_room()
            client = self._zygotes[kind] = ZygoteClient(kind)
            self._nursery.start_soon(self._follow_zygote, client)
        return client

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
        spec = worker.spec
        del self._workers[spec.actor_id]
        _close_control(worker.control)
        with contextlib.suppress(OSError):  # it never listened
            os.unlink(worker.socket_file)
        worker.on_exit(
            ActorExited(
                spec.actor_id,
                worker.reason,
                worker.exit_code,
                worker.signal,
                worker.output.tail(),
                spec.num_restarts,
                worker.is_final,
                worker.was_asked,
            )
        )
        worker.reported.set()

    async def _watch_memory(self) -> None:
        """Kill what has more memory than it may; until there is nobody left who has a limit."""
        while limited := [worker for worker in self._workers.values() if worker.spec.memory_bytes]:
            groups = {worker.pid: worker for worker in limited if worker.pid}
            used = await trio.to_thread.run_sync(memory_of_groups, list(groups), abandon_on_cancel=True)
            for pid, num_bytes in used.items():
                worker = groups[pid]
                limit = worker.spec.memory_bytes
                if num_bytes > limit and not worker.exited.is_set():
                    worker.failure = (
                        f"it used {format_bytes(num_bytes)} of memory; its max_memory is {format_bytes(limit)}"
                    )
                    await self._signal(worker, signal.SIGKILL)
            await trio.sleep(_LOOK_AT_MEMORY_S)
        self._is_watching_memory = False

    async def _follow_zygote(self, client: ZygoteClient) -> None:
        while (message := await client.receive()) is not None:
            worker = self._workers.get(message.actor_id)
            if worker is None:
                continue
            match message:
                case zygote.Forked(_, pid):
                    worker.pid = pid
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
            if worker.pid and not worker.exited.is_set():
                _kill_group(worker.pid)
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

    @staticmethod
    async def _signal(worker: Worker, number: int) -> None:
        worker.was_signalled = True
        with trio.move_on_after(_ZYGOTE_LIMIT_S) as patience:
            try:
                await worker.zygote.send(zygote.Kill(worker.member.actor_id, number))
            except ResourceError:
                pass  # then its workers are being ended by `_follow_zygote`
        if patience.cancelled_caught:
            worker.zygote.kill()  # it hears nothing: a module that it preloads hangs


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _fork_message(spec: WorkerSpec) -> zygote.Fork:
    num_threads = max(1, math.floor(spec.num_cpus)) if math.isfinite(spec.num_cpus) else 1
    threads = {name: os.environ.get(name, str(num_threads)) for name in zygote.THREAD_VARIABLES}
    return zygote.Fork(spec.actor_id, spec.name, num_threads, spec.setup, {**threads, **spec.environ})


async def _read_address(control: socket.socket) -> str:
    """What a worker says first: where it listens. Empty if it ended before."""
    while True:
        try:
            return control.recv(zygote.MAX_PACKET_BYTES).decode()
        except BlockingIOError:
            try:
                await trio.lowlevel.wait_readable(control)
            except trio.ClosedResourceError:
                return ""
        except OSError:
            return ""


def _close_control(control: socket.socket) -> None:
    trio.lowlevel.notify_closing(control)
    control.close()


def _open_ends() -> list[tuple[int, int]]:
    """Two pipes and a pair of sockets: all of them, or none."""
    opened: list[tuple[int, int]] = []
    try:
        opened += [os.pipe(), os.pipe()]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.append((ours.detach(), theirs.detach()))
    except OSError:
        for fd in (fd for pair in opened for fd in pair):
            os.close(fd)
        raise
    return opened


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
