"""References: what a proxy becomes when it travels. Plain data, good for one thing: to be asked of a session again.

An object is named by its process (the id of its driver or actor) and a number there: 0 is the actor itself, the others
were exposed. No address is in it: where an actor runs may change while its reference is under way.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


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


def class_path_of(cls: type) -> tuple[str, str]:
    """How a reference names a class."""
    return cls.__module__, cls.__qualname__


def public_names(class_path: tuple[str, str]) -> list[str]:
    """What can be called or read of an object, as far as its class is known in this process. Nothing is imported."""
    found: Any = sys.modules.get(class_path[0])
    for part in class_path[1].split("."):
        found = None if found is None else vars(found).get(part)
    return [name for name in dir(found) if not name.startswith("_")] if isinstance(found, type) else []
