"""`@remote_class` and what its instances look like to the caller. No sockets here.

Simulator           RemoteClass: calling it asks the session for an actor and returns a Proxy at once
sim = Simulator()   Proxy: any public name gives a RemoteMember, without a message
sim.sample(50)      RemoteMember called: a Call, on its way
await sim.frames    RemoteMember awaited: the attribute is fetched

`sim.sample(50).result()` and `sim.frames.result()` are the same for threads without an event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, NoReturn, ParamSpec, Self, TypeVar, overload

from asyncparl.protocol.messages import CallKind
from asyncparl.runtime.call import STREAM_CREDIT, Call, call_in_loop, check_thread
from asyncparl.runtime.handle import Handle, UnreachableHandle
from asyncparl.runtime.options import ActorOptions, checked_options
from asyncparl.runtime.references import Reference
from asyncparl.runtime.session import current_session, find_session
from asyncparl.runtime.supervisor import Supervisor

P = ParamSpec("P")
T = TypeVar("T")


class RemoteClass(Generic[P, T]):
    """A class whose instances live in processes of their own.

    Calling it starts an actor and returns its proxy at once. `__wrapped__` is the plain class, for local use and
    for tests; its instances pickle by reference. A subclass is a plain class until it is decorated too.
    """

    __wrapped__: type[T]

    def __init__(self, cls: type[T], options: ActorOptions) -> None:
        self.__wrapped__ = cls
        self._options = options
        self.__module__ = cls.__module__
        self.__name__ = cls.__name__
        self.__doc__ = cls.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Proxy:
        """Start an actor; its constructor runs with these arguments, over there.

        Raises:
            NotConnectedError: no `asyncparl.connect()` block is open.
        """
        return self.start_supervised(None, args, kwargs)

    def start_supervised(
        self, supervisor: Supervisor | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Proxy:
        """The same, but not the options decide about restarts; for groups."""
        if supervisor is not None and self._options.detached:
            raise ValueError(f"{self.__name__} is detached: it cannot belong to a group, which would end it")
        session = current_session(f"{self.__name__}(...)")
        return Proxy(session.create_actor(self.__wrapped__, args, dict(kwargs), self._options, supervisor))

    def options(self, **options: Any) -> RemoteClass[P, T]:
        """The same class with other options, for the actors that are made from what this returns.

        Raises:
            TypeError: an unknown option.
            ValueError: an option that makes no sense.
        """
        return RemoteClass(self.__wrapped__, checked_options(self._options, options))

    def __mro_entries__(self, _bases: tuple[object, ...]) -> tuple[type, ...]:
        # `class Fast(Simulator)` inherits from the plain class.
        return (self.__wrapped__,)

    def __repr__(self) -> str:
        return f"<asyncparl.remote_class {self.__module__}.{self.__name__}>"


@overload
def remote_class(cls: Callable[P, T], /) -> RemoteClass[P, T]: ...
@overload
def remote_class(
    *,
    num_cpus: float = 1,
    num_gpus: float = 0,
    max_memory: int | str | None = None,
    max_restarts: int = 0,
    restart_window_s: float | None = 60.0,
    max_concurrency: int = 1,
    labels: Mapping[str, str] = ...,
    placement: Literal["pack", "spread"] = "pack",
    name: str = "",
    detached: bool = False,
) -> Callable[[Callable[P, T]], RemoteClass[P, T]]: ...
def remote_class(cls: Any = None, /, **options: Any) -> Any:
    """Make a class remote: `@remote_class` or `@remote_class(num_cpus=2, ...)`.

    Args:
        num_cpus: CPUs that one actor counts for; also the threads that torch uses in it.
        num_gpus: GPUs, whole or a part of one; it sees no others.
        max_memory: how much memory its process may have of its own, as "2GiB": it waits for a node that has so much
            to give, and is killed when it has more.
        max_restarts: how often within `restart_window_s` it is started again when its process dies without having been
            asked to: under the same name, for the same proxies, with the arguments of the first time. Calls that were
            open raise `ActorDied`, but for those of `@idempotent` methods; later ones wait for the new process. A
            method `on_restart(self, num_restarts)` of the class is called before any other.
        restart_window_s: in seconds; None: ever.
        max_concurrency: how many `async` methods of one actor run at a time. Methods without `async` always run one
            at a time, in order, in one thread.
        labels: what its node must have.
        placement: "pack" fills the nodes of a cluster one after another, "spread" takes the emptiest.
        name: by which `get_actor` finds it. Unique in the program; that of a detached actor in the cluster.
        detached: it does not end with its owner, but when it is closed or killed, or with the cluster.

    Raises:
        TypeError: not a class, or an unknown option.
        ValueError: an option that makes no sense.
    """
    checked = checked_options(ActorOptions(), options)

    def decorate(cls: Any) -> Any:
        if not isinstance(cls, type):
            raise TypeError(f"@remote_class decorates classes, not {cls!r}")
        # A pickle names the class by this path and must find it behind the decorated name.
        cls.__qualname__ = f"{cls.__qualname__}.__wrapped__"
        return RemoteClass(cls, checked)

    return decorate if cls is None else decorate(cls)


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
        if name.startswith("_"):
            raise AttributeError(f"{name!r} is private: only public names of a remote object can be used")
        return RemoteMember(self._handle, name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a remote attribute is set with `await asyncparl.set_attribute(actor, {name!r}, value)`")

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
        return self._handle.call(CallKind.METHOD, "__getitem__", ((key,), {}))

    def __call__(self, *args: Any, **kwargs: Any) -> Call[Any]:
        return self._handle.call(CallKind.METHOD, "__call__", (args, kwargs), credit=STREAM_CREDIT)

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

    __slots__ = ("_handle", "_name")

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle = handle
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Call[Any]:
        """Call the remote method. The call starts now; what goes wrong is raised where it is awaited."""
        arguments = (args, kwargs) if args or kwargs else None
        return self._handle.call(CallKind.METHOD, self._name, arguments, credit=STREAM_CREDIT)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._handle.call(CallKind.GET_ATTRIBUTE, self._name).__await__()

    def result(self, timeout: float | None = None) -> Any:
        """The attribute, for threads without an event loop. As `Call.result`."""
        return self._handle.call(CallKind.GET_ATTRIBUTE, self._name).result(timeout)

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
    """
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
    """
    session = current_session("expose(...)")
    return Proxy(session.expose(thing, max_concurrency))


async def set_attribute(actor: Proxy, name: str, value: object) -> None:
    """Set an attribute of a remote object, after everything called before.

    Raises:
        AttributeError: a private name, or the object refuses it.
        ActorDied: its process has ended.
    """
    await setting(actor, name, value)


def setting(actor: Proxy, name: str, value: object) -> Call[None]:
    """The call that sets an attribute.

    Raises:
        AttributeError: a private name.
    """
    if name.startswith("_"):
        raise AttributeError(f"{name!r} is private: only public names of a remote object can be used")
    return actor._handle.call(CallKind.SET_ATTRIBUTE, name, value)


async def close(actor: Proxy) -> None:
    """End an actor after everything that was called before; streams are cut. Returns when its process has ended.

    An actor that is already dead is closed. Cancellation, as by `trio.move_on_after(5)`: the actor is not asked any
    longer; it gets SIGTERM and, a second later, SIGKILL, and nobody waits for that.
    """
    await actor._handle.close()


async def kill(actor: Proxy) -> None:
    """End an actor at once, whatever it is doing. Returns when its process has ended."""
    await actor._handle.kill()


def wait_for(actor: Proxy, function: Callable[[], Awaitable[None]]) -> None:
    """Run something of the actor's handle in the event loop, and wait for it in a thread outside of that."""
    call_in_loop(actor._handle.loop, actor._handle.name, function).result()
