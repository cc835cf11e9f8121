"""What the master signs for nodes: tickets, by which a driver may connect, and leases, by which an actor may start.

Both are made with the secret of the nodes, which drivers do not have. `node_secret` is that secret everywhere here.

A **ticket** is not secret. Its key is: the master gives it to the driver over an encrypted link, and the node computes
the same key from the ticket that the driver names. The handshake proves by challenge and response that the driver has
the key, so bytes that somebody recorded are of no use to him, and no node has to remember which tickets it has seen: a
driver may use its ticket as often as it likes until it expires. Whoever invents a ticket does not know its key.

A **lease** carries its signature. It names its node and actor, so it cannot be used for others.
"""

from __future__ import annotations

import hmac

import msgspec

from asyncparl.errors import AuthenticationError
from asyncparl.protocol.frames import MSGPACK_ERRORS
from asyncparl.protocol.resources import Lease

MAX_TICKET_BYTES = 400

_KEY_ID_PREFIX = "ticket:"
_TICKET_CONTEXT = b"asyncparl ticket\0"
_LEASE_CONTEXT = b"asyncparl lease\0"


class Ticket(msgspec.Struct, array_like=True, frozen=True):
    """The driver may connect to the node until `expires`, in the time of the cluster. The nonce makes it unique."""

    driver_id: str
    node_id: str
    expires: float
    nonce: bytes


class SignedLease(msgspec.Struct, frozen=True):
    """A lease as it travels from the master through the driver to the node."""

    lease_bytes: bytes
    signature: bytes


_encode = msgspec.msgpack.Encoder().encode
_ticket_decoder = msgspec.msgpack.Decoder(Ticket)
_lease_decoder = msgspec.msgpack.Decoder(Lease)


def encode_ticket(ticket: Ticket) -> bytes:
    """The bytes of a ticket.

    Raises:
        ValueError: it is longer than any node would read: an id is too long.
    """
    ticket_bytes = _encode(ticket)
    if len(ticket_bytes) > MAX_TICKET_BYTES:
        raise ValueError(f"a ticket of {len(ticket_bytes)} bytes; the limit is {MAX_TICKET_BYTES}")
    return ticket_bytes


def ticket_key_id(ticket_bytes: bytes) -> str:
    """What a driver names as the id of its key."""
    return _KEY_ID_PREFIX + ticket_bytes.hex()


def ticket_key(node_secret: bytes, ticket_bytes: bytes) -> bytes:
    """The key that belongs to a ticket."""
    return hmac.digest(node_secret, _TICKET_CONTEXT + ticket_bytes, "sha256")


def read_ticket(key_id: str, node_id: str, now: float, node_secret: bytes) -> tuple[Ticket, bytes] | None:
    """The ticket that a key id names, and the key that the peer must prove to have. Nothing is proved by this alone.

    None, whatever the text is, if it is no ticket, longer than `MAX_TICKET_BYTES`, for another node, or expired.
    """
    ticket_bytes = _ticket_bytes(key_id)
    if ticket_bytes is None:
        return None
    try:
        ticket = _ticket_decoder.decode(ticket_bytes)
    except MSGPACK_ERRORS:
        return None
    if ticket.node_id != node_id or not now < ticket.expires:  # NaN is no time in the future
        return None
    return ticket, ticket_key(node_secret, ticket_bytes)


def sign_lease(node_secret: bytes, lease: Lease) -> SignedLease:
    """A lease that its node will believe."""
    lease_bytes = _encode(lease)
    return SignedLease(lease_bytes, _signature(node_secret, lease_bytes))


def read_lease(node_secret: bytes, signed: SignedLease, node_id: str) -> Lease:
    """The lease, if the master of this cluster gave it to this node.

    Raises:
        AuthenticationError: the signature is wrong, it is for another node, or it is no lease.
    """
    if not hmac.compare_digest(signed.signature, _signature(node_secret, signed.lease_bytes)):
        raise AuthenticationError("a lease that the master of this cluster did not sign")
    try:
        lease = _lease_decoder.decode(signed.lease_bytes)
    except MSGPACK_ERRORS as error:
        raise AuthenticationError(f"a lease that cannot be read: {error}") from None
    if lease.node_id != node_id:
        raise AuthenticationError(f"a lease for node {lease.node_id}; this is node {node_id}")
    return lease


def _signature(node_secret: bytes, lease_bytes: bytes) -> bytes:
    return hmac.digest(node_secret, _LEASE_CONTEXT + lease_bytes, "sha256")


def _ticket_bytes(key_id: str) -> bytes | None:
    """What the hex digits say. One spelling only: `fromhex` would also take capitals and spaces."""
    if not key_id.startswith(_KEY_ID_PREFIX) or len(key_id) > len(_KEY_ID_PREFIX) + 2 * MAX_TICKET_BYTES:
        return None
    try:
        ticket_bytes = bytes.fromhex(key_id.removeprefix(_KEY_ID_PREFIX))
    except ValueError:
        return None
    return ticket_bytes if ticket_key_id(ticket_bytes) == key_id else None
