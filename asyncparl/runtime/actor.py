"""One actor as its owner holds it: its link, its life and its death.

The life is one task, `ActorHandle.run`: ask the node for a process, dial it, receive until the link is lost, learn why,
settle every open call. Calls may be made from the first moment: they wait in the link.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import trio

from asyncparl.errors import ActorDied, AsyncparlError, CallFate, ResourceError, SerializationError
from asyncparl.ids import ActorId
from asyncparl.protocol.control import ActorExited, ActorStarted, StartActor, StopActor
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.messages import CallKind
from asyncparl.protocol.resources import Demand
from asyncparl.protocol.tickets import SignedLease
from asyncparl.protocol.values import NOTHING, encode_value
from asyncparl.runtime.call import Call, failed_call, make_call
from asyncparl.runtime.link import Link
from asyncparl.runtime.node_link import NodeLink
from asyncparl.transport.base import Channel

_REPORT_LIMIT_S = 2.0
"""How long a lost link waits for the node to say why."""
_EXIT_LIMIT_S = 5.0
"""How long an actor that was closed may take to end before it is killed."""


class OwnerSession(Protocol):
    """What an actor needs of its session."""

    async def place(self, actor_id: str, name: str, demand: Demand) -> tuple[NodeLink, SignedLease]: ...
    async def withdraw(self, actor_id: str) -> None: ...
    async def dial_worker(self, node: NodeLink, actor_id: str, started: ActorStarted) -> Channel: ...
    def start_soon(self, function: Any, *args: Any) -> None: ...


class ActorHandle:
    """An actor that we own."""

    def __init__(
        self, session: OwnerSession, actor_id: ActorId, name: str, plain_class: type, *, by_value: bool
    ) -> None:
        self._session = session
        self._by_value = by_value
        self.actor_id = actor_id
        self.name = name
        self.plain_class = plain_class
        self.node: NodeLink | None = None
        """Where it runs, once that is decided."""
        self.pid: int | None = None
        self._link = Link(LinkCore(name="driver", pid=os.getpid()))
        self._creation: Call[None] | None = None
        self._no_object: BaseException | None = None
        """Why there never was an object: the constructor failed, or there is no place for it."""
        self._intended_end = ""
        self._kill_wanted = False
        self._is_forced = False
        self._report: ActorExited | None = None
        self._reported = trio.Event()
        self._gone = trio.Event()

    # --- for proxies ----------------------------------------------------------------------------------------

    def call(self, kind: int, target: str, argument: object = None, *, credit: int = 0) -> Call[Any]:
        """Make a call. Whatever goes wrong is raised where it is awaited."""
        name = f"{self.name}.{target}"
        if self._link.is_lost:
            return failed_call(name, self._why_dead(CallFate.NEVER_STARTED))
        try:
            value = NOTHING if argument is None else encode_value(argument, by_value=self._by_value)
        except SerializationError as error:
            return failed_call(name, _named(error, f"the arguments of {name}"))
        return make_call(self._link, name, kind, target, value, credit=credit)

    @property
    def state(self) -> str:
        """For people: where the actor is in its life."""
        if self._link.is_lost:
            return "dead"
        if self.pid is None or self.node is None:
            return "starting"
        return f"pid {self.pid} on {self.node.name}"

    async def wait_gone(self) -> None:
        """Until its process has ended and every call is settled."""
        await self._gone.wait()

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended and every call is settled."""
        return self._gone.is_set()

    def public_names(self) -> list[str]:
        """What can be called or read, as far as the class says."""
        return [name for name in dir(self.plain_class) if not name.startswith("_")]

    async def wait_created(self) -> None:
        """Until the constructor has run; raises what it raised."""
        assert self._creation is not None
        await self._creation

    async def close(self) -> None:
        """End it after everything that was called before; streams are cut."""
        if self._gone.is_set():
            return
        self.expect_end("it was closed")
        try:
            await self._quit()
            with trio.move_on_after(_EXIT_LIMIT_S):
                await self._gone.wait()
        finally:
            self._kill_soon()
        await self._gone.wait()

    async def kill(self) -> None:
        """End it at once."""
        self.expect_end("it was killed by its owner")
        self._kill_soon()
        await self._gone.wait()

    def _kill_soon(self) -> None:
        if not self._gone.is_set():
            # The request may overtake the one to start it: `_live` looks at the flag too.
            self._kill_wanted = self._is_forced = True
            self._session.start_soon(self._stop_process)

    # --- its life -------------------------------------------------------------------------------------------

    def create(self, plain_class: type, max_concurrency: int, args: Any, kwargs: Any) -> None:
        """Make the first call: build the object."""
        self._creation = self.call(CallKind.CREATE, "__init__", (plain_class, max_concurrency, args, kwargs))

    async def run(self, demand: Demand) -> None:
        """From the request for a place until the process is gone and every call is settled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_constructor)
            try:
                why = await self._live(demand)
                if self.pid is None and self.node is not None:
                    await self._session.withdraw(self.actor_id)  # if the node did not even try
                if not self._reported.is_set():
                    self.expect_end(f"the link to it was lost: {why}", by_force=True)
                    with trio.move_on_after(_REPORT_LIMIT_S):
                        await self._stop_process()
                        await self._reported.wait()
                self._report = self._report or ActorExited(self.actor_id, why, None, None, [])
            finally:
                self._link.lose(self._why_dead)
                self._gone.set()
                nursery.cancel_scope.cancel()

    def expect_end(self, reason: str, *, by_force: bool = False) -> None:
        """The coming end is wanted; say so to whoever still makes calls. By force: by whatever signal it takes."""
        self._intended_end = self._intended_end or reason
        self._is_forced = self._is_forced or by_force

    def exited(self, report: ActorExited) -> None:
        """The node says how the process ended."""
        self._report = report
        self._reported.set()

    def node_lost(self, why: str) -> None:
        """The node is gone, and with it the process, as far as we shall ever know."""
        self.exited(ActorExited(self.actor_id, f"its node is gone: {why}", None, None, []))
        self._link.disconnect()

    async def _live(self, demand: Demand) -> str:
        """Until the link is lost; why."""
        if (reason := await self._cannot_be_created()) is not None:
            return reason
        try:
            node, lease = await self._place(demand)
            if self._is_doomed():
                await self._session.withdraw(self.actor_id)  # the place came after the wish to end
                self._reported.set()
                return self._intended_end
            self.node = node
            started = await node.request(StartActor(self.actor_id, self.name, lease))
            assert isinstance(started, ActorStarted)
            self.pid = started.pid
            if self._is_doomed():
                return self._intended_end
            channel = await self._session.dial_worker(node, self.actor_id, started)
        except Exception as error:
            return str(error) or repr(error)
        self._link.attach(channel)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hang_up_after_report)
            why = await self._link.run()
            with trio.move_on_after(_REPORT_LIMIT_S):
                await self._reported.wait()
            nursery.cancel_scope.cancel()
        return why

    async def _place(self, demand: Demand) -> tuple[NodeLink, SignedLease]:
        try:
            return await self._session.place(self.actor_id, self.name, demand)
        except (ResourceError, ValueError) as error:
            if not self._kill_wanted:
                # No process has died: every call raises what is wrong with the request.
                self._no_object = error
            self._reported.set()
            raise

    def _is_doomed(self) -> bool:
        """Killed while its process was being asked for."""
        return self._kill_wanted

    async def _cannot_be_created(self) -> str | None:
        """Why there is no use in starting a process: the constructor's arguments cannot even be sent."""
        assert self._creation is not None
        if not self._creation.done():
            return None
        try:
            await self._creation
        except Exception as error:
            self._no_object = error
            self._reported.set()  # there is no process that could end
        return "its constructor was never called"

    async def _hang_up_after_report(self) -> None:
        # The loss of the link follows the death of the process; if it does not, then we make it.
        await self._reported.wait()
        await trio.sleep(1)
        self._link.disconnect()

    async def _watch_constructor(self) -> None:
        """A constructor that raises ends its actor, and every call raises the same."""
        try:
            await self.wait_created()
        except ActorDied:
            pass  # told to whoever makes calls
        except Exception as error:
            self._no_object = error
            await self._quit()

    async def _quit(self) -> None:
        """Let the worker answer everything that was called, then hang up: it ends by itself."""
        try:
            await self.call(CallKind.CLOSE, "close")
        except Exception:
            pass  # dead already, or its constructor failed: it is told to end all the same
        self._link.disconnect()

    async def _stop_process(self) -> None:
        if self.node is None:
            await self._session.withdraw(self.actor_id)
            return
        try:
            await self.node.request(StopActor(self.actor_id, 0.0))
        except AsyncparlError:
            pass  # the node is gone, and every process of it

    def _why_dead(self, fate: CallFate) -> BaseException:
        if self._no_object is not None:
            return self._no_object
        report = self._report or ActorExited(self.actor_id, "its session has ended", None, None, [])
        went_wrong = (report.signal is not None or report.exit_code) and not self._is_forced
        reason = report.reason if went_wrong else self._intended_end or report.reason
        return ActorDied(self.name, reason, report.exit_code, report.signal, report.log_tail, fate)


def _named(error: SerializationError, what: str) -> SerializationError:
    """The same error, saying what could not travel."""
    named = SerializationError(f"{what}: {error}")
    named.__cause__ = error.__cause__
    return named
