"""Nodes that cannot be dialed, because of NAT or a firewall, are reached through the master's port; others directly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.cluster.clusters import Cluster, skip_without_hosts
from tests.cluster.processes import PROGRAMS, Program
from tests.hosts import Host, Network

NUM_BYTES = 50_000_000
KINDS = ("direct", "hidden", "walled")
NATED = ("open", "nated")


class Site(NamedTuple):
    cluster: Cluster
    master: Host
    drivers: dict[str, Host]
    nodes: dict[str, Program]


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    skip_without_hosts()
    with Network() as network, Cluster(tmp_path_factory.mktemp("nat")) as cluster:
        master = network.host("master")
        hosts = {kind: network.host(kind, nat=kind == "hidden") for kind in KINDS}
        hosts["walled"].firewall(inbound=False)
        cluster.start_master(master)
        nodes = {
            kind: cluster.start_node(kind, "--cpus", "4", "--labels", f"kind={kind}", host=hosts[kind], waits=False)
            for kind in KINDS
        }
        cluster.wait_joined(*nodes.values())
        drivers = {kind: network.host(kind, nat=kind == "nated") for kind in NATED}
        # Its relay process is started by the first who needs it.
        cluster.warm_up(drivers["open"], labels={"kind": "hidden"})
        yield Site(cluster, master, drivers, nodes)


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    with shared_site.cluster.one_test():
        yield shared_site


@pytest.mark.parametrize(
    ("nated", "encrypt"), [("open", False), ("nated", True)], ids=["plain", "encrypted, from behind NAT"]
)
def test_large_arrays_arrive_over_every_way(site: Site, nated: str, encrypt: bool) -> None:
    driver = site.cluster.start_driver(site.drivers[nated], encrypt=encrypt)
    for kind in KINDS:
        driver.create(kind, labels={"kind": kind})
        before = passed_bytes(site.master)
        took_s = driver.do("exchange", kind, NUM_BYTES)
        passed = passed_bytes(site.master) - before
        print(f"{nated} program, {kind} node, {'encrypted' if encrypt else 'plain'}: {took_s:.2f} s there and back")
        if kind == "direct":
            assert passed < NUM_BYTES / 10
        else:
            assert passed > 2 * NUM_BYTES
    assert driver.leave() == 0


@pytest.mark.parametrize("kind", ["direct", "hidden"])
def test_encrypted_calls_cannot_be_read_on_the_way(site: Site, kind: str) -> None:
    text = "a-text-that-is-nowhere-else"
    num_seen = {}
    for encrypt in (False, True):
        driver = site.cluster.start_driver(site.drivers["open"], encrypt=encrypt)
        driver.create("probe", labels={"kind": kind})
        spy = site.cluster.start([sys.executable, str(PROGRAMS / "listen_in.py"), text], site.drivers["open"])
        spy.wait_line("ready")
        assert driver.do("call", "probe", "echo", text) == text
        spy.close_input()
        num_seen[encrypt] = int(spy.read_line())
        driver.leave()
    assert num_seen[False] >= 2
    assert num_seen[True] == 0


def test_control_links_cannot_be_read_on_the_way(site: Site) -> None:
    """What actors print goes over the link to their node, which nobody asked to encrypt."""
    driver = site.cluster.start_driver(site.drivers["open"])
    driver.create("probe", labels={"kind": "direct"})
    # Put together over there, so that it is in no call.
    spy = site.cluster.start([sys.executable, str(PROGRAMS / "listen_in.py"), "last-words" * 2], site.drivers["open"])
    spy.wait_line("ready")
    driver.do("call", "probe", "say_twice", "last-words")
    driver.wait_written("last-words" * 2)
    spy.close_input()
    assert int(spy.read_line()) == 0


def test_an_actor_behind_nat_dies_with_its_process_like_any_other(site: Site) -> None:
    driver = site.cluster.start_driver(site.drivers["nated"])
    driver.create("probe", labels={"kind": "hidden"})
    failure = driver.start("call", "probe", "shoot", "last words").failure(within_s=5)
    assert failure.type == "ActorDied"
    assert failure.more["signal"] == 9
    assert failure.more["log_tail"] == ["last words"]


def passed_bytes(host: Host) -> int:
    """Received and sent by the network device of a host."""
    lines = host.run(["cat", "/proc/net/dev"], check=True).stdout.splitlines()
    numbers = next(line.split() for line in lines if line.strip().startswith("eth0"))
    return int(numbers[1]) + int(numbers[9])
