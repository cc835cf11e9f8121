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

import atexit
import concurrent.futures.thread  # noqa: F401  # see `_close_all`
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self

import trio

from asyncparl.errors import (
    ActorDied,
    AsyncparlError,
    AuthenticationError,
    CallCancelled,
    CallFate,
    MessageTooLarge,
    NotConnectedError,
    ProtocolError,
    RemoteError,
    ResourceError,
    SerializationError,
)
from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.runtime import connect as with_async
from asyncparl.runtime import remote
from asyncparl.runtime.blocking_calls import as_completed, gather
from asyncparl.runtime.call import Call, call_in_loop, check_thread
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.main_module import stop_if_loading
from asyncparl.runtime.remote import Proxy, RemoteClass, current_actor, expose, remote_class
from asyncparl.runtime.session import current_session, is_in_block, process_session

_EXIT_LIMIT_S = 30.0
"""Closing is bounded, but for code of the user's that never returns."""

__all__ = [
    "ActorDied",
    "AsyncparlError",
    "AuthenticationError",
    "Call",
    "CallCancelled",
    "CallFate",
    "Cluster",
    "MessageTooLarge",
    "NotConnectedError",
    "ProtocolError",
    "Proxy",
    "RemoteClass",
    "RemoteError",
    "ResourceError",
    "SerializationError",
    "as_completed",
    "close",
    "connect",
    "current_actor",
    "expose",
    "gather",
    "get_actor",
    "kill",
    "remote_class",
    "set_attribute",
]


class Cluster:
    """What `connect()` gives: the cluster that this process is connected to, until `close()` or the end of `with`."""

    def __init__(self, block: Callable[[], AbstractAsyncContextManager[with_async.Cluster]]) -> None:
        self._block = block
        self._loop: EventLoop | None = None
        self._is_opened = threading.Event()
        self._is_closing = False
        self._error: BaseException | None = None
        """What has ended the loop, for whoever asks next."""
        self._as_found = contextlib.ExitStack()
        # A daemon, for code of the user's runs in it too, in the `async` methods of exposed objects.
        self._thread = threading.Thread(target=self._run, name="asyncparl-loop", daemon=True)
        try:
            self._thread.start()
            self._is_opened.wait()
            self._raise_error()
        except BaseException:
            self.close()
            raise
        self._as_found.enter_context(process_session(lambda: self._session))
        _open.append(self)

    def close(self) -> None:
        """End what was started: the actors, and the processes of a private cluster. A second time does nothing.

        Ctrl-C interrupts the wait, and the closing goes on.
        """
        check_thread("close()", "`async with asyncparl.connect()`")
        self._begin_to_close()
        self._thread.join()
        self._raise_error()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def num_actors(self) -> int:
        """Actors of this program that have not ended."""
        return self._cluster.num_actors

    def describe(self) -> ClusterView:
        """The nodes of the cluster, what they have and what is in use, and all of its actors.

        Raises:
            NotConnectedError: it was closed.
            ResourceError: the master has been away for too long.
        """
        assert self._loop is not None
        return call_in_loop(self._loop, "describe()", self._cluster.describe).result()

    def report(self, **values: object) -> None:
        """Show figures of this program in monitors. Arguments and errors as `asyncparl.Cluster.report`."""
        self._cluster.report(**values)

    def __repr__(self) -> str:
        return repr(self._cluster) if self._thread.is_alive() else "<asyncparl cluster, closed>"

    def _begin_to_close(self) -> None:
        self._as_found.close()  # first: nobody is to find what is about to end
        with contextlib.suppress(ValueError):  # closed already
            _open.remove(self)
        self._is_closing = True
        if self._loop is not None:
            self._loop.run_soon(self._scope.cancel)

    def _end_with_process(self) -> None:
        self._thread.join(_EXIT_LIMIT_S)
        if self._thread.is_alive():
            sys.stderr.write(f"asyncparl: {self!r} does not end within {_EXIT_LIMIT_S:g} s\n")

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    # --- in the thread of the event loop --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            trio.run(self._hold_open)
        except BaseException as error:
            self._error = error
        self._is_opened.set()

    async def _hold_open(self) -> None:
        with trio.CancelScope() as self._scope:
            self._loop = EventLoop()
            if self._is_closing:  # interrupted before there was a loop that could be told
                return
            async with self._block() as self._cluster:
                self._session = current_session("connect()")
                self._is_opened.set()
                await trio.sleep_forever()


_open: list[Cluster] = []


def _close_all() -> None:
    """Where the main thread ends and has left clusters open, as in a notebook."""
    clusters = _open[::-1]
    for cluster in clusters:
        cluster._begin_to_close()
    for cluster in clusters:
        cluster._end_with_process()


# `atexit` would be too late: closing takes threads, and then no more can be started (Python 3.12), nor is one waited
# for. `concurrent.futures` registers here too. It waits for its threads, which may wait for a call of ours: as it is
# imported above, it has its turn after us.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
os.register_at_fork(after_in_child=_open.clear)


def connect(
    address: str | None = None,
    *,
    secret_file: str | None = None,
    cpus: float | None = None,
    files: Sequence[str] = (),
    encrypt: bool = False,
    preload: Sequence[str] | None = None,
    start_method: str | None = None,
    monitor: bool | str = False,
) -> Cluster:
    """Join the cluster whose master is at `address`; without one, start a private cluster on this machine.

    `with connect() as cluster:` closes it at the end of the block. `cluster = connect()` is for notebooks: it is open
    until `cluster.close()`, or until the main thread of the process ends. All threads of the process may use it. Of
    several that are open, the one that was opened last is used.

    The arguments, and what they raise, are those of `asyncparl.connect`.

    Raises:
        RuntimeError: in the thread of an event loop of Trio, or in a thread that is connected already.
    """
    stop_if_loading()
    if trio.lowlevel.in_trio_run():
        raise RuntimeError("this thread runs Trio: write `async with asyncparl.connect():`")
    if is_in_block():
        raise RuntimeError("this thread belongs to an `async with asyncparl.connect():` block, and can use its actors")
    arguments: dict[str, Any] = {
        "secret_file": secret_file,
        "cpus": cpus,
        "files": files,
        "encrypt": encrypt,
        "preload": preload,
        "start_method": start_method,
        "monitor": monitor,
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
    """
    check_thread("get_actor()", "`await asyncparl.get_actor(...)`")
    session = current_session(f"get_actor({name!r})")
    reference = call_in_loop(session.loop, f"get_actor({name!r})", partial(session.find_named, name)).result()
    return Proxy(session.handle_of(reference))
