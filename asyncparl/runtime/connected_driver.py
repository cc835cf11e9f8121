"""A driver as a node knows it: its program, what runs for it, and the events that it has not taken yet."""

from __future__ import annotations

import msgspec
import trio

from asyncparl.errors import ProtocolError
from asyncparl.protocol.node_messages import ActorExited, ActorOutput, NodeEvent
from asyncparl.runtime.jobs import OpenedJob
from asyncparl.runtime.serving import EventStream, Peer

MAX_EVENTS = 10_000
"""Output that a driver has not taken yet. Beyond it lines are dropped, and counted; deaths never are."""


class ConnectedDriver(Peer):
    """See the head of this file."""

    def __init__(self, number: int, driver_id: str, key_id: str, host: str) -> None:
        super().__init__(key_id, host)
        self.number = number
        self.driver_id = driver_id
        self.job: OpenedJob | None = None
        self.events = EventStream()
        self._num_dropped = 0
        self._actors: set[str] = set()
        self._idle = trio.Event()
        self.is_gone = False

    def opened_job(self) -> OpenedJob:
        """Its program. Raises ProtocolError if it has not said yet which that is."""
        if self.job is None:
            raise ProtocolError("OpenJob comes first")
        return self.job

    def actor_started(self, actor_id: str) -> None:
        """One more that runs for it."""
        self._actors.add(actor_id)

    def actor_ended(self, actor_id: str) -> None:
        """One less."""
        self._actors.discard(actor_id)
        if not self._actors:
            self._idle.set()
            self._idle = trio.Event()

    async def wait_idle(self) -> None:
        """Until nothing runs for it."""
        while self._actors:
            await self._idle.wait()

    def tell(self, event: NodeEvent) -> None:
        """Send it, now or when there is credit."""
        if self.is_gone:
            return
        if isinstance(event, ActorOutput):
            if self.events.num_waiting >= MAX_EVENTS:
                self._num_dropped += len(event.lines)
                return
            if self._num_dropped:
                event = msgspec.structs.replace(event, num_dropped=event.num_dropped + self._num_dropped)
                self._num_dropped = 0
        elif isinstance(event, ActorExited) and self._num_dropped:
            self.events.send(ActorOutput(event.actor_id, is_error=True, lines=[], num_dropped=self._num_dropped))
            self._num_dropped = 0
        self.events.send(event)
