"""Plain sockets: which addresses can be listened at and dialed, and how connections are tuned."""

from __future__ import annotations

import errno
import shutil
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from asyncparl.transport import dial, listen
from asyncparl.transport.addresses import TcpAddress
from asyncparl.transport.conformance.harness import fill
from asyncparl.transport.sockets import allow_stalls, connect
from tests.transport.pairs import expect_joined, join

TCP_THIN_LINEAR_TIMEOUTS, TCP_RTO_MAX_MS = 16, 44
LONGEST_PAUSE = Path("/proc/sys/net/ipv4/tcp_rto_max_ms")  # came with the option, in Linux 6.15


async def _dials(listening_at: str, *dialed: str) -> list[str]:
    """Where the peers come from that dial these hosts, at the port of the listener."""
    hosts = []
    with trio.fail_after(30), listen(listening_at) as listener:
        port = listener.address.rpartition(":")[2]
        for host in dialed:
            async with trio.open_nursery() as nursery:
                channels = []

                async def dial_host(host: str = host) -> None:
                    channels.append(await dial(f"tcp://{host}:{port}"))  # noqa: B023

                nursery.start_soon(dial_host)
                with await listener.accept_visitor() as visitor:
                    hosts.append(visitor.peer_host)
                    accepted = visitor.open()
            with channels[0], accepted:
                await expect_joined(channels[0], accepted)
    return hosts


needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


async def test_all_addresses_of_ipv4() -> None:
    assert await _dials("tcp://0.0.0.0:0", "127.0.0.1", "127.0.0.2") == ["127.0.0.1", "127.0.0.1"]


@needs_ipv6
async def test_ipv6() -> None:
    assert await _dials("tcp://[::1]:0", "[::1]") == ["::1"]


@needs_ipv6
async def test_all_addresses_of_both_kinds() -> None:
    assert await _dials("tcp://[::]:0", "[::1]", "127.0.0.1") == ["::1", "127.0.0.1"]


async def test_names_can_be_dialed() -> None:
    assert await _dials("tcp://localhost:0", "localhost") in (["127.0.0.1"], ["::1"])


class _Hosts(trio.abc.HostnameResolver):
    """A name that has several addresses."""

    def __init__(self, *hosts: str) -> None:
        self._hosts = hosts

    async def getaddrinfo(self, host: Any, port: Any, *_: int) -> Any:
        assert host == b"several"
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, int(port))) for host in self._hosts]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise AssertionError


async def test_of_a_names_addresses_the_next_is_tried_when_one_refuses() -> None:
    trio.socket.set_custom_hostname_resolver(_Hosts("127.0.0.2", "127.0.0.1"))
    with listen("tcp://127.0.0.1:0") as listener:
        port = listener.address.rpartition(":")[2]
        dialed, accepted = await join(listener, lambda: dial(f"tcp://several:{port}"))
        with dialed, accepted:
            await expect_joined(dialed, accepted)


async def test_an_address_that_hangs_delays_the_next_one_for_a_moment_only() -> None:
    trio.socket.set_custom_hostname_resolver(_Hosts("127.0.0.2", "127.0.0.1"))
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        port = server.getsockname()[1]
        hanging = stack.enter_context(socket.create_server(("127.0.0.2", port), backlog=0))
        for _ in range(3):  # more than its backlog holds, so that the system does not answer any more
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(hanging.getsockname())
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.5):
            await connect(TcpAddress("127.0.0.2", port))
        start = trio.current_time()
        with trio.fail_after(20):
            connection = await connect(TcpAddress("several", port))
        with connection:
            assert connection.getpeername() == ("127.0.0.1", port)
        assert trio.current_time() - start < 5  # the system would go on trying for two minutes


async def test_an_unknown_host_is_an_os_error() -> None:
    with pytest.raises(socket.gaierror):
        await dial("tcp://no-such-host.invalid:1")


async def test_nobody_at_any_of_a_names_addresses_is_a_refusal() -> None:
    trio.socket.set_custom_hostname_resolver(_Hosts("127.0.0.2", "127.0.0.1"))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError) as caught:
            await dial(f"tcp://several:{unused.getsockname()[1]}")
    assert caught.value.errno == errno.ECONNREFUSED


# Ranges of ports


def _free_range(count: int) -> range:
    """Ports that were free a moment ago."""
    for first in range(20_000, 60_000, count):
        try:
            with ExitStack() as stack:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
        return range(first, first + count)
    raise AssertionError("no free ports")


async def test_the_first_free_port_of_a_range_is_taken() -> None:
    ports = _free_range(3)
    address = f"tcp://127.0.0.1:{ports[0]}-{ports[-1]}"
    with ExitStack() as stack:
        listeners = [stack.enter_context(listen(address)) for _ in ports]
        assert [listener.address for listener in listeners] == [f"tcp://127.0.0.1:{port}" for port in ports]
        with pytest.raises(OSError, match="in use") as caught:
            listen(address)
        assert caught.value.errno == errno.EADDRINUSE
        assert address in str(caught.value)
        dialed, accepted = await join(listeners[1], lambda: dial(listeners[1].address))
        with dialed, accepted:
            await expect_joined(dialed, accepted)
        listeners[1].close()
        with listen(address) as again:
            assert again.address == f"tcp://127.0.0.1:{ports[1]}"


async def test_what_is_wrong_with_every_port_is_said_at_once() -> None:
    with pytest.raises(OSError, match="assign") as caught:
        listen("tcp://192.0.2.1:20000-60000")  # nobody's address
    assert caught.value.errno == errno.EADDRNOTAVAIL


# How connections are tuned


async def test_tcp_connections_send_small_messages_at_once_and_notice_a_peer_that_vanished() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = await connect(TcpAddress("127.0.0.1", server.getsockname()[1]))
    with connection:
        assert not connection.getblocking()
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = {
            socket.TCP_NODELAY: 1,
            socket.TCP_KEEPIDLE: 5,
            socket.TCP_KEEPINTVL: 2,
            socket.TCP_KEEPCNT: 5,
            socket.TCP_USER_TIMEOUT: 15_000,
        }
        assert {option: connection.getsockopt(socket.IPPROTO_TCP, option) for option in options} == options
        if sys.platform == "linux":
            assert connection.getsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS) == 1
        if LONGEST_PAUSE.exists():
            assert connection.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS) == 1000
        allow_stalls(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


@pytest.mark.slow
@pytest.mark.parametrize("may_stall", [False, True])
async def test_a_peer_that_reads_nothing_for_long_is_taken_for_lost_unless_it_may_stall(
    may_stall: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncparl.transport.sockets._USER_TIMEOUT_MS", 1000)
    with listen("tcp://127.0.0.1:0") as listener:
        dialed, accepted = await join(listener, lambda: dial(listener.address, may_stall=may_stall))
        with dialed, accepted:
            num_sent = await fill(dialed, bytes(1 << 20))
            await trio.sleep(4)
            if may_stall:
                for _ in range(num_sent):
                    await accepted.receive()
                await expect_joined(dialed, accepted)
            else:
                with pytest.raises(trio.BrokenResourceError):
                    dialed.send_nowait([b"x"])


def test_a_listener_whose_file_was_removed_listens_there_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    with listen(f"ipc://{folder}/s") as listener:
        listener.restore()  # there is nothing to do
        shutil.rmtree(folder)
        listener.restore()
        assert (folder / "s").is_socket()
        assert folder.stat().st_mode & 0o777 == 0o700
        shutil.rmtree(folder)
        folder.mkdir()
        folder.chmod(0o777)  # somebody else's, as far as we know
        with pytest.raises(PermissionError, match="others may write there"):
            listener.restore()
        assert list(folder.iterdir()) == []
