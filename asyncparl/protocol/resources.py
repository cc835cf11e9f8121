"""What actors ask for, what nodes offer, and who was given what. Plain structs that travel as msgpack maps.

Amounts are floats on the wire and for people, and integer thousandths wherever they are compared or added: ten times
0.1 CPU is exactly one CPU, and what was taken can be given back without a rest. A part of a thousandth is cut off, so
that n actors of 1/n always fit.

Fields may be added at the end, with a default; a peer that does not know them ignores them.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import msgspec

from asyncparl.protocol.numbers import check_digits

ONE = 1000
"""Thousandths in one CPU or GPU."""
UNLIMITED = 1 << 62
"""The thousandths of a capacity of infinitely many CPUs: an integer, so that sums stay exact."""

_MAX_AMOUNT = 1_000_000
MAX_BYTES = 1 << 62
_MAX_GPUS = 1024
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Demand(msgspec.Struct, frozen=True):
    """What one actor asks for.

    `gpus` is a whole number, or a share of one GPU in (0, 1). `labels` must all be on the node, with these values.
    `strategy`: "pack" fills nodes one after another, "spread" takes the emptiest.
    """

    cpus: float = 1
    gpus: float = 0
    memory_bytes: int = 0
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    strategy: Literal["pack", "spread"] = "pack"


class Capacity(msgspec.Struct, frozen=True):
    """What a node offers. Infinitely many CPUs: it makes nobody wait for CPUs (the private cluster)."""

    cpus: float
    num_gpus: int = 0
    memory_bytes: int = 0
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class ActorTitle(msgspec.Struct, frozen=True):
    """Who an actor is to others than its owner."""

    program_id: str = ""
    """The driver at the root of its tree of owners."""
    class_path: tuple[str, str] = ("", "")
    """Module and qualified name of its class."""
    public_name: str = ""
    """By which others may ask for it."""
    is_detached: bool = False
    """It does not end with its owner."""
    may_restart: bool = False
    """Its owner starts it again under the same id if it dies, until the owner withdraws it."""
    num_restarts: int = 0
    """How often its owner has done so: of two processes of an actor, the one with more is the actor."""
    call_timeout_s: float | None = None
    """How long a call of it may take, where the call does not say."""


UNTITLED = ActorTitle()


class Lease(msgspec.Struct, frozen=True):
    """What an actor may use on its node, given by the master. It has `gpu_share` of each GPU in `gpu_ids`.

    1.0 for whole GPUs, 0.0 if it has none.
    """

    actor_id: str
    actor_name: str
    driver_id: str
    node_id: str
    demand: Demand
    gpu_ids: list[int]
    gpu_share: float
    title: ActorTitle = UNTITLED

    @property
    def process(self) -> tuple[str, int]:
        """Which process of which actor it is for."""
        return self.actor_id, self.title.num_restarts


class Need(NamedTuple):
    """A demand in whole numbers: `num_gpus` GPUs with `gpu_share` thousandths free on each."""

    cpus: int
    memory_bytes: int
    num_gpus: int
    gpu_share: int
    labels: tuple[tuple[str, str], ...]


def parse_bytes(size: int | str) -> int:
    """A number of bytes, as a number or as text such as 512MiB.

    Raises:
        TypeError: neither.
        ValueError: not such a text, or not a number of bytes that there can be.
    """
    if not isinstance(size, (int, str)) or isinstance(size, bool):
        raise TypeError(f"a size is a number of bytes or a text such as '512MiB', not {size!r}")
    if isinstance(size, int):
        check_digits("a size", size)
        number = size
    else:
        unit = next((unit for unit in _UNITS if size.endswith(unit)), None)
        try:
            number = int(float(size.removesuffix(unit or "x")) * _UNITS[unit or ""])
        except (ValueError, OverflowError, KeyError):
            raise ValueError(f"{size!r} is not a size, such as 512MiB or 16GiB") from None
    if not 0 <= number <= MAX_BYTES:
        raise ValueError(f"{size!r} is not a size: it must be from 0 to {MAX_BYTES:,} bytes")
    return number


def format_bytes(num_bytes: int) -> str:
    """For people: 1.5 GiB."""
    name, unit = next(((name, unit) for name, unit in reversed(_UNITS.items()) if num_bytes >= unit), ("bytes", 1))
    return f"{num_bytes / unit:.3f}".rstrip("0").rstrip(".") + f" {name}"


def thousandths(amount: float) -> int:
    """A finite amount in thousandths, or `UNLIMITED`. Cut off, but 0.29 is 290 although the float is a bit less."""
    return UNLIMITED if amount == math.inf else math.floor(amount * ONE + 1e-6)


def need_of(demand: Demand) -> Need:
    """A valid demand in whole numbers."""
    num_gpus = math.ceil(demand.gpus)
    share = min(thousandths(demand.gpus), ONE)
    return Need(thousandths(demand.cpus), demand.memory_bytes, num_gpus, share, tuple(sorted(demand.labels.items())))


def check_demand(demand: Demand) -> None:
    """Say what is wrong with a demand, as the user named it.

    Raises:
        ValueError: an amount is negative, no number, too large, or below a thousandth; more than one GPU, but not a
            whole number of them.
    """
    _check_amount("num_cpus", demand.cpus)
    _check_amount("num_gpus", demand.gpus)
    _check_whole("max_memory", demand.memory_bytes, MAX_BYTES)
    if demand.gpus > 1 and not float(demand.gpus).is_integer():
        raise ValueError(f"num_gpus is {demand.gpus:g}: ask for a whole number of GPUs, or for a part of one")


def check_capacity(capacity: Capacity) -> None:
    """Say what is wrong with what a node offers, as its options are called.

    Raises:
        ValueError: an amount is negative, no number or too large.
    """
    if capacity.cpus != math.inf:
        _check_amount("cpus", capacity.cpus)
    _check_whole("gpus", capacity.num_gpus, _MAX_GPUS)
    _check_whole("memory", capacity.memory_bytes, MAX_BYTES)


def lease_fault(lease: Lease, node_id: str, capacity: Capacity) -> str | None:
    """Why a node cannot have this lease, or None. That it has too many of them is no fault of one lease."""
    try:
        check_demand(lease.demand)
    except ValueError as error:
        return f"the lease of {lease.actor_name}: {error}"
    num_gpus, gpu_share = need_of(lease.demand)[2:4]
    if lease.node_id != node_id:
        return f"the lease of {lease.actor_name} is for node {lease.node_id}"
    if not math.isfinite(lease.gpu_share) or thousandths(lease.gpu_share) != gpu_share:
        return f"the lease of {lease.actor_name}: gpu_share is {lease.gpu_share:g}, but gpus is {lease.demand.gpus:g}"
    gpu_ids = {gpu_id for gpu_id in lease.gpu_ids if 0 <= gpu_id < capacity.num_gpus}
    if not len(gpu_ids) == len(lease.gpu_ids) == num_gpus:
        return f"the lease of {lease.actor_name}: gpu_ids is {lease.gpu_ids}, but the node has {capacity.num_gpus} GPUs"
    return None


def _check_amount(what: str, amount: float) -> None:
    check_digits(what, amount)
    if not math.isfinite(amount):
        raise ValueError(f"{what} is {amount}: it must be a finite number")
    if amount < 0:
        raise ValueError(f"{what} is {amount:g}: it must be 0 or more")
    if amount > _MAX_AMOUNT:
        raise ValueError(f"{what} is {amount:g}: more than {_MAX_AMOUNT:,} are not supported")
    if amount and not thousandths(amount):
        raise ValueError(f"{what} is {amount:g}: the smallest share is 0.001")


def _check_whole(what: str, number: int, most: int) -> None:
    if number < 0:
        raise ValueError(f"{what} is {number}: it must be 0 or more")
    if number > most:
        raise ValueError(f"{what} is {number}: more than {most:,} are not supported")
