"""What `ClusterCore` decides: each says what the master has to do."""

from __future__ import annotations

from typing import NamedTuple

from asyncparl.protocol.resources import Lease


class Refused(NamedTuple):
    """No, and why: a sentence for people. To an `ask` it is the text of a `ResourceError`."""

    reason: str


class NodeJoined(NamedTuple):
    """Welcome a node under `name`. If it has an older connection, drop that, without `node_disconnected`."""

    name: str
    unwanted: list[Lease]
    """Of actors that the node reported and must end: they have another place, or are over."""


class DriverJoined(NamedTuple):
    """Welcome a driver under `name`. If it has an older connection, drop that, without `driver_disconnected`."""

    name: str


class Granted(NamedTuple):
    lease: Lease


class Waiting(NamedTuple):
    """`take_grants` or `tick` will tell of it; `why_waiting` says what it waits for."""

    actor_id: str


class StillHeld(NamedTuple):
    """An earlier process of the actor has its place still. To be asked again when something has changed."""

    actor_id: str


class Found(NamedTuple):
    """Where an actor runs."""

    node_id: str


class Named(NamedTuple):
    """An actor with a public name."""

    actor_id: str
    actor_name: str
    class_path: tuple[str, str]
    call_timeout_s: float | None = None


class Ended(NamedTuple):
    """The actor is gone for good."""

    reason: str


class NodeLost(NamedTuple):
    """Drop the node's connection, if it has one. Its actors may still run; the drivers notice by themselves."""

    node_id: str
    name: str
    reason: str


class DemandRefused(NamedTuple):
    """No node can ever hold it any more: tell its driver."""

    actor_id: str
    reason: str


class DriverGone(NamedTuple):
    """The driver did not come back. What it had not started is free; what runs, its nodes end."""

    driver_id: str
    name: str


Decision = NodeLost | DemandRefused | DriverGone
