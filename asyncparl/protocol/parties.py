"""Who takes part in a cluster: how nodes introduce themselves, and what keeps a process out."""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from asyncparl.protocol.resources import Capacity

MAX_ID_LENGTH = 64
_ID = re.compile(rf"[0-9A-Za-z_-]{{1,{MAX_ID_LENGTH}}}")


class Versions(msgspec.Struct, frozen=True):
    """What a process runs; `numpy` is empty where there is none."""

    asyncparl: str
    python: str
    numpy: str = ""


class NodeInfo(msgspec.Struct, frozen=True):
    """A node, as it introduces itself. `name` is for people; `host` tells who is on one machine."""

    node_id: str
    name: str
    capacity: Capacity
    addresses: list[str]
    host: str
    versions: Versions


def version_fault(ours: Versions, theirs: Versions) -> str | None:
    """Why two processes cannot work together.

    Another Python minor version may not read our pickles of functions, another major version of numpy not those of
    arrays. Processes without numpy are no obstacle to others.
    """
    if theirs.asyncparl != ours.asyncparl:
        return f"it runs asyncparl {theirs.asyncparl}, but this cluster runs {ours.asyncparl}"
    if _minor(theirs.python) != _minor(ours.python):
        return f"it runs Python {theirs.python}, but this cluster runs {_minor(ours.python)}"
    if ours.numpy and theirs.numpy and _major(theirs.numpy) != _major(ours.numpy):
        return f"it has numpy {theirs.numpy}, but the other side has numpy {ours.numpy}"
    return None


def id_fault(what: str, identity: str) -> str | None:
    """Why something cannot be known by this id: it has to fit into tickets and tables, and into names of files."""
    if _ID.fullmatch(identity):
        return None
    return (
        f"the id of {what} must have 1 to {MAX_ID_LENGTH} letters, digits, dashes and underscores, "
        f"not {identity[: MAX_ID_LENGTH + 1]!r}"
    )


def unique_name(wanted: str, taken: Collection[str]) -> str:
    """The name, or with the first number from 2 that makes it unique: gpu, gpu-2, gpu-3."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}-{number}"
    return name


def _major(version: str) -> str:
    return version.partition(".")[0]


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])
