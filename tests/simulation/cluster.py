"""A whole cluster in one Trio program, for tests with many nodes and under a clock that jumps.

Master, nodes, links and protocol are the real ones; so are secrets, tickets and leases. Simulated is what would need an
operating system: processes of workers, sockets, and programs, of which only the part is left that speaks with the
cluster. Every machine hangs on a `Cable`, which can be cut.
"""

from __future__ import annotations

import math
import os
import socket
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from asyncparl.errors import AsyncparlError
from asyncparl.ids import new_actor_id, new_driver_id, new_node_id
from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.protocol.figures import WorkerFigures
from asyncparl.protocol.master_messages import (
    AskPlace,
    DescribeCluster,
    JoinDriver,
    LeaveDriver,
    NodeTicket,
    Placed,
    WithdrawActor,
)
from asyncparl.protocol.node_messages import ActorExited, ActorOutput, ActorStarted, PlaceTaken, StartActor, StopActor
from asyncparl.protocol.parties import NodeInfo
from asyncparl.protocol.resources import Capacity, Demand
from asyncparl.protocol.tickets import ticket_key_id
from asyncparl.runtime.link import Link
from asyncparl.runtime.master import Master
from asyncparl.runtime.master_link import MasterLink, ask
from asyncparl.runtime.node import Node
from asyncparl.runtime.node_config import NodeConfig
from asyncparl.runtime.node_link import NodeLink
from asyncparl.runtime.program import Program
from asyncparl.runtime.versions import our_versions
from asyncparl.runtime.ways import WayToNode
from asyncparl.runtime.worker_process import WorkerSpec
from asyncparl.transport import Admission, Channel, Credentials
from asyncparl.transport.memory import MemoryNetwork
from asyncparl.transport.memory_link import MemoryChannel, MemoryLink

MASTER = "master"
ONE_CPU = Demand()
_DIAL_LIMIT_S = 5.0


class Cable:
    """Carries the links of one machine."""

    def __init__(self) -> None:
        self._links: weakref.WeakSet[MemoryLink] = weakref.WeakSet()
        self._is_cut = False

    async def dial(self, dial: Callable[[], Awaitable[Channel]]) -> Channel:
        """Through this cable, whichever way. Raises what `dial` does, and TimeoutError while it is cut."""
        if self._is_cut:
            await trio.sleep(_DIAL_LIMIT_S)
            raise TimeoutError("no answer")
        channel = await dial()
        if isinstance(channel, MemoryChannel):
            self._links.add(channel.link)
        return channel

    def cut(self) -> None:
        """From now on nothing comes through, and nobody is told: not even that the other side has hung up."""
        self._is_cut = True
        for link in self._links:
            link.delay_s = lambda: math.inf
            link.drop()

    def hold(self, until: float) -> None:
        """What is sent before that time arrives then."""
        for link in self._links:
            link.delay_s = lambda: max(0.0, until - trio.current_time())

    def mend(self) -> None:
        """New links may be made. The old ones break, as they do where a peer has forgotten them."""
        self._is_cut = False
        for link in self._links:
            link.cut()
        self._links.clear()


@dataclass(frozen=True, slots=True)
class _Worker:
    owner: int
    on_exit: Callable[[ActorExited], None]


class SimulatedWorkers:
    """What a node takes for its `WorkerPool`: each worker is there at once, and stays until somebody ends it."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self.num_started = 0

    @property
    def running(self) -> set[str]:
        """The ids of their actors."""
        return set(self._workers)

    def die(self, actor_id: str) -> None:
        """The worker is killed by somebody else."""
        self._end(actor_id, "killed by SIGKILL")

    async def start(
        self, spec: WorkerSpec, on_output: Callable[[ActorOutput], None], on_exit: Callable[[ActorExited], None]
    ) -> ActorStarted:
        await trio.lowlevel.checkpoint()
        if spec.actor_id in self._workers:
            raise ValueError(f"there is an actor {spec.actor_id}")
        self._workers[spec.actor_id] = _Worker(spec.owner, on_exit)
        self.num_started += 1
        return ActorStarted(f"memory://{spec.actor_id}", self.num_started)

    def owner_of(self, actor_id: str) -> int | None:
        worker = self._workers.get(actor_id)
        return None if worker is None else worker.owner

    def hand_over(self, actor_id: str, connection: socket.socket, admission: Admission) -> bool:
        raise AssertionError("there are no sockets in a simulation")

    async def stop(self, actor_id: str, grace_s: float, *, is_final: bool = False) -> None:
        await trio.lowlevel.checkpoint()
        self._end(actor_id, "it was stopped")

    async def stop_owned_by(self, owner: int, grace_s: float, reason: str, *, is_gone: bool) -> None:
        await trio.lowlevel.checkpoint()
        for actor_id in [actor_id for actor_id, worker in self._workers.items() if worker.owner == owner]:
            self._end(actor_id, reason)

    async def stop_all(self, grace_s: float, reason: str, *, is_final: bool = False) -> None:
        await trio.lowlevel.checkpoint()
        for actor_id in self.running:
            self._end(actor_id, reason)

    def pids(self) -> dict[str, int]:
        return {}

    def why_starting(self, actor_id: str) -> str:
        return ""

    async def figures(self) -> dict[str, WorkerFigures]:
        await trio.lowlevel.checkpoint()
        return {}

    def _end(self, actor_id: str, reason: str) -> None:
        if (worker := self._workers.pop(actor_id, None)) is not None:
            worker.on_exit(ActorExited(actor_id, reason, None, 9, []))


class Machine:
    """A machine with a node on it, whose secret is that of the cluster."""

    def __init__(
        self,
        network: MemoryNetwork,
        dial_master: Callable[[], Awaitable[Channel]],
        secret: bytes,
        *,
        cpus: float = 4,
        name: str = "machine",
    ) -> None:
        node_id = new_node_id()
        self.info = NodeInfo(node_id, name, Capacity(cpus), [f"memory://{node_id}"], name, our_versions())
        self.cable = Cable()
        self.workers = SimulatedWorkers()
        self._network = network
        self._dial_master = dial_master
        self._secret = secret
        self._node: Node | None = None

    async def run(self) -> None:
        """Until it is cancelled, which switches the machine off: everybody who has a link to it learns of it."""
        async with trio.open_nursery() as nursery:
            config = NodeConfig(info=self.info, directory="", secret=self._secret)
            dial = partial(self.cable.dial, self._dial_master)
            self._node = node = Node(config, self.workers, dial, nursery)
            with self._network.listen(self.info.node_id, keys=node.key) as listener:
                await node.run([listener])

    @property
    def has_joined(self) -> bool:
        """Whether the master has ever taken it in."""
        return self._node is not None and self._node.master.joined.is_set()


class _Way(WayToNode):
    """The way to a machine of the simulation, as if it were this one: no code is sent there."""

    def __init__(self, ticket: NodeTicket, master: MasterLink, cable: Cable, network: MemoryNetwork) -> None:
        super().__init__(ticket, master, "memory://master", None)
        self.is_local = True
        credentials = Credentials(ticket_key_id(ticket.ticket), ticket.key)
        dial = partial(network.dial, ticket.node.node_id, credentials=credentials)
        self._through_cable = partial(cable.dial, dial)

    async def dial(self, route: str = "", *, encrypt: bool) -> Channel:
        return await self._through_cable()


class SimulatedDriver:
    """What a cluster sees of a program: it joins, asks for places, starts actors there and hears how they end."""

    def __init__(
        self,
        network: MemoryNetwork,
        dial_master: Callable[[], Awaitable[Channel]],
        machines: Mapping[str, Machine],
        nursery: trio.Nursery,
    ) -> None:
        self._network = network
        self._machines = machines
        self._nursery = nursery
        self._driver_id = new_driver_id()
        self._program = Program(preload=[], start_method=None)
        self._nodes: dict[str, NodeLink] = {}
        self.master = MasterLink("driver", dial_master, self._join)
        self.running: dict[str, str] = {}
        """The node of each actor that has started."""
        self.ended: dict[str, str] = {}
        """Why actors have ended."""
        self.failed: list[str] = []
        """Why actors have not started."""

    async def run_actor(self, demand: Demand = ONE_CPU) -> None:
        """Wait for a place, and start an actor there; what goes wrong is in `failed`."""
        actor_id = new_actor_id()
        try:
            while not await self.start_at(actor_id, await self.master.request(AskPlace(actor_id, "actor", demand))):
                await self.master.request(WithdrawActor(actor_id, is_over=False))
                await trio.sleep(0.5)
        except AsyncparlError as error:
            self.running.pop(actor_id, None)
            self.failed.append(str(error))

    async def start_at(self, actor_id: str, placed: Placed) -> bool:
        """Start an actor where it has its place; False if others are there."""
        node = self._node(placed.ticket)
        await node.wait_ready()
        self.running[actor_id] = placed.ticket.node.node_id
        answer = await node.request(StartActor(actor_id, "actor", placed.lease))
        if isinstance(answer, PlaceTaken):
            del self.running[actor_id]
        return isinstance(answer, ActorStarted)

    async def run_actors(self, num: int, demand: Demand = ONE_CPU) -> None:
        """Start several at once; returns when all of them run, or have failed."""
        async with trio.open_nursery() as nursery:
            for _ in range(num):
                nursery.start_soon(self.run_actor, demand)

    async def stop_actor(self, actor_id: str) -> None:
        """End one that runs."""
        await self._nodes[self.running[actor_id]].request(StopActor(actor_id, 0.0))

    async def describe(self) -> ClusterView:
        """The cluster as the master sees it."""
        view: ClusterView = (await self.master.request(DescribeCluster())).view
        return view

    def leave(self) -> None:
        """The program ends in good order."""
        self.master.tell(LeaveDriver())
        for node in self._nodes.values():
            node.close()

    async def _join(self, link: Link) -> None:
        await ask(link, JoinDriver(self._driver_id, "program", our_versions(), self._driver_id))

    def _node(self, ticket: NodeTicket) -> NodeLink:
        node_id = ticket.node.node_id
        node = self._nodes.get(node_id)
        if node is None or node.is_lost:
            way = _Way(ticket, self.master, self._machines[node_id].cable, self._network)
            node = self._nodes[node_id] = NodeLink(ticket.node.name, way, self._program, self._hear)
            self._nursery.start_soon(self._run_node, node_id, node)
        return node

    async def _run_node(self, node_id: str, node: NodeLink) -> None:
        why = await node.run()
        for actor_id in [actor_id for actor_id, where in self.running.items() if where == node_id]:
            self._hear(ActorExited(actor_id, f"its node is gone: {why}", None, None, []))

    def _hear(self, event: ActorOutput | ActorExited) -> None:
        if isinstance(event, ActorExited) and self.running.pop(event.actor_id, None) is not None:
            self.ended[event.actor_id] = event.reason


class MasterLog:
    """Keeps what the master says of nodes."""

    def __init__(self) -> None:
        self.lost: dict[str, float] = {}
        """When each node was declared lost, last, by its name."""
        self.num_joined = 0
        self._joined = trio.Event()

    async def wait_node_joined(self) -> None:
        """Until the next node has joined."""
        self._joined = trio.Event()
        await self._joined.wait()

    def info(self, event: str, **fields: Any) -> None:
        """Counts the nodes that join."""
        if event == "node joined":
            self.num_joined += 1
            self._joined.set()

    def warning(self, event: str, **fields: Any) -> None:
        """Notes the nodes that are lost."""
        if event == "node lost":
            self.lost[fields["node"]] = trio.current_time()


class SimulatedCluster:
    """A master, its machines and programs, in the nursery of the test."""

    def __init__(self, nursery: trio.Nursery, network: MemoryNetwork | None = None) -> None:
        self.network = network or MemoryNetwork()
        self.machines: dict[str, Machine] = {}
        self.log = MasterLog()
        self._nursery = nursery
        self._secrets = {"node": os.urandom(32), "driver": os.urandom(32)}
        self._master_scope = trio.CancelScope()
        self._master_gone = trio.Event()

    async def start_master(self) -> None:
        """It knows nothing of what an earlier one knew."""
        await self._nursery.start(self._run_master)

    async def kill_master(self) -> None:
        """Its links break at once."""
        self._master_scope.cancel()
        await self._master_gone.wait()

    def add_machine(self, *, cpus: float = 4, name: str = "machine") -> Machine:
        """Switch a machine on; its node joins soon."""
        dial = partial(self._dial_master, "node")
        machine = Machine(self.network, dial, self._secrets["node"], cpus=cpus, name=name)
        self.machines[machine.info.node_id] = machine
        self._nursery.start_soon(machine.run)
        return machine

    async def add_machines(self, num: int, *, cpus: float = 4) -> None:
        """Switch several on at once, and wait until all have joined."""
        machines = [self.add_machine(cpus=cpus) for _ in range(num)]
        while not all(machine.has_joined for machine in machines):
            await trio.sleep(0.01)

    async def add_driver(self) -> SimulatedDriver:
        """A program that has joined."""
        driver = SimulatedDriver(self.network, partial(self._dial_master, "driver"), self.machines, self._nursery)
        self._nursery.start_soon(driver.master.run)
        await driver.master.wait_joined()
        return driver

    async def _run_master(self, task_status: trio.TaskStatus[None]) -> None:
        self._master_scope, self._master_gone = trio.CancelScope(), trio.Event()
        with self._master_scope:
            async with trio.open_nursery() as nursery:
                master = Master(nursery, our_versions(), secrets=self._secrets, log=self.log)
                with self.network.listen(MASTER, keys=master.key) as listener:
                    task_status.started()
                    await master.run([listener])
        self._master_gone.set()

    async def _dial_master(self, role: str) -> Channel:
        return await self.network.dial(MASTER, credentials=Credentials(role, self._secrets[role]))
