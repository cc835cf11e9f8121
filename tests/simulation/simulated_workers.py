"""Workers without processes of the operating system: what a node takes for its `WorkerPool`.

Each is a simulated process with the real objects of `runtime/worker.py` in it. Methods without `async` are jobs of a
task, not of a thread: each runs at one moment, before which it may be kept waiting for as long as the lots say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from asyncparl.errors import ResourceError
from asyncparl.protocol.figures import WorkerFigures
from asyncparl.protocol.membership import Member, Membership
from asyncparl.protocol.node_messages import ActorExited, ActorOutput, ActorStarted
from asyncparl.runtime import zygote
from asyncparl.runtime.accepting import visitors
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.last_answers import LastAnswers
from asyncparl.runtime.worker import TERMINATED, _exit_code, _Worker
from asyncparl.runtime.worker_process import WorkerSpec
from tests.simulation.process import Process, current_process, nursery_of

if TYPE_CHECKING:
    from tests.simulation.world import World

_JOIN_THREAD_S = 5.0


class LoopExecutor(Executor):
    """Runs jobs in a task, one after another."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._waiting: deque[Callable[[], None] | None] = deque()
        self._news = trio.Event()
        self._is_running = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after those that wait."""
        self._waiting.append(job)
        self._news.set()

    def stop(self) -> None:
        """Return from `serve` after the jobs that wait."""
        self._waiting.append(None)
        self._news.set()

    async def serve(self) -> None:
        """Until it is stopped. What a job raises is raised here."""
        process = current_process()
        while True:
            while not self._waiting:
                self._news = trio.Event()
                await self._news.wait()
            await trio.sleep(self._world.job_pause_s())
            await process.wait_going()
            job = self._waiting.popleft()
            if job is None:
                return
            self._is_running = True
            try:
                job()
            finally:
                self._is_running = False

    @property
    def is_here(self) -> bool:
        """Whether this is its thread: then no other job can run before the present one returns."""
        return self._is_running


class SimulatedMethodThread(LoopExecutor):
    """What `runtime/reach.py` takes for the thread of an exposed object."""

    def __init__(self, _name: str) -> None:
        self._process = current_process()
        super().__init__(self._process.world)
        self._has_started = False
        self._ended = trio.Event()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after those that wait. Starts with the first of them."""
        if not self._has_started:
            self._has_started = True
            self._process.start_soon(self._run)
        super().submit(job)

    async def end(self) -> None:
        """Let it end after the jobs that wait."""
        self.stop()
        if self._has_started:
            with trio.move_on_after(_JOIN_THREAD_S, shield=True):
                await self._ended.wait()

    async def _run(self) -> None:
        await self.serve()
        self._ended.set()


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """What the pool holds of a worker."""

    member: Member
    spec: WorkerSpec
    process: Process
    on_output: Callable[[ActorOutput], None]
    on_exit: Callable[[ActorExited], None]
    listening: trio.Event = field(default_factory=trio.Event)
    reported: trio.Event = field(default_factory=trio.Event)
    address: str = ""
    real: _Worker | None = None
    is_final: bool = False
    failure: str = ""
    exit_code: int | None = None
    signal: int | None = None

    @property
    def reason(self) -> str:
        if failure := self.member.failure or self.failure:
            return failure
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"its process exited with code {self.exit_code}"


class SimulatedPool:
    """All workers of one node. Decides with the real `Membership`."""

    def __init__(self, world: World, node: Process) -> None:
        self._world = world
        self._node = node
        self._membership = Membership()
        self._deadlines_changed = trio.Event()
        self.workers: dict[str, SimulatedWorker] = {}

    async def start(
        self, spec: WorkerSpec, on_output: Callable[[ActorOutput], None], on_exit: Callable[[ActorExited], None]
    ) -> ActorStarted:
        """As `WorkerPool.start`."""
        member = self._membership.start(spec.actor_id, spec.name, spec.owner, now=trio.current_time())
        number = self._world.next_pid()
        process = Process(self._world, f"worker{number}", self._node.machine, self._node)
        worker = SimulatedWorker(member, spec, process, on_output, on_exit, address=f"memory://worker{number}")
        self.workers[spec.actor_id] = worker
        self._world.worker_started(worker)
        process.start(lambda process: self._be_worker(process, worker))
        self._node.start_soon(self._follow, worker)
        self._deadlines_changed.set()
        with trio.move_on_after(self._membership.start_limit_s):
            await worker.listening.wait()
        if not worker.listening.is_set() or worker.process.is_dead:
            raise ResourceError(f"{spec.name} did not start: {worker.reason}")
        self._membership.ready(spec.actor_id)
        return ActorStarted(worker.address, number)

    def owner_of(self, actor_id: str) -> int | None:
        worker = self.workers.get(actor_id)
        return None if worker is None else worker.member.owner

    def hand_over(self, actor_id: str, connection: Any, admission: Any) -> bool:
        """The worker finds it when it looks."""
        worker = self.workers.get(actor_id)
        if worker is None or worker.process.is_dead:
            connection.close()
            return False
        self._node.channels.pop(connection, None)
        worker.process.channels[connection] = None
        self._world.network.lines[connection.link].acceptor = worker.process
        try:
            worker.process.start_soon(self._serve_handed_over, worker, connection)
        except RuntimeError:  # not yet, or not any more
            connection.close()
            return False
        return True

    async def stop(self, actor_id: str, grace_s: float, *, is_final: bool = False) -> None:
        worker = self.workers.get(actor_id)
        if worker is None:
            return
        worker.is_final = worker.is_final or is_final
        if self._membership.stop(actor_id, grace_s=grace_s, now=trio.current_time()):
            self._deadlines_changed.set()
            if grace_s > 0:
                self._terminate(worker)
        await worker.reported.wait()

    async def stop_owned_by(self, owner: int, grace_s: float, reason: str, *, is_gone: bool) -> None:
        async with trio.open_nursery() as nursery:
            for member in self._membership.owned_by(owner):
                worker = self.workers.get(member.actor_id)
                if worker is not None and not (worker.spec.is_detached and (member.has_started or not is_gone)):
                    worker.failure = worker.failure or reason
                    nursery.start_soon(self.stop, member.actor_id, grace_s)

    async def stop_all(self, grace_s: float, reason: str, *, is_final: bool = False) -> None:
        async with trio.open_nursery() as nursery:
            for worker in list(self.workers.values()):
                worker.failure = worker.failure or reason
                nursery.start_soon(partial(self.stop, worker.spec.actor_id, grace_s, is_final=is_final))

    def pids(self) -> dict[str, int]:
        """There are no processes to look at."""
        return {}

    def why_starting(self, _actor_id: str) -> str:
        """Nobody reads it."""
        return ""

    async def figures(self) -> dict[str, WorkerFigures]:
        """Nobody looks."""
        await trio.lowlevel.checkpoint()
        return {}

    async def run(self) -> None:
        """Kill what is overdue, for ever."""
        while True:
            wait_s = self._membership.next_deadline() - trio.current_time()
            with trio.move_on_after(max(0.0, wait_s)):
                await self._deadlines_changed.wait()
            self._deadlines_changed = trio.Event()
            overdue = self._membership.overdue(now=trio.current_time())
            for member in overdue:
                if (worker := self.workers.get(member.actor_id)) is not None:
                    self.kill(worker)
            if overdue:
                await trio.sleep(0.05)

    def kill(self, worker: SimulatedWorker, number: int = 9) -> None:
        """By a signal that it cannot catch, whoever sends it."""
        if not worker.process.is_dead:
            worker.signal = number
            worker.process.kill()

    # --- inside ---------------------------------------------------------------------------------------------

    def _terminate(self, worker: SimulatedWorker) -> None:
        async def end() -> None:
            await worker.process.wait_going()  # it hears the signal when it goes on
            if not worker.process.is_dead:
                worker.exit_code = TERMINATED
                worker.process.kill()

        try:
            worker.process.start_soon(end)
        except RuntimeError:
            worker.exit_code = TERMINATED
            worker.process.kill()

    async def _be_worker(self, process: Process, worker: SimulatedWorker) -> None:
        spec = worker.spec
        await trio.sleep(self._world.fork_pause_s())
        await process.wait_going()
        executor = LoopExecutor(self._world)
        fork = zygote.Fork(spec.actor_id, spec.name, 1, spec.setup, {})
        worker.real = _Worker(fork, spec.worker_pass, executor, nursery_of(process), LastAnswers())
        process.session = worker.real.session
        listener = self._world.network.listen(worker.address.removeprefix("memory://"))
        process.start_soon(self._take_in, worker, listener)
        worker.listening.set()
        try:
            await executor.serve()
            worker.exit_code = 0
        except SystemExit as stop:
            worker.exit_code = _exit_code(stop)
        except trio.Cancelled:
            raise
        except Exception as error:
            self._world.bug(f"a job of {process} failed", error)
            worker.exit_code = 1
        process.kill()

    async def _take_in(self, worker: SimulatedWorker, listener: Any) -> None:
        assert worker.real is not None
        async for visitor in visitors(listener):
            worker.process.start_soon(worker.real.serve, visitor.open)

    async def _serve_handed_over(self, worker: SimulatedWorker, connection: Any) -> None:
        await worker.listening.wait()
        assert worker.real is not None
        await worker.real.serve(lambda: connection)

    async def _follow(self, worker: SimulatedWorker) -> None:
        """Report its end."""
        await worker.process.ended.wait()
        self._membership.exited(worker.spec.actor_id)
        worker.listening.set()
        await trio.sleep(self._world.settle_pause_s())
        del self.workers[worker.spec.actor_id]
        self._node.children.pop(worker.process, None)
        spec = worker.spec
        worker.on_exit(
            ActorExited(
                spec.actor_id,
                worker.reason,
                worker.exit_code,
                worker.signal,
                [],
                spec.num_restarts,
                worker.is_final,
            )
        )
        worker.reported.set()
