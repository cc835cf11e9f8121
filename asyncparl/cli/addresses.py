"""Addresses on command lines."""

from __future__ import annotations

from typing import Any

import click

DEFAULT_PORT = 8010


class AddressType(click.ParamType[Any]):
    """host:port, [ipv6]:port, or a host alone."""

    name = "host:port"

    def __init__(self, *, is_listening: bool = False, as_text: bool = False) -> None:
        self._is_listening = is_listening
        self._as_text = as_text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from asyncparl.transport.addresses import TcpAddress, parse_address

        if isinstance(value, TcpAddress):
            return value
        text = value if value.rpartition(":")[2].isdigit() and not value.endswith("]") else f"{value}:{DEFAULT_PORT}"
        try:
            address = parse_address(f"tcp://{text}")
        except ValueError as error:
            self.fail(f"{value!r} is not host:port ({error})", param, ctx)
        if not isinstance(address, TcpAddress) or (not address.port and not self._is_listening):
            self.fail(f"{value!r} is not host:port", param, ctx)
        return str(address).removeprefix("tcp://") if self._as_text else address
