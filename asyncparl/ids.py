"""Identities. An identity is never an address and never reused; names are for people."""

from __future__ import annotations

import secrets
from typing import NewType

ActorId = NewType("ActorId", str)


def new_actor_id() -> ActorId:
    """An id that no other actor of any cluster has."""
    return ActorId(secrets.token_hex(6))
