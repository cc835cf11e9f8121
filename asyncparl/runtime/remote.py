"""What a remote object looks like to its callers. No sockets here. The class of it is in `remote_class.py`.

Simulator           RemoteClass: calling it asks the session for an actor and returns a Proxy at once
sim = Simulator()   Proxy: any public name gives a RemoteMember, without a message
sim.sample(50)      RemoteMember called: a Call, on its way
await sim.frames    RemoteMember awaited: the attribute is fetched

`sim.sample(50).result()` and `sim.frames.result()` are the same for threads without an event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from asyncparl.protocol.deadlines import check_timeout
from asyncparl.protocol.messages import CallKind
from asyncparl.runtime.call import STREAM_CREDIT, Call, call_in_loop, check_thread
from asyncparl.runtime.current import current_session, find_session
from asyncparl.runtime.handle import Handle, UnreachableHandle
from asyncparl.runtime.options import check_concurrency, check_name
from asyncparl.runtime.references import Reference, check_public


def _cannot_wait(self: Proxy, *_: object) -> NoReturn:
    raise TypeError(f"that cannot wait for {self!r}: call a method of it, and await the call")


class Proxy:
    """A remote object as its callers see it. Making, printing and dropping one sends nothing.

    Every public name is a method or an attribute of the remote object: `await sim.sample(50)`, `await sim.frames`.
    `await sim[3]` and `await sim(x)` work if its class has `__getitem__` and `__call__`. `async with` closes the actor
    at the end of the block, and so does `with` in threads without an event loop.

    Proxies can be arguments, results, and parts of them: whoever receives one can call the same object. Two proxies of
    one object are equal.
    """

    __slots__ = ("__weakref__", "_handle")
    _handle: Handle

    def __init__(self, handle: Handle) -> None:
        object.__setattr__(self, "_handle", handle)

    def __getattr__(self, name: str) -> RemoteMember:
        check_public(name)
        return RemoteMember(self._handle, name, self._handle.call_timeout_s)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a remote attribute is set with `await asyncparl.set_attribute(actor, {name!r}, value)`")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a remote attribute cannot be deleted: give its class a method that deletes {name!r}")

    async def __aenter__(self) -> Self:
        await self._handle.wait_created()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> Literal[False]:
        await (self._handle.close() if error is None else self._handle.kill())
        return False

    def __enter__(self) -> Self:
        check_thread("with", "`async with`")
        wait_for(self, self._handle.wait_created)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> Literal[False]:
        wait_for(self, self._handle.close if error is None else self._handle.kill)
        return False

    def __getitem__(self, key: Any) -> Call[Any]:
        handle = self._handle
        return handle.call(CallKind.METHOD, "__getitem__", ((key,), {}), timeout_s=handle.call_timeout_s)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Call[Any]:
        handle, arguments = self._handle, (args, kwargs)
        timeout_s = handle.call_timeout_s
        return handle.call(CallKind.METHOD, "__call__", arguments, credit=STREAM_CREDIT, timeout_s=timeout_s)

    def __len__(self) -> NoReturn:
        raise TypeError(f"len() cannot wait for {self!r}: give its class a method that returns the length")

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be iterated over: call a method that is a generator, with `async for`")

    __contains__ = __setitem__ = __delitem__ = _cannot_wait

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Proxy) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> tuple[Any, ...]:
        return _proxy_of, (self._handle.reference(),)

    def _identity(self) -> tuple[str, int]:
        return self._handle.identity()

    def __repr__(self) -> str:
        return f"<asyncparl actor {self._handle.name} {self._handle.state}>"

    def __dir__(self) -> list[str]:
        return self._handle.public_names()


class RemoteMember:
    """A name of a remote object: call it, or await it as an attribute."""

    __slots__ = ("_handle", "_name", "_timeout_s")

    def __init__(self, handle: Handle, name: str, timeout_s: float | None) -> None:
        self._handle = handle
        self._name = name
        self._timeout_s = timeout_s

    def options(self, /, *, timeout_s: float | None) -> RemoteMember:
        """The same name with other options: `await sim.sample.options(timeout_s=5)(50)`.

        Args:
            timeout_s: how many seconds the call may take, from now to its answer, however often it is sent; None: as
                many as it likes. Then it raises `CallTimedOut`, whatever state its actor is in, and is cancelled like
                any other call: what has not started never starts, an `async` method is cancelled where it waits, and a
                method without `async` is left to finish. Of a stream, each item has so much time.

        Raises:
            TypeError: it is no number.
            ValueError: it is not more than 0, or not finite.
        """
        return RemoteMember(self._handle, self._name, check_timeout("timeout_s", timeout_s))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Call[Any]:
        """Call the remote method. The call starts now; what goes wrong is raised where it is awaited."""
        arguments = (args, kwargs) if args or kwargs else None
        return self._handle.call(
            CallKind.METHOD, self._name, arguments, credit=STREAM_CREDIT, timeout_s=self._timeout_s
        )

    def __await__(self) -> Generator[Any, None, Any]:
        return self._get().__await__()

    def result(self, timeout: float | None = None) -> Any:
        """The attribute, for threads without an event loop. As `Call.result`."""
        return self._get().result(timeout)

    def _get(self) -> Call[Any]:
        return self._handle.call(CallKind.GET_ATTRIBUTE, self._name, timeout_s=self._timeout_s)

    def __reduce__(self) -> NoReturn:
        what = f"{self._handle.name}.{self._name}"
        raise TypeError(
            f"{what} is a name of a remote object, not its value: await it first, or call it and await that"
        )

    def __repr__(self) -> str:
        return f"<{self._name} of asyncparl actor {self._handle.name}: call it, or await it as an attribute>"


def _proxy_of(reference: Reference) -> Proxy:
    """What a proxy becomes that was sent."""
    session = find_session()
    return Proxy(UnreachableHandle(reference) if session is None else session.handle_of(reference))


async def get_actor(name: str) -> Proxy:
    """The actor that was made with `.options(name=...)`: one of this program, else a detached one of the cluster.

    Raises:
        LookupError: there is none of that name.
        NotConnectedError: no `asyncparl.connect()` block is open.
        TypeError, ValueError: no actor can have that name.
    """
    check_name(name)
    session = current_session(f"get_actor({name!r})")
    return Proxy(session.handle_of(await session.find_named(name)))


def current_actor() -> Proxy:
    """In a method of an actor: the proxy of this very actor, to be given to others.

    Raises:
        RuntimeError: this is no actor's process.
    """
    session = find_session()
    reference = None if session is None else session.own_reference
    if session is None or reference is None:
        raise RuntimeError("current_actor() is for the methods of actors: this is not an actor's process")
    return Proxy(session.handle_of(reference))


def expose(thing: object, *, max_concurrency: int = 1) -> Proxy:
    """Let others call an object of this process: a proxy to be passed to actors, which then can call back.

    Its `async` methods run in this event loop, the others in a thread: one at a time, in an actor in the thread of its
    own methods. `close` lets it go; so does the end of the `connect()` block or of the actor.

    Raises:
        NotConnectedError: no `asyncparl.connect()` block is open.
        TypeError: a proxy or a call, which are of other processes.
        TypeError, ValueError: `max_concurrency` is no whole number of 1 or more.
    """
    if isinstance(thing, Proxy):
        raise TypeError(f"{thing!r} can be called by others already: pass it on as it is")
    if isinstance(thing, (Call, RemoteMember)):
        raise TypeError(f"{thing!r} cannot be exposed: await it, and expose what it gives")
    check_concurrency(max_concurrency)
    session = current_session("expose(...)")
    return Proxy(session.expose(thing, max_concurrency))


async def set_attribute(actor: Proxy, name: str, value: object) -> None:
    """Set an attribute of a remote object, after everything called before.

    Raises:
        TypeError: that is no actor, or no name.
        AttributeError: a private name, or the object refuses it.
        ActorDied: its process has ended.
    """
    await setting(actor, name, value)


def setting(actor: Proxy, name: str, value: object) -> Call[None]:
    """The call that sets an attribute. Raises as `set_attribute`, where that is known here."""
    if not isinstance(name, str):
        raise TypeError(f"the name of an attribute is a text, not {name!r}")
    check_public(name)
    handle = _handle_of(actor)
    return handle.call(CallKind.SET_ATTRIBUTE, name, value, timeout_s=handle.call_timeout_s)


async def close(actor: Proxy) -> None:
    """End an actor after everything that was called before; streams are cut. Returns when its process has ended.

    An actor that is already dead is closed. Cancellation, as by `trio.move_on_after(5)`: the actor is not asked any
    longer; it gets SIGTERM and, a second later, SIGKILL, and nobody waits for that.

    Raises:
        TypeError: that is no actor.
    """
    handle = _handle_of(actor)
    handle.loop.check_here(f"close({actor!r})")
    await handle.close()


async def kill(actor: Proxy) -> None:
    """End an actor at once, whatever it is doing. Returns when its process has ended.

    A detached actor of which this program has lost sight, with its node, is ended by the master, a moment later.

    Raises:
        TypeError: that is no actor.
    """
    handle = _handle_of(actor)
    handle.loop.check_here(f"kill({actor!r})")
    await handle.kill()


def wait_for(actor: Proxy, function: Callable[[], Awaitable[None]]) -> None:
    """Run something of the actor's handle in the event loop, and wait for it in a thread outside of that."""
    handle = _handle_of(actor)
    call_in_loop(handle.loop, handle.name, function).result()


def _handle_of(actor: Proxy) -> Handle:
    if not isinstance(actor, Proxy):
        raise TypeError(f"expected an actor, not {actor!r}")
    return actor._handle
