"""Addresses of listeners: `ipc:///run/cluster/master`, `tcp://host:port`, `tcp://[::1]:port`, `memory://name`."""

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
    """A host, by name or number, and a port. Port 0 asks a listener to choose a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


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


def _parse_tcp(text: str, rest: str) -> TcpAddress:
    host, separator, port = rest.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"tcp address without a port from 0 to 65535: {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address needs brackets, as in tcp://[::1]:{port}: {text!r}")
    if not host or any(c in "[]/@" or c.isspace() for c in host):
        raise ValueError(f"tcp address without a valid host: {text!r}")
    return TcpAddress(host, int(port))
