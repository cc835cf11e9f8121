"""Identities. An identity is never an address and never reused; names are for people."""

from __future__ import annotations

import secrets
from typing import NewType

ActorId = NewType("ActorId", str)


def new_actor_id() -> ActorId:
    """An id that no other actor of any cluster has."""
    return ActorId(secrets.token_hex(6))


def new_node_id() -> str:
    """An id that no other node of any cluster has."""
    return secrets.token_hex(6)


def new_token() -> str:
    """A secret of its maker."""
    return secrets.token_hex(16)


def new_driver_id() -> str:
    """An id that no other driver of any cluster has."""
    return secrets.token_hex(6)


def class_of(actor_name: str) -> str:
    """The class of an actor by its name alone: `Simulator`, of `Simulator#3` as of `Trainer#1/Simulator#3`."""
    return actor_name.rpartition("/")[2].rpartition("#")[0] or actor_name
