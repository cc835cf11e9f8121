from __future__ import annotations

import pytest

from asyncparl.transport import dial, listen
from asyncparl.transport.addresses import IpcAddress, MemoryAddress, TcpAddress, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ipc:///run/asyncparl/master", IpcAddress("/run/asyncparl/master")),
        ("ipc://relative", IpcAddress("relative")),
        ("ipc:///" + 106 * "x", IpcAddress("/" + 106 * "x")),
        ("tcp://localhost:8010", TcpAddress("localhost", 8010)),
        ("tcp://127.0.0.1:0", TcpAddress("127.0.0.1", 0)),
        ("tcp://0.0.0.0:8010", TcpAddress("0.0.0.0", 8010)),
        ("tcp://[::]:8010", TcpAddress("::", 8010)),
        ("tcp://[fe80::1%eth0]:8010", TcpAddress("fe80::1%eth0", 8010)),
        ("tcp://host:8100-8199", TcpAddress("host", 8100, 8199)),
        ("tcp://[::]:8100-8100", TcpAddress("::", 8100, 8100)),
        ("tcp://[::1]:65535", TcpAddress("::1", 65535)),
        ("memory://anything at all", MemoryAddress("anything at all")),
    ],
)
def test_an_address_is_read_and_printed_alike(text: str, expected: object) -> None:
    assert parse_address(text) == expected
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not an address"),
        ("localhost:8010", "not an address"),
        ("udp://localhost:8010", "not an address"),
        ("TCP://localhost:8010", "not an address"),
        ("ipc://", "without a path"),
        ("ipc:///a\0b", "without a path"),
        ("ipc:///" + 107 * "x", "more than 107 bytes"),
        ("ipc:///" + 54 * "ä", "more than 107 bytes"),
        ("memory://", "without a name"),
        ("tcp://localhost", "without a port"),
        ("tcp://localhost:", "without a port"),
        ("tcp://localhost:http", "without a port"),
        ("tcp://localhost:-1", "without a port"),
        ("tcp://localhost:65536", "without a port"),
        ("tcp://localhost:8010/", "without a port"),
        ("tcp://localhost:8010-", "without a port"),
        ("tcp://localhost:8010-x", "without a port"),
        ("tcp://localhost:8010-8020-8030", "without a port"),
        ("tcp://localhost:8010-65536", "without a port"),
        ("tcp://localhost:8010-8009", "empty range"),
        ("tcp://localhost:0-8009", "starts at 0"),
        ("tcp://localhost:٣", "without a port"),
        ("tcp://:8010", "valid host"),
        ("tcp://[]:8010", "valid host"),
        ("tcp://user@host:8010", "valid host"),
        ("tcp://a b:8010", "valid host"),
        ("tcp://::1:8010", "brackets"),
    ],
)
async def test_what_is_not_an_address_is_a_value_error_that_shows_it(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)
    with pytest.raises(ValueError, match=complaint):
        listen(text)
    with pytest.raises(ValueError, match=complaint):
        await dial(text)


async def test_port_zero_cannot_be_dialed() -> None:
    with pytest.raises(ValueError, match="port 0"):
        await dial("tcp://127.0.0.1:0")


async def test_a_range_of_ports_cannot_be_dialed() -> None:
    with pytest.raises(ValueError, match="range of ports"):
        await dial("tcp://127.0.0.1:8100-8199")
