"""The handshake as bytes: who gets in, and that nobody else does, whatever is sent or changed on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncparl.transport import Admission, Credentials, KeyRing
from asyncparl.transport.credentials import check_dialing, cut_reason
from asyncparl.transport.handshake import (
    REPLY_BYTES,
    DialerHandshake,
    HandshakeError,
    ListenerHandshake,
    UntrustedPeer,
    bind_certificate,
    pack_refusal,
    parse_reason,
    parse_refusal_head,
)
from tests.transport.members import KEY, MEMBER, UNKNOWN, WRONG_KEY, keys

DIALER_NONCE, LISTENER_NONCE, DECOY = b"d" * 16, b"l" * 16, b"?" * 32

texts = st.text(max_size=60)


def _dialer(
    credentials: Credentials | None, *, limit: int = 1000, encrypt: bool = False, share: bool = False, route: str = ""
) -> DialerHandshake:
    return DialerHandshake(
        credentials, max_message_bytes=limit, encrypt=encrypt, share=share, route=route, nonce=DIALER_NONCE
    )


def _listener(
    ring: KeyRing | None, *, limit: int = 2000, may_share: bool = False, nonce: bytes = LISTENER_NONCE
) -> ListenerHandshake:
    return ListenerHandshake(ring, limit, may_share=may_share, nonce=nonce, decoy=DECOY)


def _feed(listener: ListenerHandshake, data: bytes, chunk_bytes: int = 1000) -> bytes:
    """Give it what it wants, at most `chunk_bytes` at a time, and return all answers. Nothing may be left over."""
    answers = b""
    while data:
        count = min(listener.num_wanted, chunk_bytes)
        assert count > 0, f"{len(data)} bytes are left over"
        answers += listener.receive(data[:count])
        data = data[count:]
    return answers


def _shake_hands(dialer: DialerHandshake, listener: ListenerHandshake, chunk_bytes: int = 1000) -> Admission:
    reply = _feed(listener, dialer.hello, chunk_bytes)
    assert len(reply) == REPLY_BYTES
    assert listener.admission is None
    proof, admission = dialer.answer(reply)
    assert _feed(listener, proof, chunk_bytes) == b""
    return admission


@given(
    route=texts,
    encrypt=st.booleans(),
    limits=st.tuples(st.integers(1, 1 << 63), st.integers(1, 1 << 63)),
    chunk_bytes=st.integers(1, 100),
    has_keys=st.booleans(),
)
def test_both_sides_agree(route: str, encrypt: bool, limits: tuple[int, int], chunk_bytes: int, has_keys: bool) -> None:
    dialer = _dialer(MEMBER if has_keys else None, limit=limits[0], encrypt=encrypt, route=route)
    listener = _listener(keys if has_keys else None, limit=limits[1])
    theirs = _shake_hands(dialer, listener, chunk_bytes)
    mine = listener.admission
    assert mine is not None
    assert (theirs.max_send_bytes, theirs.max_receive_bytes) == (min(limits), limits[0])
    assert (mine.max_send_bytes, mine.max_receive_bytes) == (min(limits), limits[1])
    assert mine.session_key == theirs.session_key
    assert len(mine.session_key) == 32
    assert mine.encrypt is theirs.encrypt is encrypt
    assert listener.hello is not None
    assert (listener.hello.key_id, listener.hello.route) == (MEMBER.key_id if has_keys else "", route)


@given(share=st.booleans(), may_share=st.booleans(), encrypt=st.booleans(), has_keys=st.booleans())
def test_memory_is_shared_if_both_can_and_nothing_is_encrypted(
    share: bool, may_share: bool, encrypt: bool, has_keys: bool
) -> None:
    dialer = _dialer(MEMBER if has_keys else None, share=share, encrypt=encrypt)
    listener = _listener(keys if has_keys else None, may_share=may_share)
    theirs = _shake_hands(dialer, listener)
    assert listener.admission is not None
    assert theirs.shares_memory is listener.admission.shares_memory is (share and may_share and not encrypt)


@pytest.mark.parametrize("credentials", [WRONG_KEY, UNKNOWN, None], ids=["wrong key", "unknown key", "no key"])
def test_who_does_not_have_the_key_finds_out_before_showing_anything(credentials: Credentials | None) -> None:
    dialer, listener = _dialer(credentials), _listener(keys)
    reply = _feed(listener, dialer.hello)
    with pytest.raises(UntrustedPeer, match="secret"):
        dialer.answer(reply)
    assert listener.admission is None


def test_a_key_is_no_use_where_nobody_has_keys() -> None:
    dialer = _dialer(MEMBER)
    with pytest.raises(UntrustedPeer, match="knows no secret"):
        dialer.answer(_feed(_listener(None), dialer.hello))


@pytest.mark.parametrize("credentials", [WRONG_KEY, UNKNOWN, None], ids=["wrong key", "unknown key", "no key"])
def test_who_goes_on_without_the_key_is_not_let_in(credentials: Credentials | None) -> None:
    listener = _listener(keys)
    dialer = _dialer(credentials)
    _feed(listener, dialer.hello)
    key = b"" if credentials is None else credentials.key
    accomplice = _listener(None if credentials is None else lambda _: key)
    proof, _ = dialer.answer(_feed(accomplice, dialer.hello))  # what belongs to the key that it has
    with pytest.raises(UntrustedPeer):
        _feed(listener, proof)
    assert listener.admission is None


def test_an_unknown_key_id_looks_like_a_known_one() -> None:
    replies = [_feed(_listener(keys), _dialer(who).hello) for who in (MEMBER, UNKNOWN)]
    assert replies[0][:-32] == replies[1][:-32]
    assert len(replies[0]) == len(replies[1])


def test_nothing_that_is_sent_contains_the_key_or_the_session_key() -> None:
    dialer, listener = _dialer(MEMBER), _listener(keys)
    reply = _feed(listener, dialer.hello)
    proof, admission = dialer.answer(reply)
    sent = dialer.hello + reply + proof
    for secret in (KEY, admission.session_key):
        assert secret not in sent
        assert repr(secret)[2:-1] not in f"{MEMBER!r} {admission!r} {listener.hello!r}"


def test_what_was_recorded_is_refused_the_next_time() -> None:
    dialer = _dialer(MEMBER)
    first = _listener(keys)
    reply = _feed(first, dialer.hello)
    proof, _ = dialer.answer(reply)
    second = _listener(keys, nonce=b"m" * 16)
    assert _feed(second, dialer.hello) != reply
    with pytest.raises(UntrustedPeer):
        _feed(second, proof)
    late = DialerHandshake(MEMBER, max_message_bytes=1000, encrypt=False, route="", nonce=b"e" * 16)
    with pytest.raises(UntrustedPeer):  # a recorded reply is no use to an impostor either
        late.answer(reply)


def test_a_proof_is_no_use_to_the_other_role() -> None:
    dialer, listener = _dialer(MEMBER), _listener(keys)
    reply = _feed(listener, dialer.hello)
    with pytest.raises(UntrustedPeer):
        _feed(listener, reply[-32:])


@given(data=st.data(), has_keys=st.booleans(), share=st.booleans(), may_share=st.booleans())
def test_a_bit_flipped_anywhere_lets_nobody_in(
    data: st.DataObject, has_keys: bool, share: bool, may_share: bool
) -> None:
    dialer = _dialer(MEMBER if has_keys else None, route="some/route", share=share)
    listener = _listener(keys if has_keys else None, may_share=may_share)
    which = data.draw(st.sampled_from(["hello", "reply", "proof"]))
    with pytest.raises(HandshakeError):
        reply = _answer(listener, _flip(dialer.hello, data) if which == "hello" else dialer.hello)
        proof, _ = dialer.answer(_flip(reply, data) if which == "reply" else reply)
        _feed(listener, _flip(proof, data))
    assert listener.admission is None


def _answer(listener: ListenerHandshake, hello: bytes) -> bytes:
    """Its reply. A flipped length makes it want more or less than there is: it gets noise, or no more."""
    reply = b""
    stream = hello + bytes(2000)
    while not reply:
        count = listener.num_wanted
        reply, stream = listener.receive(stream[:count]), stream[count:]
    return reply


def _flip(message: bytes, data: st.DataObject) -> bytes:
    position = data.draw(st.integers(0, len(message) * 8 - 1))
    changed = bytearray(message)
    changed[position // 8] ^= 1 << (position % 8)
    return bytes(changed)


@given(st.binary(max_size=2000), st.booleans(), st.booleans())
def test_noise_is_refused_after_less_than_a_kilobyte(noise: bytes, has_keys: bool, starts_well: bool) -> None:
    listener = _listener(keys if has_keys else None)
    stream = _dialer(None).hello[: 33 if starts_well else 0] + noise + bytes(1024)
    num_taken = 0
    with pytest.raises(HandshakeError):
        while True:
            count = listener.num_wanted
            assert count > 0
            num_taken += count
            assert num_taken <= 1024
            listener.receive(stream[num_taken - count : num_taken])
    assert listener.admission is None


@given(st.binary(min_size=REPLY_BYTES, max_size=REPLY_BYTES), st.integers(0, 25))
def test_noise_is_no_reply(noise: bytes, num_good: int) -> None:
    dialer = _dialer(MEMBER)
    reply = _feed(_listener(keys), dialer.hello)[:num_good] + noise[num_good:]
    with pytest.raises(HandshakeError):
        dialer.answer(reply)


@given(st.text())
def test_a_reason_arrives_printable_and_not_too_long(reason: str) -> None:
    verdict = pack_refusal(reason)
    assert len(verdict) <= 202
    assert parse_refusal_head(verdict[:2]) == len(verdict) - 2
    heard = parse_reason(verdict[2:])
    assert heard == cut_reason(reason)
    assert heard.isprintable()


@given(st.binary(min_size=2, max_size=2), st.binary(max_size=255))
def test_a_verdict_of_noise_is_refused_or_read(head: bytes, text: bytes) -> None:
    try:
        count = parse_refusal_head(head)
    except HandshakeError:
        return
    assert count <= 200
    assert parse_reason(text[:count]).isprintable()


def test_the_proof_inside_tls_depends_on_key_role_and_certificate() -> None:
    proofs = {
        bind_certificate(key, role, certificate)
        for key in (KEY, bytes(32))
        for role in (b"dialer", b"listener")
        for certificate in (b"one", b"other")
    }
    assert len(proofs) == 8


@pytest.mark.parametrize(
    ("credentials", "route", "complaint"),
    [
        (Credentials("k", KEY[:31]), "", "32 bytes"),
        (Credentials("k", b""), "", "32 bytes"),
        (Credentials("", KEY), "", "1 to 512"),
        (Credentials("ä" * 257, KEY), "", "1 to 512"),
        (None, "ä" * 129, "256"),
    ],
)
def test_what_cannot_be_sent_is_a_value_error(credentials: Credentials | None, route: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_dialing(credentials, route)


def test_the_longest_hello_fits() -> None:
    credentials, route = Credentials("ä" * 256, KEY), "ä" * 128
    check_dialing(credentials, route)
    dialer = _dialer(credentials, route=route)
    assert len(dialer.hello) <= 1024
    assert _shake_hands(dialer, _listener(lambda _: KEY)).max_send_bytes == 1000


def test_a_key_ring_with_a_short_key_lets_nobody_in() -> None:
    listener = _listener(lambda _: b"")
    with pytest.raises(ValueError, match="0 bytes"):
        _feed(listener, _dialer(MEMBER).hello)
    assert listener.admission is None
