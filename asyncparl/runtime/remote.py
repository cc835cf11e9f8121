"""`@remote_class` and what its instances look like to the caller. No sockets here, and no waiting.

Simulator           RemoteClass: calling it asks the session for an actor and returns a Proxy at once
sim = Simulator()   Proxy: any public name gives a RemoteMember, without a message
sim.sample(50)      RemoteMember called: a Call, on its way
await sim.frames    RemoteMember awaited: the attribute is fetched
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Generic, Literal, NoReturn, ParamSpec, Protocol, Self, TypeVar, overload

from asyncparl.protocol.messages import CallKind
from asyncparl.protocol.resources import Demand, check_demand
from asyncparl.runtime.call import STREAM_CREDIT, Call
from asyncparl.runtime.session import current_session

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorOptions:
    """What one actor may use and how it is treated."""

    num_cpus: float = 1
    num_gpus: float = 0
    max_memory: int | str | None = None
    max_restarts: int = 0
    max_concurrency: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    placement: Literal["pack", "spread"] = "pack"

    def __post_init__(self) -> None:
        for name in ("num_cpus", "num_gpus"):
            if not isinstance(getattr(self, name), (int, float)):
                raise TypeError(f"{name} must be a number, not {getattr(self, name)!r}")
        check_demand(self.demand())
        if self.placement not in ("pack", "spread"):
            raise ValueError(f"placement must be 'pack' or 'spread', not {self.placement!r}")
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts must be 0 or more, not {self.max_restarts}")
        if self.max_concurrency < 1:
            raise ValueError(f"max_concurrency must be 1 or more, not {self.max_concurrency}")

    def demand(self) -> Demand:
        """What the actor asks of its node."""
        return Demand(self.num_cpus, self.num_gpus, 0, dict(self.labels), self.placement)


_OPTION_NAMES = tuple(ActorOptions.__dataclass_fields__)
_NOT_YET = {
    "max_memory": "memory limits are not enforced yet",
    "max_restarts": "actors are not restarted yet",
}


class Handle(Protocol):
    """What stands behind a proxy: an actor of ours, or an object that was offered."""

    name: str

    @property
    def state(self) -> str: ...
    def call(self, kind: int, target: str, argument: object = None, *, credit: int = 0) -> Call[Any]: ...
    def public_names(self) -> list[str]: ...
    async def wait_created(self) -> None: ...
    async def close(self) -> None: ...
    async def kill(self) -> None: ...


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
        session = current_session(f"{self.__name__}(...)")
        options = self._options
        return Proxy(
            session.create_actor(
                self.__wrapped__, args, kwargs, max_concurrency=options.max_concurrency, demand=options.demand()
            )
        )

    def options(self, **options: Any) -> RemoteClass[P, T]:
        """The same class with other options, for the actors that are made from what this returns.

        Raises:
            TypeError: an unknown option.
            ValueError: an option that makes no sense.
        """
        return RemoteClass(self.__wrapped__, _checked_options(self._options, options))

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
    max_concurrency: int = 1,
    labels: Mapping[str, str] = ...,
    placement: Literal["pack", "spread"] = "pack",
) -> Callable[[Callable[P, T]], RemoteClass[P, T]]: ...
def remote_class(cls: Any = None, /, **options: Any) -> Any:
    """Make a class remote: `@remote_class` or `@remote_class(num_cpus=2, ...)`.

    Args:
        num_cpus: CPUs that one actor counts for; also the threads that torch uses in it.
        max_concurrency: how many `async` methods of one actor run at a time. Methods without `async` always run one
            at a time, in order, in one thread.

    Raises:
        TypeError: not a class, or an unknown option.
        ValueError: an option that makes no sense.
    """
    checked = _checked_options(ActorOptions(), options)

    def decorate(cls: Any) -> Any:
        if not isinstance(cls, type):
            raise TypeError(f"@remote_class decorates classes, not {cls!r}")
        # A pickle names the class by this path and must find it behind the decorated name.
        cls.__qualname__ = f"{cls.__qualname__}.__wrapped__"
        return RemoteClass(cls, checked)

    return decorate if cls is None else decorate(cls)


class Proxy:
    """A remote object as its callers see it. Making, printing and dropping one sends nothing.

    Every public name is a method or an attribute of the remote object: `await sim.sample(50)`, `await sim.frames`.
    `async with` closes the actor at the end of the block.
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

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be sent to another process yet")

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

    def __repr__(self) -> str:
        return f"<{self._name} of asyncparl actor {self._handle.name}: call it, or await it as an attribute>"


async def set_attribute(actor: Proxy, name: str, value: object) -> None:
    """Set an attribute of a remote object, after everything called before.

    Raises:
        AttributeError: a private name, or the object refuses it.
        ActorDied: its process has ended.
    """
    if name.startswith("_"):
        raise AttributeError(f"{name!r} is private: only public names of a remote object can be used")
    await actor._handle.call(CallKind.SET_ATTRIBUTE, name, value)


async def close(actor: Proxy) -> None:
    """End an actor after everything that was called before; streams are cut. Returns when its process has ended.

    An actor that is already dead is closed. Cancellation: the actor is killed at once.
    """
    await actor._handle.close()


async def kill(actor: Proxy) -> None:
    """End an actor at once, whatever it is doing. Returns when its process has ended."""
    await actor._handle.kill()


def _checked_options(base: ActorOptions, options: dict[str, Any]) -> ActorOptions:
    for name, value in options.items():
        if name not in _OPTION_NAMES:
            raise TypeError(f"unknown option {name!r}; a remote class takes {', '.join(_OPTION_NAMES)}")
        if name in _NOT_YET and value:
            raise NotImplementedError(f"{name}={value!r}: {_NOT_YET[name]}")
    return replace(base, **options)
