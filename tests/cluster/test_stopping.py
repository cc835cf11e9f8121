"""Stopping clusters: the whole of one, on all hosts, and nothing of another."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.clusters import COMMAND, Cluster, skip_without_hosts, used_cpus
from tests.hosts import Network
from tests.proc import is_gone


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "other").mkdir()
    with Cluster(tmp_path / "other") as cluster:
        yield cluster


def test_stopping_a_cluster_ends_it_on_all_hosts_and_leaves_others_alone(cluster: Cluster, other: Cluster) -> None:
    skip_without_hosts()
    with Network() as network:
        near, far = network.host("near"), network.host("far")
        masters = [cluster.start_master(near), other.start_master(near, listen="[::]:8020")]
        nodes = [cluster.start_node("near", host=near), cluster.start_node("far", host=far)]
        other_node = other.start_node("other", "--cpus", "2", host=far)
        driver, other_driver = cluster.start_driver(near), other.start_driver(near)
        pids = [driver.create(f"probe-{i}", placement="spread")["pid"] for i in range(2)]
        pid = other_driver.create("probe")["pid"]
        call = driver.start("call", "probe-0", "sleep", 600)
        other_driver.start("stream", "probe", -1, 0.02)

        done = cluster.asyncparl("stop", host=far)
        assert (done.returncode, done.stderr) == (0, "")
        assert [node.wait() for node in nodes] == [0, 0]
        assert masters[0].wait() == 0
        failure = call.failure()
        assert failure.type == "ActorDied" and "the cluster was stopped" in failure.text
        assert all(is_gone(each) for each in pids)

        assert not is_gone(pid)
        num = other_driver.do("wait_for", "probe", 0)
        other_driver.do("wait_for", "probe", num + 10)
        other_driver.create("next")
        assert used_cpus(other_driver.view()) == {"other": 2}
        assert other.asyncparl("stop", host=near).returncode == 0
        assert other_node.wait() == 0
        assert masters[1].wait() == 0


def test_a_driver_secret_stops_nothing(cluster: Cluster) -> None:
    cluster.start_master()
    cluster.start_node("node")
    done = cluster.asyncparl("stop", "--secret-file", str(cluster.secret("driver")))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
    assert cluster.asyncparl("status").stdout.count("ready") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_master_and_a_node_of_one_command_end_together(cluster: Cluster, number: signal.Signals) -> None:
    both = cluster.start([*COMMAND, "start", "--port", str(free_port()), "--cpus", "2"])
    port = both.wait_line("master is ready at").partition(";")[0].rpartition(":")[2]
    both.wait_line("has joined")
    cluster.address = f"localhost:{port}"
    driver = cluster.start_driver()
    pid = driver.create("probe")["pid"]
    call = driver.start("call", "probe", "sleep", 600)
    driver.do("view")
    assert both.end(number, within_s=10) == 0
    assert call.failure().type == "ActorDied"
    assert is_gone(pid)
    assert list(cluster.temporary.iterdir()) == []


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        return int(server.getsockname()[1])
