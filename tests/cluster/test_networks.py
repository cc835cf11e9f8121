"""Bad networks: partitions, machines that vanish, and lost packets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.cluster.clusters import Cluster, skip_without_hosts, used_cpus
from tests.cluster.processes import Driver, Program, Reply, until
from tests.hosts import Host, Network
from tests.proc import is_gone

# As many as TCP can cope with: with 0.3 it is silent for more than 5 s now and then.
LOSS, DELAY_S = 0.1, 0.1
LOSSY_TEST_S = 20.0
ARRAY_BYTES = 200_000


class Site(NamedTuple):
    cluster: Cluster
    network: Network
    master: Host
    node: Host
    program: Host
    lossy: LossyNode
    lonely: Program
    """A node that looks for its master where there is none. It takes its time to give up."""


class LossyNode(NamedTuple):
    """A node behind a bad cable, with actors that are busy while the other tests run."""

    driver: Driver
    since: float
    answers: list[Reply]
    array: Reply


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    skip_without_hosts()
    with Network() as network, Cluster(tmp_path_factory.mktemp("networks")) as cluster:
        master, node, program = network.host("master"), network.host("node"), network.host("program")
        bad = network.host("bad", loss=LOSS, delay_s=DELAY_S)
        cluster.start_master(master)
        cluster.start_node("node", "--cpus", "4", "--labels", "cable=good", host=node)
        lonely = cluster.start_node("lonely", host=program, master=f"{node.ipv4}:8010", waits=False)
        yield Site(cluster, network, master, node, program, start_lossy_node(cluster, master, bad), lonely)


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    with shared_site.cluster.one_test():
        yield shared_site
        shared_site.network.heal()


def start_lossy_node(cluster: Cluster, master: Host, bad: Host) -> LossyNode:
    start = time.monotonic()
    cluster.start_node("lossy", "--cpus", "2", "--labels", "cable=bad", host=bad)
    joined = time.monotonic()
    driver = cluster.start_driver(master)
    for name in ("streaming", "answering"):
        driver.create(name, labels={"cable": "bad"})
    print(f"loss {LOSS}, delay {DELAY_S} s: the node took {joined - start:.1f} s,", end=" ")
    print(f"a program and two actors {time.monotonic() - joined:.1f} s")
    driver.start("stream", "streaming", -1, 0.1)
    answers = [driver.start("call", "answering", "echo", i) for i in range(20)]
    return LossyNode(driver, time.monotonic(), answers, driver.start("exchange", "answering", ARRAY_BYTES))


def test_actors_go_on_when_only_the_master_cannot_be_reached(site: Site) -> None:
    """Neither by their node nor by their program."""
    observer = site.cluster.start_driver(site.master)
    driver = site.cluster.start_driver(site.program)
    pid = driver.create("probe", labels={"cable": "good"})["pid"]
    stream = driver.start("stream", "probe", -1, 0.02)
    driver.do("wait_for", "probe", 5)
    site.network.partition({site.master}, {site.node, site.program})
    # The master may not believe in it for long: others could be told to wait for what is not there.
    took_s = until(lambda: "node" not in used_cpus(observer.view()), within_s=7)
    print(f"the master gave a node behind a partition up after {took_s:.2f} s")
    num = driver.do("wait_for", "probe", 0)
    assert driver.do("wait_for", "probe", num + 50, within_s=5) >= num + 50
    site.network.heal()
    took_s = until(lambda: used_cpus(observer.view()).get("node") == 1, within_s=10)
    print(f"it was back, with its actor, {took_s:.2f} s after the partition had ended")
    assert not is_gone(pid)
    driver.create("new", labels={"cable": "good"})
    assert used_cpus(observer.view())["node"] == 2
    driver.do("kill", "probe")
    assert stream.failure().text.startswith("Probe#1 died: it was killed by its owner")


def test_an_actor_whose_node_somebody_cannot_reach_is_not_said_to_be_dead(site: Site) -> None:
    owner, borrower = site.cluster.start_driver(site.master), site.cluster.start_driver(site.program)
    owner.create("probe", labels={"cable": "good"}, name="shared", detached=True)
    borrower.do("find", "probe", "shared")
    assert borrower.do("call", "probe", "echo", 1) == 1
    stream = borrower.start("stream", "probe", -1, 0.1)
    borrower.do("wait_for", "probe", 1)
    site.network.partition({site.node}, {site.program})
    failure = stream.failure(within_s=7)
    assert failure.type == "ActorDied"
    assert "the connection to its node was lost: it has been silent for" in failure.text
    assert owner.do("call", "probe", "echo", 2) == 2
    site.network.heal()
    assert borrower.do("call", "probe", "echo", 3) == 3
    owner.do("kill", "probe")


def test_the_actors_of_a_program_whose_machine_vanishes_end(site: Site) -> None:
    """Nobody tells: the kernel of the node has to find out."""
    driver = site.cluster.start_driver(site.program)
    observer = site.cluster.start_driver(site.master)
    pid = driver.create("probe", labels={"cable": "good"})["pid"]
    site.program.cut()
    took_s = until(lambda: is_gone(pid), within_s=20)
    print(f"the actor of a program whose machine had vanished ended after {took_s:.1f} s")
    until(lambda: used_cpus(observer.view())["node"] == 0, within_s=1)


def test_a_bad_network_is_slow_and_nothing_else(site: Site) -> None:
    driver, since, answers, array = site.lossy
    assert [answer.value() for answer in answers] == list(range(20))
    print(f"{ARRAY_BYTES:,} bytes there and back in {array.value(60):.1f} s")
    until(lambda: time.monotonic() - since > LOSSY_TEST_S)
    num = driver.do("wait_for", "streaming", 0)
    assert driver.do("wait_for", "streaming", num + 10) >= num + 10
    assert used_cpus(driver.view())["lossy"] == 2


def test_a_node_gives_up_where_there_is_no_master(site: Site) -> None:
    assert site.lonely.wait(within_s=25) == 1
    errors = site.lonely.errors()
    assert errors.startswith("error: ") and len(errors.splitlines()) == 1
    assert site.node.ipv4 in errors and "refused" in errors
