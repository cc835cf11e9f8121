"""What stands behind `async with asyncparl.connect()`: a program's part in a cluster.

The session owns everything that its block starts: the processes of a private cluster, the links to the master and to
the nodes, an `ActorHandle` per actor, and the tasks that serve them. Leaving the block, however it is left, ends them
all.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import trio

from asyncparl.errors import AsyncparlError, NotConnectedError, ResourceError
from asyncparl.ids import new_actor_id, new_driver_id, new_token
from asyncparl.machine import printable
from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.protocol.figures import PutReport
from asyncparl.protocol.master_messages import (
    AskPlace,
    DescribeCluster,
    FindNamed,
    JoinDriver,
    LeaveDriver,
    NamedActor,
    NodeTicket,
    WithdrawActor,
)
from asyncparl.protocol.node_messages import ActorExited, ActorOutput, ShutDown
from asyncparl.protocol.parties import Versions
from asyncparl.protocol.resources import ActorTitle
from asyncparl.runtime.actor import ActorHandle
from asyncparl.runtime.blocks import background_tasks
from asyncparl.runtime.current import block_session
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.handle import Handle
from asyncparl.runtime.link import MAX_MESSAGE_BYTES, Link
from asyncparl.runtime.master_link import MasterLink, MasterLost, ask, no_master
from asyncparl.runtime.node_link import NodeLink
from asyncparl.runtime.objects import Objects
from asyncparl.runtime.options import ActorOptions
from asyncparl.runtime.output import print_output
from asyncparl.runtime.place_seeker import PlaceSeeker
from asyncparl.runtime.program import Program
from asyncparl.runtime.reach import Reach
from asyncparl.runtime.references import Reference, class_path_of
from asyncparl.runtime.stopping import DETACHED_LIMIT_S, OUTPUT_GRACE_S, SESSION_GRACE_S, SESSION_LIMIT_S
from asyncparl.runtime.supervisor import LoneSupervisor, Supervisor
from asyncparl.runtime.versions import our_versions
from asyncparl.runtime.ways import WayToNode
from asyncparl.speaking import all_is_said, say
from asyncparl.transport import Credentials, dial
from asyncparl.transport.base import Channel

_JOIN_LIMIT_S = 15.0
_SILENT_AFTER_S = 8.0
"""A master that is new waits for six seconds for its nodes before it says that there is no such actor."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process a session is of: a program, or the actor of a program."""

    process_id: str
    name: str
    """For people who look at the cluster."""
    program_id: str
    """The program at the root; a program itself is its own."""
    own_reference: Reference | None = None
    """Of the actor, if it is one."""


class Session:
    """What stands behind one `connect()` block, and behind an actor that uses others.

    Everything but `create_actor`, `expose`, `handle_of` and `start_soon` is for the thread of the event loop.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        program: Program,
        identity: Identity,
        master_address: str,
        credentials: Credentials | None,
        *,
        objects: Objects,
        executor: Executor | None = None,
        encrypt: bool,
    ) -> None:
        self.nursery = nursery
        self.objects = objects
        self.process_id = identity.process_id
        self.own_reference = identity.own_reference
        self.main_names = program.main_names
        """What actors find in `__main__`; the rest of it travels as code. None: all of it."""
        self.max_value_bytes = program.max_value_bytes
        self._identity = identity
        self._program = program
        self._master_address = master_address
        self._credentials = credentials
        self._encrypt = encrypt
        self.loop = EventLoop()
        self._token = new_token()
        self._versions: Versions
        """Ours. Read at each dial, as that opens a file: where none can be opened, it is dialed again."""
        self._master = MasterLink("driver", self._dial_master, self._join)
        self._nodes: dict[str, NodeLink] = {}
        self.places = PlaceSeeker(self._master, self.node_at)
        self._actors: dict[str, ActorHandle] = {}
        self._names: Counter[str] = Counter()
        self._reach = Reach(self, objects, self._actors, executor)
        self._follows_orders = False
        self._failure: BaseException | None = None
        self._over = ""
        """Why no actor can be made any more."""

    def start(self) -> None:
        """Join the cluster, whenever its master is there: each request waits for that, as long as requests do."""
        self.nursery.start_soon(self._run_master, trio.Event(), None)

    async def open(self) -> None:
        """Join the cluster.

        Raises:
            AuthenticationError: our secret is not that of the cluster.
            ResourceError: the master cannot be reached, or does not take us.
        """
        joined = trio.Event()
        self.nursery.start_soon(self._run_master, joined, _JOIN_LIMIT_S)
        await joined.wait()
        if self._failure is not None:
            raise self._failure

    async def shut_down(self) -> None:
        """End every actor; returns when all of their processes are gone."""
        self._over = "this `asyncparl.connect()` block has ended"
        for actor in self._own_to_the_end():
            actor.expect_end("its session has ended", by_force=True)
        # No nursery: a second Ctrl-C ends the wait for them, and must not come out of it in a group.
        for left in [self._leave_soon(node) for node in self._nodes.values()]:
            await left.wait()
        # The reports come after the last line of output, which may still be on its way.
        for actor in self._own_to_the_end():
            if actor.node is not None:
                await actor.wait_gone()
        await self.let_detached_begin(DETACHED_LIMIT_S)
        await self._reach.close()
        self._master.tell(LeaveDriver())
        with trio.move_on_after(OUTPUT_GRACE_S):  # the rest is printed until the program exits
            while not all_is_said():  # noqa: ASYNC110 - it is threads that print
                await trio.sleep(0.002)

    @property
    def _is_private(self) -> bool:
        """Whether the cluster is that of this program alone: then nobody needs secrets."""
        return self._credentials is None

    def _own_to_the_end(self) -> list[ActorHandle]:
        return [actor for actor in self._actors.values() if not actor.is_detached]

    @property
    def has_unmade(self) -> bool:
        """Whether there is a detached actor that is to live on without us, and is not made yet. From any thread."""
        # In a private cluster they end with that.
        return not self._is_private and any(
            actor.is_detached and actor.is_unmade for actor in list(self._actors.values())
        )

    async def let_detached_begin(self, limit_s: float) -> None:
        """Detached actors live on without us once they are made; what they are made from is still with us."""
        if not self.has_unmade:
            return
        detached = [actor for actor in self._actors.values() if actor.is_detached]
        with trio.move_on_after(limit_s) as patience:
            for actor in detached:
                with contextlib.suppress(Exception):  # raised where it is awaited, and shown where it is not
                    await actor.wait_created()
        if patience.cancelled_caught:
            maker = "its program" if self.own_reference is None else self._identity.name
            for actor in detached:
                if actor.is_unmade:
                    late = f"{actor.name} is not made yet, {limit_s:g} s after the end of {maker}"
                    outcome = "it goes on alone" if actor.is_reached else "it is given up"
                    say(f"asyncparl: {late}: {outcome}\n")

    # --- for remote classes and actors ----------------------------------------------------------------------

    def create_actor(
        self,
        plain_class: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: ActorOptions,
        supervisor: Supervisor | None = None,
    ) -> ActorHandle:
        """Start an actor; returns at once. `supervisor`: decides about its restarts, instead of its options."""
        if supervisor is None and options.max_restarts:
            supervisor = LoneSupervisor(options.max_restarts, options.restart_window_s)
        return self.loop.run(self._create_actor, plain_class, args, kwargs, options, supervisor)

    def expose(self, thing: object, max_concurrency: int) -> Handle:
        """Let others call an object of this process."""
        return self.loop.run(self._expose, thing, max_concurrency)

    def handle_of(self, reference: Reference) -> Handle:
        """Who is called by a proxy of this reference."""
        return self.loop.run(self._reach.handle_of, reference)

    async def find_named(self, name: str) -> Reference:
        """The actor of this name. Raises LookupError."""
        own = next((actor for actor in self._actors.values() if actor.public_name == name and not actor.is_gone), None)
        if own is not None:  # of which the master may not have heard yet
            await trio.lowlevel.checkpoint()
            return own.reference()
        found = await self._find_named(name)
        if found is None:
            raise LookupError(f"there is no actor named {name!r}")
        return Reference(found.actor_id, 0, found.name, found.class_path, call_timeout_s=found.call_timeout_s)

    async def _find_named(self, name: str) -> NamedActor | None:
        telling = trio.CancelScope()
        self.start_soon(_tell_silence, f"get_actor({name!r})", telling)
        try:
            return await self._master.request(FindNamed(name))  # type: ignore[no-any-return]
        finally:
            telling.cancel()

    def _create_actor(
        self,
        plain_class: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: ActorOptions,
        supervisor: Supervisor | None,
    ) -> ActorHandle:
        if self._over:
            raise NotConnectedError(f"{plain_class.__name__}(...): {self._over}")
        self._names[plain_class.__name__] += 1
        # Those that an actor makes are numbered by it, so their names begin with its own.
        made_by = "" if self.own_reference is None else f"{self._identity.name}/"
        name = f"{made_by}{plain_class.__name__}#{self._names[plain_class.__name__]}"
        title = ActorTitle(
            program_id=self._identity.program_id,
            class_path=class_path_of(plain_class),
            public_name=options.name or "",
            is_detached=options.detached,
            may_restart=supervisor is not None,
            call_timeout_s=options.call_timeout_s,
        )
        request = AskPlace(new_actor_id(), name, options.demand(), title)
        actor = ActorHandle(self, request, plain_class, supervisor)
        self._actors[actor.actor_id] = actor
        actor.create(options.max_concurrency, args, kwargs)
        if supervisor is not None:
            supervisor.joined(actor)
        self.nursery.start_soon(self._run_actor, actor)
        return actor

    def _expose(self, thing: object, max_concurrency: int) -> Handle:
        if self._over:
            raise NotConnectedError(f"expose(...): {self._over}")
        if self.own_reference is None and not self._follows_orders:
            self._follows_orders = True
            self.nursery.start_soon(self._reach.follow_orders, self._master)
        return self._reach.expose(thing, max_concurrency)

    # --- for handles ----------------------------------------------------------------------------------------

    async def ask_master(self, request: Any) -> Any:
        """Raises ResourceError."""
        return await self._master.request(request)

    def withdraw(self, actor_id: str) -> None:
        """Say that an actor is over which others may look for: before anything else is said, and until it is heard."""

        async def make_sure() -> None:
            with contextlib.suppress(ResourceError):
                await self._master.request(WithdrawActor(actor_id))

        self._master.tell(WithdrawActor(actor_id))
        self.start_soon(make_sure)

    async def dial_worker(self, node: NodeLink, actor_id: str, started: Any) -> Channel:
        """A connection to the worker of an actor. Raises OSError, AuthenticationError."""
        return await node.dial_worker(actor_id, started, encrypt=self._encrypt)

    async def describe(self) -> ClusterView:
        """Who is in the cluster and what runs where."""
        return (await self._master.request(DescribeCluster())).view  # type: ignore[no-any-return]

    def report(self, report: bytes) -> None:
        """Tell monitors of the cluster how this program is, as `PutReport`. Lost while the master is away."""
        self._master.tell(PutReport(report))

    @property
    def num_actors(self) -> int:
        """Actors that have not ended."""
        return sum(not actor.is_gone for actor in list(self._actors.values()))

    def start_soon(
        self, function: Callable[..., Any], *args: Any, otherwise: Callable[[], object] | None = None
    ) -> None:
        """Run a task that may outlive its caller, not the session. From any thread.

        Args:
            otherwise: called instead if the session has ended.
        """

        def start() -> None:
            try:
                self.nursery.start_soon(function, *args)
            except RuntimeError:  # it is closed
                if otherwise is not None:
                    otherwise()

        if self.loop.is_here:
            start()
        elif not self.loop.run_soon(start) and otherwise is not None:
            otherwise()

    # --- the master -----------------------------------------------------------------------------------------

    async def _run_master(self, joined: trio.Event, within_s: float | None) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_joined, joined)
            try:
                await self._master.run(once_within_s=within_s, rejoins=not self._is_private)
            except MasterLost as error:
                self._failure = ResourceError(f"the node of this cluster is gone: {error}")
            except AsyncparlError as error:
                self._failure = error
            except OSError as error:
                self._failure = no_master(self._master_address, error)
            nursery.cancel_scope.cancel()
        joined.set()
        self._over = self._over or str(self._failure)

    async def _tell_joined(self, joined: trio.Event) -> None:
        with contextlib.suppress(ResourceError):  # `_run_master` has the reason
            await self._master.wait_joined()
            joined.set()

    async def _dial_master(self) -> Channel:
        encrypt = self._master_address.startswith("tcp:")
        self._versions = our_versions()
        return await dial(
            self._master_address, credentials=self._credentials, encrypt=encrypt, max_message_bytes=MAX_MESSAGE_BYTES
        )

    async def _join(self, link: Link) -> None:
        await ask(
            link,
            JoinDriver(self.process_id, self._identity.name, self._versions, self._token, self._identity.program_id),
        )

    # --- nodes and actors -----------------------------------------------------------------------------------

    def node_at(self, ticket: NodeTicket) -> NodeLink:
        """Our link to a node, which may be a new one."""
        node = self._nodes.get(ticket.node.node_id)
        if node is not None and not node.is_lost:
            node.way.renew(ticket)
            return node
        way = WayToNode(ticket, self._master, self._master_address, self._credentials)
        node = self._nodes[ticket.node.node_id] = NodeLink(ticket.node.name, way, self._program, self._hear)
        self.nursery.start_soon(self._run_node, ticket.node.node_id, node)
        return node

    async def _run_node(self, node_id: str, node: NodeLink) -> None:
        why = await node.run()
        if self._nodes.get(node_id) is node:
            del self._nodes[node_id]
        for actor in list(self._actors.values()):
            if actor.node is node:
                actor.node_lost(why)
        self._reach.node_lost(node, why)

    def _leave_soon(self, node: NodeLink) -> trio.Event:
        """Have a node end all that is ours; set when it has."""
        left = trio.Event()

        async def leave() -> None:
            try:
                await node.request(ShutDown(SESSION_GRACE_S))
            except AsyncparlError:
                pass  # the node is gone, and everything of it
            finally:
                left.set()

        self.start_soon(leave, otherwise=left.set)
        return left

    def _hear(self, event: ActorOutput | ActorExited) -> None:
        actor = self._actors.get(event.actor_id)
        if isinstance(event, ActorOutput):
            if actor is not None:
                print_output(actor.name.rpartition("/")[2], event)  # who prints our own adds our own name
        elif actor is not None:
            actor.exited(event)
        else:
            self._reach.heard(event)

    async def _run_actor(self, actor: ActorHandle) -> None:
        try:
            await actor.run()
        finally:
            del self._actors[actor.actor_id]


async def _tell_silence(what: str, scope: trio.CancelScope) -> None:
    with scope:
        await trio.sleep(_SILENT_AFTER_S)
        say(f"asyncparl: {what} waits: the master does not answer\n")


@contextlib.asynccontextmanager
async def open_session(
    program: Program, master_address: str, credentials: Credentials | None, *, encrypt: bool
) -> AsyncIterator[Session]:
    """Join the cluster of a master, as the innermost session of this task. The end of the block ends its actors.

    Raises:
        AuthenticationError, ResourceError: as `Session.open`.
    """
    async with background_tasks() as tasks:
        process_id = new_driver_id()
        identity = Identity(process_id, f"{program_name()} (pid {os.getpid()} on {os.uname().nodename})", process_id)
        session = Session(
            tasks, program, identity, master_address, credentials, objects=Objects(process_id), encrypt=encrypt
        )
        await session.open()
        try:
            with block_session(session):
                yield session
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + SESSION_LIMIT_S):
                await session.shut_down()


def program_name() -> str:
    """What this program is for people: its script."""
    return printable(os.path.basename(sys.argv[0])) if sys.argv and sys.argv[0] not in ("", "-c") else "python"
