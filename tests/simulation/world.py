"""One simulated cluster with everything in it: machines, master, nodes and programs."""

from __future__ import annotations

import random
import traceback
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
from trio.testing import MockClock

from asyncparl.errors import AsyncparlError
from asyncparl.protocol.parties import NodeInfo
from asyncparl.protocol.resources import Capacity, Lease
from asyncparl.runtime.link import Link
from asyncparl.runtime.master import Master
from asyncparl.runtime.node import Node
from asyncparl.runtime.node_config import NodeConfig
from asyncparl.runtime.program import Program
from asyncparl.runtime.session import Session, open_session
from asyncparl.transport import Credentials
from asyncparl.transport.memory import _default_network
from tests.simulation.network import HandingListener, SimulatedNetwork
from tests.simulation.process import Process, nursery_of
from tests.simulation.seeded import versions
from tests.simulation.simulated_workers import SimulatedPool, SimulatedWorker

MASTER = "master"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a cluster is like. All of it is drawn from the seed of a scenario, if nobody says otherwise."""

    num_nodes: int = 1
    num_drivers: int = 1
    cpus: float = 4
    latency: str = "lan"
    queued_messages: int = 128
    lossy_close: float = 0.0
    slow_jobs: float = 0.0
    """How likely a job of an actor is kept waiting."""
    is_shared: bool = False
    """Whether programs run on the machine of the first node."""
    is_in_a_hurry: bool = False
    """Whether it ends as soon as everything is in order, instead of showing that it stays so."""


class Witness:
    """Has seen which calls really ran, where and in which order."""

    def __init__(self) -> None:
        self.runs: dict[int, list[str]] = defaultdict(list)
        self.order: dict[str, list[int]] = defaultdict(list)

    def ran(self, call_id: int, process: Process, *, again: bool = False) -> None:
        """A method begins. Again: it may."""
        self.runs[call_id].append(process.name)
        self.order[process.name].append(call_id)
        process.world.note("ran", call_id, process.name)
        if len(self.runs[call_id]) > 1 and not again:
            process.world.bug(f"call {call_id} ran {len(self.runs[call_id])} times: {self.runs[call_id]}")


@dataclass(slots=True)
class NodeHere:
    """A node of the simulation."""

    process: Process
    node: Node
    pool: SimulatedPool


class Driver:
    """A program: a process with an open session, in which users run tasks."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.joined = trio.Event()
        self.leaving = trio.Event()
        self.cancels = False
        """Whether it leaves by being cancelled."""
        self.left_at = float("inf")
        self.session: Session | None = None
        self.why_not = ""
        self._jobs, self._todo = trio.open_memory_channel[tuple[Callable[..., Any], tuple[Any, ...]]](float("inf"))

    @property
    def is_here(self) -> bool:
        """Whether users can still do something."""
        return not (self.process.is_dead or self.leaving.is_set() or self.why_not)

    def do(self, function: Callable[..., Any], *args: Any) -> None:
        """Run a task of a user, once there is a session."""
        if self.is_here:
            self._jobs.send_nowait((function, args))

    async def main(self, process: Process) -> None:
        """From joining to leaving."""
        program = process.world.program
        credentials = Credentials("driver", process.world.secrets["driver"])
        try:
            async with open_session(program, f"memory://{MASTER}", credentials, encrypt=False) as self.session:
                process.session = lambda: self.session
                process.world.note("joined", process.name)
                self.joined.set()
                async with trio.open_nursery() as users:
                    users.start_soon(self._take_jobs, users)
                    await self.leaving.wait()
                    process.world.note("leaves", process.name)
                    users.cancel_scope.cancel()
        except AsyncparlError as error:
            self.why_not = str(error)
            process.world.note("did not join", process.name, type(error).__name__)
        self.left_at = process.world.now
        process.world.note("left", process.name)

    async def _take_jobs(self, users: trio.Nursery) -> None:
        async for function, args in self._todo:
            users.start_soon(function, *args)


class World:
    """See the head of this file."""

    def __init__(self, seed: str, settings: Settings, clock: MockClock, nursery: trio.Nursery) -> None:
        self.seed = seed
        self.settings = settings
        self.clock = clock
        self.nursery = nursery
        self.lots = random.Random(f"{seed}/world")
        self._pauses = random.Random(f"{seed}/pauses")
        self.log: list[tuple[Any, ...]] = []
        self.bugs: list[str] = []
        self.counts: Counter[str] = Counter()
        self.is_over = False
        self.is_calm = False
        """From now on nothing goes wrong any more."""
        self.last_fault_at = -float("inf")
        self.jumped_s = 0.0
        """By how much the clock has jumped, so far."""
        self._troubles: list[tuple[float, float]] = []
        """When something went wrong, and for how many seconds that may hold things up."""
        self.secrets = {role: random.Random(f"{seed}/{role}").randbytes(32) for role in ("node", "driver")}
        self.program = Program(preload=[], start_method=None)
        self.network = SimulatedNetwork(
            self,
            queued_messages=settings.queued_messages,
            latency=settings.latency,
            lossy_close=settings.lossy_close,
        )
        _default_network.set(self.network)
        self.witness = Witness()
        self.links: weakref.WeakSet[Link] = weakref.WeakSet()
        self.master: Master | None = None
        self.master_process: Process | None = None
        self.nodes: list[NodeHere] = []
        self.drivers: list[Driver] = []
        self.workers: list[SimulatedWorker] = []
        """All that have ever run, in the order of their start."""
        self.leases: dict[str, Lease] = {}
        """The last of each actor."""
        self._num_started: Counter[str] = Counter()

    # --- what is noticed ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.clock.current_time()

    def note(self, *what: Any) -> None:
        """A line of the log, by which two runs can be compared."""
        self.log.append((round(self.now, 6), *what))

    def bug(self, what: str, error: BaseException | None = None) -> None:
        """Something must not be as it is."""
        trace = "" if error is None else "\n" + "".join(traceback.format_exception(error))
        self.note("BUG", what)
        self.bugs.append(f"at {self.now:.3f} s: {what}{trace}")

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        """Do it in a while."""

        async def wait() -> None:
            await trio.sleep(seconds)
            function()

        self.nursery.start_soon(wait)

    def disturbed(self, seconds: float = 0.0) -> None:
        """A fault; how long it may hold things up."""
        self.last_fault_at = self.now
        self._troubles.append((self.now, seconds))

    def trouble_since(self, since: float) -> float:
        """Seconds by which faults may have held something up that began then."""
        return sum(seconds for at, seconds in self._troubles if at + seconds + 1.0 >= since)

    # --- pauses ---------------------------------------------------------------------------------------------

    def job_pause_s(self) -> float:
        """How long a job of an actor is kept waiting."""
        if self.is_calm or self._pauses.random() >= self.settings.slow_jobs:
            return 0.0
        return self._pauses.choice([0.001, 0.02, 0.3, 2.0])

    def fork_pause_s(self) -> float:
        """How long a worker takes to start."""
        return self._pauses.choice([0.002, 0.02, 0.02, 0.5, 3.0])

    def settle_pause_s(self) -> float:
        """How long the output of a dead worker is waited for."""
        return self._pauses.choice([0.0, 0.001, 0.001, 0.1, 0.5])

    # --- who is there ---------------------------------------------------------------------------------------

    def next_pid(self) -> int:
        """Of a worker."""
        return self._number("worker")

    def worker_started(self, worker: SimulatedWorker) -> None:
        """A node has a new worker."""
        self.workers.append(worker)
        for here in self.nodes:
            if (lease := here.node._actors._leases.get(worker.spec.actor_id)) is not None:
                self.leases[worker.spec.actor_id] = lease

    def start_master(self) -> None:
        """It knows nothing of what an earlier one knew."""
        if self.master_process is None or self.master_process.is_dead:
            self.master_process = Process(self, f"master{self._number('master')}", "machine of the master")
            self.master_process.start(self._be_master)

    def start_node(self) -> None:
        """On a machine of its own, or one where there was a node before."""
        number = self._number("node")
        process = Process(self, f"node{number}", f"machine {(number - 1) % self.settings.num_nodes}")
        process.start(self._be_node)

    def start_driver(self) -> Driver:
        """A program that joins when it can."""
        number = self._number("driver")
        machine = "machine 0" if self.settings.is_shared else f"machine of driver{number}"
        driver = Driver(Process(self, f"driver{number}", machine))
        self.drivers.append(driver)
        driver.process.start(driver.main)
        return driver

    def living_nodes(self) -> list[NodeHere]:
        """Those whose process runs."""
        return [here for here in self.nodes if not here.process.is_dead]

    def living_workers(self) -> list[SimulatedWorker]:
        """Those whose process runs."""
        return [worker for worker in self.workers if not worker.process.is_dead]

    def machines(self) -> list[str]:
        """Where there is a process, by name."""
        processes = [
            *([] if self.master_process is None else [self.master_process]),
            *(here.process for here in self.living_nodes()),
            *(driver.process for driver in self.drivers if not driver.process.is_dead),
        ]
        return list(dict.fromkeys(process.machine for process in processes))

    def heal(self) -> None:
        """Everything that was taken away comes back, and nothing new goes wrong."""
        self.is_calm = True
        self.network.heal()
        self.start_master()
        for _ in range(self.settings.num_nodes - len(self.living_nodes())):
            self.start_node()

    def _number(self, kind: str) -> int:
        self._num_started[kind] += 1
        return self._num_started[kind]

    async def _be_master(self, process: Process) -> None:
        self.master = master = Master(nursery_of(process), versions(), secrets=self.secrets)
        listener = self.network.listen(MASTER, keys=master.key)
        await master.run([listener])

    async def _be_node(self, process: Process) -> None:
        node_id = f"{process.name}-{self.seed_id()}"
        info = NodeInfo(node_id, process.machine, Capacity(self.settings.cpus), [f"memory://{node_id}"], "", versions())
        config = NodeConfig(info=info, directory="", secret=self.secrets["node"], master_address=f"memory://{MASTER}")
        pool = SimulatedPool(self, process)
        dial = partial(self.network.dial, MASTER, credentials=Credentials("node", self.secrets["node"]))
        node = Node(config, pool, dial, nursery_of(process))
        self.nodes.append(NodeHere(process, node, pool))
        process.start_soon(pool.run)
        await node.run([HandingListener(self.network.listen(node_id, keys=node.key))])

    def seed_id(self) -> str:
        """What makes names of this run's own."""
        return f"{self.lots.getrandbits(32):08x}"
