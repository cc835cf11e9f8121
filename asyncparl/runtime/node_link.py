"""A driver's link to one node: it starts and stops actors there, and hears how they do.

When the link is lost, or silent for too long, the node is lost, and every actor of it for this driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import trio

from asyncparl.errors import AsyncparlError, ResourceError
from asyncparl.machine import explain
from asyncparl.protocol.control import ACTOR_ROUTE, MAX_CONTROL_BYTES, SILENCE_LIMIT_S
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.liveness import Liveness
from asyncparl.protocol.node_messages import (
    ActorExited,
    ActorOutput,
    ActorStarted,
    NodeAlive,
    NodeRequest,
    OpenJob,
    PutCode,
    WatchNode,
)
from asyncparl.protocol.parties import version_fault
from asyncparl.runtime.code.pack import Package
from asyncparl.runtime.lending import SHARED_BYTES
from asyncparl.runtime.link import MAX_MESSAGE_BYTES, Link
from asyncparl.runtime.master_link import ask, watch
from asyncparl.runtime.program import Program
from asyncparl.runtime.versions import our_versions
from asyncparl.runtime.ways import WayToNode
from asyncparl.transport import dial
from asyncparl.transport.base import Channel

_LOOK_INTERVAL_S = 0.25
_EVENT_CREDIT = 16
_CODE_CHUNK_BYTES = 1 << 20


class NodeLink:
    """One node, as this driver reaches it."""

    def __init__(
        self, name: str, way: WayToNode, program: Program, on_event: Callable[[ActorOutput | ActorExited], None]
    ) -> None:
        self.name = name
        self.way = way
        self._program = program
        self._on_event = on_event
        self._link = Link(LinkCore(name="driver", pid=os.getpid(), max_value_bytes=MAX_CONTROL_BYTES))
        self._job_wanted = trio.Event()
        self._reached = trio.Event()
        self._ready = trio.Event()
        self._dialing: set[trio.CancelScope] = set()
        """Attempts to reach a worker. A machine that has died does not even refuse: each would last to its limit."""
        self._failure: Exception | None = None
        self._why_lost = ""
        self.was_reached = True
        """False once it is known that there is no way to the node: nothing was started there."""

    async def run(self) -> str:
        """Connect, and serve until the link is lost; returns why. Never raises: those who wait are told."""
        try:
            self._link.attach(await self.way.dial(encrypt=True))
        except (OSError, AsyncparlError) as error:
            self.was_reached = False
            why = explain(error)
            self._failure = ResourceError(f"{self.name} cannot be reached: {why}")
            return self._lost(why)
        self._reached.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._open_job)
            nursery.start_soon(self._follow)
            why = await self._link.run()
            self._lost(self._why_lost or why)
            nursery.cancel_scope.cancel()
        return self._why_lost

    async def wait_reached(self) -> None:
        """Until the node can be asked for something.

        Raises:
            ResourceError: it cannot be reached.
        """
        await self._reached.wait()
        if self._link.is_lost:
            assert self._failure is not None
            raise self._failure

    async def wait_ready(self) -> None:
        """Until actors can be started here. The first who waits has the program told to the node.

        Raises:
            ResourceError: the node cannot be reached, or refuses this program.
            ValueError: the program cannot be packed.
        """
        self._job_wanted.set()
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure

    async def request(self, request: NodeRequest) -> Any:
        """Ask the node for something.

        Raises:
            ResourceError: it refuses, or it is gone.
        """
        if self._link.is_lost:
            raise ResourceError(f"the node of this actor is gone: {self._why_lost}")
        return await ask(self._link, request)

    async def dial_worker(self, actor_id: str, started: ActorStarted | None, *, encrypt: bool) -> Channel:
        """A connection to a worker of this node. Raises as `WayToNode.dial`.

        Who did not start it does not know its socket file, which may not even be there yet: the node passes it on.
        """
        if self.way.is_local and started is not None:
            return await dial(started.address, max_message_bytes=MAX_MESSAGE_BYTES, shared_bytes=SHARED_BYTES)
        with trio.CancelScope() as scope:
            if self.is_lost:
                scope.cancel()
            self._dialing.add(scope)
            try:
                return await self.way.dial(ACTOR_ROUTE + actor_id, encrypt=encrypt)
            finally:
                self._dialing.discard(scope)
        raise OSError(f"{self.name} is gone: {self._why_lost}")

    def close(self) -> None:
        """Leave the node: it ends what we still have there."""
        self._link.disconnect()

    @property
    def is_lost(self) -> bool:
        """Whether it is of no use any more."""
        return self._link.is_lost

    # --- inside ---------------------------------------------------------------------------------------------

    def _lost(self, why: str) -> str:
        self._why_lost = why
        self._link.lose(lambda _: ResourceError(f"{self.name} is gone: {why}"))
        self._failure = self._failure or ResourceError(f"{self.name} is gone: {why}")
        self._reached.set()
        self._ready.set()
        for scope in self._dialing:
            scope.cancel()
        return why

    async def _open_job(self) -> None:
        await self._job_wanted.wait()
        try:
            if (fault := version_fault(our_versions(), self.way.versions)) is not None:
                raise ResourceError(f"{self.name} cannot run this program: {fault}")
            if not self.way.is_local or (await ask(self._link, OpenJob(self._program.local_job()))).needs_code:
                job, package = await self._program.shipped_job()
                if (await ask(self._link, OpenJob(job))).needs_code:
                    await self._send_code(package)
        except (AsyncparlError, ValueError) as error:
            self._failure = error
        except OSError as error:
            self._failure = ResourceError(f"{self.name} cannot be told of this program: {explain(error)}")
        self._ready.set()

    async def _send_code(self, package: Package) -> None:
        content = package.content
        for start in range(0, package.size, _CODE_CHUNK_BYTES):
            chunk = content[start : start + _CODE_CHUNK_BYTES]
            is_last = start + len(chunk) >= package.size
            await ask(self._link, PutCode(package.digest, chunk, is_last, package.size))

    async def _follow(self) -> None:
        alive = Liveness(_LOOK_INTERVAL_S, SILENCE_LIMIT_S, now=trio.current_time())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_silence, alive)
            try:
                async for event in watch(self._link, WatchNode(), credit=_EVENT_CREDIT):
                    alive.heard(trio.current_time())
                    if not isinstance(event, NodeAlive):
                        self._on_event(event)
            except ResourceError:
                nursery.cancel_scope.cancel()  # `run` tells everybody

    async def _watch_silence(self, alive: Liveness) -> None:
        while True:
            await trio.sleep(_LOOK_INTERVAL_S)
            if alive.tick(trio.current_time()):
                self._why_lost = f"it has been silent for {SILENCE_LIMIT_S:g} s"
                self._link.disconnect()
                return
