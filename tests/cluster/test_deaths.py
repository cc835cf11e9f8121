"""Who dies, who hears of it, how soon, and what is left: nothing."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from asyncparl.runtime.node_folder import LOCK
from tests.cluster.clusters import Cluster, node_of, skip_without_hosts, used_cpus, wait_used
from tests.cluster.processes import Driver, until
from tests.hosts import Host, Network
from tests.proc import is_gone

LOST_AFTER_S = 7.0


class Site(NamedTuple):
    cluster: Cluster
    network: Network
    near: Host
    """Where the master is, and programs."""
    far: Host


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    skip_without_hosts()
    with Network() as network, Cluster(tmp_path_factory.mktemp("deaths")) as cluster:
        site = Site(cluster, network, network.host("near"), network.host("far"))
        cluster.start_master(site.near)
        yield site


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    with shared_site.cluster.one_test():
        yield shared_site
        shared_site.network.heal()


@pytest.fixture
def driver(site: Site) -> Driver:
    return site.cluster.start_driver(site.near)


def test_a_killed_worker_is_reported_with_its_last_words(site: Site, driver: Driver) -> None:
    node = site.cluster.start_node("node", host=site.far)
    pid = driver.create("probe")["pid"]
    driver.do("call", "probe", "say", "last words")
    calls = [driver.start("call", "probe", "sleep", 600), driver.start("call", "probe", "pid")]
    driver.do("view")  # so that the calls have left
    start = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    for call in calls:
        failure = call.failure()
        assert failure.type == "ActorDied"
        assert failure.more["signal"] == signal.SIGKILL
        assert failure.more["reason"] == "killed by SIGKILL; asyncparl did not do it"
        assert failure.more["log_tail"] == ["last words"]
        assert failure.more["fate"] == "CallFate.MAY_HAVE_RUN"
        assert call.at() - start < 1
    print(f"a killed worker was reported after {calls[0].at() - start:.3f} s")
    assert driver.start("call", "probe", "pid").failure().more["fate"] == "CallFate.NEVER_STARTED"
    wait_used(driver, node=0)
    assert node.end() == 0


def test_a_killed_node_takes_its_actors_along(site: Site, driver: Driver) -> None:
    node = site.cluster.start_node("killed", "--cpus", "4", host=site.far)
    for i in range(3):
        driver.create(f"probe-{i}")
    stream = driver.start("stream", "probe-0", -1, 0.01)
    driver.do("wait_for", "probe-0", 5)
    calls = [stream, *(driver.start("call", f"probe-{i}", "sleep", 600) for i in (1, 2))]
    driver.do("view")
    children = psutil.Process(node.pid).children(recursive=True)
    assert len(children) >= 4  # with the process that the workers were forked from
    start = node.send(signal.SIGKILL)
    for call in calls:
        failure = call.failure()
        assert failure.type == "ActorDied" and "node" in failure.text
        assert call.at() - start < 1
    print(f"a killed node was noticed after {calls[0].at() - start:.3f} s")
    until(lambda: all(is_gone(child.pid) for child in children), within_s=2)
    folders = site.cluster.temporary.glob("asyncparl-node-*")
    assert [folder for folder in folders if not _is_held(folder)] == []
    # It may come back, so it is not forgotten at once.
    assert node_of(driver.view(), "killed").state == "disconnected"


def _is_held(folder: Path) -> bool:
    """Whether the node lives whose folder it is."""
    with (folder / LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_node_whose_cable_is_cut_is_lost_and_comes_back_by_itself(site: Site, driver: Driver) -> None:
    node = site.cluster.start_node("node", "--cpus", "2", host=site.far)
    pid = driver.create("probe", num_cpus=2)["pid"]
    call = driver.start("call", "probe", "sleep", 600)
    driver.do("view")
    start = time.monotonic()
    site.far.cut()
    assert call.failure(within_s=LOST_AFTER_S + 1).type == "ActorDied"
    print(f"a node whose cable was cut was given up after {call.at() - start:.2f} s")
    assert call.at() - start < LOST_AFTER_S
    until(lambda: not driver.view().nodes, within_s=2)
    site.far.heal()
    took_s = until(lambda: used_cpus(driver.view()) == {"node": 0}, within_s=10)
    print(f"it was ready again, and empty, {took_s:.2f} s after its cable was healed")
    assert is_gone(pid)
    driver.create("next", num_cpus=2)
    wait_used(driver, node=2)
    assert node.end() == 0


def test_a_call_with_a_time_limit_ends_on_both_sides_of_a_cut_cable(site: Site, driver: Driver, tmp_path: Path) -> None:
    node = site.cluster.start_node("node", host=site.far)
    driver.create("probe")
    note = tmp_path / "note"
    call = driver.start("call_within", 2.0, "probe", "nap", str(note))
    driver.do("view")
    start = time.monotonic()
    site.far.cut()
    failure = call.failure(within_s=LOST_AFTER_S)
    assert failure.type == "CallTimedOut"
    assert failure.more["has_started"] is None
    took_s = call.at() - start
    print(f"it was given up {took_s:.2f} s after the cut")
    assert took_s < 2.0 + 0.1 + 1.0
    # Nobody has told the actor, and the loss of the link is not noticed so soon.
    until(note.exists, within_s=1)
    assert time.monotonic() - start < 4.5
    site.far.heal()
    assert node.end() == 0


def test_the_actors_of_a_killed_program_end(site: Site, driver: Driver) -> None:
    node = site.cluster.start_node("node", "--cpus", "4", host=site.far)
    other = site.cluster.start_driver(site.near)
    pids = [other.create(f"probe-{i}")["pid"] for i in range(3)]
    other.start("call", "probe-0", "sleep", 600)
    other.start("stream", "probe-1", -1, 0.01)
    other.do("wait_for", "probe-1", 5)
    start = other.send(signal.SIGKILL)
    until(lambda: all(is_gone(pid) for pid in pids), within_s=5)
    print(f"the actors of a killed program had ended after {time.monotonic() - start:.2f} s")
    until(lambda: node_of(driver.view(), "node").used_cpus == 0, within_s=5)
    assert node.end() == 0


def test_a_node_that_is_stopped_tells_everybody(site: Site, driver: Driver) -> None:
    node = site.cluster.start_node("node", "--cpus", "2", host=site.far)
    pid = driver.create("probe")["pid"]
    call = driver.start("call", "probe", "sleep", 600)
    driver.do("view")
    start = node.send(signal.SIGTERM)
    failure = call.failure(within_s=5)
    assert failure.type == "ActorDied"
    assert "its node was stopped" in failure.text
    assert node.wait(within_s=5) == 0
    print(f"a node that was stopped had ended after {time.monotonic() - start:.2f} s")
    assert "node" not in used_cpus(driver.view())
    assert is_gone(pid)
