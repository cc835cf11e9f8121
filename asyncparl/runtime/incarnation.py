"""One process of an actor, as the actor's owner holds it, from the request for a place to the report of its death.

    place (the master) --> start (the node) --> dial --> serve, until the link is lost --> wait for the report

Whatever goes wrong on the way is the end of it. `doom` ends it at any point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import trio

from asyncparl.errors import AsyncparlError, ResourceError
from asyncparl.machine import explain, out_of_files
from asyncparl.protocol.master_messages import AskPlace
from asyncparl.protocol.node_messages import ActorExited, ActorStarted, StartActor, StopActor
from asyncparl.protocol.tickets import SignedLease
from asyncparl.runtime.link import Link
from asyncparl.runtime.node_link import NodeLink
from asyncparl.runtime.objects import Objects
from asyncparl.runtime.place_seeker import PlaceSeeker
from asyncparl.runtime.stopping import CLOSE_GRACE_S, EXIT_LIMIT_S, KILL_LIMIT_S, REPORT_LIMIT_S
from asyncparl.transport.base import Channel


class OwnerSession(Protocol):
    """What an actor needs of its session."""

    objects: Objects
    process_id: str
    main_names: frozenset[str] | None
    max_value_bytes: int | None
    places: PlaceSeeker

    async def ask_master(self, request: Any) -> Any: ...
    def withdraw(self, actor_id: str) -> None: ...
    async def dial_worker(self, node: NodeLink, actor_id: str, started: ActorStarted) -> Channel: ...
    def start_soon(self, function: Any, *args: Any) -> None: ...


class Incarnation:
    """See the head of this file. The link is made, and settled, by its owner."""

    def __init__(self, session: OwnerSession, request: AskPlace, link: Link) -> None:
        self.request = request
        self.num = request.title.num_restarts
        """How many there were before."""
        self.link = link
        self.node: NodeLink | None = None
        """Where it runs, once that is decided."""
        self.pid: int | None = None
        self.has_certainly_ended = False
        """Its node has said so."""
        self.refusal: Exception | None = None
        """Why there is no place for it: then no process has died."""
        self._session = session
        self._actor_id = request.actor_id
        self._placing = trio.CancelScope()
        self._is_connected = False
        self._was_connected = False
        self._is_doomed = False
        self._was_asked = False
        self._reason = ""
        """Why it ends, if we know better than its node."""
        self._report: ActorExited | None = None
        self._reported = trio.Event()

    async def live(self, on_hang_up: Callable[[], None]) -> ActorExited:
        """To its end, and how that came. `on_hang_up` is told, at once, when no call can reach it any more."""
        why = await self._run()
        on_hang_up()
        if self._was_connected:
            with trio.move_on_after(EXIT_LIMIT_S if self._was_asked else REPORT_LIMIT_S):
                await self._reported.wait()
        if self.pid is None and self.node is not None:
            self._session.places.give_back(self._actor_id)  # if the node did not even try
        if not self._reported.is_set():
            self._reason = self._reason or self._why_stopped(why)
            grace_s = CLOSE_GRACE_S if self._was_asked else 0.0
            # Who has asked for its end wants it to be over; the others want to hear that it is dead.
            limit_s = KILL_LIMIT_S if self._was_asked or self._is_doomed else REPORT_LIMIT_S
            with trio.move_on_after(grace_s + limit_s):
                await self.stop(grace_s)
                await self._reported.wait()
        report = self._report or self._unreported(why)
        return msgspec.structs.replace(report, reason=self._reason) if self._reason else report

    @property
    def is_usable(self) -> bool:
        """Whether calls may be sent to it."""
        return self._is_connected and not self._is_doomed

    def asked_to_end(self) -> None:
        """It will exit by itself, if it does what it was asked for."""
        self._was_asked = True
        self.link.disconnect()

    def doom(self, reason: str) -> None:
        """Let it end, wherever it is in its life. A process that it has must be stopped too."""
        self._is_doomed = True
        self._reason = self._reason or reason
        self._placing.cancel()

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, after that SIGKILL; returns when the node knows of no such process, or does not answer any more."""
        if self.node is None:
            return
        try:
            with trio.move_on_after(grace_s + KILL_LIMIT_S):
                await self.node.request(StopActor(self._actor_id, grace_s))
                return
        except AsyncparlError:
            return  # the node is gone, and every process of it
        self.link.disconnect()  # it does not die; at least nobody waits for it

    def exited(self, report: ActorExited) -> None:
        """The node says how the process ended. What it says of an earlier one comes too late."""
        if report.num_restarts == self.num:
            self.has_certainly_ended = True
            self._note(report)

    def node_lost(self, why: str) -> None:
        """The node is gone, and with it the process, as far as we shall ever know."""
        self._note(self._unreported(f"its node is gone: {why}"))
        self.link.disconnect()

    async def _run(self) -> str:
        """Until the link is lost; why."""
        started = None
        try:
            while started is None:
                placed = await self._place()
                if placed is None:
                    self._reported.set()  # there is no process that could end
                    return self._reason or ("" if self.refusal is None else explain(self.refusal))
                node, lease = placed
                self.node = node
                request = StartActor(self._actor_id, self.request.name, lease)
                started = await self._session.places.start_process(node, request)
                if started is None:  # what has become of that node is nothing to us
                    self.node, self._report, self._reported = None, None, trio.Event()
            self.pid = started.pid
            if self._is_doomed:
                return self._reason  # the request to stop it may have come before that to start it
            channel = await self._session.dial_worker(node, self._actor_id, started)
        except Exception as error:
            return explain(error)
        self.link.attach(channel)
        self._is_connected = self._was_connected = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hang_up_after_report)
            why = await self.link.run()
            self._is_connected = False
            nursery.cancel_scope.cancel()
        return why

    async def _place(self) -> tuple[NodeLink, SignedLease] | None:
        placed = None
        with trio.CancelScope() as self._placing:
            if self._is_doomed:
                self._placing.cancel()
            try:
                placed = await self._session.places.find(self.request)
            except Exception as error:
                self.refusal = ResourceError(explain(error)) if out_of_files(error) else error
                return None
        if placed is None or self._is_doomed:
            self._session.places.give_back(self._actor_id)
            return None
        return placed

    async def _hang_up_after_report(self) -> None:
        # The loss of the link follows the death of the process; if it does not, then we make it.
        await self._reported.wait()
        await trio.sleep(1)
        self.link.disconnect()

    def _note(self, report: ActorExited) -> None:
        self._report = report
        self._reported.set()

    def _why_stopped(self, why: str) -> str:
        if self._was_asked:
            return "it was closed, and did not exit"
        return f"the link to it was lost: {why}" if self._was_connected else why

    def _unreported(self, reason: str) -> ActorExited:
        return ActorExited(self._actor_id, reason, None, None, [], self.num)
