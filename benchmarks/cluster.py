"""What a cluster costs: joining, starting actors, noticing what died, and the master of many nodes.

    python benchmarks/cluster.py --save

All processes are real, on this machine: masters and nodes as their commands start them, with a state folder of their
own. A machine that is cut off needs network namespaces, so root; without them that row is left out. The master of many
nodes is real too, and so are its encrypted links; the nodes at their other ends are in this process, and start nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil
import trio

import asyncparl
from asyncparl.bench.report import Row, report
from asyncparl.errors import ActorDied
from asyncparl.ids import new_actor_id, new_driver_id, new_node_id, new_token
from asyncparl.protocol.master_messages import AskPlace, DescribeCluster, JoinDriver, LeaseStarted, Order
from asyncparl.protocol.parties import NodeInfo
from asyncparl.protocol.resources import Capacity, Demand, Lease
from asyncparl.protocol.tickets import read_lease
from asyncparl.runtime.joining import NodeAtMaster
from asyncparl.runtime.link import Link
from asyncparl.runtime.master_link import MasterLink, ask
from asyncparl.runtime.state import Role, find_secret
from asyncparl.runtime.versions import our_versions
from asyncparl.transport import Channel, Credentials, dial

RESULTS = Path(__file__).parent / "results"
MIB = 2**20
DIALS_AT_ONCE = 32
ASKS_AT_ONCE = 64
_COMMAND = "from asyncparl.cli.services import {0}_main; {0}_main()"
_READY = {"master": "is ready at ", "node": "has joined the cluster at "}


@asyncparl.remote_class
class Worker:
    """An actor that answers, or does not."""

    def pid(self) -> int:
        return os.getpid()

    def sleep(self) -> None:
        time.sleep(600)


class Services:
    """Masters and nodes as processes, with a state folder of their own; all of them end with the block."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncparl-bench-"))
        self._log = self._stack.enter_context(Path(folder, "log").open("w+"))
        os.environ["ASYNCPARL_STATE"] = str(Path(folder, "state"))
        self._environ = {**os.environ, "TMPDIR": folder}  # what a killed node leaves is removed with it
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, what: str, *options: str, on_host: Callable[..., list[str]] = list) -> subprocess.Popen[str]:
        """Start "master" or "node"; returns at once."""
        command = on_host([sys.executable, "-c", _COMMAND.format(what), *options])
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, env=self._environ, text=True)
        self._stack.callback(self._end, process)
        return process

    def start_master(self, host: str = "127.0.0.1", **how: Any) -> tuple[subprocess.Popen[str], str]:
        """A master that is ready, and its address."""
        master = self.start("master", "--listen", f"{host}:0", **how)
        return master, self.wait_ready(master, "master").split(";")[0]

    def wait_ready(self, process: subprocess.Popen[str], what: str) -> str:
        """Until it says so; what it says then."""
        assert process.stdout is not None
        line = process.stdout.readline()
        if _READY[what] not in line:
            self._log.seek(0)
            raise RuntimeError(f"a {what} did not start: {line}{self._log.read()}")
        return line.partition(_READY[what])[2].strip()

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()


# --- actors ------------------------------------------------------------------------------------------------------


async def join_rows(repeats: int) -> list[Row]:
    """A program waits in a cluster without nodes; then the command of the node is started."""
    times = []
    for _ in range(repeats):
        with Services() as services:
            _, master = services.start_master()
            async with asyncparl.connect(master):
                worker = Worker()
                started = time.monotonic()
                services.start("node", "--master", master)
                await worker.pid()
                times.append(time.monotonic() - started)
    return [Row("start of a node to the first result of an actor on it", "s", times, target="1.5")]


async def many_rows(repeats: int, num: int) -> list[Row]:
    """Actors of a node that has started one of this program already."""
    times = []
    with Services() as services:
        _, master = services.start_master()
        services.wait_ready(services.start("node", "--master", master, "--cpus", str(num + 1)), "node")
        for _ in range(repeats):
            async with asyncparl.connect(master):
                await Worker().pid()
                started = time.monotonic()
                await asyncparl.gather([Worker().pid() for _ in range(num)])
                times.append(time.monotonic() - started)
    return [Row(f"{num} warm actors on one node, until all have answered", "s", times, target="6")]


async def private_rows(repeats: int) -> list[Row]:
    """Without an address: master, node and worker are started for this program."""
    times = []
    for _ in range(repeats):
        started = time.monotonic()
        async with asyncparl.connect():
            await Worker().pid()
            times.append(time.monotonic() - started)
    return [Row("connect() of a private cluster to the first result", "s", times)]


# --- deaths ------------------------------------------------------------------------------------------------------


async def death_rows(repeats: int) -> list[Row]:
    """From the signal to `ActorDied` in a call that waits."""
    worker_times, node_times = [], []
    with Services() as services:
        _, master = services.start_master()
        for _ in range(repeats):
            node = services.start("node", "--master", master)
            services.wait_ready(node, "node")
            async with asyncparl.connect(master):
                worker_times.append(1e3 * await _time_of_death())
                node_times.append(await _time_of_death(partial(os.kill, node.pid, signal.SIGKILL)))
    return [
        Row("worker killed: noticed by its caller", "ms", worker_times, target="100"),
        Row("node killed: noticed by its callers", "s", node_times, target="1"),
    ]


async def _time_of_death(kill: Callable[[], None] | None = None) -> float:
    """By default the worker itself is killed."""
    worker = Worker()
    pid = await worker.pid()
    call = worker.sleep()
    await trio.sleep(0.2)
    killed = time.monotonic()
    (kill or partial(os.kill, pid, signal.SIGKILL))()
    try:
        await call
    except ActorDied:
        return time.monotonic() - killed
    raise AssertionError("it lives")


def cut_rows(repeats: int) -> list[Row]:
    """A machine of which nothing is heard any more; none where there are no network namespaces."""
    try:
        from tests.hosts import Network, hosts_unavailable
    except ImportError as error:
        print(f"node cut off: left out, {error}", file=sys.stderr)
        return []
    if reason := hosts_unavailable():
        print(f"node cut off: left out, {reason}", file=sys.stderr)
        return []
    times = []
    for _ in range(repeats):
        with Network() as network, Services() as services:
            times.append(_time_until_cut_is_noticed(services, network.host("program"), network.host("node")))
    return [Row("node cut off: noticed by its callers", "s", times, target="5")]


def _time_until_cut_is_noticed(services: Services, program_host: Any, node_host: Any) -> float:
    _, master = services.start_master(program_host.ipv4, on_host=program_host.command)
    node = services.start("node", "--master", master, on_host=node_host.command)
    services.wait_ready(node, "node")
    program = program_host.start(
        [sys.executable, __file__, "--await-death", master], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if program.stdout.readline() != "waits\n":
        raise RuntimeError(program.communicate()[1])
    cut = time.monotonic()
    node_host.cut()
    return float(program.stdout.readline()) - cut


async def _await_death(master: str) -> None:
    """The program on the other machine: says when it noticed, by the clock that all processes share."""
    async with asyncparl.connect(master):
        worker = Worker()
        await worker.pid()
        print("waits", flush=True)
        try:
            await worker.sleep()
        except ActorDied:
            print(time.monotonic(), flush=True)


# --- the master of many nodes ------------------------------------------------------------------------------------


class Member:
    """A node as far as its master sees it."""

    def __init__(self, dial_master: Callable[[], Any], cpus: float, nursery: trio.Nursery) -> None:
        self._leases: dict[str, Lease] = {}
        info = NodeInfo(new_node_id(), "node", Capacity(cpus), ["tcp://192.0.2.1:8010"], "another", our_versions())
        self.node_id = info.node_id
        self.at_master = NodeAtMaster(info, self._running, self._follow, dial_master, nursery)

    def start(self, lease: Lease) -> None:
        """The actor has a process now."""
        self._leases[lease.actor_id] = lease
        self.at_master.tell(LeaseStarted(lease))

    def _running(self) -> list[Lease]:
        return list(self._leases.values())

    async def _follow(self, order: Order) -> None:
        raise AssertionError(f"nobody asked for this: {order}")


class Fleet:
    """All nodes of a cluster, and a program that fills them."""

    def __init__(self, master: str, nursery: trio.Nursery) -> None:
        self._master = master
        self._nursery = nursery
        self._port = int(master.rpartition(":")[2])
        self._dialing = trio.CapacityLimiter(DIALS_AT_ONCE)
        self._members: dict[str, Member] = {}
        self._program = MasterLink("driver", partial(self._dial, "driver"), self._join_program)

    async def join(self, num: int, cpus: float) -> float:
        """All nodes at once; the time until the last one is in."""
        started = time.monotonic()
        for _ in range(num):
            member = Member(partial(self._dial, "node"), cpus, self._nursery)
            self._members[member.node_id] = member
            self._nursery.start_soon(partial(member.at_master.run, once_within_s=None))
        for member in self._members.values():
            await member.at_master.joined.wait()
        return time.monotonic() - started

    async def start_actors(self, num: int) -> float:
        """Ask for their places and say that they run; how many a second."""
        self._nursery.start_soon(self._program.run)
        await self._program.wait_joined()
        started = time.monotonic()
        limiter = trio.CapacityLimiter(ASKS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for _ in range(num):
                nursery.start_soon(self._start_actor, limiter)
        return num / (time.monotonic() - started)

    async def count(self) -> tuple[int, int]:
        """The nodes and actors that the master knows."""
        view = (await self._program.request(DescribeCluster())).view
        return len(view.nodes), sum(actor.state == "started" for actor in view.actors)

    async def _start_actor(self, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            placed = await self._program.request(AskPlace(new_actor_id(), "Worker#1", Demand()))
        node_id = placed.ticket.node.node_id
        secret = find_secret("node", self._port)
        self._members[node_id].start(read_lease(secret, placed.lease, node_id, now=time.time()))

    async def _dial(self, role: Role) -> Channel:
        async with self._dialing:
            credentials = Credentials(role, find_secret(role, self._port))
            return await dial(f"tcp://{self._master}", credentials=credentials, encrypt=True)

    @staticmethod
    async def _join_program(link: Link) -> None:
        await ask(link, JoinDriver(new_driver_id(), "program", our_versions(), new_token()))


async def master_rows(num_nodes: int, num_actors: int, seconds: float) -> list[Row]:
    """Memory and CPU of a master whose nodes do nothing but to say that they are there."""
    raise_file_limit()
    with Services() as services:
        master, address = services.start_master()
        process = psutil.Process(master.pid)
        empty_mib = process.memory_info().rss / MIB
        async with trio.open_nursery() as nursery:
            fleet = Fleet(address, nursery)
            join_s = await fleet.join(num_nodes, cpus=math.ceil(num_actors / num_nodes))
            placed_per_s = await fleet.start_actors(num_actors)
            await trio.sleep(5)  # until what is left of the work is done
            cpu_percent = await _cpu_percent(process, seconds)
            full_mib, num_files = process.memory_info().rss / MIB, process.num_fds()
            known = await fleet.count()
            if known != (num_nodes, num_actors):
                raise RuntimeError(f"the master knows {known[0]} nodes and {known[1]} actors")
            nursery.cancel_scope.cancel()
    what = f"{num_nodes:,} nodes"
    return [
        Row("memory of a master without nodes", "MiB", [empty_mib], note="RSS"),
        Row(f"memory of a master of {what} and {num_actors:,} actors", "MiB", [full_mib], target="250", note="RSS"),
        Row(f"CPU of a master for the heartbeats of {what}", "% of a core", cpu_percent, target="10"),
        Row(f"files of a master of {what}", "", [float(num_files)]),
        Row(f"{what} join at once", "s", [join_s], note="their side runs in one process"),
        Row(f"actors placed on {what}", "/s", [placed_per_s], note="asked by one program"),
    ]


async def _cpu_percent(process: psutil.Process, seconds: float, num_samples: int = 4) -> list[float]:
    samples = []
    for _ in range(num_samples):
        before, started = process.cpu_times(), time.monotonic()
        await trio.sleep(seconds / num_samples)
        after = process.cpu_times()
        used = after.user + after.system - before.user - before.system
        samples.append(100 * max(0.0, used) / (time.monotonic() - started))
    return samples


def raise_file_limit() -> None:
    """As far as this user may; the processes that we start have the same limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


PARTS: Sequence[str] = ("join", "many", "private", "deaths", "cut", "master")


def measure(part: str, arguments: argparse.Namespace) -> list[Row]:
    """The rows of one part."""
    repeats = arguments.repeats
    match part:
        case "join":
            return trio.run(join_rows, repeats)
        case "many":
            return trio.run(many_rows, repeats, arguments.workers)
        case "private":
            return trio.run(private_rows, repeats)
        case "deaths":
            return trio.run(death_rows, repeats)
        case "cut":
            return cut_rows(repeats)
        case _:
            return trio.run(master_rows, arguments.nodes, arguments.actors, arguments.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="samples of each row (default 5)")
    parser.add_argument("--workers", type=int, default=200, help="warm actors on one node (default 200)")
    parser.add_argument("--nodes", type=int, default=1000, help="nodes of the large cluster (default 1000)")
    parser.add_argument("--actors", type=int, default=10_000, help="actors of the large cluster (default 10000)")
    parser.add_argument("--seconds", type=float, default=20, help="how long heartbeats are watched (default 20)")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part, may be repeated (default all)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/cluster.{md,json}")
    parser.add_argument("--await-death", metavar="MASTER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.await_death:
        trio.run(_await_death, arguments.await_death)
        return
    rows = [row for part in arguments.only or PARTS for row in measure(part, arguments)]
    report("Clusters", rows, save_as=RESULTS / "cluster" if arguments.save else None)


if __name__ == "__main__":
    main()
