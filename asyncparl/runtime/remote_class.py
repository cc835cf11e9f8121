"""`@remote_class`: a class whose instances are made elsewhere. What they look like here is in `remote.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from asyncparl.protocol.values import find_by_name
from asyncparl.runtime.current import current_session
from asyncparl.runtime.options import ActorOptions, checked_options
from asyncparl.runtime.references import class_path_of
from asyncparl.runtime.remote import Proxy
from asyncparl.runtime.supervisor import Supervisor

P = ParamSpec("P")
T = TypeVar("T")

_BEHIND = ".__wrapped__"
"""A pickle names a class by its path, and finds with this one that is behind its decorated name."""


class RemoteClass(Generic[P, T]):
    """A class whose instances live in processes of their own.

    Calling it starts an actor and returns its proxy at once. `__wrapped__` is the plain class, for local use and
    for tests; its instances pickle by reference. A subclass is a plain class until it is decorated too.

    Constants and nested classes are read as those of the plain class: `Simulator.NUM_ACTIONS`. What belongs to its
    instances, such as methods, is an `AttributeError`.
    """

    __wrapped__: type[T]

    def __init__(self, cls: type[T], options: ActorOptions) -> None:
        self._plain = cls
        self._options = options
        self.__module__ = cls.__module__
        self.__name__ = cls.__name__
        self.__doc__ = cls.__doc__

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Proxy:
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

    def options(self, /, **options: Any) -> RemoteClass[P, T]:
        """The same class with other options, for the actors that are made from what this returns.

        Raises:
            TypeError: an unknown option.
            ValueError: an option that makes no sense.
        """
        return RemoteClass(self._plain, checked_options(self._options, options))

    def __getitem__(self, parameters: Any) -> RemoteClass[P, T]:
        """`Buffer[int]` of a generic class: for type checkers; it makes the same actors.

        Raises:
            TypeError: that of the plain class, if it is not generic.
        """
        found: Any = self._plain[parameters]  # type: ignore[index]  # says who may
        return self if getattr(found, "__origin__", None) is self._plain else found

    __iter__ = None  # with `__getitem__` alone it would be a sequence

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":
            return self._findable()
        if name.startswith("_"):
            raise AttributeError(f"{name!r} is private: `__wrapped__` is the plain class, which may have it")
        if hasattr(type(inspect.getattr_static(self._plain, name, None)), "__get__"):
            raise AttributeError(
                f"{self.__name__}.{name} belongs to actors: use it on one of them; "
                f"that of the plain class is {self.__name__}.__wrapped__.{name}"
            )
        return getattr(self._plain, name)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise AttributeError(
                f"{self.__name__}.{name} cannot be set: every actor has a class of its own. Set it where the class is "
                f"defined, or in one actor with `await asyncparl.set_attribute(actor, {name!r}, value)`"
            )
        object.__setattr__(self, name, value)

    def _findable(self) -> type[T]:
        """The plain class, under a name by which pickles find it."""
        cls = self._plain
        if not cls.__qualname__.endswith(_BEHIND):
            found = find_by_name(*class_path_of(cls))
            if isinstance(found, RemoteClass) and found._plain is cls:
                cls.__qualname__ += _BEHIND  # `Simulator = remote_class(Simulator)`, which nobody could foresee
        return cls

    def __mro_entries__(self, _bases: tuple[object, ...]) -> tuple[type, ...]:
        # `class Fast(Simulator)` inherits from the plain class.
        return (self.__wrapped__,)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteClass, (self.__wrapped__, self._options)

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
    name: str | None = None,
    detached: bool = False,
    call_timeout_s: float | None = None,
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
        name: by which `get_actor` finds it: 1 to 200 bytes without control characters. Unique in the program; that of
            a detached actor in the cluster.
        detached: it does not end with its owner, but when it is closed or killed, or with the cluster.
        call_timeout_s: how many seconds each call of it may take, whoever makes it, unless the call says so itself with
            `actor.method.options(timeout_s=...)`: see there.

    Raises:
        TypeError: not a class, or an unknown option.
        ValueError: an option that makes no sense.
    """
    checked = checked_options(ActorOptions(), options)

    def decorate(cls: Any) -> Any:
        if not isinstance(cls, type):
            raise TypeError(f"@remote_class decorates classes, not {cls!r}")
        if "<locals>" not in cls.__qualname__ and find_by_name(*class_path_of(cls)) is not cls:
            cls.__qualname__ += _BEHIND
        return RemoteClass(cls, checked)

    return decorate if cls is None else decorate(cls)
