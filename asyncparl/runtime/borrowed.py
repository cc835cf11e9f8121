"""Objects of other processes whose references we were given, and our own.

BorrowedHandle   an actor that somebody else owns: found through the master, dialed when it is first called
LocalHandle      this process itself: its actor, if it is a worker, and what it has exposed
DriverHandle     a program: nobody can dial it, so calls go over a link that it has made to us, or makes now

Calls are made in any thread, connections end in the event loop: what one of them decides must hold for the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import trio

from asyncparl.errors import ActorDied, AsyncparlError, CallFate, ResourceError, SerializationError
from asyncparl.machine import explain
from asyncparl.protocol.master_messages import CallBack, FindActor, KillActor, NodeTicket
from asyncparl.protocol.messages import CallKind
from asyncparl.protocol.node_messages import ActorExited, FollowActor
from asyncparl.protocol.values import Encoded
from asyncparl.runtime.activity import WaitingCall, note_calling
from asyncparl.runtime.call import Call, deferred_call, failed_call, lose_call, make_call
from asyncparl.runtime.call_values import encode_argument
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.handle import LinkedHandle
from asyncparl.runtime.interrupts import Uninterrupted
from asyncparl.runtime.link import MAX_MESSAGE_BYTES, Link, LinkLost
from asyncparl.runtime.node_link import NodeLink
from asyncparl.runtime.objects import Objects
from asyncparl.runtime.references import Reference, public_names
from asyncparl.runtime.stopping import REPORT_LIMIT_S
from asyncparl.transport import memory_channels
from asyncparl.transport.base import Channel

_LOOK_AGAIN_S = 0.1
_LOOK_LIMIT_S = 2.0
"""How much later than the node the master may learn that a process of the actor has ended."""
_CALL_BACK_LIMIT_S = 10.0


class BorrowingSession(Protocol):
    """What these handles need of their session."""

    process_id: str
    main_names: frozenset[str] | None
    max_value_bytes: int | None

    def node_at(self, ticket: NodeTicket) -> NodeLink: ...
    async def ask_master(self, request: Any) -> Any: ...
    async def dial_worker(self, node: NodeLink, actor_id: str, started: Any) -> Channel: ...
    def start_soon(
        self, function: Callable[..., Any], *args: Any, otherwise: Callable[[], object] | None = None
    ) -> None: ...


class BorrowedHandle(LinkedHandle):
    """An actor of somebody else. One connection at a time; after a loss the next call looks where the actor is now.

    What is called once a connection is lost goes over the next one, which is not made before it is known why.
    """

    def __init__(
        self, session: BorrowingSession, reference: Reference, objects: Objects, death: ActorExited | None = None
    ) -> None:
        """`death`: what we have heard of it already."""
        super().__init__(
            reference.name,
            callee=objects,
            process_id=session.process_id,
            main_names=session.main_names,
            max_value_bytes=session.max_value_bytes,
        )
        self._objects = objects
        self._session = session
        self._reference = reference
        self._num_restarts = 0 if death is None else death.num_restarts
        """Of the process that it was when we found it last."""
        self._report: ActorExited | None = None
        self._reported = trio.Event()
        self._turn = threading.Lock()
        self._is_connecting = False
        self._one_at_a_time = trio.Lock()
        self._error: Exception | None = None
        """Why it could not be reached the last time."""
        self._death = death
        """The last that its node has said, if it has not been reached since."""
        self.node: NodeLink | None = None

    def reference(self) -> Reference:
        """What travels."""
        return self._reference

    def _make_call(
        self,
        name: str,
        kind: int,
        target: str,
        value: Encoded,
        *,
        credit: int,
        object_id: int,
        timeout_s: float | None,
    ) -> Call[Any]:
        with self._turn:
            if not self._is_connecting:
                self._is_connecting = True
                session_over = partial(self._link.lose, self._why_dead)
                self._session.start_soon(self._serve_connection, self._link, otherwise=session_over)
            return super()._make_call(
                name, kind, target, value, credit=credit, object_id=object_id, timeout_s=timeout_s
            )

    @property
    def state(self) -> str:
        """For people."""
        return "borrowed" if self.node is None else f"on {self.node.name}, borrowed"

    def public_names(self) -> list[str]:
        """What can be called or read."""
        return public_names(self._reference.class_path)

    async def wait_created(self) -> None:
        """Until it can be called.

        Raises:
            ActorDied: it is gone.
        """
        await self.call(CallKind.PING, "")

    async def close(self) -> None:
        """End it after everything that we have called."""
        call, link = self.call(CallKind.CLOSE, "close"), self._link
        try:
            await call
        except (ActorDied, AsyncparlError):
            return
        link.disconnect()
        with trio.move_on_after(REPORT_LIMIT_S):
            await self._reported.wait()

    async def kill(self) -> None:
        """End it at once, wherever it is."""
        await self._session.ask_master(KillActor(self._reference.process_id))

    def exited(self, report: ActorExited) -> None:
        """Its node says how a process ended. What it says of an earlier one comes too late."""
        if report.num_restarts >= self._num_restarts:
            self._report = self._death = report
            self._reported.set()

    def node_lost(self, why: str) -> None:
        """We have lost its node. Whether it lives on there, its owner and the master may know."""
        reason = f"the connection to its node was lost: {why}"
        self.exited(ActorExited(self._reference.process_id, reason, None, None, [], self._num_restarts))
        self._link.disconnect()

    async def _serve_connection(self, link: Link) -> None:
        """From looking for the actor until the link is lost and all that was called over it is settled."""
        try:
            async with self._one_at_a_time:
                await self._serve(link)
        finally:
            self._leave(link)
            link.lose(self._why_dead)
            self._objects.link_lost(link)

    async def _serve(self, link: Link) -> None:
        actor_id = self._reference.process_id
        self._report, self._reported, self._error = None, trio.Event(), None
        why = "its caller has ended"
        try:
            self.node = await self._find()
            link.attach(await self._session.dial_worker(self.node, actor_id, None))
            self._death = None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hang_up_after_report, link)
                why = await link.run()
                self._leave(link)
                with trio.move_on_after(REPORT_LIMIT_S):
                    await self._reported.wait()
                nursery.cancel_scope.cancel()
        except (AsyncparlError, OSError) as error:
            self._error = error
        finally:
            self._report = self._report or ActorExited(actor_id, why, None, None, [])
            self.node = None
            self._leave(link)
            link.lose(self._why_dead)  # with this report

    def _leave(self, link: Link) -> None:
        """No call is to go this way any more."""
        with self._turn:
            if self._link is link:
                self._is_connecting = False
                self._link = self._new_link()

    async def _find(self) -> NodeLink:
        """Where the actor is now. If its owner starts it again, the master waits for that once it knows of the death.

        Raises:
            ResourceError: it has ended, or cannot be reached.
        """
        give_up_at = trio.current_time() + _LOOK_LIMIT_S
        while True:
            ticket = await self._session.ask_master(FindActor(self._reference.process_id))
            node = self._session.node_at(ticket)
            try:
                await node.wait_reached()
                self._num_restarts = (await node.request(FollowActor(self._reference.process_id))).num_restarts
                return node
            except ResourceError:
                if trio.current_time() > give_up_at:
                    raise
                await trio.sleep(_LOOK_AGAIN_S)

    async def _hang_up_after_report(self, link: Link) -> None:
        await self._reported.wait()
        await trio.sleep(1)
        link.disconnect()

    def _why_dead(self, fate: CallFate) -> BaseException:
        if self._error is not None and self._death is None:
            return ActorDied(self.name, f"it cannot be reached: {explain(self._error)}", fate=CallFate.NEVER_STARTED)
        report = self._death or self._report
        if report is None:
            return ActorDied(self.name, "its caller has ended", fate=fate)
        return ActorDied(self.name, report.explain(), report.exit_code, report.signal, report.log_tail, fate)


class LocalHandle(LinkedHandle):
    """The objects of this very process, called like those of any other: values are copies, order is kept."""

    def __init__(self, session: BorrowingSession, reference: Reference, objects: Objects) -> None:
        super().__init__(
            reference.name,
            callee=objects,
            process_id=session.process_id,
            main_names=session.main_names,
            max_value_bytes=session.max_value_bytes,
        )
        self._reference = reference
        self._objects = objects
        for channel, link in zip(memory_channels(MAX_MESSAGE_BYTES), (self._link, self._new_link()), strict=True):
            session.start_soon(self._serve, link, channel, otherwise=partial(link.lose, self._why_dead))

    def reference(self) -> Reference:
        """What travels."""
        return self._reference

    def _make_call(
        self,
        name: str,
        kind: int,
        target: str,
        value: Encoded,
        *,
        credit: int,
        object_id: int,
        timeout_s: float | None,
    ) -> Call[Any]:
        call = super()._make_call(name, kind, target, value, credit=credit, object_id=object_id, timeout_s=timeout_s)
        call.needs_thread(self._objects.thread_for(object_id, kind, target))
        return call

    @property
    def state(self) -> str:
        """For people."""
        return "in this process"

    def public_names(self) -> list[str]:
        """What can be called or read."""
        return public_names(self._reference.class_path)

    async def wait_created(self) -> None:
        """It is here."""

    async def close(self) -> None:
        """An actor ends by returning, or by `sys.exit()`, or by whoever holds it elsewhere."""
        raise RuntimeError(f"{self.name} cannot close itself from inside")

    async def kill(self) -> None:
        """Likewise."""
        raise RuntimeError(f"{self.name} cannot kill itself from inside")

    async def _serve(self, link: Link, channel: Channel) -> None:
        link.attach(channel)
        try:
            await link.run()
        finally:
            link.lose(self._why_dead)
            self._objects.link_lost(link)

    def _why_dead(self, fate: CallFate) -> BaseException:
        return ActorDied(self.name, "its process ends", fate=fate)


class DriverHandle:
    """A program whose exposed objects we were given. Calls wait for a link of its to us, in order."""

    def __init__(self, session: BorrowingSession, reference: Reference, objects: Objects) -> None:
        self.name = f"{reference.name} of a program"
        self.loop = EventLoop()
        self._session = session
        self._process_id = reference.process_id
        self._objects = objects
        self._turn = threading.RLock()  # a session that is over settles what waits at once
        self._waiting: deque[tuple[Call[Any], Callable[[Link], None]]] = deque()
        note_calling(self)

    def call(
        self,
        kind: int,
        target: str,
        argument: object = None,
        *,
        credit: int = 0,
        object_id: int = 0,
        timeout_s: float | None = None,
    ) -> Call[Any]:
        """Make a call. Whatever goes wrong is raised where it is awaited."""
        name = f"{self.name}.{target}"
        if self.loop.is_elsewhere:
            return failed_call(name, self.loop.why_over(name))
        try:
            value = encode_argument(name, kind, argument, main_names=self._session.main_names)
        except SerializationError as error:
            return failed_call(name, error)
        with Uninterrupted(), self._turn:
            link = None if self._waiting else self._objects.find_link(self._process_id)
            if link is not None:
                with contextlib.suppress(LinkLost):
                    return make_call(
                        link, name, kind, target, value, credit=credit, object_id=object_id, timeout_s=timeout_s
                    )
            call, send = deferred_call(
                self.loop,
                name,
                kind,
                target,
                value.detach(),
                credit=credit,
                object_id=object_id,
                timeout_s=timeout_s,
            )
            self._waiting.append((call, send))
            if len(self._waiting) == 1:
                session_over = partial(self._settle_waiting, None, "its caller has ended")
                self._session.start_soon(self._send_waiting, otherwise=session_over)
        return call

    def waiting_calls(self) -> Iterable[WaitingCall]:
        """Those that wait for a link; the others are known to it."""
        return [call.describe() for call, _ in tuple(self._waiting)]

    async def _send_waiting(self) -> None:
        """Have the program dial us; then send what waits."""
        link, why = None, f"it has not called back within {_CALL_BACK_LIMIT_S:g} s"
        with trio.move_on_after(_CALL_BACK_LIMIT_S):
            try:
                await self._session.ask_master(CallBack(self._process_id, self._session.process_id))
                link = await self._objects.wait_link(self._process_id)
            except AsyncparlError as error:
                why = str(error)
        self._settle_waiting(link, why)

    def _settle_waiting(self, link: Link | None, why: str) -> None:
        with self._turn:
            while self._waiting:
                call, send = self._waiting.popleft()
                if link is not None:
                    send(link)
                else:
                    lose_call(call, ActorDied("the program that exposed the object", why, fate=CallFate.NEVER_STARTED))
