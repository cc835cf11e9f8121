"""Who may come in: what a dialer shows, what a listener knows, and what is left of both once they agree.

A secret is never sent. Both sides prove that they have it (`handshake.py`), the listener first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

KEY_BYTES = 32
MAX_KEY_ID_BYTES = 512
MAX_ROUTE_BYTES = 256
MAX_REASON_BYTES = 200

KeyRing: TypeAlias = Callable[[str], bytes | None]
"""The key of a key id, or None if there is none. Called with whatever strangers send: must neither block nor raise."""


class Credentials(NamedTuple):
    """How a dialer proves itself: a key of 32 bytes, and the name under which the listener finds the same key."""

    key_id: str
    key: bytes

    def __repr__(self) -> str:
        return f"Credentials(key_id={self.key_id!r})"  # the key has no place in a log


class Tunnel(NamedTuple):
    """Another listener, whose owner joins our connection with one of the listener that we want to reach."""

    address: str
    credentials: Credentials
    route: str


class Admission(NamedTuple):
    """All that `open_admitted` needs besides the socket, as plain values that can travel to another process."""

    max_send_bytes: int
    max_receive_bytes: int
    session_key: bytes
    encrypt: bool
    shares_memory: bool = False
    """The dialer has sent memory for an arena; it is the next to be read from the socket."""

    def __repr__(self) -> str:
        return f"Admission({self.max_send_bytes}, {self.max_receive_bytes}, encrypt={self.encrypt})"


class DialRefused(ConnectionRefusedError):
    """The listener knows us, and says no; `strerror` is its reason. Where nobody listens it is the base class."""


def check_dialing(credentials: Credentials | None, route: str) -> None:
    """Whether this can be sent at all.

    Raises:
        ValueError: the key has another length than 32, or a text is too long or, for the key id, empty.
    """
    if credentials is not None:
        if len(credentials.key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(credentials.key)}")
        if not 0 < len(credentials.key_id.encode()) <= MAX_KEY_ID_BYTES:
            raise ValueError(f"a key id has 1 to {MAX_KEY_ID_BYTES} bytes: {credentials.key_id!r}")
    if len(route.encode()) > MAX_ROUTE_BYTES:
        raise ValueError(f"a route has at most {MAX_ROUTE_BYTES} bytes: {route!r}")


def find_key(keys: KeyRing | None, key_id: str) -> bytes | None:
    """The key that both sides must have: the empty one where neither asks for any, None where they do not match.

    Raises:
        ValueError: the key ring is wrong. A short key is no secret, so that it must not let anybody in.
    """
    if keys is None:
        return None if key_id else b""
    key = keys(key_id) if key_id else None
    if key is not None and len(key) != KEY_BYTES:
        raise ValueError(f"the key ring has a key of {len(key)} bytes, not {KEY_BYTES}")
    return key


def cut_reason(reason: str) -> str:
    """Why somebody is refused, fit for being sent and shown: at most 200 bytes, and printable."""
    printable = "".join(char if char.isprintable() else "?" for char in reason)
    return printable.encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore")
