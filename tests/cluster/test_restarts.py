"""Actors that come back, on another node if need be, and the same to everybody who knows them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.cluster.clusters import Cluster, used_cpus, wait_used
from tests.cluster.processes import Driver, until
from tests.proc import is_gone


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("restarts")) as cluster:
        cluster.start_master()
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    with shared_cluster.one_test():
        yield shared_cluster


@pytest.fixture
def driver(cluster: Cluster) -> Driver:
    return cluster.start_driver()


def node_of_actor(driver: Driver, name: str = "Probe#1") -> str:
    """By name; empty while it has none."""
    view = driver.view()
    names = {node.node_id: node.name for node in view.nodes}
    return next((names.get(actor.node_id, "") for actor in view.actors if actor.name == name), "")


def test_a_killed_worker_is_replaced(cluster: Cluster, driver: Driver) -> None:
    cluster.start_node("only", "--cpus", "1")
    pid = driver.create("probe", max_restarts=1)["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: driver.start("call", "probe", "pid").value_or_none() not in (None, pid))
    assert driver.do("get", "probe", "num_restarts") == 1
    assert used_cpus(driver.view()) == {"only": 1}  # it has the place of the first one
    driver.do("close", "probe")
    wait_used(driver, only=0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_after_the_end_of_its_node_an_actor_comes_back_on_another_one(
    cluster: Cluster, driver: Driver, number: signal.Signals
) -> None:
    # The names of nodes that were killed are taken for a while.
    nodes = {name: cluster.start_node(name, "--cpus", "4") for name in (f"left-{number}", f"right-{number}")}
    pid = driver.create("probe", max_restarts=1)["pid"]
    driver.do("lend", "holder", "probe", {"num_cpus": 0, "placement": "spread"})
    assert driver.do("call", "holder", "ask", "pid") == pid
    old = node_of_actor(driver)
    if node_of_actor(driver, "Holder#1") == old:
        pytest.fail("both are on one node")
    open_calls = [driver.start("call", "probe", "sleep", 600), driver.start("call", "holder", "ask", "sleep", 600)]
    driver.view()  # so that the calls have left
    nodes[old].send(number)
    assert [call.failure().type for call in open_calls] == ["ActorDied"] * 2
    calls = [driver.start("call", "probe", "pid"), driver.start("call", "holder", "ask", "pid")]
    now = [each.value() for each in calls]
    assert now[0] == now[1] != pid
    assert node_of_actor(driver) == (set(nodes) - {old}).pop()
    assert is_gone(pid)
    assert driver.do("get", "probe", "num_restarts") == 1


@pytest.mark.slow
def test_while_there_is_no_room_it_waits_as_any_actor(cluster: Cluster, driver: Driver) -> None:
    node = cluster.start_node("first", "--cpus", "1")
    driver.create("probe", max_restarts=1)
    lost = driver.start("call", "probe", "sleep", 600)
    driver.view()
    node.end(signal.SIGKILL)
    assert lost.failure().type == "ActorDied"
    call = driver.start("call", "probe", "pid")
    until(lambda: [waiting.name for waiting in driver.view().waiting] == ["Probe#1"])
    cluster.start_node("second", "--cpus", "1")
    call.value()
    assert node_of_actor(driver) == "second"


def test_the_master_may_change_meanwhile(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Cluster(tmp_path_factory.mktemp("change")) as cluster:
        master = cluster.start_master()
        cluster.start_node("one", "--cpus", "1")
        driver = cluster.start_driver()
        pid = driver.create("probe", max_restarts=1)["pid"]
        call = driver.start("call", "probe", "sleep", 600)
        driver.view()
        master.end(signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        assert call.failure().type == "ActorDied"
        call = driver.start("call", "probe", "pid")
        cluster.start_master(listen=cluster.address)
        assert call.value() != pid
        assert used_cpus(driver.view()) == {"one": 1}


def test_a_cluster_that_is_stopped_ends_its_actors_for_good(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Cluster(tmp_path_factory.mktemp("stopped")) as cluster:
        cluster.start_master()
        cluster.start_node("one")
        driver = cluster.start_driver()
        pid = driver.create("probe", max_restarts=3)["pid"]
        assert cluster.asyncparl("stop").returncode == 0
        until(lambda: is_gone(pid))
        failure = driver.start("call", "probe", "pid").failure(within_s=5)
        assert failure.type == "ActorDied" and "the cluster was stopped" in failure.text
