"""Addresses of listeners: `ipc:///run/cluster/master`, `tcp://host:port`, `tcp://[::1]:port`, `memory://name`.

Only to listen at: `tcp://host:0` and `tcp://host:8100-8199`, of which the system or the listener chooses a port.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeAlias

MAX_IPC_PATH_BYTES = 107  # `sun_path` of a Unix socket has 108 bytes, one of them the terminator


@dataclass(frozen=True, slots=True)
class IpcAddress:
    """A socket file, for processes of one machine."""

    path: str

    def __str__(self) -> str:
        return f"ipc://{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host, by name or number, and a port. Port 0 asks a listener to choose a free one.

    With a `last_port` it is a range of ports, of which a listener takes the first that is free.
    """

    host: str
    port: int
    last_port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        ports = str(self.port) if self.last_port is None else f"{self.port}-{self.last_port}"
        return f"tcp://{host}:{ports}"

    @property
    def ports(self) -> range:
        """Every port to try, in order."""
        return range(self.port, (self.port if self.last_port is None else self.last_port) + 1)

    @property
    def can_be_dialed(self) -> bool:
        return self.port != 0 and self.last_port is None


@dataclass(frozen=True, slots=True)
class MemoryAddress:
    """A name inside one Trio program."""

    name: str

    def __str__(self) -> str:
        return f"memory://{self.name}"


Address: TypeAlias = IpcAddress | TcpAddress | MemoryAddress


def parse_address(text: str) -> Address:
    """Read an address.

    Raises:
        ValueError: it is not one; the message says what is wrong with it and shows it.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("ipc", "tcp", "memory"):
        raise ValueError(f"not an address: {text!r}; expected ipc://path, tcp://host:port or memory://name")
    if scheme == "tcp":
        return _parse_tcp(text, rest)
    if not rest or "\0" in rest:
        raise ValueError(f"{scheme} address without a {'path' if scheme == 'ipc' else 'name'}: {text!r}")
    if scheme == "memory":
        return MemoryAddress(rest)
    if len(os.fsencode(rest)) > MAX_IPC_PATH_BYTES:
        raise ValueError(f"path of more than {MAX_IPC_PATH_BYTES} bytes, the limit for socket files: {text!r}")
    return IpcAddress(rest)


def parse_dialable(text: str) -> IpcAddress | TcpAddress:
    """Read the address of sockets that exist somewhere.

    Raises:
        ValueError: it is not an address, one that only a listener can use, or `memory://`.
    """
    address = parse_address(text)
    if isinstance(address, MemoryAddress):
        raise ValueError(f"no sockets lead to {text!r}")
    if isinstance(address, TcpAddress) and not address.can_be_dialed:
        what = "port 0" if address.port == 0 else "a range of ports"
        raise ValueError(f"{what} cannot be dialed: {text!r}")
    return address


def _parse_tcp(text: str, rest: str) -> TcpAddress:
    host, separator, port = rest.rpartition(":")
    first, dash, last = port.partition("-")
    if not separator or not _is_port(first) or (dash and not _is_port(last)):
        raise ValueError(f"tcp address without a port from 0 to 65535: {text!r}")
    if dash and not 0 < int(first) <= int(last):
        raise ValueError(f"tcp address with an empty range of ports, or one that starts at 0: {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address needs brackets, as in tcp://[::1]:{port}: {text!r}")
    if not host or any(c in "[]/@" or c.isspace() for c in host):
        raise ValueError(f"tcp address without a valid host: {text!r}")
    return TcpAddress(host, int(first), int(last) if dash else None)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= 65535
