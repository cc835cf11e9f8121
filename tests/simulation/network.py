"""The network of a simulation: machines, the paths between them, and links that are slow, stall, break or vanish.

Where a real link would be noticed to be dead (by the keepalive of TCP), a vanished one breaks here too: after at most
`KEEPALIVE_S`.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from asyncparl.transport import Credentials, Visitor
from asyncparl.transport.base import DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_TIMEOUT_S, Channel, Listener
from asyncparl.transport.memory import MemoryListener, MemoryNetwork
from asyncparl.transport.memory_link import MemoryChannel, MemoryLink
from tests.simulation.contents import ROOM_BYTES
from tests.simulation.process import Process, current_process

if TYPE_CHECKING:
    from tests.simulation.world import World

KEEPALIVE_S = 15.0

LATENCIES: dict[str, tuple[float, float]] = {
    "none": (0.0, 0.0),
    "lan": (0.0, 0.002),
    "wan": (0.01, 0.1),
    "awful": (0.0, 0.9),
}


@dataclass(slots=True, eq=False)
class Line:
    """A link and whose it is."""

    link: MemoryLink
    number: int
    acceptor: Process
    lots: random.Random
    dialer: Process | None = None
    held_until: float = 0.0
    is_gone: bool = False
    """Cut, or about to be."""

    @property
    def name(self) -> str:
        return f"{self.dialer}-{self.acceptor}/{self.number}"

    @property
    def is_open(self) -> bool:
        return not (self.is_gone or self.link.dialer.closed or self.link.acceptor.closed)

    def joins(self, path: frozenset[str]) -> bool:
        """Whether it runs between these two machines."""
        return self.dialer is not None and {self.dialer.machine, self.acceptor.machine} == path


@dataclass(slots=True)
class Path:
    """Between two machines."""

    cut_until: float = 0.0
    held_until: float = 0.0


@dataclass(slots=True)
class _Paths:
    paths: dict[frozenset[str], Path] = field(default_factory=dict)

    def __getitem__(self, ends: frozenset[str]) -> Path:
        return self.paths.setdefault(ends, Path())


class SimulatedNetwork(MemoryNetwork):
    """Links between processes, each with delays of its own."""

    def __init__(self, world: World, *, queued_messages: int, latency: str, lossy_close: float) -> None:
        super().__init__(queued_messages=queued_messages, max_shared_bytes=ROOM_BYTES)
        self._world = world
        self._latency = LATENCIES[latency]
        self._lossy_close = lossy_close
        self.lines: dict[MemoryLink, Line] = {}
        self.paths = _Paths()
        self.num_links = 0

    # --- for the transport ----------------------------------------------------------------------------------

    def listen(
        self, name: str, *, keys: Any = None, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    ) -> MemoryListener:
        """As that of `MemoryNetwork`; closed when its process dies."""
        listener = super().listen(name, keys=keys, max_message_bytes=max_message_bytes)
        listener.owner = process = current_process()  # type: ignore[attr-defined]
        process.listeners.append(listener)
        return listener

    async def dial(
        self,
        name: str,
        *,
        credentials: Credentials | None = None,
        route: str = "",
        encrypt: bool = False,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        shared_bytes: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> MemoryChannel:
        """As that of `MemoryNetwork`, through whatever is between the two machines."""
        process = current_process()
        await self._knock(process, name, timeout_s)
        channel = await super().dial(
            name,
            credentials=credentials,
            route=route,
            encrypt=encrypt,
            max_message_bytes=max_message_bytes,
            shared_bytes=shared_bytes,
            timeout_s=timeout_s,
        )
        line = self.lines[channel.link]
        line.dialer = process
        process.channels[channel] = None
        self._world.note("link", line.name)
        if process.is_dead:
            self.abandon(channel, silently=process.vanished)
            raise ConnectionAbortedError(errno.ECONNABORTED, "this process is dead")
        if self.is_cut(line):
            self.lose(line)
        return channel

    def new_link(self, dialer_limit: int, acceptor_limit: int, shared_bytes: int) -> MemoryLink:
        """What an accepted dial becomes."""
        link = super().new_link(dialer_limit, acceptor_limit, shared_bytes)
        self.num_links += 1
        lots = random.Random(f"{self._world.seed}/{self.num_links}")
        self.lines[link] = line = Line(link, self.num_links, current_process(), lots)
        line.acceptor.channels[link.acceptor] = None
        link.lossy_close = lots.random() < self._lossy_close
        link.delay_s = lambda: self._delay(line)
        return link

    async def _knock(self, process: Process, name: str, timeout_s: float) -> None:
        """Until there is an answer of the other machine."""
        give_up_at = self._world.now + timeout_s
        await trio.sleep(self._world.lots.uniform(*self._latency))
        while True:
            if process.is_dead:
                raise ConnectionAbortedError(errno.ECONNABORTED, "this process is dead")
            listener = self._listeners.get(name)
            owner: Process | None = getattr(listener, "owner", None)
            if owner is None:
                return
            path = self.paths[frozenset({process.machine, owner.machine})]
            until = max(path.cut_until, path.held_until, owner.held_until, process.held_until)
            if until <= self._world.now:
                return
            await trio.sleep_until(min(until, give_up_at))
            if self._world.now >= give_up_at:
                raise TimeoutError(errno.ETIMEDOUT, f"no answer within {timeout_s} s from memory://{name}")

    def _delay(self, line: Line) -> float:
        now = self._world.now
        held_until = max(line.held_until, line.acceptor.held_until)
        if line.dialer is not None:
            path = self.paths[frozenset({line.dialer.machine, line.acceptor.machine})]
            held_until = max(held_until, line.dialer.held_until, path.held_until)
        return max(0.0, held_until - now) + line.lots.uniform(*self._latency)

    # --- disturbances ---------------------------------------------------------------------------------------

    def open_lines(self) -> list[Line]:
        """In the order in which they were made."""
        self.lines = {link: line for link, line in self.lines.items() if not line.is_gone}
        return [line for line in self.lines.values() if line.is_open and line.dialer is not None]

    def is_cut(self, line: Line) -> bool:
        """Whether the two machines do not reach each other."""
        assert line.dialer is not None
        return self.paths[frozenset({line.dialer.machine, line.acceptor.machine})].cut_until > self._world.now

    def cut(self, line: Line) -> None:
        """Both sides notice at once."""
        line.is_gone = True
        line.link.cut()

    def lose(self, line: Line, *, half: bool = False) -> None:
        """What is sent vanishes, and nobody notices, or half of them, for a while."""
        line.is_gone = True
        if half:
            line.link.half_close(line.lots.choice([line.link.dialer, line.link.acceptor]))
        else:
            line.link.drop()
        self._world.later(line.lots.uniform(0.1, KEEPALIVE_S), line.link.cut)

    def cut_path(self, path: frozenset[str], seconds: float) -> None:
        """These machines do not reach each other. Links that survive it are no cut, but a stall."""
        self.paths[path].cut_until = max(self.paths[path].cut_until, self._world.now + seconds)
        for line in self.open_lines():
            if line.joins(path):
                line.is_gone = True
                line.link.drop()
                self._world.later(min(seconds, KEEPALIVE_S) + line.lots.random(), line.link.cut)

    def stall_path(self, path: frozenset[str], seconds: float) -> None:
        """What is sent between these machines arrives later."""
        self.paths[path].held_until = max(self.paths[path].held_until, self._world.now + seconds)

    def heal(self) -> None:
        """Whatever stalls or is cut will not stay so."""
        self.paths.paths.clear()

    def abandon(self, channel: MemoryChannel, *, silently: bool) -> None:
        """Its process is gone. Silently: the peer does not hear of it from the network."""
        if channel.closed or not silently:
            channel.close()
            return
        channel.link.drop()
        channel._closed = True
        line = self.lines.get(channel.link)
        if line is not None:
            line.is_gone = True
            self._world.later(line.lots.uniform(0.1, KEEPALIVE_S), channel.link.cut)


class HandingListener(Listener):
    """The listener of a node, whose visitors can be handed over to workers although there are no sockets."""

    def __init__(self, listener: MemoryListener) -> None:
        self._listener = listener
        self.address = listener.address

    @property
    def num_rejected(self) -> int:
        return self._listener.num_rejected

    async def accept_visitor(self) -> Visitor:
        return HandingVisitor(await self._listener.accept_visitor())

    def adopt(self, connection: Any) -> None:
        self._listener.adopt(connection)

    def restore(self) -> None:
        self._listener.restore()

    def close(self) -> None:
        self._listener.close()


class HandingVisitor(Visitor):
    """Can be handed over."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self.key_id = visitor.key_id
        self.route = visitor.route
        self.peer_host = visitor.peer_host
        self.encrypted = visitor.encrypted

    def open(self) -> Channel:
        return self._visitor.open()

    def refuse(self, reason: str) -> None:
        self._visitor.refuse(reason)

    def hand_over(self) -> tuple[Any, Any]:
        """The connection, where a socket would be."""
        return self._visitor.open(), None

    def close(self) -> None:
        self._visitor.close()
