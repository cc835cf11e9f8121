"""Addresses as users write them."""

from __future__ import annotations

from asyncparl.transport import parse_address
from asyncparl.transport.addresses import TcpAddress


def parse_host_and_port(text: str) -> TcpAddress:
    """Read "host:port", "[ipv6]:port" or "tcp://host:port".

    Raises:
        ValueError: it is none of these; the message shows it.
    """
    try:
        address = parse_address(text if "://" in text else f"tcp://{text}")
    except ValueError as error:
        raise ValueError(f"{text!r} is no address such as 'host:8010' ({error})") from None
    if not isinstance(address, TcpAddress):
        raise ValueError(f"{text!r} is no address such as 'host:8010'")
    return address
