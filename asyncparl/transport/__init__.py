"""Moves opaque messages between processes. `dial` and `listen` choose the transport by the address's scheme.

`base.py` has the promises; `endpoints.py` and `nng.py` keep them for `ipc://` and `tcp://`, `memory.py` for `memory://`,
with knobs to break things; `conformance/` has the checks that any transport must pass.
"""

from __future__ import annotations

from asyncparl.transport.addresses import MemoryAddress, TcpAddress, parse_address
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


async def dial(
    address: str, *, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Channel:
    """Connect to the listener at `address`. One attempt; whoever wants more of them repeats it.

    Args:
        address: as in `Listener.address`.
        max_message_bytes: largest message to send or receive; the smaller limit of both sides counts.
        timeout_s: how long to wait for the listener to take the connection.

    Raises:
        ValueError: the address is not one, or cannot be dialed.
        ConnectionRefusedError: nobody listens there (`tcp`, `memory`, or an `ipc` file left by a dead process).
        FileNotFoundError: nobody listens there (`ipc`).
        ConnectionAbortedError: somebody answered, but not with this protocol, or hung up at once.
        TimeoutError: no answer within `timeout_s`.
        OSError: any other failure of the system, such as an unknown host (`socket.gaierror`).
    """
    parsed = parse_address(address)
    if isinstance(parsed, MemoryAddress):
        from asyncparl.transport.memory import default_network

        return await default_network().dial(parsed.name, max_message_bytes=max_message_bytes, timeout_s=timeout_s)
    if isinstance(parsed, TcpAddress) and parsed.port == 0:
        raise ValueError(f"port 0 cannot be dialed: {address!r}")
    from asyncparl.transport.endpoints import dial_socket

    return await dial_socket(parsed, max_message_bytes=max_message_bytes, timeout_s=timeout_s)


def listen(address: str, *, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> Listener:
    """Listen at `address`; peers can dial from now on, and are answered while a task waits in `accept()`.

    A host name is looked up at once, in the calling thread. An `ipc` file may be used by this user only.

    Raises:
        ValueError: the address is not one.
        OSError: it cannot be used; `errno` is `EADDRINUSE` where somebody else listens there.
    """
    parsed = parse_address(address)
    if isinstance(parsed, MemoryAddress):
        from asyncparl.transport.memory import default_network

        return default_network().listen(parsed.name, max_message_bytes=max_message_bytes)
    from asyncparl.transport.endpoints import listen_socket

    return listen_socket(parsed, max_message_bytes=max_message_bytes)
