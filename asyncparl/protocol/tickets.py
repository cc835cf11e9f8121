"""What the master signs for nodes: tickets, by which a driver may connect, and leases, by which an actor may start.

Both are made with the secret of the nodes, which drivers do not have. `node_secret` is that secret everywhere here.

A **ticket** is not secret. Its key is: the master gives it to the driver over an encrypted link, and the node computes
the same key from the ticket that the driver names. The handshake proves by challenge and response that the driver has
the key, so bytes that somebody recorded are of no use to him, and no node has to remember which tickets it has seen: a
driver may use its ticket as often as it likes until it expires. Whoever invents a ticket does not know its key.

A **pass** is a ticket the other way round: with it an actor comes to the master, to use other actors.

A **lease** carries its signature. It names its node and actor, so it cannot be used for others; and it expires, because
the place of an actor that does not start is given to somebody else. What has started keeps its lease.
"""

from __future__ import annotations

import hmac

import msgspec

from asyncparl.errors import AuthenticationError, ResourceError
from asyncparl.protocol.frames import MSGPACK_ERRORS
from asyncparl.protocol.resources import Lease

MAX_TICKET_BYTES = 250
"""One with the longest ids has 160; as the id of a key, in hex, it has to fit into what a stranger may say."""

_KEY_ID_PREFIX = "ticket:"
_PASS_PREFIX = "actor:"
_PASS_CONTEXT = b"asyncparl actor\0"
_TICKET_CONTEXT = b"asyncparl ticket\0"
_LEASE_CONTEXT = b"asyncparl lease\0"


class Ticket(msgspec.Struct, array_like=True, frozen=True):
    """The driver may connect to the node until `expires`, in the time of the cluster. The nonce makes it unique."""

    driver_id: str
    node_id: str
    expires: float
    nonce: bytes


class _Permit(msgspec.Struct, array_like=True, frozen=True):
    """What is signed: an actor may start with this lease until `expires`, in the time of the cluster."""

    lease: Lease
    expires: float


class SignedLease(msgspec.Struct, frozen=True):
    """A lease as it travels from the master through the driver to the node."""

    lease_bytes: bytes
    signature: bytes


_encode = msgspec.msgpack.Encoder().encode
_ticket_decoder = msgspec.msgpack.Decoder(Ticket)
_permit_decoder = msgspec.msgpack.Decoder(_Permit)


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


class ActorPass(msgspec.Struct, array_like=True, frozen=True):
    """The actor may act as a driver at the master, for its program. Given by its node, for as long as it lives."""

    actor_id: str
    program_id: str


_pass_decoder = msgspec.msgpack.Decoder(ActorPass)


def issue_pass(node_secret: bytes, actor_pass: ActorPass) -> tuple[str, bytes]:
    """The id and the key by which an actor proves what it is. As with tickets, the id is no secret."""
    pass_bytes = _encode(actor_pass)
    return _PASS_PREFIX + pass_bytes.hex(), hmac.digest(node_secret, _PASS_CONTEXT + pass_bytes, "sha256")


def read_pass(key_id: str, node_secret: bytes) -> tuple[ActorPass, bytes] | None:
    """The pass that a key id names, and the key that the peer must prove to have; None if it is no pass."""
    if not key_id.startswith(_PASS_PREFIX):
        return None
    try:
        actor_pass = _pass_decoder.decode(bytes.fromhex(key_id.removeprefix(_PASS_PREFIX)))
    except (ValueError, *MSGPACK_ERRORS):
        return None
    proper_id, key = issue_pass(node_secret, actor_pass)
    return (actor_pass, key) if proper_id == key_id else None


def sign_lease(node_secret: bytes, lease: Lease, expires: float) -> SignedLease:
    """A lease that its node will believe, until `expires`."""
    lease_bytes = _encode(_Permit(lease, expires))
    return SignedLease(lease_bytes, _signature(node_secret, lease_bytes))


def read_lease(node_secret: bytes, signed: SignedLease, node_id: str, now: float) -> Lease:
    """The lease, if the master of this cluster gave it to this node, for a start at this time.

    Raises:
        AuthenticationError: the signature is wrong, it is for another node, or it is no lease.
        ResourceError: it has expired.
    """
    if not hmac.compare_digest(signed.signature, _signature(node_secret, signed.lease_bytes)):
        raise AuthenticationError("a lease that the master of this cluster did not sign")
    try:
        permit = _permit_decoder.decode(signed.lease_bytes)
    except MSGPACK_ERRORS as error:
        raise AuthenticationError(f"a lease that cannot be read: {error}") from None
    lease = permit.lease
    if lease.node_id != node_id:
        raise AuthenticationError(f"a lease for node {lease.node_id}; this is node {node_id}")
    if not now < permit.expires:  # NaN is no time in the future
        raise ResourceError(f"{lease.actor_name} was started too late: its place may have been given to another actor")
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
