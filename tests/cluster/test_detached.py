"""Detached actors: they outlive their program and the master, and end when somebody ends them, or with the cluster."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import asyncparl
from tests.cluster.clusters import PYTHON, Cluster, skip_without_hosts, used_cpus, wait_used
from tests.cluster.processes import Driver, until
from tests.hosts import Network
from tests.proc import is_gone
from tests.runtime.actors import Echo

DETACHED = {"detached": True, "name": "store"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        cluster.start_master()
        cluster.start_node("node", "--cpus", "2")
        yield cluster


async def test_one_of_a_private_cluster_ends_with_the_cluster() -> None:
    async with asyncparl.connect():
        actor = Echo.options(**DETACHED)(3)
        assert await (await asyncparl.get_actor("store")).add(1) == 4
        pid = await actor.pid()
    assert not psutil.pid_exists(pid)


MAKES_ONE = """
import sys, trio, asyncparl

@asyncparl.remote_class
class Store:
    def ok(self): return "there"

@asyncparl.remote_class(num_cpus=0.5)
class Maker:
    def make(self):
        self.store = Store.options(name="store", detached=True, num_cpus=0.5)()
    def leave(self):
        self.make()
        sys.exit()

async def main():
    async with asyncparl.connect(sys.argv[1]):
        if sys.argv[2] == "find":
            print(await (await asyncparl.get_actor("store")).ok())
            return
        maker = Maker()
        if sys.argv[2] == "leave":
            try:
                await maker.leave()
            except asyncparl.ActorDied:
                return
        await maker.make()
        if sys.argv[2] == "close":
            await asyncparl.close(maker)

trio.run(main)
"""


@pytest.mark.parametrize("end", ["session", "close", "leave"])
def test_one_that_an_actor_makes_lives_on_although_its_maker_ends_at_once(
    end: str, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(MAKES_ONE)
    for what in (end, "find"):
        done = cluster.run([*PYTHON, str(tmp_path / "program.py"), cluster.address, what])
        assert done.returncode == 0, done.stderr
    assert done.stdout == "there\n"


@pytest.mark.parametrize("number", [None, signal.SIGKILL])
def test_one_that_has_lost_its_program_is_found_called_and_closed_by_others(
    cluster: Cluster, number: signal.Signals | None
) -> None:
    maker, other = cluster.start_driver(), cluster.start_driver()
    pid = maker.create("made", **DETACHED)["pid"]
    ends_with_it = maker.create("attached")["pid"]
    if number is None:
        assert maker.leave() == 0
    else:
        maker.end(number)
    until(lambda: is_gone(ends_with_it))
    other.do("find", "found", "store")
    assert other.do("call", "found", "pid") == pid
    assert used_cpus(other.view()) == {"node": 1}
    assert "Probe#1" in cluster.asyncparl("actors").stdout
    other.do("close", "found")
    until(lambda: is_gone(pid))
    wait_used(other, within_s=5, node=0)
    assert other.start("find", "found", "store").failure().type == "LookupError"


def test_a_program_that_leaves_at_once_leaves_the_one_behind_that_it_is_just_making(cluster: Cluster) -> None:
    maker, other = cluster.start_driver(), cluster.start_driver()
    maker.start("create", "made", DETACHED)
    assert maker.leave() == 0
    other.do("find", "found", "store")
    pid = other.do("call", "found", "pid")
    assert used_cpus(other.view()) == {"node": 1}
    other.do("close", "found")
    until(lambda: is_gone(pid))


def test_for_one_that_finds_no_room_its_program_waits_five_seconds_and_gives_it_up(cluster: Cluster) -> None:
    maker, other = cluster.start_driver(), cluster.start_driver()
    other.create("large", num_cpus=2)
    maker.start("create", "made", DETACHED)
    until(lambda: bool(other.view().waiting))
    began = time.monotonic()
    assert maker.leave() == 0
    assert 5 <= time.monotonic() - began < 10
    assert "Probe#1 is not made yet, 5 s after the end of its program: it is given up" in maker.errors()
    assert other.view().waiting == []
    assert other.start("find", "found", "store").failure().type == "LookupError"


def test_a_borrower_kills_one(cluster: Cluster) -> None:
    maker, other = cluster.start_driver(), cluster.start_driver()
    pid = maker.create("made", **DETACHED)["pid"]
    maker.leave()
    other.do("find", "found", "store")
    other.do("call", "found", "pid")
    call = other.start("call", "found", "sleep", 600)
    other.view()
    other.do("kill", "found")
    assert call.failure().type == "ActorDied"
    until(lambda: is_gone(pid))


def test_its_name_is_taken_in_the_whole_cluster_until_it_has_ended(cluster: Cluster) -> None:
    maker, other = cluster.start_driver(), cluster.start_driver()
    maker.create("made", **DETACHED)
    failure = other.start("create", "second", DETACHED).failure()
    assert failure.type == "ResourceError"
    assert "an actor named 'store' exists already" in failure.text
    other.create("own", name="store")  # the names of a program are its own
    assert other.do("call", "own", "pid") != maker.do("call", "made", "pid")
    maker.do("close", "made")
    maker.create("third", **DETACHED)


def test_its_death_is_final_and_frees_what_it_had(cluster: Cluster) -> None:
    maker, other = cluster.start_driver(), cluster.start_driver()
    pid = maker.create("made", **DETACHED)["pid"]
    maker.leave()
    other.do("find", "found", "store")
    other.do("call", "found", "pid")
    call = other.start("call", "found", "sleep", 600)
    other.view()
    os.kill(pid, signal.SIGKILL)
    assert "killed by SIGKILL" in call.failure().text
    assert other.start("call", "found", "pid").failure(within_s=8).type == "ActorDied"
    wait_used(other, within_s=5, node=0)


def test_the_next_master_knows_its_name(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        master = cluster.start_master()
        cluster.start_node("node", "--cpus", "2")
        maker = cluster.start_driver()
        pid = maker.create("made", **DETACHED)["pid"]
        maker.leave()
        master.end(signal.SIGKILL)
        cluster.start_master(listen=cluster.address)
        other = cluster.start_driver()
        until(lambda: used_cpus(other.view()) == {"node": 1})
        other.do("find", "found", "store")
        assert other.do("call", "found", "pid") == pid


def test_the_end_of_the_cluster_ends_it(cluster: Cluster) -> None:
    maker = cluster.start_driver()
    pid = maker.create("made", **DETACHED)["pid"]
    maker.leave()
    assert not is_gone(pid)
    assert cluster.asyncparl("stop").returncode == 0
    until(lambda: is_gone(pid))


def test_its_working_folder_stays_as_long_as_it_does(tmp_path: Path) -> None:
    """On another machine than the program's the folder is made for the program, and removed with its last actor."""
    skip_without_hosts()
    with Network() as network, Cluster(tmp_path) as cluster:
        near, far = network.host("near"), network.host("far")
        cluster.start_master(near)
        cluster.start_node("node", host=far)
        maker: Driver = cluster.start_driver(near)
        where = maker.create("made", **DETACHED)
        maker.create("attached")
        folder = Path(where["cwd"])
        assert maker.leave() == 0
        other = cluster.start_driver(near)
        other.do("find", "found", "store")
        wait_used(other, within_s=5, node=1)
        assert folder.is_dir()
        other.do("close", "found")
        until(lambda: not folder.exists())
