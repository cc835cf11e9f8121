"""A key for the tests, and those who do not have it."""

from __future__ import annotations

from asyncparl.transport import Credentials

KEY = bytes(range(32))
MEMBER = Credentials("member", KEY)
WRONG_KEY = Credentials("member", bytes(32))
UNKNOWN = Credentials("nobody", KEY)


def keys(key_id: str) -> bytes | None:
    """The key ring of the listener."""
    return {MEMBER.key_id: KEY}.get(key_id)
