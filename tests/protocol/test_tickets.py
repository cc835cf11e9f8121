"""Tickets and signed leases: what a node believes, and that it survives anything else."""

from __future__ import annotations

import hashlib
import math

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncparl.errors import AuthenticationError, ResourceError
from asyncparl.protocol.parties import MAX_ID_LENGTH
from asyncparl.protocol.resources import Demand, Lease
from asyncparl.protocol.tickets import (
    MAX_TICKET_BYTES,
    SignedLease,
    Ticket,
    encode_ticket,
    read_lease,
    read_ticket,
    sign_lease,
    ticket_key,
    ticket_key_id,
)
from asyncparl.transport.credentials import MAX_KEY_ID_BYTES
from tests.protocol.strategies import many

SECRET = bytes(range(32))
OTHER_SECRET = bytes(32)
TICKET = Ticket("d1", "n1", expires=1000.0, nonce=b"0123456789abcdef")
LEASE = Lease("a1", "Simulator#1", "d1", "n1", Demand(gpus=1), [0], 1.0)


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """RFC 2104, for keys of up to 64 bytes."""
    padded = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded) + message).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in padded) + inner).digest()


def key_id(ticket: Ticket = TICKET) -> str:
    return ticket_key_id(encode_ticket(ticket))


def read(text: str, *, node_id: str = "n1", now: float = 0.0) -> tuple[Ticket, bytes] | None:
    return read_ticket(text, node_id, now, SECRET)


def test_a_ticket_on_the_wire() -> None:
    ticket_bytes = encode_ticket(TICKET)
    assert ticket_bytes == b"\x94\xa2d1\xa2n1\xcb" + bytes.fromhex("408f400000000000") + b"\xc4\x100123456789abcdef"
    assert ticket_key_id(ticket_bytes) == "ticket:" + ticket_bytes.hex()


def test_the_key_of_a_ticket_is_the_hmac_that_the_design_names() -> None:
    ticket_bytes = encode_ticket(TICKET)
    assert ticket_key(SECRET, ticket_bytes) == hmac_sha256(SECRET, b"asyncparl ticket\0" + ticket_bytes)
    assert ticket_key(SECRET, ticket_bytes) != ticket_key(OTHER_SECRET, ticket_bytes)


def test_a_node_reads_a_ticket_for_it_as_often_as_it_is_shown() -> None:
    for _ in range(3):
        assert read(key_id(), now=999.9) == (TICKET, ticket_key(SECRET, encode_ticket(TICKET)))


@pytest.mark.parametrize("now", [1000.0, 1000.1, math.inf])
def test_an_expired_ticket_is_none(now: float) -> None:
    assert read(key_id(), now=now) is None


def test_a_ticket_for_another_node_is_none() -> None:
    assert read(key_id(), node_id="n2") is None
    assert read(key_id(), node_id="") is None


def test_a_ticket_that_never_expires_or_has_no_time_is_told_apart() -> None:
    assert read(key_id(msgspec.structs.replace(TICKET, expires=math.inf)), now=1e12) is not None
    assert read(key_id(msgspec.structs.replace(TICKET, expires=math.nan))) is None


def test_a_ticket_has_at_most_250_bytes() -> None:
    most = msgspec.structs.replace(TICKET, nonce=bytes(MAX_TICKET_BYTES - 18))
    assert len(encode_ticket(most)) == MAX_TICKET_BYTES
    assert read(key_id(most)) is not None
    longer = msgspec.structs.replace(TICKET, nonce=bytes(MAX_TICKET_BYTES - 17))
    with pytest.raises(ValueError, match="a ticket of 251 bytes; the limit is 250"):
        encode_ticket(longer)
    assert read(ticket_key_id(msgspec.msgpack.encode(longer))) is None


def test_the_longest_ids_fit_into_a_ticket_and_the_longest_ticket_into_a_greeting() -> None:
    longest = Ticket("d" * MAX_ID_LENGTH, "n" * MAX_ID_LENGTH, expires=1e10, nonce=bytes(16))
    assert read(key_id(longest), node_id=longest.node_id) is not None
    assert len(ticket_key_id(bytes(MAX_TICKET_BYTES))) <= MAX_KEY_ID_BYTES


@pytest.mark.parametrize(
    "text",
    [
        "",
        "node",
        "driver",
        "ticket:",
        "ticket",
        "ticket:zz",
        "ticket:0",
        "Ticket:" + encode_ticket(TICKET).hex(),
        "ticket:" + encode_ticket(TICKET).hex().upper(),  # one ticket, one spelling
        "ticket:" + encode_ticket(TICKET).hex(" "),
        "ticket:" + encode_ticket(TICKET).hex() + "\n",
        "ticket:" + encode_ticket(TICKET).hex() + "00",
        "ticket:" + encode_ticket(TICKET).hex()[:-2],
        "ticket:" + msgspec.msgpack.encode(["d1", "n1", "1000", b""]).hex(),
        "ticket:" + msgspec.msgpack.encode({"driver_id": "d1", "node_id": "n1", "expires": 9.0, "nonce": b""}).hex(),
        "ticket:" + (b"\x91" * 300).hex(),
        "ticket:" + b"\x94\xa2d\xff\xa2n1\x05\xc4\x00".hex(),  # text that is no UTF-8
        "ticket:" + "00" * 10_000_000,
        "ticket:\udc80",
        "ticket:\u0660\u0660",  # digits, but not ours
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_what_is_no_ticket_is_none(text: str) -> None:
    assert read(text) is None


@many
@given(st.text() | st.binary(max_size=420).map(ticket_key_id))
@example(key_id())
def test_any_text_is_a_ticket_or_none(text: str) -> None:
    found = read(text)
    assert found is None or (found[0].node_id == "n1" and found[1] == ticket_key(SECRET, bytes.fromhex(text[7:])))


@many
@given(st.data())
def test_a_changed_ticket_has_another_key(data: st.DataObject) -> None:
    ticket_bytes = bytearray(encode_ticket(TICKET))
    ticket_bytes[data.draw(st.integers(0, len(ticket_bytes) - 1))] ^= data.draw(st.integers(1, 255))
    found = read(ticket_key_id(bytes(ticket_bytes)))
    assert found is None or found[1] != ticket_key(SECRET, encode_ticket(TICKET))


def test_a_signed_lease_is_read_by_its_node() -> None:
    signed = sign_lease(SECRET, LEASE, 1000.0)
    assert signed.signature == hmac_sha256(SECRET, b"asyncparl lease\0" + signed.lease_bytes)
    assert read_lease(SECRET, signed, "n1", 0.0) == LEASE
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(signed), type=SignedLease)
    assert read_lease(SECRET, travelled, "n1", 0.0) == LEASE


@pytest.mark.parametrize(
    ("expires", "now"), [(1000.0, 1000.0), (1000.0, 1000.1), (math.nan, 0.0)], ids=["just", "long ago", "no time"]
)
def test_a_lease_that_has_expired_starts_nothing_any_more(expires: float, now: float) -> None:
    with pytest.raises(ResourceError, match=r"^Simulator#1 was started too late: "):
        read_lease(SECRET, sign_lease(SECRET, LEASE, expires), "n1", now)


def test_a_lease_lasts_until_it_expires_and_nobody_but_the_master_makes_that_later() -> None:
    signed, longer = sign_lease(SECRET, LEASE, 1000.0), sign_lease(SECRET, LEASE, 2000.0)
    assert read_lease(SECRET, signed, "n1", 999.9) == LEASE
    assert read_lease(SECRET, longer, "n1", 1000.0) == LEASE
    with pytest.raises(AuthenticationError, match="did not sign"):
        read_lease(SECRET, SignedLease(longer.lease_bytes, signed.signature), "n1", 0.0)


def test_a_lease_for_another_node_is_refused() -> None:
    with pytest.raises(AuthenticationError, match=r"^a lease for node n1; this is node n2$"):
        read_lease(SECRET, sign_lease(SECRET, LEASE, 1000.0), "n2", 0.0)


def test_a_lease_of_another_cluster_is_refused() -> None:
    with pytest.raises(AuthenticationError, match=r"^a lease that the master of this cluster did not sign$"):
        read_lease(SECRET, sign_lease(OTHER_SECRET, LEASE, 1000.0), "n1", 0.0)


def test_the_key_of_a_ticket_signs_no_lease() -> None:
    lease_bytes = sign_lease(SECRET, LEASE, 1000.0).lease_bytes
    with pytest.raises(AuthenticationError, match="did not sign"):
        read_lease(SECRET, SignedLease(lease_bytes, ticket_key(SECRET, lease_bytes)), "n1", 0.0)


@pytest.mark.parametrize("lease_bytes", [b"", b"\xc1", b"\x80", b"\x91" * 10_000, msgspec.msgpack.encode({"a": 1})])
def test_what_is_signed_and_no_lease_is_refused(lease_bytes: bytes) -> None:
    signature = hmac_sha256(SECRET, b"asyncparl lease\0" + lease_bytes)
    with pytest.raises(AuthenticationError, match=r"^a lease that cannot be read: "):
        read_lease(SECRET, SignedLease(lease_bytes, signature), "n1", 0.0)


@many
@given(st.data())
def test_a_changed_lease_or_signature_is_refused(data: st.DataObject) -> None:
    signed = sign_lease(SECRET, LEASE, 1000.0)
    field = data.draw(st.sampled_from(["lease_bytes", "signature"]))
    changed = bytearray(getattr(signed, field))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    kept = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    with pytest.raises(AuthenticationError, match="did not sign"):
        read_lease(SECRET, msgspec.structs.replace(signed, **{field: kept}), "n1", 0.0)
