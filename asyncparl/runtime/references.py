"""References: what a proxy becomes when it travels. Plain data, good for one thing: to be asked of a session again.

An object is named by its process (the id of its driver or actor) and a number there: 0 is the actor itself, the others
were exposed. No address is in it: where an actor runs may change while its reference is under way.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncparl.protocol.values import find_by_name


class Reference(NamedTuple):
    """One object of the cluster."""

    process_id: str
    object_id: int
    name: str
    """For people."""
    class_path: tuple[str, str]
    """Module and qualified name of the object's class, to tell what can be called; it may not exist here."""
    is_of_driver: bool = False
    """Whether the process is a program, not an actor: such a one is not dialed, it dials."""
    call_timeout_s: float | None = None
    """How long a call of it may take, where the call does not say."""


CALLABLE_DUNDERS = ("__call__", "__getitem__")
"""What proxies make calls of, although it is not public: `actor(x)` and `actor[key]`."""


def check_public(name: str, but_for: tuple[str, ...] = ()) -> None:
    """Raise AttributeError for a name that is nothing to callers."""
    if name.startswith("_") and name not in but_for:
        raise AttributeError(f"{name!r} is private: only public names of a remote object can be used")


def class_path_of(cls: type) -> tuple[str, str]:
    """How a reference names a class."""
    return cls.__module__, cls.__qualname__


def public_names(class_path: tuple[str, str]) -> list[str]:
    """What can be called or read of an object, as far as its class is known in this process. Nothing is imported."""
    found = find_by_name(*class_path)
    return [name for name in dir(found) if not name.startswith("_")] if isinstance(found, type) else []
