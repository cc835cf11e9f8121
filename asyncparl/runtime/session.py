"""A program's connection to a cluster: `async with asyncparl.connect() as cluster`.

The session owns everything that its block starts: the node process of a private cluster, an `ActorHandle` per actor,
and the tasks that serve them. Leaving the block, however it is left, ends them all.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import trio

from asyncparl.errors import AsyncparlError, NotConnectedError, ResourceError
from asyncparl.ids import new_actor_id
from asyncparl.protocol.control import (
    ActorExited,
    ActorOutput,
    Request,
    ShutDown,
    WatchNode,
    decode_answer,
    encode_control,
)
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.messages import CallKind
from asyncparl.runtime.actor import ActorHandle
from asyncparl.runtime.call import make_call
from asyncparl.runtime.link import MAX_MESSAGE_BYTES, Link
from asyncparl.runtime.main_module import answer_to_alias, describe_main, stop_if_loading
from asyncparl.runtime.node import NodeSetup
from asyncparl.transport import dial

PRELOADABLE = ("numpy", "torch", "gymnasium")

START_METHOD = "fork" if sys.platform == "linux" else "spawn"

_START_LIMIT_S = 30.0
_STOP_GRACE_S = 1.0
_STOP_LIMIT_S = 10.0
_EVENT_CREDIT = 256

_session: contextvars.ContextVar[Session] = contextvars.ContextVar("asyncparl_session")


class Session:
    """What stands behind one `connect()` block."""

    def __init__(self, nursery: trio.Nursery, node: _NodeProcess) -> None:
        self._nursery = nursery
        self._node = node
        self._link = Link(LinkCore(name="driver", pid=os.getpid()))
        self._actors: dict[str, ActorHandle] = {}
        self._names: Counter[str] = Counter()
        self._over = ""
        """Why no actor can be made any more."""

    async def open(self) -> None:
        """Join the node."""
        address = await self._node.wait_ready()
        try:
            self._link.attach(await dial(address, max_message_bytes=MAX_MESSAGE_BYTES))
        except OSError as error:
            raise ResourceError(f"the node process does not answer: {error}") from error
        self._nursery.start_soon(self._run_link)
        self._nursery.start_soon(self._follow_events)

    async def shut_down(self) -> None:
        """End every actor; returns when all of their processes are gone."""
        self._over = "this `asyncparl.connect()` block has ended"
        for actor in self._actors.values():
            actor.expect_end("its session has ended", by_force=True)
        try:
            await self.request(ShutDown(_STOP_GRACE_S))
        except AsyncparlError:
            pass  # the node is gone, and everything of it

    # --- for remote classes and actors ----------------------------------------------------------------------

    def create_actor(
        self, plain_class: type, args: tuple[Any, ...], kwargs: dict[str, Any], *, max_concurrency: int, num_cpus: float
    ) -> ActorHandle:
        """Start an actor; returns at once."""
        if self._over:
            raise NotConnectedError(f"{plain_class.__name__}(...): {self._over}")
        self._names[plain_class.__name__] += 1
        name = f"{plain_class.__name__}#{self._names[plain_class.__name__]}"
        actor = ActorHandle(self, new_actor_id(), name, plain_class, by_value=self._node.main_is_nowhere)
        self._actors[actor.actor_id] = actor
        actor.create(plain_class, max_concurrency, args, kwargs)
        self._nursery.start_soon(self._run_actor, actor, num_cpus)
        return actor

    async def request(self, request: Request) -> Any:
        """Ask the node for something.

        Raises:
            ResourceError: it refuses, or it is gone.
        """
        if self._link.is_lost:
            raise ResourceError(self._over)
        name = type(request).__name__
        return await make_call(self._link, name, CallKind.CONTROL, name, encode_control(request), decode=decode_answer)

    def start_soon(self, function: Callable[..., Any], *args: Any) -> None:
        """Run a task that may outlive its caller, not the session."""
        self._nursery.start_soon(function, *args)

    # --- tasks ----------------------------------------------------------------------------------------------

    async def _run_actor(self, actor: ActorHandle, num_cpus: float) -> None:
        try:
            await actor.run(num_cpus)
        finally:
            del self._actors[actor.actor_id]

    async def _run_link(self) -> None:
        why = "its session has ended"
        try:
            why = await self._link.run()
        finally:
            self._over = self._over or f"the node of this cluster is gone: {why}"
            self._link.lose(lambda _: ResourceError(self._over))
        for actor in list(self._actors.values()):
            actor.exited(ActorExited(actor.actor_id, self._over, None, None, []))

    async def _follow_events(self) -> None:
        watch = make_call(
            self._link,
            "node events",
            CallKind.CONTROL,
            "WatchNode",
            encode_control(WatchNode()),
            credit=_EVENT_CREDIT,
            decode=decode_answer,
        )
        try:
            async for event in watch:
                actor = self._actors.get(event.actor_id)
                if actor is None:
                    continue
                if isinstance(event, ActorExited):
                    actor.exited(event)
                else:
                    _print_output(actor.name, event)
        except ResourceError:
            pass  # `_run_link` tells everybody


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

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def num_actors(self) -> int:
        """Actors of this program that have not ended."""
        return len(self._session._actors)

    def __repr__(self) -> str:
        return f"<asyncparl private cluster, {self.num_actors} actors>"


@contextlib.asynccontextmanager
async def connect(*, preload: Sequence[str] | None = None, start_method: str | None = None) -> AsyncIterator[Cluster]:
    """A private cluster on this machine, started here and ended where the block ends.

    Args:
        preload: modules that worker processes have imported before they start. By default numpy, torch and
            gymnasium, as far as this program has imported them itself.
        start_method: "fork" (default on Linux: 20 ms an actor) or "spawn" (a fresh interpreter each).

    Errors: what the block raises leaves it unchanged, never inside an exception group.

    Cancellation: actors get a second to end, then they are killed. Nothing is left behind.

    Raises:
        ResourceError: the cluster cannot be started.
        ValueError: an unknown start method.
    """
    stop_if_loading()
    if start_method not in (None, "fork", "spawn"):
        raise ValueError(f"start_method must be 'fork' or 'spawn', not {start_method!r}")
    node = _NodeProcess.start(preload, start_method or START_METHOD)
    error: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            # Caught inside the nursery and raised outside, so that it is not wrapped in a group.
            try:
                tasks = await nursery.start(_hold_tasks)
                try:
                    session = Session(tasks, node)
                    await session.open()
                    token = _session.set(session)
                    try:
                        yield Cluster(session)
                    finally:
                        _session.reset(token)
                        with trio.CancelScope(shield=True, deadline=trio.current_time() + _STOP_LIMIT_S):
                            await session.shut_down()
                finally:
                    tasks.cancel_scope.cancel()
            except BaseException as caught:
                error = caught
    finally:
        with trio.CancelScope(shield=True):
            await node.stop()
    if error is not None:
        raise error


async def _hold_tasks(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """A nursery that no outer cancellation reaches: its tasks are needed to end the actors in good order."""
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await trio.sleep_forever()


class _NodeProcess:
    """The node process of a private cluster, and the folder of its sockets."""

    def __init__(self, process: subprocess.Popen[bytes], directory: str) -> None:
        self._process = process
        self._directory = directory
        self.main_is_nowhere = False
        """`__main__` is a notebook or `python -c`: workers cannot import it."""

    @classmethod
    def start(cls, preload: Sequence[str] | None, start_method: str) -> _NodeProcess:
        """Start it; `wait_ready` says whether it came up.

        Raises:
            ResourceError: there is no room for its folder, or no process to be had.
        """
        directory = ""
        try:
            directory = tempfile.mkdtemp(prefix="asyncparl-")  # mode 0700: the sockets are ours alone
            return cls._start_in(directory, preload, start_method)
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise ResourceError(f"a cluster cannot be started on this machine: {error}") from error

    @classmethod
    def _start_in(cls, directory: str, preload: Sequence[str] | None, start_method: str) -> _NodeProcess:
        answer_to_alias()
        main_path, main_module = describe_main()
        if preload is None:
            preload = [name for name in PRELOADABLE if name in sys.modules]
        setup = NodeSetup(
            directory=directory,
            sys_path=[os.path.abspath(entry) for entry in sys.path],
            argv=sys.argv,
            main_path=main_path,
            main_module=main_module,
            preload=list(preload),
            start_method=start_method,
        )
        process = subprocess.Popen(
            [sys.executable, "-c", "from asyncparl.runtime.node import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C at a terminal reaches its whole process group; the cluster is ended by us, in order.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _python_path()},
        )
        node = cls(process, directory)
        node.main_is_nowhere = main_path is None and main_module is None
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(setup) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # `wait_ready` says how it ended
        return node

    async def wait_ready(self) -> str:
        """The node's address.

        Raises:
            ResourceError: it ended or took too long.
        """
        assert self._process.stdout is not None
        line = b""
        async with trio.lowlevel.FdStream(os.dup(self._process.stdout.fileno())) as stdout:
            with trio.move_on_after(_START_LIMIT_S):
                async for chunk in stdout:
                    line += chunk
                    if line.endswith(b"\n"):
                        return line.decode().strip()
        raise ResourceError(
            f"the node process did not start within {_START_LIMIT_S:g} s"
            if self._process.poll() is None
            else f"the node process ended with code {self._process.returncode}; its error is on standard error"
        )

    async def stop(self) -> None:
        """End it: it ends by itself when its standard input closes, and is killed if it does not."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has died before it read what we wrote
                self._process.stdin.close()
            with trio.move_on_after(_STOP_LIMIT_S):
                await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        finally:
            # Also on a second Ctrl-C. The workers end with the zygote, and the zygote with the node.
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            shutil.rmtree(self._directory, ignore_errors=True)


def _python_path() -> str:
    """Where the node finds this very package, wherever the driver found it."""
    spec = importlib.util.find_spec("asyncparl")
    assert spec is not None and spec.submodule_search_locations
    ours = os.path.dirname(os.path.abspath(spec.submodule_search_locations[0]))
    return os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH", "")]))


def _print_output(name: str, output: ActorOutput) -> None:
    stream = sys.stderr if output.is_error else sys.stdout
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
