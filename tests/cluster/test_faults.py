"""Processes of a cluster stand still for a while, or are killed: who notices, and that all is well again."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

import psutil
import pytest

from tests.cluster.clusters import Cluster, node_of, used_cpus, wait_used
from tests.cluster.processes import Driver, Program, Reply, until
from tests.proc import is_gone

pytestmark = pytest.mark.slow

MOMENT_S = 1.0
SILENCE_S = 8.0
"""Longer than anybody may be silent."""


class Site(NamedTuple):
    cluster: Cluster
    master: Program
    node: Program
    driver: Driver

    def process(self, name: str, worker: int) -> psutil.Process:
        if name == "zygote":
            return psutil.Process(worker).parent()
        return psutil.Process({"master": self.master, "node": self.node, "driver": self.driver}[name].pid)


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Cluster(tmp_path_factory.mktemp("faults")) as cluster:
        master = cluster.start_master()
        node = cluster.start_node("node", "--cpus", "4")
        cluster.warm_up()
        yield Site(cluster, master, node, cluster.start_driver())


class Work(NamedTuple):
    """What goes on when it happens: a call, one that waits behind it, and a stream."""

    pids: list[int]
    sleeping: Reply
    behind: Reply
    stream: Reply


def start_work(driver: Driver, sleep_s: float) -> Work:
    pids = [driver.create(f"probe-{i}")["pid"] for i in range(2)]
    sleeping, behind = driver.start("call", "probe-0", "sleep", sleep_s), driver.start("call", "probe-0", "echo", 1)
    stream = driver.start("stream", "probe-1", 300, 0.01)
    driver.do("wait_for", "probe-1", 3)
    return Work(pids, sleeping, behind, stream)


def stand_still(process: psutil.Process, seconds: float) -> None:
    process.suspend()
    time.sleep(seconds)  # that long, and not until something
    process.resume()


@pytest.mark.parametrize("who", ["master", "node", "zygote", "driver"])
def test_a_process_that_stands_still_for_a_moment_is_not_missed(who: str, site: Site) -> None:
    work = start_work(site.driver, 2)
    stand_still(site.process(who, work.pids[0]), MOMENT_S)
    late = site.driver.start("create", "late", {})
    assert work.sleeping.value() == "slept"
    assert work.behind.value() == 1
    assert work.stream.value() == list(range(300))
    assert late.value()["pid"] not in work.pids
    assert used_cpus(site.driver.view()) == {"node": 3}
    assert not any(is_gone(pid) for pid in work.pids)
    assert site.driver.leave() == 0


@pytest.mark.parametrize("who", ["master", "driver"])
def test_neither_a_master_nor_a_program_has_to_give_signs_of_life(who: str, site: Site) -> None:
    work = start_work(site.driver, SILENCE_S + 1)
    process = site.process(who, work.pids[0])
    process.suspend()
    if who == "master":
        late = site.driver.start("create", "late", {})
        assert site.driver.do("call", "probe-1", "echo", "meanwhile") == "meanwhile"
    time.sleep(SILENCE_S)
    process.resume()
    if who == "driver":
        late = site.driver.start("create", "late", {})
    assert work.sleeping.value() == "slept"
    assert work.behind.value() == 1
    assert work.stream.value() == list(range(300))
    assert late.value()["pid"] not in work.pids
    until(lambda: used_cpus(site.driver.view()) == {"node": 3}, within_s=10)
    assert site.driver.leave() == 0


def test_a_node_that_stands_still_for_long_loses_its_actors_and_comes_back(site: Site) -> None:
    work = start_work(site.driver, 600)
    node = site.process("node", work.pids[0])
    node.suspend()
    for call in (work.sleeping, work.behind):
        assert call.failure(within_s=SILENCE_S).type == "ActorDied"
    node.resume()
    until(lambda: all(is_gone(pid) for pid in work.pids), within_s=10)
    until(lambda: used_cpus(site.driver.view()) == {"node": 0}, within_s=10)
    assert node_of(site.driver.view(), "node").state == "ready"
    assert site.driver.create("next", num_cpus=4)["pid"] not in work.pids
    assert site.driver.leave() == 0


def test_a_killed_zygote_takes_its_actors_along_and_those_of_other_nodes_go_on(site: Site) -> None:
    site.cluster.start_node("other", "--cpus", "1", "--labels", "name=other")
    site.driver.create("elsewhere", labels={"name": "other"})
    elsewhere = site.driver.start("call", "elsewhere", "sleep", 1)
    work = start_work(site.driver, 600)
    site.process("zygote", work.pids[0]).kill()
    for call in (work.sleeping, work.behind, work.stream):
        assert call.failure(within_s=5).type == "ActorDied"
    until(lambda: all(is_gone(pid) for pid in work.pids), within_s=5)
    assert elsewhere.value() == "slept"
    wait_used(site.driver, within_s=5, node=0, other=1)
    assert site.driver.create("next", num_cpus=4)["pid"] not in work.pids
    assert site.driver.leave() == 0


def test_a_program_that_is_killed_while_it_makes_actors_leaves_nothing_at_the_node(site: Site) -> None:
    for moment in range(5):
        other = site.cluster.start_driver()
        for i in range(4):
            other.start("create", f"probe-{i}", {})
        time.sleep(0.02 * moment)  # at any moment
        other.send(signal.SIGKILL)
        until(lambda: used_cpus(site.driver.view()) == {"node": 0} and not site.driver.view().waiting, within_s=15)
        zygotes = psutil.Process(site.node.pid).children()
        until(lambda zygotes=zygotes: not any(zygote.children() for zygote in zygotes), within_s=10)
    site.driver.create("next", num_cpus=4)
    assert site.driver.leave() == 0


def test_a_node_whose_folder_was_removed_makes_it_again(site: Site) -> None:
    """As cleaners of temporary folders do, and people."""
    kept = site.driver.create("kept")["pid"]
    for folder in site.cluster.temporary.glob("asyncparl-node-*"):
        shutil.rmtree(folder)
    assert site.driver.create("next")["pid"] != kept
    assert site.driver.do("call", "kept", "echo", 1) == 1
    other = site.cluster.start_driver()
    until(lambda: list(site.cluster.temporary.glob("asyncparl-node-*/node")), within_s=5)
    assert other.create("another")["pid"] != kept
    for driver in (site.driver, other):
        assert driver.leave() == 0
    assert site.node.ask_to_end() is None
    until(lambda: not list(site.cluster.temporary.glob("asyncparl-node-*")), within_s=10)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_of_a_node_whose_terminal_goes_away(number: signal.Signals, site: Site) -> None:
    """The whole process group is signalled then. SIGKILL, as it may do to all who do not end."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests, and so the node, run under nohup")
    pid = site.driver.create("probe")["pid"]
    assert os.getpgid(site.node.pid) == site.node.pid
    os.killpg(site.node.pid, number)
    site.node.wait(within_s=10)
    until(lambda: is_gone(pid) and not list(site.cluster.temporary.glob("asyncparl-node-*")), within_s=10)
