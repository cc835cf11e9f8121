"""Ports that everybody can reach, and what strangers do there."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psutil
import pytest

from asyncparl.transport.handshake import REPLY_BYTES
from tests.cluster.clusters import Cluster, skip_without_hosts
from tests.cluster.processes import PROGRAMS, Program
from tests.hosts import Host, Network

NODE_PORT, RECORDER_PORT = 8100, 9000
MAX_GROWTH_BYTES = 64 << 20


class Site(NamedTuple):
    cluster: Cluster
    near: Host
    """Where the master is, and programs."""
    far: Host
    stranger: Host
    processes: dict[str, Program]
    addresses: dict[str, tuple[str, int]]


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    skip_without_hosts()
    with Network() as network, Cluster(tmp_path_factory.mktemp("strangers")) as cluster:
        near, far, stranger = network.host("near"), network.host("far"), network.host("stranger")
        addresses = {"master": (near.ipv4, 8010), "node": (far.ipv4, NODE_PORT)}
        processes = {
            "master": cluster.start_master(near),
            "node": cluster.start_node("node", "--cpus", "8", "--listen", f"0.0.0.0:{NODE_PORT}", host=far),
        }
        yield Site(cluster, near, far, stranger, processes, addresses)


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    with shared_site.cluster.one_test():
        yield shared_site


@pytest.mark.parametrize("target", ["master", "node"])
def test_strangers_disturb_nobody(site: Site, target: str) -> None:
    """Port scans, other protocols, announcements of gigabytes, and hundreds who say nothing, or little at a time."""
    host, port = site.addresses[target]
    process = psutil.Process(site.processes[target].pid)
    driver = site.cluster.start_driver(site.near)
    driver.create("probe")
    before_bytes = process.memory_info().rss
    stranger = site.cluster.start([sys.executable, str(PROGRAMS / "strangers.py"), host, str(port)], site.stranger)
    longest_s = 0.0
    while not any("holds" in line for line in stranger.lines):
        longest_s = max(longest_s, seconds_of(lambda: driver.do("call", "probe", "echo", "x")))
        stranger.read_lines()
    # Everything works that dials one of the ports.
    longest_s = max(longest_s, seconds_of(lambda: driver.create("next")))
    other = site.cluster.start_driver(site.near)
    other.create("probe")
    assert other.leave() == driver.leave() == 0
    print(f"{target} among strangers: nothing took longer than {longest_s:.2f} s")
    assert longest_s < 2
    assert process.memory_info().rss - before_bytes < MAX_GROWTH_BYTES
    assert site.processes[target].process.poll() is None
    assert "Traceback" not in site.processes[target].errors()


def test_what_was_recorded_opens_nothing_again(site: Site) -> None:
    cluster = site.cluster
    folder = cluster.temporary / "recorded"
    folder.mkdir()
    recorder = [sys.executable, str(PROGRAMS / "recorder.py"), str(RECORDER_PORT), "127.0.0.1", "8101", str(folder)]
    cluster.start(recorder, site.far).wait_line("ready")
    through = f"{site.far.ipv4}:{RECORDER_PORT}"
    node = cluster.start_node(
        "watched", "--labels", "kind=watched", "--listen", "0.0.0.0:8101", "--advertise", through, host=site.far
    )
    driver = cluster.start_driver(site.near)
    driver.create("probe", labels={"kind": "watched"})
    assert driver.leave() == 0
    records = sorted(folder.iterdir())
    assert len(records) == 2  # to the node, and to the worker
    for record in records:
        assert len(record.read_bytes()) > 200
        done = site.stranger.run(
            [sys.executable, str(PROGRAMS / "replay.py"), site.far.ipv4, "8101", str(record)], timeout=30
        )
        # The node proves itself with a nonce that is new, hears a proof for the old one, and says nothing more.
        assert json.loads(done.stdout) == [REPLY_BYTES, True], done.stderr
    assert node.errors().count("actor starts") == 1
    assert node.errors().count("program disconnected") == 1


def seconds_of(function: Callable[[], object]) -> float:
    start = time.monotonic()
    function()
    return time.monotonic() - start
