"""From references to handles: what a session can call beside the actors that it owns."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

import trio

from asyncparl.errors import AsyncparlError, ResourceError
from asyncparl.protocol.master_messages import DialActor, WatchMaster
from asyncparl.protocol.messages import CallKind
from asyncparl.protocol.node_messages import ActorExited
from asyncparl.runtime.actor import ActorHandle
from asyncparl.runtime.borrowed import BorrowedHandle, BorrowingSession, DriverHandle, LocalHandle
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.handle import CallMaker, Handle, ObjectHandle
from asyncparl.runtime.host import ActorHost
from asyncparl.runtime.master_link import MasterLink, MasterLost, watch
from asyncparl.runtime.node_link import NodeLink
from asyncparl.runtime.objects import Objects
from asyncparl.runtime.references import Reference, class_path_of
from asyncparl.speaking import say

_JOIN_THREAD_S = 5.0
_MAX_DEATHS = 100

_Process = ActorHandle | BorrowedHandle | LocalHandle | DriverHandle


class ReachingSession(BorrowingSession, Protocol):
    """What `Reach` needs of its session."""

    main_names: frozenset[str] | None

    @property
    def nursery(self) -> trio.Nursery: ...


class Reach:
    """The handles of one session, but for owned actors, which it is shown.

    Args:
        session: whose they are.
        objects: what can be called of this process.
        own: the actors of this session, by id.
        executor: the thread for methods of exposed objects; None: a thread for each.
    """

    def __init__(
        self,
        session: ReachingSession,
        objects: Objects,
        own: Mapping[str, ActorHandle],
        executor: Executor | None,
    ) -> None:
        self._session = session
        self._objects = objects
        self._own = own
        self._executor = executor
        self._threads: dict[int, _MethodThread] = {}
        self._handles: WeakValueDictionary[str, BorrowedHandle | LocalHandle | DriverHandle] = WeakValueDictionary()
        self._deaths: OrderedDict[str, ActorExited] = OrderedDict()
        """What was heard last: whoever gets a proxy again, after he had let go of it, is told as well."""
        self._is_following = False

    def handle_of(self, reference: Reference) -> Handle:
        """Who is called by a proxy of this reference."""
        process = self._process_of(reference)
        if reference.object_id == 0:
            assert not isinstance(process, DriverHandle)
            # A reference to what the actor has exposed, by which it may have been known first, does not tell.
            process.call_timeout_s = process.call_timeout_s or reference.call_timeout_s
            return process
        return ObjectHandle(process, reference)

    def expose(self, thing: object, max_concurrency: int) -> Handle:
        """An object of this process, for others."""
        name = type(thing).__name__
        thread = None
        executor = self._executor
        if executor is None:
            executor = thread = _MethodThread(name)
        note = f"raised in {name} (pid {os.getpid()} on {os.uname().nodename})"
        host = ActorHost(executor, self._session.nursery, note, may_exit=False, main_names=self._session.main_names)
        host.adopt(thing, max_concurrency)
        object_id = self._objects.expose(host)
        if thread is not None:
            self._threads[object_id] = thread
        is_driver = self._executor is None
        reference = Reference(self._session.process_id, object_id, name, class_path_of(type(thing)), is_driver)
        return _ExposedHandle(self._process_of(reference), reference, self._withdraw)

    def heard(self, event: ActorExited) -> None:
        """How an actor ended that we borrow."""
        self._deaths[event.actor_id] = event
        if len(self._deaths) > _MAX_DEATHS:
            self._deaths.popitem(last=False)
        if isinstance(handle := self._handles.get(event.actor_id), BorrowedHandle):
            handle.exited(event)

    def node_lost(self, node: NodeLink, why: str) -> None:
        """A node is gone, and with it those of its actors that we borrow."""
        for handle in list(self._handles.values()):
            if isinstance(handle, BorrowedHandle) and handle.node is node:
                handle.node_lost(why)

    async def follow_orders(self, master: MasterLink) -> None:
        """In a program: dial the actors that want to call what we have exposed. For as long as there is a master."""
        while True:
            try:
                link = await master.wait_joined()
            except ResourceError:
                return
            with contextlib.suppress(MasterLost):
                async for order in watch(link, WatchMaster()):
                    if isinstance(order, DialActor):
                        self._session.start_soon(self._dial, order.actor_id)

    async def close(self) -> None:
        """Let the threads of exposed objects end; one that is in a method of the user's is waited for, for a while."""
        for object_id in list(self._threads):
            await self._withdraw(object_id)

    async def _dial(self, actor_id: str) -> None:
        with contextlib.suppress(AsyncparlError):
            await self.handle_of(Reference(actor_id, 0, actor_id, ("", ""))).call(CallKind.PING, "")

    async def _withdraw(self, object_id: int) -> None:
        self._objects.withdraw(object_id)
        if (thread := self._threads.pop(object_id, None)) is not None:
            await thread.end()

    def _process_of(self, reference: Reference) -> _Process:
        process_id = reference.process_id
        if (own := self._own.get(process_id)) is not None:
            return own
        handle = self._handles.get(process_id)
        if handle is None:
            handle = self._handles[process_id] = self._new_handle(reference)
        return handle

    def _new_handle(self, reference: Reference) -> BorrowedHandle | LocalHandle | DriverHandle:
        process_id, session = reference.process_id, self._session
        whole = Reference(process_id, 0, reference.name, reference.class_path, reference.is_of_driver)
        if process_id == session.process_id:
            return LocalHandle(session, whole, self._objects)
        if reference.is_of_driver:
            return DriverHandle(session, whole, self._objects)
        return BorrowedHandle(session, whole, self._objects, self._deaths.get(process_id))


class _ExposedHandle(ObjectHandle):
    """An exposed object as its own process holds it: only this can let it go."""

    def __init__(self, process: CallMaker, reference: Reference, withdraw: Callable[[int], Any]) -> None:
        super().__init__(process, reference)
        self._withdraw = withdraw

    async def close(self) -> None:
        """Others cannot call it any more."""
        await self._withdraw(self._reference.object_id)

    kill = close


class _MethodThread(Executor):
    """A thread for the methods of one exposed object, started with the first of them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        # In the context of who exposes the object: that is how the thread finds the session.
        run = partial(contextvars.copy_context().run, self.run)
        self._thread = threading.Thread(target=run, name=f"asyncparl {name}", daemon=True)
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after those that wait. From any thread."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()
        super().submit(job)

    async def end(self) -> None:
        """Let it end after the jobs that wait."""
        self.stop()
        if self._thread.ident is None:
            return
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._thread.join, _JOIN_THREAD_S)
        if self._thread.is_alive():
            say(f"asyncparl: a method of an exposed object does not end: {self._thread.name}\n")
