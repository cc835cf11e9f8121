"""A cluster that is made up, as large as a test wants it, and a monitor of it."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import trio

from asyncparl.errors import ResourceError
from asyncparl.monitor.server import Bind, serve
from asyncparl.monitor.source import Sight
from asyncparl.protocol.cluster_view import (
    ActorSummary,
    ClusterView,
    DriverSummary,
    NodeSummary,
    WaitingSummary,
)
from asyncparl.protocol.figures import (
    NUM_BUCKETS,
    ActorFigures,
    GpuFigures,
    Happening,
    News,
    NodeFigures,
    ProgramReport,
    WorkerFigures,
)
from asyncparl.protocol.node_messages import ActorExited
from asyncparl.protocol.resources import Demand

GIB = 1 << 30


def node(name: str = "alpha", *, state: str = "ready", num_actors: int = 1) -> NodeSummary:
    """As the master tells of it; its id is "node-" and its name."""
    return NodeSummary(
        node_id=f"node-{name}",
        name=name,
        state=state,
        host=name,
        addresses=[],
        labels={"zone": "b"},
        num_actors=num_actors,
        used_cpus=1.0,
        total_cpus=4.0,
        used_gpus=[0.5],
        used_memory_bytes=0,
        total_memory_bytes=16 * GIB,
    )


def actor(number: int = 1, *, node_name: str = "alpha", state: str = "started") -> ActorSummary:
    """As the master tells of it."""
    return ActorSummary(f"a{number}", f"Sim#{number}", "d1", f"node-{node_name}", state, Demand(), [])


def waiting(number: int, *, waiting_s: float = 40.0) -> WaitingSummary:
    """As the master tells of it."""
    return WaitingSummary(f"a{number}", f"Sim#{number}", "d1", Demand(), waiting_s, "no node has a free CPU")


def calls(*durations: tuple[int, int], running: str = "", running_s: float = 0.0, num_failed: int = 0) -> WorkerFigures:
    """Durations as (bucket, how many)."""
    counts = [0] * NUM_BUCKETS
    for bucket, number in durations:
        counts[bucket] += number
    return WorkerFigures(num_failed, 1.0, 2, int(bool(running)), running, running_s, counts)


def figures(number: int = 1, made: WorkerFigures | None = None, *, pid: int = 100, cpu_s: float = 1.0) -> ActorFigures:
    """As its node tells of it."""
    return ActorFigures(f"a{number}", f"Sim#{number}", "Sim", pid, 0, 5.0, cpu_s, 20 << 20, made)


def node_figures(at: float, *actors: ActorFigures, happenings: list[Happening] | None = None) -> NodeFigures:
    """Of a node."""
    gpu = GpuFigures("GPU 1", 0.25, GIB, 8 * GIB)
    return NodeFigures(at, 0.5, 3 * GIB, 16 * GIB, list(actors), happenings or [], [gpu])


def view(*parts: NodeSummary | ActorSummary | WaitingSummary) -> ClusterView:
    """With one program."""
    return ClusterView(
        [part for part in parts if isinstance(part, NodeSummary)],
        [DriverSummary("d1", "train.py", True), DriverSummary("own", "monitor", True)],
        [part for part in parts if isinstance(part, ActorSummary)],
        [part for part in parts if isinstance(part, WaitingSummary)],
    )


def ended(number: int, actor_number: int = 1, *, at: float = 50.0, **fields: str) -> Happening:
    """A node tells that an actor has ended."""
    told = {"actor": f"Sim#{actor_number}", "id": f"a{actor_number}", "reason": "killed by SIGKILL", "signal": "9"}
    return Happening(number, at, False, "actor ended", {**told, "exit_code": "None", **fields})


def news(*happenings: Happening, reports: list[ProgramReport] | None = None) -> News:
    """Of the master."""
    return News("cluster-1", list(happenings), reports or [])


@dataclass
class FakeSource:
    """Tells what it is given; `num_close_looks` counts."""

    sight: Sight = field(default_factory=lambda: Sight(view=view(), news=news()))
    logs: dict[str, list[str]] = field(default_factory=dict)
    deaths: dict[str, ActorExited] = field(default_factory=dict)
    address: str = "alpha:8010"
    own_id: str = "own"
    num_looks: int = 0
    num_close_looks: int = 0
    num_rests: int = 0

    async def look(self, *, closely: bool) -> Sight:
        await trio.lowlevel.checkpoint()
        self.num_looks += 1
        self.num_close_looks += closely
        return self.sight if closely else Sight(news=self.sight.news, fault=self.sight.fault)

    @contextlib.asynccontextmanager
    async def read_log(
        self, node_id: str, actor_id: str, num_lines: int, *, follow: bool
    ) -> AsyncIterator[AsyncIterator[list[str]]]:
        if actor_id not in self.logs:
            raise ResourceError("this node has no log of it")

        async def chunks() -> AsyncIterator[list[str]]:
            yield self.logs[actor_id][-num_lines:]
            if follow:
                await trio.sleep_forever()

        yield chunks()

    async def read_death(self, node_id: str, actor_id: str) -> ActorExited | None:
        return self.deaths.get(actor_id)

    async def rest(self) -> None:
        self.num_rests += 1


def crowd(num: int, at: float) -> Sight:
    """A cluster of so many actors, which have done more with every second."""
    nodes = [node(f"n{index}", num_actors=num // 10) for index in range(10)]
    actors = [actor(number, node_name=f"n{number % 10}") for number in range(num)]
    made = {
        f"node-n{index}": node_figures(
            at,
            *(
                figures(number, calls((number % 12 + 4, int(at * (number + 1)))), pid=1000 + number, cpu_s=at * at / 30)
                for number in range(index, num, 10)
            ),
        )
        for index in range(10)
    }
    return Sight(view=view(*nodes, *actors), nodes=dict(made), news=news())


@contextlib.asynccontextmanager
async def monitor_of(source: FakeSource, *, asks_token: bool = False) -> AsyncIterator[str]:
    """Its URL."""
    async with serve(source, Bind("127.0.0.1", 0, True, asks_token), say=lambda _line: None) as url:
        yield url


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """By their names in small letters."""
    body: str


async def get(url: str, path: str = "/", *, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
    """Ask for something; `_` in the names of headers is `-`."""

    def ask() -> Answer:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body=body, headers=named)
            response = connection.getresponse()
            told = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, told, response.read().decode())
        finally:
            connection.close()

    return await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
