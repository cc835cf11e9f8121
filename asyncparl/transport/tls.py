"""Encryption of a connection below NNG: TLS 1.3, tied to the key that both sides have proved to know.

NNG gets one end of a pair of sockets; a pump copies between the other end and the TLS connection, in two tasks of the
Trio run. TLS alone would not say who is there, for nobody has signed the listener's certificate. So the first bytes
inside it are a proof of the certificate that this side sees, made with the session key of the handshake: somebody in
the middle would have to show a certificate of his own, and cannot make the proof that belongs to it.
"""

from __future__ import annotations

import hmac
import os
import socket
import ssl
import tempfile
from functools import cache
from typing import NamedTuple

import trio

from asyncparl.transport.closing import HALF_CLOSED_S, LINGER_S, RELEASE_S
from asyncparl.transport.handshake import PROOF_BYTES, HandshakeError, UntrustedPeer, bind_certificate
from asyncparl.transport.sockets import stream_of

TLS_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = LINGER_S + HALF_CLOSED_S + RELEASE_S + 0.2  # by then NNG has let go of its end
GOODBYE_S = 0.3

_CHUNK_BYTES = 256 * 1024

# What ends a connection that is none of our doing. ssl.SSLError is an OSError.
_BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, HandshakeError)


class _Identity(NamedTuple):
    context: ssl.SSLContext
    certificate: bytes


@cache
def _identity(_pid: int) -> _Identity:
    """What the listeners of one process show; not inherited by its forks."""
    from asyncparl.transport.certificate import make_certificate

    pem, certificate = make_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a connection is never resumed
    fd, path = tempfile.mkstemp(prefix="asyncparl-")  # readable by this user only
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(pem)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)
    return _Identity(context, certificate)


@cache
def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class TlsPump:
    """Encrypts what passes between a connection and `outlet`. Owns both until the channel takes the outlet.

    Either `start` it, or `shake_hands` and then `start` it, or `discard` it.
    """

    def __init__(
        self, connection: socket.socket, context: ssl.SSLContext, session_key: bytes, certificate: bytes | None
    ) -> None:
        inlet, self.outlet = socket.socketpair()
        self._inner = stream_of(inlet)
        self._outer = stream_of(connection)
        self._tls = trio.SSLStream(self._outer, context, server_side=certificate is not None)
        self._session_key = session_key
        self._certificate = certificate
        self._is_bound = False
        self._scope = trio.CancelScope()

    @classmethod
    def for_dialer(cls, connection: socket.socket, session_key: bytes) -> TlsPump:
        return cls(connection, _client_context(), session_key, None)

    @classmethod
    def for_listener(cls, connection: socket.socket, session_key: bytes) -> TlsPump:
        """The first one in a process makes the certificate, for which cryptography has to be loaded.

        Raises:
            OSError: there is no room for a file, or for a file descriptor.
        """
        identity = _identity(os.getpid())
        return cls(connection, identity.context, session_key, identity.certificate)

    async def shake_hands(self) -> None:
        """Set up the encryption, and make sure who is at its other end. On any error everything is closed.

        Raises:
            UntrustedPeer: it is not the peer of the handshake.
            trio.BrokenResourceError: the connection ended, or what came was not TLS.
        """
        try:
            await self._shake_hands()
        except BaseException:
            self.discard()
            raise
        self._is_bound = True

    async def _shake_hands(self) -> None:
        await self._tls.do_handshake()
        certificate = self._certificate or self._tls.getpeercert(binary_form=True)
        mine, theirs = (b"dialer", b"listener") if self._certificate is None else (b"listener", b"dialer")
        await self._tls.send_all(bind_certificate(self._session_key, mine, certificate))
        proof = b""
        while len(proof) < PROOF_BYTES:
            data = await self._tls.receive_some(PROOF_BYTES - len(proof))
            if not data:
                raise trio.BrokenResourceError("the peer hung up")
            proof += data
        if not hmac.compare_digest(proof, bind_certificate(self._session_key, theirs, certificate)):
            raise UntrustedPeer("is not who ends the encryption: somebody is in between")

    def start(self) -> None:
        """Work in the background, first at shaking hands if that has not been done. Ends when either side ends."""
        trio.lowlevel.spawn_system_task(self._run, name="asyncparl TLS pump")

    def end_soon(self) -> None:
        """The channel has been closed. What it has sent has a moment to leave, even if the run ends meanwhile.

        Without the limit a peer that reads nothing could keep the pump for ever.
        """
        self._scope.deadline = trio.current_time() + CLOSE_TIMEOUT_S
        self._scope.shield = True

    def discard(self) -> None:
        """Close everything, at once."""
        self._inner.socket.close()
        self._outer.socket.close()
        self.outlet.close()  # does nothing once the channel has taken it

    async def _run(self) -> None:
        try:
            with self._scope:
                if not self._is_bound:
                    with trio.fail_after(TLS_TIMEOUT_S):
                        await self.shake_hands()
                await self._carry()
                self._inner.socket.close()
                await self._say_goodbye()
        except _BROKEN:
            pass  # shows on the channel, and at the peer
        finally:
            self.discard()

    async def _carry(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_copy, self._inner, self._tls, nursery.cancel_scope)
            nursery.start_soon(_copy, self._tls, self._inner, nursery.cancel_scope)

    async def _say_goodbye(self) -> None:
        """End the encryption, so that the peer knows that nothing was cut off, and let it take what is under way."""
        with trio.move_on_after(GOODBYE_S):
            try:
                await self._tls.unwrap()
            except _BROKEN:
                pass  # the peer goes on sending, or is gone
            await self._outer.send_eof()
            while await self._outer.receive_some(_CHUNK_BYTES):
                pass


async def _copy(source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, scope: trio.CancelScope) -> None:
    """Until either ends; then the other direction ends as well."""
    try:
        while data := await source.receive_some(_CHUNK_BYTES):
            await sink.send_all(data)
    except _BROKEN:
        pass
    scope.cancel()
