"""Moves opaque messages between processes. `dial` and `listen` choose the transport by the address's scheme.

`base.py` has the promises; `endpoints.py` keeps them for `ipc://` with `unix.py` and for `tcp://` with `nng.py`,
`memory.py` for `memory://`, with knobs to break things; `conformance/` has the checks that any transport must pass.
`credentials.py` and
`handshake.py` say who may come in, `tls.py` keeps others from listening.
"""

from __future__ import annotations

import socket

from asyncparl.errors import ResourceError
from asyncparl.transport.addresses import MemoryAddress, parse_dialable
from asyncparl.transport.addresses import (
    parse_address as parse_address,
)
from asyncparl.transport.base import (
    DEFAULT_MAX_MESSAGE_BYTES as DEFAULT_MAX_MESSAGE_BYTES,
)
from asyncparl.transport.base import (
    DEFAULT_TIMEOUT_S as DEFAULT_TIMEOUT_S,
)
from asyncparl.transport.base import (
    Channel as Channel,
)
from asyncparl.transport.base import (
    ChannelStatistics as ChannelStatistics,
)
from asyncparl.transport.base import (
    Listener as Listener,
)
from asyncparl.transport.base import (
    Visitor as Visitor,
)
from asyncparl.transport.credentials import (
    Admission as Admission,
)
from asyncparl.transport.credentials import (
    Credentials as Credentials,
)
from asyncparl.transport.credentials import (
    DialRefused as DialRefused,
)
from asyncparl.transport.credentials import (
    KeyRing as KeyRing,
)
from asyncparl.transport.credentials import (
    Tunnel as Tunnel,
)
from asyncparl.transport.forks import guard


def check_process() -> None:
    """Refuse a process that can never have channels to others, before anything is started that needs some.

    Raises:
        ResourceError: it is a fork of one that has opened channels.
    """
    try:
        guard.check_process()
    except RuntimeError as error:
        raise ResourceError(f"{error}. Start it anew instead; `multiprocessing` calls that spawn") from None


async def dial(
    address: str,
    *,
    credentials: Credentials | None = None,
    route: str = "",
    encrypt: bool = False,
    tunnel: Tunnel | None = None,
    may_stall: bool = False,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    shared_bytes: int = 0,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Channel:
    """Connect to the listener at `address`. One attempt; whoever wants more of them repeats it.

    Args:
        address: as in `Listener.address`.
        credentials: what both sides prove to have; None for a listener without keys.
        route: told to the listener, at most 256 bytes.
        encrypt: whether what is sent is encrypted, and nobody in between can change it. Proves something only together
            with credentials. `memory` ignores it.
        tunnel: the connection goes through this one's owner, and `address` is a name only.
        may_stall: whether the peer may leave what we send unread for 15 seconds and longer. Otherwise, on `tcp`, the
            system takes it for lost; if so, the system may notice only after a quarter of an hour that a machine has
            vanished.
        max_message_bytes: largest message to send or receive; the smaller limit of both sides counts.
        shared_bytes: how much memory each side can lend the other in `Channel.arena`, a multiple of the page size; 0:
            none. Takes effect only where both are on one host: over `memory`, and over `ipc` without encryption.
        timeout_s: how long to wait for the listener to let us in.

    Raises:
        ValueError: the address is not one, or cannot be dialed; or the credentials or the route cannot be sent.
        AuthenticationError: the listener did not prove that it has our key, which then has not been used.
        DialRefused: the listener gives a reason why we may not come in.
        ConnectionRefusedError: nobody listens there (`tcp`, `memory`, or an `ipc` file left by a dead process).
        FileNotFoundError: nobody listens there (`ipc`).
        ConnectionAbortedError: somebody answered, but not with this protocol, or hung up at once.
        TimeoutError: no answer within `timeout_s`.
        OSError: any other failure of the system, such as an unknown host (`socket.gaierror`).
    """
    parsed = parse_address(address)
    if isinstance(parsed, MemoryAddress):
        from asyncparl.transport.memory import default_network

        if tunnel is not None:
            raise ValueError(f"no tunnel leads to {address!r}")
        return await default_network().dial(
            parsed.name,
            credentials=credentials,
            route=route,
            encrypt=encrypt,
            max_message_bytes=max_message_bytes,
            shared_bytes=shared_bytes,
            timeout_s=timeout_s,
        )
    from asyncparl.transport.endpoints import dial_socket

    return await dial_socket(
        parsed if tunnel is not None else parse_dialable(address),
        credentials=credentials,
        route=route,
        encrypt=encrypt,
        tunnel=tunnel,
        may_stall=may_stall,
        max_message_bytes=max_message_bytes,
        shared_bytes=shared_bytes,
        timeout_s=timeout_s,
    )


def listen(
    address: str, *, keys: KeyRing | None = None, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
) -> Listener:
    """Listen at `address`; peers can dial from now on, and are answered while a task waits in `accept()`.

    A host name is looked up at once, in the calling thread. An `ipc` file may be used by this user only. At `[::]` IPv4
    is served as well, where the system can do that.

    Args:
        address: also `tcp://host:0`, and `tcp://host:8100-8199` for the first of these ports that is free.
        keys: whoever proves to have one of these keys comes in. None: everybody does who can reach the address.
        max_message_bytes: largest message to send or receive; the smaller limit of both sides counts.

    Raises:
        ValueError: the address is not one.
        OSError: it cannot be used; `errno` is `EADDRINUSE` where somebody else listens there.
    """
    parsed = parse_address(address)
    if isinstance(parsed, MemoryAddress):
        from asyncparl.transport.memory import default_network

        return default_network().listen(parsed.name, keys=keys, max_message_bytes=max_message_bytes)
    from asyncparl.transport.endpoints import listen_socket

    return listen_socket(parsed, keys=keys, max_message_bytes=max_message_bytes)


def memory_channels(max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> tuple[Channel, Channel]:
    """Two joined channels inside this process, without anybody who dials."""
    from asyncparl.transport.memory import QUEUED_MESSAGES
    from asyncparl.transport.memory_link import MemoryLink

    link = MemoryLink(QUEUED_MESSAGES, max_message_bytes)
    return link.dialer, link.acceptor


async def open_tunnel(
    address: str, *, credentials: Credentials, route: str, timeout_s: float = DEFAULT_TIMEOUT_S
) -> socket.socket:
    """The far end of a tunnel: connect to the relay at `address`, and return the connected, non-blocking socket.

    What comes through it next is what the other end sends, for example the handshake of somebody who dials with
    `tunnel`: see `Listener.adopt`. Raises the same errors as `dial`.
    """
    from asyncparl.transport.endpoints import open_tunnel_socket

    return await open_tunnel_socket(parse_dialable(address), credentials=credentials, route=route, timeout_s=timeout_s)


def open_admitted(connection: socket.socket, admission: Admission) -> Channel:
    """Open what `Visitor.hand_over` gave away, also in another process than its. Takes ownership of the connection.

    The peer has been told to come in. That it has gone meanwhile shows on the channel.

    Raises:
        OSError: the process has too many files open. The connection has been closed.
    """
    from asyncparl.transport.endpoints import open_admitted as open_admitted_socket

    return open_admitted_socket(connection, admission)
