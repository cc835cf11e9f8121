"""asyncparl without `async`: for scripts, notebooks, threads, asyncio programs, and the methods of actors.

    import asyncparl.blocking as asyncparl

    with asyncparl.connect():
        sim = Simulator("pong")
        print(sim.sample(50).result())     # instead of `await`
        for batch in sim.rollouts():       # instead of `async for`
            ...

The classes are the same, and so are the calls. `connect()` runs the event loop in a thread of its own and is found by
all threads of the process. In a method of an actor, and in a thread of a Trio program that is connected, nothing needs
to be connected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from asyncparl._version import __version__
from asyncparl.errors import (
    ActorDied,
    AsyncparlError,
    AuthenticationError,
    CallCancelled,
    CallFate,
    CallTimedOut,
    MessageTooLarge,
    NotConnectedError,
    ProtocolError,
    RemoteError,
    ResourceError,
    SerializationError,
)
from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.protocol.link import DEFAULT_MAX_VALUE_BYTES
from asyncparl.runtime import connect as with_async
from asyncparl.runtime import pull, remote
from asyncparl.runtime.blocking_calls import as_completed, gather
from asyncparl.runtime.blocking_group import supervise
from asyncparl.runtime.call import Call, call_in_loop, check_thread
from asyncparl.runtime.current import current_session, is_in_block, process_session
from asyncparl.runtime.dump_signal import telling_when_asked
from asyncparl.runtime.group import Group
from asyncparl.runtime.held_block import HeldBlock
from asyncparl.runtime.in_place import empty
from asyncparl.runtime.interrupts import Uninterrupted
from asyncparl.runtime.options import check_name
from asyncparl.runtime.pending import deadline_after, seconds_until
from asyncparl.runtime.remote import Proxy, current_actor, expose
from asyncparl.runtime.remote_class import RemoteClass, remote_class
from asyncparl.runtime.repeats import idempotent
from asyncparl.runtime.session import program_name

if TYPE_CHECKING:
    from asyncparl.rl import Agent as Agent  # noqa: PLC0414  # it is for others
    from asyncparl.rl import Algorithm as Algorithm  # noqa: PLC0414
    from asyncparl.rl import Model as Model  # noqa: PLC0414

_NEED_TORCH = ("Agent", "Algorithm", "Model")  # not in `__all__`: `import *` must not import it

__all__ = [
    "ActorDied",
    "AsyncparlError",
    "AuthenticationError",
    "Call",
    "CallCancelled",
    "CallFate",
    "CallTimedOut",
    "Cluster",
    "Group",
    "MessageTooLarge",
    "NotConnectedError",
    "ProtocolError",
    "Proxy",
    "RemoteClass",
    "RemoteError",
    "RemoteManager",
    "ResourceError",
    "SerializationError",
    "__version__",
    "as_completed",
    "as_remote",
    "close",
    "connect",
    "current_actor",
    "empty",
    "expose",
    "gather",
    "get_actor",
    "idempotent",
    "kill",
    "remote_class",
    "set_attribute",
    "supervise",
]


class Cluster(HeldBlock[with_async.Cluster]):
    """What `connect()` gives: the cluster that this process is connected to, until `close()` or the end of `with`."""

    def __init__(self, block: Callable[[], AbstractAsyncContextManager[with_async.Cluster]]) -> None:
        super().__init__(block)
        try:
            with Uninterrupted():
                session = self._held._session
                self._holder.while_open.enter_context(telling_when_asked(program_name()))
                self._holder.while_open.enter_context(process_session(lambda: session))
                self._keep()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End what was started: the actors, and the processes of a private cluster. A second time does nothing.

        Ctrl-C interrupts the wait, and the closing goes on.
        """
        super().close()

    @property
    def num_actors(self) -> int:
        """Actors of this program that have not ended."""
        return self._held.num_actors

    @property
    def monitor_url(self) -> str:
        """Where the monitor of this program is; empty if there is none."""
        return self._held.monitor_url

    def describe(self) -> ClusterView:
        """The nodes of the cluster, what they have and what is in use, and all of its actors.

        Raises:
            NotConnectedError: it was closed.
            ResourceError: the master has been away for too long.
        """
        return self._ask("describe()", self._held.describe)

    def report(self, /, **values: object) -> None:
        """Show figures of this program in monitors. Arguments and errors as `asyncparl.Cluster.report`."""
        self._held.report(**values)

    def __repr__(self) -> str:
        return repr(self._held) if self._is_open else "<asyncparl cluster, closed>"


def connect(  # noqa: PLR0913 - its options
    address: str | None = None,
    *,
    secret_file: str | None = None,
    cpus: float | None = None,
    files: Sequence[str] = (),
    encrypt: bool = False,
    max_value_bytes: int | str | None = DEFAULT_MAX_VALUE_BYTES,
    preload: Sequence[str] | None = None,
    start_method: str | None = None,
    monitor: bool | str = False,
    warn_after_s: float | None = None,
) -> Cluster:
    """Join the cluster whose master is at `address`; without one, start a private cluster on this machine.

    `with connect() as cluster:` closes it at the end of the block. `cluster = connect()` is for notebooks: it is open
    until `cluster.close()`, or until the main thread of the process ends. All threads of the process may use it. Of
    several that are open, the one that was opened last is used.

    The arguments, and what they raise, are those of `asyncparl.connect`.

    Raises:
        RuntimeError: in the thread of an event loop of Trio, or in a thread that is connected already.
    """
    with_async.check_can_connect()
    if trio.lowlevel.in_trio_run():
        raise RuntimeError("this thread runs Trio: write `async with asyncparl.connect():`")
    if is_in_block():
        raise RuntimeError("this thread belongs to an `async with asyncparl.connect():` block, and can use its actors")
    arguments: dict[str, Any] = {
        "secret_file": secret_file,
        "cpus": cpus,
        "files": files,
        "encrypt": encrypt,
        "max_value_bytes": max_value_bytes,
        "preload": preload,
        "start_method": start_method,
        "monitor": monitor,
        "warn_after_s": warn_after_s,
    }
    return Cluster(partial(with_async.connect, address, **arguments))


def close(actor: Proxy) -> None:
    """End an actor after everything that was called before; streams are cut. Returns when its process has ended.

    An actor that is already dead is closed. Ctrl-C interrupts the wait, and the closing goes on.
    """
    check_thread("close()", "`await asyncparl.close(...)`")
    remote.wait_for(actor, partial(remote.close, actor))


def kill(actor: Proxy) -> None:
    """End an actor at once, whatever it is doing. Returns when its process has ended."""
    check_thread("kill()", "`await asyncparl.kill(...)`")
    remote.wait_for(actor, partial(remote.kill, actor))


def set_attribute(actor: Proxy, name: str, value: object) -> None:
    """Set an attribute of a remote object, after everything called before. Errors as `asyncparl.set_attribute`."""
    check_thread("set_attribute()", "`await asyncparl.set_attribute(...)`")
    remote.setting(actor, name, value).result()


def get_actor(name: str) -> Proxy:
    """The actor that was made with `.options(name=...)`: one of this program, else a detached one of the cluster.

    Raises:
        LookupError: there is none of that name.
        NotConnectedError: nothing is connected.
        TypeError, ValueError: no actor can have that name.
    """
    check_thread("get_actor()", "`await asyncparl.get_actor(...)`")
    check_name(name)
    session = current_session(f"get_actor({name!r})")
    reference = call_in_loop(session.loop, f"get_actor({name!r})", partial(session.find_named, name)).result()
    return Proxy(session.handle_of(reference))


class RemoteManager(HeldBlock[pull.Manager]):
    """Listen at `address` for objects that others offer with `as_remote`; the end of its `with` block lets them all go.

    Without `with` it is open until `close()`, until the main thread ends or, if it has given out no object, until
    nobody holds it any more.

    `for agent in manager` takes one after another. Nothing needs to be connected. Arguments and errors as
    `asyncparl.RemoteManager`.

    Raises:
        RuntimeError: this is the thread of an event loop.
    """

    def __init__(self, address: str, *, secret_file: str | None = None) -> None:
        check_thread("with RemoteManager()", "`async with asyncparl.RemoteManager(...)`")
        super().__init__(partial(pull.RemoteManager, address, secret_file=secret_file))

    @property
    def address(self) -> str:
        """Where it listens; with the port that was chosen."""
        return self._held.address

    def get_remote(self, timeout: float | None = None) -> Proxy:
        """The next object that is offered, in the order of arrival.

        Args:
            timeout: how many seconds to wait for one at most.

        Raises:
            TimeoutError: none has come in time.
            NotConnectedError: the manager was closed.
        """

        deadline = deadline_after(timeout)

        async def take() -> Proxy:
            with trio.move_on_after(float("inf") if deadline is None else seconds_until(deadline)):
                return await self._held.get_remote()
            raise TimeoutError(f"nothing was offered to {self!r} in time")

        agent = self._ask("get_remote()", take)
        self._keep()
        return agent

    def __iter__(self) -> RemoteManager:
        return self

    def __next__(self) -> Proxy:
        return self.get_remote()

    def __repr__(self) -> str:
        return f"<asyncparl RemoteManager at {self.address}>" if self._is_open else "<asyncparl RemoteManager, closed>"


def as_remote(
    thing: object,
    address: str,
    *,
    secret_file: str | None = None,
    encrypt: bool = False,
    max_concurrency: int = 1,
) -> None:
    """Offer an object to the `RemoteManager` at `address`, and serve its calls here until the manager lets it go.

    Its methods without `async` run in a thread of their own. Ctrl-C withdraws it; a running method is waited for.
    Arguments and errors as `asyncparl.as_remote`.

    Raises:
        RuntimeError: this is the thread of an event loop.
    """
    check_thread("as_remote()", "`await asyncparl.as_remote(...)`")
    offer = partial(pull.as_remote, secret_file=secret_file, encrypt=encrypt, max_concurrency=max_concurrency)
    # Ctrl-C anywhere else would leave as a part of an exception group.
    trio.run(offer, thing, address, restrict_keyboard_interrupt_to_checkpoints=True)


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        import asyncparl.rl

        return getattr(asyncparl.rl, name)
    raise AttributeError(f"module 'asyncparl.blocking' has no attribute {name!r}")
