"""A program's connection to a cluster: `async with asyncparl.connect() as cluster`.

The session owns everything that its block starts: the processes of a private cluster, the links to the master and to
the nodes, an `ActorHandle` per actor, and the tasks that serve them. Leaving the block, however it is left, ends them
all.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import trio

from asyncparl.errors import AsyncparlError, NotConnectedError, ResourceError
from asyncparl.ids import new_actor_id, new_driver_id, new_token
from asyncparl.machine import allow_many_files
from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.protocol.control import (
    ActorExited,
    ActorOutput,
    AskPlace,
    DescribeCluster,
    ExplainWait,
    JoinDriver,
    LeaveDriver,
    NodeTicket,
    Placed,
    ShutDown,
    WithdrawActor,
)
from asyncparl.protocol.resources import Demand
from asyncparl.protocol.tickets import SignedLease
from asyncparl.runtime.actor import ActorHandle
from asyncparl.runtime.addresses import parse_host_and_port
from asyncparl.runtime.blocks import background_tasks
from asyncparl.runtime.link import MAX_MESSAGE_BYTES, Link
from asyncparl.runtime.main_module import stop_if_loading
from asyncparl.runtime.master_link import MasterLink, MasterLost, ask
from asyncparl.runtime.node_link import NodeLink
from asyncparl.runtime.private import PrivateCluster
from asyncparl.runtime.program import Program
from asyncparl.runtime.state import find_secret
from asyncparl.runtime.versions import our_versions
from asyncparl.runtime.ways import WayToNode
from asyncparl.transport import Credentials, dial
from asyncparl.transport.base import Channel

_JOIN_LIMIT_S = 15.0
_STOP_GRACE_S = 1.0
_STOP_LIMIT_S = 10.0
_EXPLAIN_AFTER_S = 3.0
_REACH_LIMIT_S = 15.0
_ASK_AGAIN_S = 0.5
_PLACE_LASTS_S = 20.0
"""The master keeps a place that nobody has taken for a minute."""

_session: contextvars.ContextVar[Session] = contextvars.ContextVar("asyncparl_session")


class Session:
    """What stands behind one `connect()` block."""

    def __init__(
        self,
        nursery: trio.Nursery,
        program: Program,
        master_address: str,
        credentials: Credentials | None,
        *,
        encrypt: bool,
    ) -> None:
        self._nursery = nursery
        self._program = program
        self._master_address = master_address
        self._credentials = credentials
        self._encrypt = encrypt
        self._driver_id = new_driver_id()
        self._token = new_token()
        self._master = MasterLink("driver", self._dial_master, self._join)
        self._nodes: dict[str, NodeLink] = {}
        self._actors: dict[str, ActorHandle] = {}
        self._names: Counter[str] = Counter()
        self._failure: BaseException | None = None
        self._over = ""
        """Why no actor can be made any more."""

    async def open(self) -> None:
        """Join the cluster.

        Raises:
            AuthenticationError: our secret is not that of the cluster.
            ResourceError: the master cannot be reached, or does not take us.
        """
        joined = trio.Event()
        self._nursery.start_soon(self._run_master, joined)
        await joined.wait()
        if self._failure is not None:
            raise self._failure

    async def shut_down(self) -> None:
        """End every actor; returns when all of their processes are gone."""
        self._over = "this `asyncparl.connect()` block has ended"
        for actor in self._actors.values():
            actor.expect_end("its session has ended", by_force=True)
        async with trio.open_nursery() as nursery:
            for node in self._nodes.values():
                nursery.start_soon(self._leave, node)
        # The reports come after the last line of output, which may still be on its way.
        for actor in list(self._actors.values()):
            if actor.node is not None:
                await actor.wait_gone()
        self._master.tell(LeaveDriver())

    # --- for remote classes and actors ----------------------------------------------------------------------

    def create_actor(
        self, plain_class: type, args: tuple[Any, ...], kwargs: dict[str, Any], *, max_concurrency: int, demand: Demand
    ) -> ActorHandle:
        """Start an actor; returns at once."""
        if self._over:
            raise NotConnectedError(f"{plain_class.__name__}(...): {self._over}")
        self._names[plain_class.__name__] += 1
        name = f"{plain_class.__name__}#{self._names[plain_class.__name__]}"
        actor = ActorHandle(self, new_actor_id(), name, plain_class, by_value=self._program.main_is_nowhere)
        self._actors[actor.actor_id] = actor
        actor.create(plain_class, max_concurrency, args, kwargs)
        self._nursery.start_soon(self._run_actor, actor, demand)
        return actor

    async def place(self, actor_id: str, name: str, demand: Demand) -> tuple[NodeLink, SignedLease]:
        """Wait for a node that has room for an actor, and for the link to it.

        Raises:
            ResourceError: there is none, and there cannot be; or it cannot be reached.
            ValueError: the program cannot be sent there.
        """
        give_up_at = trio.current_time() + _REACH_LIMIT_S
        while True:
            placed = await self._ask_place(actor_id, name, demand)
            asked_at = trio.current_time()
            node = self._node(placed.ticket)
            try:
                await node.wait_ready()
            except Exception:
                await self.withdraw(actor_id)
                if node.was_reached or trio.current_time() > give_up_at:
                    raise
                # The node went a moment ago, and the master will notice soon: another one may have room.
                await trio.sleep(_ASK_AGAIN_S)
                continue
            if trio.current_time() < asked_at + _PLACE_LASTS_S:
                return node, placed.lease
            # Sending the code took long; make sure that the place is still ours.

    async def _ask_place(self, actor_id: str, name: str, demand: Demand) -> Placed:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._explain_wait, actor_id, name)
            failure = None
            try:
                placed = await self._master.request(AskPlace(actor_id, name, demand))
            except AsyncparlError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        assert isinstance(placed, Placed)
        return placed

    async def withdraw(self, actor_id: str) -> None:
        """Give back what an actor was given and never took."""
        with contextlib.suppress(ResourceError):  # no master: it forgets us, and that, by itself
            await self._master.request(WithdrawActor(actor_id), limit_s=0.1)

    async def dial_worker(self, node: NodeLink, actor_id: str, started: Any) -> Channel:
        """A connection to the worker of an actor. Raises OSError, AuthenticationError."""
        return await node.dial_worker(actor_id, started, encrypt=self._encrypt)

    async def describe(self) -> ClusterView:
        """Who is in the cluster and what runs where."""
        return (await self._master.request(DescribeCluster())).view  # type: ignore[no-any-return]

    @property
    def num_actors(self) -> int:
        """Actors that have not ended."""
        return sum(not actor.is_gone for actor in self._actors.values())

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Run a task that may outlive its caller, not the session."""
        self._nursery.start_soon(function, *args)

    # --- the master -----------------------------------------------------------------------------------------

    async def _run_master(self, joined: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_joined, joined)
            try:
                await self._master.run(once_within_s=_JOIN_LIMIT_S, rejoins=self._credentials is not None)
            except MasterLost as error:
                self._failure = ResourceError(f"the node of this cluster is gone: {error}")
            except AsyncparlError as error:
                self._failure = error
            except OSError as error:
                self._failure = ResourceError(f"no master answers at {self._master_address}: {error}")
            nursery.cancel_scope.cancel()
        joined.set()
        self._over = self._over or str(self._failure)

    async def _tell_joined(self, joined: trio.Event) -> None:
        with contextlib.suppress(ResourceError):  # `_run_master` has the reason
            await self._master.wait_joined()
            joined.set()

    async def _dial_master(self) -> Channel:
        encrypt = self._master_address.startswith("tcp:")
        return await dial(
            self._master_address, credentials=self._credentials, encrypt=encrypt, max_message_bytes=MAX_MESSAGE_BYTES
        )

    async def _join(self, link: Link) -> None:
        await ask(link, JoinDriver(self._driver_id, _driver_name(), our_versions(), self._token))

    async def _explain_wait(self, actor_id: str, name: str) -> None:
        """Nobody should wonder why nothing happens."""
        await trio.sleep(_EXPLAIN_AFTER_S)
        with contextlib.suppress(ResourceError):
            explanation = await self._master.request(ExplainWait(actor_id))
            if explanation.reason:
                sys.stderr.write(f"asyncparl: {name} waits: {explanation.reason}\n")

    # --- nodes and actors -----------------------------------------------------------------------------------

    def _node(self, ticket: NodeTicket) -> NodeLink:
        node = self._nodes.get(ticket.node.node_id)
        if node is not None and not node.is_lost:
            node.way.renew(ticket)
            return node
        way = WayToNode(ticket, self._master, self._master_address, self._credentials)
        node = self._nodes[ticket.node.node_id] = NodeLink(ticket.node.name, way, self._program, self._hear)
        self._nursery.start_soon(self._run_node, ticket.node.node_id, node)
        return node

    async def _run_node(self, node_id: str, node: NodeLink) -> None:
        why = await node.run()
        if self._nodes.get(node_id) is node:
            del self._nodes[node_id]
        for actor in list(self._actors.values()):
            if actor.node is node:
                actor.node_lost(why)

    async def _leave(self, node: NodeLink) -> None:
        with contextlib.suppress(AsyncparlError):  # the node is gone, and everything of it
            await node.request(ShutDown(_STOP_GRACE_S))

    def _hear(self, event: ActorOutput | ActorExited) -> None:
        actor = self._actors.get(event.actor_id)
        if actor is None:
            return
        if isinstance(event, ActorExited):
            actor.exited(event)
        else:
            _print_output(actor.name, event)

    async def _run_actor(self, actor: ActorHandle, demand: Demand) -> None:
        try:
            await actor.run(demand)
        finally:
            del self._actors[actor.actor_id]


def current_session(what: str) -> Session:
    """The session of the innermost open `connect()` block of this task.

    Raises:
        NotConnectedError: there is none; `what` says what needed it.
    """
    session = _session.get(None)
    if session is None:
        raise NotConnectedError(f"{what} needs a cluster: put it inside `async with asyncparl.connect():`")
    return session


class Cluster:
    """What `connect()` gives: the cluster that this block is connected to."""

    def __init__(self, session: Session, address: str | None) -> None:
        self._session = session
        self._address = address

    @property
    def num_actors(self) -> int:
        """Actors of this program that have not ended."""
        return self._session.num_actors

    async def describe(self) -> ClusterView:
        """The nodes of the cluster, what they have and what is in use, and all of its actors.

        Raises:
            ResourceError: the master has been away for too long.
        """
        return await self._session.describe()

    def __repr__(self) -> str:
        where = f"cluster at {self._address}" if self._address else "private cluster"
        return f"<asyncparl {where}, {self.num_actors} actors>"


@contextlib.asynccontextmanager
async def connect(
    address: str | None = None,
    *,
    secret_file: str | None = None,
    cpus: float | None = None,
    files: Sequence[str] = (),
    encrypt: bool = False,
    preload: Sequence[str] | None = None,
    start_method: str | None = None,
) -> AsyncIterator[Cluster]:
    """Join the cluster whose master is at `address`; without one, start a private cluster on this machine.

    What was started here ends where the block ends: the actors, and the processes of a private cluster.

    Args:
        address: "host:port" of a master.
        secret_file: the cluster's secret for drivers. By default `$ASYNCPARL_DRIVER_SECRET` (the text),
            `$ASYNCPARL_SECRET_FILE`, or what the master has put into this user's state folder.
        cpus: of a private cluster: actors wait while that many CPUs are in use. By default none waits.
        files: patterns, relative to the working directory, of files that actors on other machines need
            ("configs/*.yaml"); code is sent without being named.
        encrypt: calls and data between machines too, not only what controls the cluster. Costs throughput.
        preload: modules that worker processes have imported before they start. By default numpy, torch and
            gymnasium, as far as this program has imported them itself.
        start_method: "fork" (default on Linux: 20 ms an actor) or "spawn" (a fresh interpreter each).

    Errors: what the block raises leaves it unchanged, never inside an exception group.

    Cancellation: actors get a second to end, then they are killed. Nothing is left behind.

    Raises:
        AuthenticationError: there is no secret, or it is not the cluster's.
        ResourceError: the cluster cannot be started, or reached.
        ValueError: an argument that makes no sense.
    """
    stop_if_loading()
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError("asyncparl needs Trio: run the program with trio.run(main), not with asyncio")
    _check_arguments(address, preload=preload, files=files)
    if start_method not in (None, "fork", "spawn"):
        raise ValueError(f"start_method must be 'fork' or 'spawn', not {start_method!r}")
    allow_many_files()
    program = Program(preload=preload, start_method=start_method, files=files)
    if address is not None:
        if cpus is not None:
            raise ValueError("cpus is for private clusters; a node of this cluster has its own --cpus")
        master = parse_host_and_port(address)
        credentials = Credentials("driver", find_secret("driver", master.port, secret_file=secret_file))
        async with _open_session(program, str(master), credentials, encrypt=encrypt) as session:
            yield Cluster(session, address)
        return
    private = PrivateCluster.start(program.local_job(), cpus=cpus)
    try:
        async with _open_session(program, await private.wait_ready(), None, encrypt=False) as session:
            yield Cluster(session, None)
    finally:
        with trio.CancelScope(shield=True):
            await private.stop()


def _check_arguments(address: object, **lists: object) -> None:
    """What type checkers would have said.

    Raises:
        TypeError: names the argument.
    """
    if address is not None and not isinstance(address, str):
        raise TypeError(f"address must be text such as 'host:8010', not {address!r}")
    for name, value in lists.items():
        if isinstance(value, str):
            raise TypeError(f"{name} must be a list, not one text: {name}=[{value!r}]")


@contextlib.asynccontextmanager
async def _open_session(
    program: Program, master_address: str, credentials: Credentials | None, *, encrypt: bool
) -> AsyncIterator[Session]:
    async with background_tasks() as tasks:
        session = Session(tasks, program, master_address, credentials, encrypt=encrypt)
        await session.open()
        token = _session.set(session)
        try:
            yield session
        finally:
            _session.reset(token)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _STOP_LIMIT_S):
                await session.shut_down()


def _driver_name() -> str:
    """For people who look at the cluster."""
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c") else "python"
    return f"{script} (pid {os.getpid()} on {os.uname().nodename})"


def _print_output(name: str, output: ActorOutput) -> None:
    stream = sys.stderr if output.is_error else sys.stdout
    if stream is None:
        return  # a program without standard output
    lines = [f"[{name}] {line}\n" for line in output.lines]
    if output.num_dropped:
        lines.insert(0, f"[{name}] ({output.num_dropped} lines were dropped: they came too fast)\n")
    encoding = stream.encoding or "utf-8"
    try:
        # What this terminal cannot show must not end the program.
        stream.write("".join(lines).encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        pass  # closed, or nobody reads it any more
