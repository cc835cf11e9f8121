"""One actor as its owner holds it: its life and its death, from one process to the next.

    STARTING --constructor returned--> RUNNING --died--> dead
        ^                                 |
        |                        died, and its supervisor
        |                        grants a restart
        |                                 v
        +------ after the pause ------ WAITING --closed, killed, its session ends--> dead

The life is one task, `ActorHandle.run`. Each process is an `Incarnation` with a link of its own, so that nothing of an
earlier one is taken for news. Calls may be made from the first moment: they wait in the link, or, for an actor that may
be started again, here. What waits here was never sent, so a process that dies before its object is there costs no call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import msgspec
import trio

from asyncparl.errors import ActorDied, CallFate, SerializationError
from asyncparl.ids import ActorId
from asyncparl.protocol.master_messages import AskPlace, KillActor
from asyncparl.protocol.messages import CallKind
from asyncparl.protocol.node_messages import ActorExited
from asyncparl.protocol.values import NOTHING, Encoded
from asyncparl.runtime.activity import WaitingCall, note_calling
from asyncparl.runtime.call import Call, make_call
from asyncparl.runtime.call_values import encode_argument
from asyncparl.runtime.exceptions import qualified_name, text_of
from asyncparl.runtime.handle import LinkedHandle
from asyncparl.runtime.incarnation import Incarnation, OwnerSession
from asyncparl.runtime.link import LinkLost
from asyncparl.runtime.node_link import NodeLink
from asyncparl.runtime.pending import Pending
from asyncparl.runtime.references import Reference, class_path_of
from asyncparl.runtime.repeats import RepeatableCall, idempotent_methods
from asyncparl.runtime.stopping import CLOSE_GRACE_S
from asyncparl.runtime.supervisor import Restart, Supervisor

_MIN_LOOK_THROUGH = 64
"""Calls that wait for an actor to start, before any of them is looked at again."""


class ActorHandle(LinkedHandle):
    """An actor that we own."""

    def __init__(
        self, session: OwnerSession, request: AskPlace, plain_class: type, supervisor: Supervisor | None = None
    ) -> None:
        """`supervisor`: decides whether it is started again when it dies; None: it never is."""
        super().__init__(
            request.name,
            callee=session.objects,
            process_id=session.process_id,
            main_names=session.main_names,
            max_value_bytes=session.max_value_bytes,
        )
        self.actor_id = ActorId(request.actor_id)
        self.plain_class = plain_class
        self.public_name = request.title.public_name
        self.call_timeout_s = request.title.call_timeout_s
        self.is_detached = request.title.is_detached
        """It does not end with its session."""
        self._session = session
        self._supervisor = supervisor
        self._process = Incarnation(session, request, self._link)
        self._arguments: Encoded = NOTHING
        """Of the constructor, with all that `CREATE` says."""
        self._creation: Call[None] | None = None
        self._no_object: BaseException | None = None
        """Why there never was an object: the constructor failed, or there is no place for it."""
        self._was_created = False
        self._started = trio.Event()
        """There is an object, or there will never be one."""
        self._death: ActorExited | None = None
        """Of the last process that has ended."""
        self._intended_end = ""
        self._is_forced = False
        self._ordered: Restart | None = None
        """In which it has to take part although it has not died."""
        self._pausing: trio.CancelScope | None = None
        """The wait between two processes."""
        self._gone = trio.Event()
        self._idempotent = frozenset[str]() if supervisor is None else idempotent_methods(plain_class)
        self._switching = threading.RLock()
        """What follows, and `_link`, changes while calls are made in any thread."""
        self._is_open = supervisor is None
        """Calls may be sent."""
        self._waiting: list[RepeatableCall] = []
        self._look_through_at = _MIN_LOOK_THROUGH
        self._repeated: list[RepeatableCall] | None = None
        """While a link is exchanged: what its loss does not fail."""
        note_calling(self)

    # --- for proxies ----------------------------------------------------------------------------------------

    def reference(self) -> Reference:
        """What travels."""
        class_path = class_path_of(self.plain_class)
        return Reference(self.actor_id, 0, self.name, class_path, call_timeout_s=self.call_timeout_s)

    @property
    def state(self) -> str:
        """For people: where the actor is in its life."""
        process = self._process
        if self._gone.is_set() or self._link.is_lost:
            return "dead"
        if process.num and not self._is_open:
            return "restarting"
        if process.pid is None or process.node is None:
            return "starting"
        return f"pid {process.pid} on {process.node.name}"

    @property
    def node(self) -> NodeLink | None:
        """Where it runs, once that is decided."""
        return self._process.node

    async def wait_gone(self) -> None:
        """Until its last process has ended and every call is settled."""
        await self._gone.wait()

    @property
    def is_gone(self) -> bool:
        """Whether its last process has ended and every call is settled."""
        return self._gone.is_set()

    def public_names(self) -> list[str]:
        """What can be called or read, as far as the class says."""
        return [name for name in dir(self.plain_class) if not name.startswith("_")]

    async def wait_created(self) -> None:
        """Until the constructor has run; raises what it raised."""
        await self._started.wait()
        if not self._was_created:
            raise self._why_dead(CallFate.NEVER_STARTED)

    @property
    def is_unmade(self) -> bool:
        """Whether the constructor has neither run nor failed."""
        return not self._started.is_set()

    @property
    def is_reached(self) -> bool:
        """Whether it has a process that has been told what to make."""
        return self._process.is_usable

    async def close(self) -> None:
        """End it after everything that was called before; streams are cut. Between two processes it ends at once."""
        if self._gone.is_set():
            await self._end_out_of_sight()
            return
        self.expect_end("it was closed")
        is_restarting = self._process.num and not self._is_open
        try:
            if not is_restarting:
                await self._ask_to_end()
                await self._gone.wait()
        finally:
            self._stop_soon(CLOSE_GRACE_S)  # if nobody asks it any longer
        await self._gone.wait()

    async def kill(self) -> None:
        """End it at once."""
        if self._gone.is_set():
            await self._end_out_of_sight()
            return
        self.expect_end("it was killed by its owner")
        self._stop_soon(0.0)
        await self._gone.wait()

    async def _end_out_of_sight(self) -> None:
        """A detached one may live on where we have lost its node. The master can reach it."""
        if self.is_detached and not self._process.has_certainly_ended:
            await self._session.ask_master(KillActor(self.actor_id))

    def _stop_soon(self, grace_s: float) -> None:
        if not self._gone.is_set():
            self._is_forced = True
            self._process.doom(self._intended_end)
            self._session.start_soon(self._process.stop, grace_s)

    # --- calls ----------------------------------------------------------------------------------------------

    def create(self, max_concurrency: int, args: Any, kwargs: Any) -> None:
        """Make the first call: build the object."""
        argument = (self.plain_class, max_concurrency, args, kwargs)
        try:
            name = f"{self.name}.__init__"
            arguments = encode_argument(name, CallKind.CREATE, argument, main_names=self._main_names)
        except SerializationError as error:
            self._no_object = error
            return
        self._arguments = arguments if self._supervisor is None else arguments.detach()
        self._call_constructor()

    def _call_constructor(self) -> None:
        name = f"{self.name}.__init__"
        self._creation = make_call(self._process.link, name, CallKind.CREATE, "__init__", self._arguments)

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
        with self._switching:
            if self._gone.is_set() or self._no_object is not None:
                raise LinkLost
            if self._intended_end and kind != CallKind.CLOSE:
                raise LinkLost  # what is called after its end was asked for might run, and its answer be lost
            is_repeatable = kind == CallKind.METHOD and target in self._idempotent
            if object_id or (self._is_open and not is_repeatable):
                # What was exposed by a process is never in the next one.
                return super()._make_call(
                    name, kind, target, value, credit=credit, object_id=object_id, timeout_s=timeout_s
                )
            pending = Pending(name, self.loop)
            deadline = None if timeout_s is None else pending.limit_to(timeout_s, self.loop)
            call = RepeatableCall(
                pending, kind, target, value.detach(), credit=credit, deadline=deadline, on_lost=self._call_lost
            )
            if self._is_open:
                call.send(self._link)
            else:
                self._let_wait(call)
            pending.watch_limit()
            return Call(pending)

    def _let_wait(self, call: RepeatableCall) -> None:
        if len(self._waiting) >= self._look_through_at:
            # Those that were given up meanwhile would be kept for as long as the actor does not start.
            self._waiting = [other for other in self._waiting if not other.is_settled]
            self._look_through_at = max(_MIN_LOOK_THROUGH, 2 * len(self._waiting))
        self._waiting.append(call)

    def _call_lost(self, call: RepeatableCall, error: BaseException) -> None:
        if self._repeated is not None and call.target in self._idempotent and not call.has_begun:
            self._repeated.append(call)
        else:
            call.fail(error)

    def waiting_calls(self) -> Iterable[WaitingCall]:
        """Those that wait for the actor to start again; the others are known to its link."""
        return [call.describe() for call in tuple(self._waiting)]

    # --- its life -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """From the request for a place until its last process is gone and every call is settled."""
        try:
            while (restart := await self._live()) is not None:
                self._take_over()
                await self._pause(restart)
                if self._intended_end:
                    break
            # A detached one may live on, out of our sight: then its name is not ours to release.
            is_over = not self.is_detached or self._process.has_certainly_ended
            if is_over and (self._supervisor is not None or self.public_name):
                self._session.withdraw(self.actor_id)
        finally:
            self._end()

    def expect_end(self, reason: str, *, by_force: bool = False) -> None:
        """The coming end is wanted; say so to whoever still makes calls. By force: by whatever signal it takes."""
        with self._switching:
            self._intended_end = self._intended_end or reason
        if self._pausing is not None:
            self._pausing.cancel()
        if by_force:
            self._is_forced = True
            self._process.doom(self._intended_end)

    def start_again(self, restart: Restart, reason: str) -> None:
        """End its process, if it has one, and have it take part in a restart. Open calls are told the reason."""
        self._ordered = restart
        self._hold_back()
        if self._pausing is not None:
            self._pausing.cancel()
        elif not self._intended_end:
            self._process.doom(reason)
            self._session.start_soon(self._process.stop, CLOSE_GRACE_S)

    def exited(self, report: ActorExited) -> None:
        """The node says how a process ended."""
        self._process.exited(report)

    def node_lost(self, why: str) -> None:
        """The node is gone, and with it the process, as far as we shall ever know."""
        self._process.node_lost(why)

    async def _live(self) -> Restart | None:
        """The life of one process, and what comes after it."""
        if not await self._can_be_created():
            return None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_constructor, self._process)
            self._death = await self._process.live(self._hold_back)
            nursery.cancel_scope.cancel()
        return self._restart_after(self._process, self._death)

    async def _can_be_created(self) -> bool:
        """False: there is no use in starting a process, as the constructor's arguments cannot even be sent."""
        if self._no_object is not None or self._creation is None:
            return False
        if self._creation.done():
            try:
                await self._creation
            except Exception as error:
                self._no_object = error
            return False
        return True

    async def _watch_constructor(self, process: Incarnation) -> None:
        """A constructor that raises ends its actor, and every call raises the same; in a restart that is a death."""
        assert self._creation is not None
        try:
            await self._creation
        except Exception as error:
            if process.num:
                process.doom(f"its restart failed: {qualified_name(type(error))}: {text_of(error)}")
                await process.stop(0.0)
            else:
                self._no_object = error
                self._started.set()
                self._fail_waiting()
                await self._ask_to_end()
        else:
            self._was_created = True
            self._started.set()
            if process.is_usable:
                self._open()

    def _open(self) -> None:
        """There is an object: what waits is sent."""
        with self._switching:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call.send(self._link)
            self._is_open = True

    def _hold_back(self) -> None:
        """No call reaches the process any more; perhaps the next one."""
        if self._supervisor is not None and not self._intended_end:
            with self._switching:
                self._is_open = False

    def _restart_after(self, process: Incarnation, death: ActorExited) -> Restart | None:
        if self._intended_end or self._no_object is not None:
            return None
        if process.refusal is not None:
            if process.num:
                self._death = msgspec.structs.replace(death, reason=f"it cannot be started again: {death.reason}")
            else:
                self._no_object = process.refusal
            return None
        if self._supervisor is None:
            return None
        if (order := self._take_order()) is not None:
            return order
        if death.is_final or death.exit_code == 0:
            return None  # somebody has ended it, or it has ended itself
        restart = self._supervisor.died(self, death)
        if restart is None and (why := self._supervisor.why_spent()):
            self._death = msgspec.structs.replace(death, reason=f"{why}: {death.reason}")
        return restart

    def _take_over(self) -> None:
        """The next process takes the place of the last one: its open calls fail, but for those that may run twice."""
        old, request = self._process, self._process.request
        title = msgspec.structs.replace(request.title, num_restarts=old.num + 1)
        with self._switching:
            self._link = self._new_link()
            self._process = Incarnation(self._session, msgspec.structs.replace(request, title=title), self._link)
            self._repeated = []
            old.link.lose(self._why_died)
            self._waiting, self._repeated = [*self._repeated, *self._waiting], None
        self._death = None
        self._session.objects.link_lost(old.link)
        self._call_constructor()

    async def _pause(self, restart: Restart) -> None:
        """Until all that start again with it have ended too, and the pause is over; or it is not to start any more."""
        order: Restart | None = restart
        while order is not None:
            order.ended(self)
            if self._intended_end:
                return
            with trio.CancelScope() as self._pausing:
                await order.wait()
            self._pausing = None
            order = self._take_order()

    def _take_order(self) -> Restart | None:
        order, self._ordered = self._ordered, None
        return order

    def _end(self) -> None:
        with self._switching:
            self._gone.set()
            self._link.lose(self._why_dead)
        self._fail_waiting()
        self._session.objects.link_lost(self._link)
        self._started.set()
        if self._supervisor is not None:
            if (order := self._take_order()) is not None:
                order.ended(self)
            if self._no_object is not None:
                self._supervisor.never_started(self, self._no_object)
            self._supervisor.gone(self)

    def _fail_waiting(self) -> None:
        with self._switching:
            waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.fail(self._why_dead(call.fate))

    async def _ask_to_end(self) -> None:
        """Let the worker answer everything that was called, then hang up: it ends by itself."""
        try:
            if self._no_object is None:
                await self.call(CallKind.CLOSE, "close")
            else:
                await make_call(self._link, f"{self.name}.close", CallKind.CLOSE, "close")
        except Exception:
            pass  # dead already, or its constructor failed: it is told to end all the same
        self._process.asked_to_end()

    def _why_died(self, fate: CallFate) -> BaseException:
        """What a call raises that was open when a process died which is not the last one."""
        death = self._death
        assert death is not None
        return ActorDied(self.name, death.explain(), death.exit_code, death.signal, death.log_tail, fate)

    def _why_dead(self, fate: CallFate) -> BaseException:
        if self._no_object is not None:
            return self._no_object
        death = self._death or ActorExited(self.actor_id, "its session has ended", None, None, [])
        went_wrong = (death.signal is not None or death.exit_code) and not self._is_forced
        reason = death.explain("" if went_wrong else self._intended_end)
        return ActorDied(self.name, reason, death.exit_code, death.signal, death.log_tail, fate)
