"""Whether the machines of tests/hosts are like real ones: what tests of clusters conclude from them depends on it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hosts import Host, Network, hosts_unavailable
from tests.hosts.programs import (
    PATIENCE_S,
    PORT,
    RECEIVE,
    SEND,
    SILENCE_S,
    assert_reach,
    ping,
    run,
    serve,
    start,
    start_conversation,
)
from tests.proc import Process

pytest_plugins = ["tests.hosts.fixtures"]

ROOT = Path(__file__).parent.parent
CLOSED_PORT, RECEIVER_PORT = PORT + 1, PORT + 2


class Machines(NamedTuple):
    """Hosts with a server each, made once for many tests."""

    network: Network
    a: Host
    b: Host
    c: Host
    hidden: Host
    """Behind NAT."""


@pytest.fixture(scope="module")
def all_machines() -> Iterator[Machines]:
    skip_without_hosts()
    with Network() as network:
        hosts = [network.host("a"), network.host("b"), network.host("c"), network.host("hidden", nat=True)]
        for host in hosts:
            serve(host)
        yield Machines(network, *hosts)


@pytest.fixture
def machines(all_machines: Machines) -> Iterator[Machines]:
    yield all_machines
    all_machines.network.heal()


def test_hosts_reach_each_other(machines: Machines) -> None:
    _, a, b, _, _ = machines
    assert_reach(a, greeted=[b.ipv4, b.ipv6, a.ipv4, a.ipv6, "127.0.0.1", "::1"])
    assert_reach(b, greeted=[a.ipv4, a.ipv6])
    assert (a.public_ipv4, a.public_ipv6) == (a.ipv4, a.ipv6)


def test_a_closed_port_refuses(machines: Machines) -> None:
    assert_reach(machines.a, refused=[machines.b.ipv4, machines.b.ipv6], port=CLOSED_PORT)


def test_hosts_reach_nothing_else(machines: Machines) -> None:
    """Not even the machine that they are on. 192.0.2.1 is nobody's, and far away."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert_reach(machines.a, refused=["127.0.0.1"], port=server.getsockname()[1])
    script = "import socket; print(socket.socket().connect_ex(('192.0.2.1', 80)))"
    assert os.strerror(int(run(machines.a, script))) == "Network is unreachable"


def test_a_process_on_a_host_differs_in_its_network_only(machines: Machines, tmp_path: Path) -> None:
    script = "import os; print(os.getpid(), os.getuid(), os.getcwd(), os.environ.get('X'), os.stat('/').st_ino)"
    process = machines.a.start(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env={"X": "x"}
    )
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert output.split() == [str(process.pid), str(os.getuid()), str(tmp_path), "x", str(os.stat("/").st_ino)]


def test_tcp_has_the_settings_that_most_machines_have(machines: Machines) -> None:
    names = ["tcp_retries2", "tcp_syn_retries", "tcp_keepalive_time", "tcp_rmem", "tcp_wmem", "tcp_congestion_control"]
    output = machines.a.run(["cat", *(f"/proc/sys/net/ipv4/{name}" for name in names)], check=True).stdout
    *values, congestion_control = output.splitlines()
    assert values == ["15", "6", "7200", "4096\t131072\t6291456", "4096\t16384\t4194304"]
    assert congestion_control in ("cubic", "reno")


def test_a_cut_cable_is_silent_until_it_is_healed(machines: Machines) -> None:
    _, a, b, c, _ = machines
    a.cut()
    assert_reach(b, silent=[a.ipv4, a.ipv6], greeted=[c.ipv4, c.ipv6])
    assert_reach(a, silent=[b.ipv4, b.ipv6], refused=["127.0.0.1"], port=CLOSED_PORT)
    a.heal()
    assert_reach(b, greeted=[a.ipv4, a.ipv6])


@pytest.mark.parametrize("is_inward", [False, True], ids=["outward", "inward"])
@pytest.mark.parametrize("is_cut", [False, True], ids=["partition", "cut"])
def test_nothing_passes_in_either_direction(machines: Machines, is_cut: bool, is_inward: bool) -> None:
    network, a, b, _, _ = machines
    source, target = (b, a) if is_inward else (a, b)
    receiver = start_receiver(target)
    send(source, target, "before")
    if is_cut:
        a.cut()
    else:
        network.partition({a}, {b})
    send(source, target, "meanwhile")
    network.heal()
    send(source, target, "after", "last")
    assert received(receiver) == ["before", "after"]


def test_an_open_connection_survives_a_cut(machines: Machines) -> None:
    """What was sent meanwhile arrives: TCP repeats it. A UDP datagram is lost, and nobody is told."""
    _, a, b, _, _ = machines
    script = """
import socket, sys
ipv4, ipv6, port, silence_s, patience_s = *sys.argv[1:3], int(sys.argv[3]), *map(float, sys.argv[4:])
tcp = socket.create_connection((ipv6, port))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect((ipv4, port))
print(tcp.recv(100).decode(), flush=True)
input()
for connection in tcp, udp:
    connection.send(b"question")
    connection.settimeout(silence_s)
    try:
        print(connection.recv(100).decode(), flush=True)
    except TimeoutError:
        print("silence", flush=True)
tcp.settimeout(patience_s)
print(tcp.recv(100).decode(), flush=True)
"""
    client = start(a, script, b.ipv4, b.ipv6, PORT, SILENCE_S, PATIENCE_S, line="hello")
    assert client.stdin is not None and client.stdout is not None
    a.cut()
    print(file=client.stdin, flush=True)
    assert [client.stdout.readline() for _ in range(2)] == ["silence\n"] * 2
    a.heal()
    assert client.communicate(timeout=PATIENCE_S) == ("question\n", None)


def test_a_partition_separates_its_groups_and_nobody_else(machines: Machines) -> None:
    network, a, b, c, hidden = machines
    network.partition({a, hidden}, {b})
    assert_reach(a, silent=[b.ipv4, b.ipv6], greeted=[c.ipv4])
    assert_reach(b, silent=[a.ipv4, a.ipv6], greeted=[c.ipv4])
    assert_reach(hidden, silent=[b.ipv4], greeted=[a.ipv6, c.ipv6])
    # A healed cable is not the end of the partition.
    a.cut()
    a.heal()
    assert_reach(a, silent=[b.ipv4], greeted=[c.ipv4])
    network.heal()
    assert_reach(a, greeted=[b.ipv4, b.ipv6])


def test_healing_the_network_heals_all_cables(machines: Machines) -> None:
    network, a, b, _, _ = machines
    a.cut()
    b.cut()
    network.heal()
    assert_reach(a, greeted=[b.ipv4, b.ipv6])


def test_behind_nat_only_outward_connections_are_possible(machines: Machines) -> None:
    _, a, _, _, hidden = machines
    assert_reach(hidden, greeted=[a.ipv4, a.ipv6, hidden.ipv4])
    addresses = {hidden.ipv4, hidden.ipv6, hidden.public_ipv4, hidden.public_ipv6}
    assert len(addresses) == 4
    assert_reach(a, silent=sorted(addresses))


def test_others_see_the_address_of_the_nat(machines: Machines) -> None:
    _, a, _, _, hidden = machines
    script = """
import socket, sys
server = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
for _ in range(2):
    connection, (address, *_) = server.accept()
    connection.sendall(b"hello")
    print(address.removeprefix("::ffff:"))
"""
    server = start(a, script, 6000, line="ready")
    assert_reach(hidden, greeted=[a.ipv4, a.ipv6], port=6000)
    output, _ = server.communicate(timeout=PATIENCE_S)
    assert set(output.split()) == {hidden.public_ipv4, hidden.public_ipv6}


def test_a_firewall_keeps_new_connections_out(machines: Machines) -> None:
    _, a, b, _, _ = machines
    before = start_conversation(b, a.ipv4)
    a.firewall(inbound=False)
    assert_reach(b, silent=[a.ipv4, a.ipv6])
    assert_reach(a, greeted=[b.ipv4, b.ipv6, a.ipv4, "::1"])
    assert ping(b, a.ipv4, num=3, wait_s=SILENCE_S) == []
    assert len(ping(a, b.ipv6, num=3)) == 3
    assert before.communicate("question", timeout=PATIENCE_S) == ("question", None)
    a.firewall(inbound=True)
    assert_reach(b, greeted=[a.ipv4, a.ipv6])


def test_a_bad_connection_loses_and_delays_packets(network: Network) -> None:
    a, slow = network.host("a"), network.host("slow", loss=0.3, delay_s=0.1)
    serve(a)
    num = 300
    round_trips_s = ping(slow, a.ipv4, num=num, wait_s=1.0)
    # 0.7 * 0.7 of them; the standard deviation is 0.03.
    assert 0.35 < len(round_trips_s) / num < 0.63
    assert 0.2 <= min(round_trips_s) < 0.35


def test_the_seed_decides_which_packets_are_lost(network: Network) -> None:
    target = network.host("target")
    arrived = []
    for i, seed in enumerate([1, 1, 2]):
        sender = network.host(f"sender-{i}", loss=0.5, seed=seed)
        receiver = start_receiver(target)
        send(sender, target, *range(100), *["last"] * 50)
        arrived.append(received(receiver))
    assert 20 < len(arrived[0]) < 80
    assert arrived[0] == arrived[1] != arrived[2]


def test_what_tcp_brings_over_a_bad_connection_is_intact(network: Network) -> None:
    a, slow = network.host("a"), network.host("slow", loss=0.05, delay_s=0.01)
    serve(a)
    script = """
import os, socket, struct, sys, threading
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
data = os.urandom(300_000)
threading.Thread(target=connection.sendall, args=[data]).start()
received = connection.recv(5, socket.MSG_WAITALL), connection.recv(len(data), socket.MSG_WAITALL)
num_repeated = struct.unpack_from("I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)
print(received == (b"hello", data), *num_repeated)
"""
    is_intact, num_repeated = run(slow, script, a.ipv6, PORT).split()
    assert is_intact == "True"
    assert int(num_repeated) > 0


def test_all_is_removed_even_after_an_error() -> None:
    skip_without_hosts()
    names, links = names_of(os.getpid()), show("ip", "link")
    # Neither of these two ends with the other, nor with its process group.
    # Each line in one write: an unbuffered `print` makes two, and the other one's line may come between them.
    script = "import os, time; os.fork() or os.setsid(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(1000)"
    with pytest.raises(ZeroDivisionError), Network() as network:
        host, _ = network.host("a", delay_s=0.01), network.host("b", nat=True)
        parent = host.start([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert parent.stdout is not None
        processes = [process_of(parent.stdout.readline()) for _ in range(2)]
        assert len(names_of(os.getpid()) - names) == 4
        1 / 0  # noqa: B018
    assert names_of(os.getpid()) == names
    assert not any(is_alive(process) for process in processes)
    assert show("ip", "link") == links


def test_the_next_network_removes_what_a_killed_process_has_left() -> None:
    skip_without_hosts()
    links = show("ip", "link")
    script = """
        import signal
        from tests.hosts import Network
        with Network() as network:
            host = network.host("a", loss=0.1)
            network.host("b", nat=True)
            print(host.start(["sleep", "1000"]).pid, flush=True)
            signal.pause()
    """
    maker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE)
    with maker:
        try:
            assert maker.stdout is not None
            sleeper = process_of(maker.stdout.readline())
            with Network():
                # Of one that lives nothing is removed.
                assert len(names_of(maker.pid)) == 4
                assert is_alive(sleeper)
        finally:
            maker.kill()
    with Network():
        assert not names_of(maker.pid)
        assert not is_alive(sleeper)
    assert show("ip", "link") == links


def test_names_of_hosts_are_checked(network: Network) -> None:
    network.host("a")
    for name in ["a", "", "../a", "A"]:
        with pytest.raises(ValueError, match="cannot have this name"):
            network.host(name)


def test_tests_are_skipped_where_there_are_no_hosts(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile('pytest_plugins = ["tests.hosts.fixtures"]\ndef test_it(network): pass')
    monkeypatch.setenv("PATH", str(pytester.path))
    hosts_unavailable.cache_clear()
    try:
        result = pytester.runpytest_inprocess("-rs")
    finally:
        hosts_unavailable.cache_clear()
    result.assert_outcomes(skipped=1)
    reason = "only root" if os.geteuid() else "not installed, or not in PATH: ip, nsenter"
    result.stdout.fnmatch_lines(f"*no network namespaces: {reason}*")


def skip_without_hosts() -> None:
    if (reason := hosts_unavailable()) is not None:
        pytest.skip(f"no network namespaces: {reason}")


def start_receiver(host: Host) -> subprocess.Popen[Any]:
    return start(host, RECEIVE, RECEIVER_PORT, line="ready")


def send(sender: Host, receiver: Host, *data: object) -> None:
    run(sender, SEND, receiver.ipv4, RECEIVER_PORT, *data)


def received(receiver: subprocess.Popen[Any]) -> list[str]:
    """All that has come before the word "last"."""
    output, _ = receiver.communicate(timeout=PATIENCE_S)
    data: list[str] = output.split()
    return data


def names_of(pid: int) -> set[str]:
    """The namespaces that the process has made."""
    return {name for name in show("ip", "netns", "list").split() if name.startswith(f"asyncparl-test-{pid}-")}


def show(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def process_of(line: bytes) -> Process:
    process = Process.read(int(line))
    assert process is not None
    return process


def is_alive(process: Process) -> bool:
    """Whether it is running: one that only has to be waited for, by whoever adopted it, has no network any more."""
    return Process.read(process.pid) == process and Path(f"/proc/{process.pid}/ns/net").exists()
