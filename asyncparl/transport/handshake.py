"""The handshake that comes before anything else on a connection, as bytes: no sockets, no clock, no randomness.

    dialer                                     listener
      hello: limit, flags, nonce, key id, route  -->
                                             <--  reply: limit, flags, nonce, proof of the listener
      proof of the dialer                        -->
      (memory: one byte with a descriptor)       -->
                                             <--  verdict: come in, or why not

A proof is an HMAC, under the key, of everything said before it: who changes a bit of hello or reply makes both proofs
wrong, and who repeats what another dialer once said meets another nonce. The listener proves itself first, so that a
dialer shows nothing to an impostor. To a dialer without a valid key the listener answers in the same form, with a proof
that fits no key. Where nobody asks for keys the same proofs are made with the empty key, and prove nothing.

Numbers are big-endian. The side that reads asks for `num_wanted` bytes at a time and for none of what follows; the
longest hello has less than 1 KiB.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from typing import NamedTuple, Self

from asyncparl.transport.credentials import (
    MAX_KEY_ID_BYTES,
    MAX_REASON_BYTES,
    MAX_ROUTE_BYTES,
    Admission,
    Credentials,
    KeyRing,
    cut_reason,
    find_key,
)

NONCE_BYTES = 16
PROOF_BYTES = 32

_MAGIC = b"\x00aparl\x00\x03"  # the last byte is the version of all that follows on the wire
_HELLO = struct.Struct("!8sQB16sHH")  # ..., length of the key id, length of the route; then these two
_REPLY = struct.Struct("!8sQB16s")  # then the proof
_ENCRYPT = 1  # flag of the hello: TLS follows the verdict
_SHARE = 2  # flag of both: the dialer has memory to share, and the listener takes it; it follows the proof
_KEYED = 1  # flag of the reply: this listener has a key ring

MAGIC_BYTES = len(_MAGIC)
REPLY_BYTES = _REPLY.size + PROOF_BYTES
COME_IN = b"\x00"
MEMORY = b"\x01"
_REFUSED = 1


class HandshakeError(Exception):
    """The peer does not speak this protocol, or not correctly."""


class UntrustedPeer(HandshakeError):
    """The peer speaks it, but has not proved that it has the key."""


def check_magic(data: bytes) -> None:
    """The first `MAGIC_BYTES` show already who speaks something else, and may wait for an answer to it.

    Raises:
        HandshakeError: this peer does.
    """
    if data != _MAGIC:
        raise HandshakeError("not our protocol")


class Hello(NamedTuple):
    """What a dialer says first."""

    max_message_bytes: int
    encrypt: bool
    nonce: bytes
    key_id: str
    route: str
    share: bool = False

    def pack(self) -> bytes:
        key_id, route = self.key_id.encode(), self.route.encode()
        flags = (_ENCRYPT if self.encrypt else 0) | (_SHARE if self.share else 0)
        head = _HELLO.pack(_MAGIC, self.max_message_bytes, flags, self.nonce, len(key_id), len(route))
        return head + key_id + route

    @staticmethod
    def num_following(head: bytes) -> int:
        """How many bytes the texts have that follow the fixed part."""
        _, limit, flags, _, key_id_bytes, route_bytes = _HELLO.unpack(head)
        if limit == 0 or flags & ~(_ENCRYPT | _SHARE):
            raise HandshakeError("not a hello")
        if key_id_bytes > MAX_KEY_ID_BYTES or route_bytes > MAX_ROUTE_BYTES:
            raise HandshakeError("a hello that is too long")
        return int(key_id_bytes + route_bytes)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Of a whole hello, whose head has been looked at by `num_following`."""
        _, limit, flags, nonce, key_id_bytes, _ = _HELLO.unpack_from(data)
        texts = data[_HELLO.size :]
        try:
            key_id, route = texts[:key_id_bytes].decode(), texts[key_id_bytes:].decode()
        except UnicodeDecodeError:
            raise HandshakeError("a hello that is not UTF-8") from None
        return cls(limit, bool(flags & _ENCRYPT), nonce, key_id, route, bool(flags & _SHARE))


def _prove(key: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, role + transcript, "sha256")


def _derive_session_key(key: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, b"session" + transcript, "sha256")


def bind_certificate(session_key: bytes, role: bytes, certificate: bytes) -> bytes:
    """The first bytes inside TLS: whoever ends the encryption elsewhere shows, or sees, another certificate."""
    return hmac.digest(session_key, b"tls " + role + hashlib.sha256(certificate).digest(), "sha256")


def _agree(our_limit: int, their_limit: int, session_key: bytes, *, encrypt: bool, share: bool) -> Admission:
    return Admission(min(our_limit, their_limit), our_limit, session_key, encrypt, share)


class DialerHandshake:
    """The dialer's side. Send `hello`, give the reply to `answer`, send what it returns.

    Attributes:
        hello: the first message.
    """

    def __init__(
        self,
        credentials: Credentials | None,
        *,
        max_message_bytes: int,
        encrypt: bool,
        share: bool = False,
        route: str,
        nonce: bytes,
    ) -> None:
        self._key = b"" if credentials is None else credentials.key
        self._has_key = credentials is not None
        key_id = "" if credentials is None else credentials.key_id
        self.hello = Hello(max_message_bytes, encrypt, nonce, key_id, route, share).pack()
        self._encrypt = encrypt
        self._share = share
        self._max_message_bytes = max_message_bytes

    def answer(self, reply: bytes) -> tuple[bytes, Admission]:
        """Our proof, for a reply of `REPLY_BYTES` that proves the listener, and what both have agreed on by then.

        Raises:
            UntrustedPeer: it proves nothing; the message says what the likely cause is.
            HandshakeError: it is not a reply.
        """
        magic, limit, flags, _ = _REPLY.unpack_from(reply)
        check_magic(magic)
        share = bool(flags & _SHARE)
        if limit == 0 or flags & ~(_KEYED | _SHARE) or (share and not self._share):
            raise HandshakeError("not a reply")
        if bool(flags & _KEYED) != self._has_key:
            raise UntrustedPeer("knows no secret" if self._has_key else "asks for a secret, and none was given")
        transcript = self.hello + reply[: _REPLY.size]
        if not hmac.compare_digest(reply[_REPLY.size :], _prove(self._key, b"listener", transcript)):
            raise UntrustedPeer("did not prove itself: the secret is not the one of that cluster")
        proof = _prove(self._key, b"dialer", transcript)
        session_key = _derive_session_key(self._key, self.hello + reply + proof)
        return proof, _agree(self._max_message_bytes, limit, session_key, encrypt=self._encrypt, share=share)


class ListenerHandshake:
    """The listener's side: give it `num_wanted` bytes or fewer, send what it returns, until there is an `admission`.

    Args:
        keys: None if whoever comes is welcome.
        max_message_bytes: our limit.
        may_share: whether the connection can carry descriptors.
        nonce: never used before.
        decoy: a random key, that nobody knows, in the place of one that does not exist.
    """

    def __init__(
        self, keys: KeyRing | None, max_message_bytes: int, *, may_share: bool = False, nonce: bytes, decoy: bytes
    ) -> None:
        self._keys = keys
        self._max_message_bytes = max_message_bytes
        self._may_share = may_share
        self._nonce = nonce
        self._decoy = decoy
        self._key = decoy
        self._share = False
        self._data = b""
        self._transcript = b""
        self._next: Callable[[], bytes] = self._read_magic
        self.num_wanted = MAGIC_BYTES
        self.hello: Hello | None = None  # until the peer has said it
        self.admission: Admission | None = None  # until the peer has proved itself; what is missing is the verdict

    def receive(self, data: bytes) -> bytes:
        """Take what has arrived. Returns what has to be sent, mostly nothing.

        Raises:
            UntrustedPeer: the dialer does not have the key.
            HandshakeError: it does not speak this protocol.
        """
        self._data += data
        self.num_wanted -= len(data)
        return b"" if self.num_wanted else self._next()

    def _read_magic(self) -> bytes:
        check_magic(self._data)
        self.num_wanted, self._next = _HELLO.size - MAGIC_BYTES, self._read_head
        return b""

    def _read_head(self) -> bytes:
        self.num_wanted = Hello.num_following(self._data)
        self._next = self._read_hello
        return b"" if self.num_wanted else self._next()

    def _read_hello(self) -> bytes:
        self.hello = Hello.parse(self._data)
        self._share = self._may_share and self.hello.share and not self.hello.encrypt
        flags = (0 if self._keys is None else _KEYED) | (_SHARE if self._share else 0)
        reply = _REPLY.pack(_MAGIC, self._max_message_bytes, flags, self._nonce)
        key = find_key(self._keys, self.hello.key_id)
        self._key = self._decoy if key is None else key
        self._transcript = self._data + reply
        self._data, self.num_wanted, self._next = b"", PROOF_BYTES, self._read_proof
        return reply + _prove(self._key, b"listener", self._transcript)

    def _read_proof(self) -> bytes:
        assert self.hello is not None
        if not hmac.compare_digest(self._data, _prove(self._key, b"dialer", self._transcript)):
            raise UntrustedPeer("wrong proof")
        our_proof = _prove(self._key, b"listener", self._transcript)
        session_key = _derive_session_key(self._key, self._transcript + our_proof + self._data)
        self.admission = _agree(
            self._max_message_bytes,
            self.hello.max_message_bytes,
            session_key,
            encrypt=self.hello.encrypt,
            share=self._share,
        )
        return b""


def pack_refusal(reason: str) -> bytes:
    """The verdict that is not `COME_IN`."""
    text = cut_reason(reason).encode()
    return bytes([_REFUSED, len(text)]) + text


def parse_refusal_head(head: bytes) -> int:
    """How many bytes of text follow the first two of a verdict that is not `COME_IN`."""
    if head[0] != _REFUSED or head[1] > MAX_REASON_BYTES:
        raise HandshakeError("not a verdict")
    return head[1]


def parse_reason(text: bytes) -> str:
    """The reason of a refusal."""
    return cut_reason(text.decode(errors="replace"))
