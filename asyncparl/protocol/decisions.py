"""What `ClusterCore` decides: each says what the master has to do."""

from __future__ import annotations

from typing import NamedTuple

from asyncparl.protocol.resources import Lease


class Refused(NamedTuple):
    """No, and why: a sentence for people. To an `ask` it is the text of a `ResourceError`."""

    reason: str


class NodeJoined(NamedTuple):
    """Welcome a node under `name`."""

    name: str
    replaced: int | None
    """Drop the connection of this older incarnation, without `node_disconnected`."""
    over: list[Lease]
    """Believed of the node, but over: tell their drivers."""
    unwanted: list[str]
    """Actors that the node reported and must end: they have a place elsewhere."""


class DriverJoined(NamedTuple):
    """Welcome a driver under `name`. `replaced`: drop its older connection, without `driver_disconnected`."""

    name: str
    replaced: bool


class Granted(NamedTuple):
    lease: Lease


class Waiting(NamedTuple):
    """`take_grants` or `tick` will tell of it; `why_waiting` says what it waits for."""

    actor_id: str


class NodeLost(NamedTuple):
    """Drop the node's connection, if it has one, and tell the drivers of these leases. Its actors may still run."""

    node_id: str
    name: str
    incarnation: int
    reason: str
    leases: list[Lease]


class NodeDrained(NamedTuple):
    """A draining node has no actor any more, nor will it get one: let it go. Repeated until it leaves."""

    node_id: str


class LeaseExpired(NamedTuple):
    """The actor was not started in time: tell its driver."""

    lease: Lease


class DemandRefused(NamedTuple):
    """No node can ever hold it any more: tell its driver."""

    driver_id: str
    actor_id: str
    reason: str


class DriverGone(NamedTuple):
    """The driver did not come back. These leases were never started; what runs, its nodes end."""

    driver_id: str
    name: str
    leases: list[Lease]


Decision = NodeLost | NodeDrained | LeaseExpired | DemandRefused | DriverGone
