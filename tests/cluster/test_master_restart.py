"""The master dies, or is stopped, and another one starts at its address: nothing else notices."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.cluster.clusters import Cluster, used_cpus, wait_used
from tests.cluster.processes import Driver, until
from tests.proc import is_gone

BACK_WITHIN_S = 5.0


class Site:
    """A cluster of two nodes, whose master changes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.master = cluster.start_master()
        self.nodes = [cluster.start_node(name, "--cpus", "2", waits=False) for name in ("one", "two")]
        cluster.wait_joined(*self.nodes)

    def end_master(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.master.end(number) == (0 if number == signal.SIGTERM else -number)

    def start_master(self) -> None:
        """The next one, at the address of the last."""
        self.master = self.cluster.start_master(listen=self.cluster.address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Cluster(tmp_path_factory.mktemp("restart")) as cluster:
        site = Site(cluster)
        driver = cluster.start_driver()
        for i in range(2):
            driver.create(f"probe-{i}", num_cpus=2)
        driver.leave()
        site.end_master()
        yield site


@pytest.fixture
def driver(site: Site) -> Iterator[Driver]:
    """With a master of its own, which ends with the test, or in it."""
    site.start_master()
    with site.cluster.one_test():
        driver = site.cluster.start_driver()
        until(lambda: len(driver.view().nodes) == 2, BACK_WITHIN_S)
        yield driver
        if driver.process.poll() is None:
            driver.leave()
    if site.master.process.poll() is None:
        site.end_master(signal.SIGTERM)


def num_used(driver: Driver) -> float:
    return sum(used_cpus(driver.view()).values())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_running_calls_and_streams_go_on_while_the_master_is_replaced(
    site: Site, driver: Driver, number: signal.Signals
) -> None:
    pids = [driver.create(f"probe-{i}", placement="spread")["pid"] for i in range(3)]
    call = driver.start("call", "probe-0", "sleep", 2)
    stream = driver.start("stream", "probe-1", 150, 0.01)
    driver.do("wait_for", "probe-1", 5)
    start = time.monotonic()
    site.end_master(number)
    site.start_master()
    took_s = until(lambda: len(driver.view().nodes) == 2, BACK_WITHIN_S)
    print(
        f"both nodes were back {took_s:.2f} s after the new master was ready, {time.monotonic() - start:.2f} s in all"
    )
    assert call.value() == "slept"
    assert stream.value() == list(range(150))
    assert [driver.do("call", f"probe-{i}", "pid") for i in range(3)] == pids
    assert num_used(driver) == 3
    assert {actor.state for actor in driver.view().actors} == {"started"}
    driver.create("new")
    wait_used(driver, one=2, two=2)
    for name in ("probe-0", "probe-1", "probe-2", "new"):
        driver.do("close", name)
    wait_used(driver, one=0, two=0)


def test_what_happened_while_there_was_no_master_is_known_to_the_next(site: Site, driver: Driver) -> None:
    for i in range(4):
        driver.create(f"probe-{i}")
    doomed = site.cluster.start_driver()
    site.end_master()
    driver.do("close", "probe-0")
    driver.do("kill", "probe-1")
    doomed.end(signal.SIGKILL)
    made = driver.start("create", "made without a master", {})
    site.start_master()
    made.value(BACK_WITHIN_S)
    until(lambda: num_used(driver) == 3, BACK_WITHIN_S)
    view = driver.view()
    assert sorted(actor.name for actor in view.actors) == ["Probe#3", "Probe#4", "Probe#5"]
    assert len(view.drivers) == 1


def test_an_actor_that_waits_for_room_gets_it_from_the_next_master(site: Site, driver: Driver) -> None:
    for i in range(4):
        driver.create(f"probe-{i}")
    waiting = driver.start("create", "waiting", {})
    until(lambda: bool(driver.view().waiting))
    site.end_master()
    site.start_master()
    until(lambda: num_used(driver) == 4, BACK_WITHIN_S)
    driver.do("close", "probe-2")
    waiting.value(within_s=2)
    until(lambda: num_used(driver) == 4, 1)


def test_actors_that_die_without_a_master_are_reported_all_the_same(site: Site, driver: Driver) -> None:
    pid = driver.create("probe")["pid"]
    call = driver.start("call", "probe", "sleep", 600)
    site.end_master()
    start = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert call.failure(within_s=1).more["signal"] == signal.SIGKILL
    assert call.at() - start < 1


def test_everything_ends_in_good_order_without_a_master(site: Site, driver: Driver) -> None:
    pids = [driver.create(f"probe-{i}")["pid"] for i in range(2)]
    site.end_master()
    assert driver.leave(within_s=10) == 0
    assert all(is_gone(pid) for pid in pids)
    assert [node.end(within_s=10) for node in site.nodes] == [0, 0]
