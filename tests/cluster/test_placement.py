"""Which node gets an actor, what it may use there, and when that is free again."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.cluster.clusters import Cluster, node_of, used_cpus, wait_used
from tests.cluster.processes import Driver, until

EMPTY = {"small": 0.0, "large": 0.0}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
GPUS = "3,7"  # not what their ids are


class Site(NamedTuple):
    cluster: Cluster
    driver: Driver


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    for name in THREAD_VARIABLES:
        assert name not in os.environ, "the tests tell what a node sets by itself"
    with Cluster(tmp_path_factory.mktemp("placement")) as cluster:
        cluster.start_master()
        cluster.start_node("small", "--cpus", "2", "--labels", "size=small", environ={"CUDA_VISIBLE_DEVICES": ""})
        large = ["--cpus", "4", "--labels", "size=large", "--labels", "disk=fast"]
        cluster.start_node("large", *large, environ={"CUDA_VISIBLE_DEVICES": GPUS})
        driver = cluster.start_driver()
        for size in ("small", "large"):
            driver.create("first", labels={"size": size})
            driver.do("close", "first")
        yield Site(cluster, driver)


@pytest.fixture
def cluster(site: Site) -> Iterator[Cluster]:
    with site.cluster.one_test():
        yield site.cluster


@pytest.fixture
def driver(site: Site) -> Iterator[Driver]:
    """Without actors, as it must be left."""
    yield site.driver
    site.driver.do("kill_all")
    wait_used(site.driver, **EMPTY)


def test_actors_fill_the_nodes_by_what_they_ask_for(driver: Driver) -> None:
    driver.create("a", num_cpus=2)
    driver.create("b", num_cpus=1.5)
    driver.create("c", num_cpus=2.5)
    driver.create("d", num_cpus=0)
    assert used_cpus(driver.view()) == {"small": 2, "large": 4}
    driver.do("close", "b")
    wait_used(driver, small=2, large=2.5)


def test_an_actor_without_room_says_so_and_starts_when_there_is_some(driver: Driver) -> None:
    for i in range(6):
        driver.create(f"probe-{i}")
    num_before = len(driver.errors())
    waiting = driver.start("create", "late", {})
    took_s = until(lambda: len(driver.errors()) > num_before)
    assert 2.5 < took_s < 4
    (name,) = (each.name for each in driver.view().waiting)
    reason = "needs 1 CPU: 6 of 6 are in use on 2 nodes"
    assert driver.errors()[num_before:] == f"asyncparl: {name} waits: {reason}\n"
    assert [each.reason for each in driver.view().waiting] == [reason]
    driver.do("close", "probe-3")
    waiting.value(within_s=2)
    assert used_cpus(driver.view()) == {"small": 2, "large": 4}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_cpus": 64}, "needs 64 CPUs; the node with the most has 4 (large)"),
        ({"num_gpus": 3}, "needs 3 GPUs; the node with the most has 2 (large)"),
        ({"labels": {"disk": "slow"}}, "no node has the label disk=slow"),
        ({"labels": {"size": "small", "disk": "fast"}}, "no node has all of the labels disk=fast and size=small"),
        ({"num_gpus": 1, "labels": {"size": "small"}}, "needs 1 GPU and the label size=small"),
    ],
)
def test_what_no_node_can_have_is_refused_and_named(driver: Driver, options: dict[str, object], reason: str) -> None:
    failure = driver.start("create", "probe", options).failure(within_s=8)
    assert failure.type == "ResourceError"
    assert reason in failure.text
    assert used_cpus(driver.view()) == EMPTY


def test_labels_choose_the_node(driver: Driver) -> None:
    for i, size in enumerate(("large", "small", "large")):
        driver.create(f"probe-{i}", labels={"size": size})
    assert used_cpus(driver.view()) == {"small": 1, "large": 2}


@pytest.mark.parametrize(("placement", "num_actors"), [("spread", [1, 1]), ("pack", [2, 0])])
def test_actors_are_packed_or_spread(cluster: Cluster, driver: Driver, placement: str, num_actors: list[int]) -> None:
    nodes = [cluster.start_node(name, "--cpus", "2", "--labels", "pair=yes") for name in ("left", "right")]
    for i in range(2):
        driver.create(f"probe-{i}", placement=placement, labels={"pair": "yes"})
    view = driver.view()
    assert [node_of(view, name).num_actors for name in ("left", "right")] == num_actors
    assert [node.end() for node in nodes] == [0, 0]


def test_actors_see_their_gpus_only(driver: Driver) -> None:
    seen = {}
    for name, num_gpus in [("half", 0.5), ("other half", 0.5), ("whole", 1), ("none", 0)]:
        driver.create(name, num_gpus=num_gpus, labels={"size": "large"})
        seen[name] = driver.do("call", name, "environ")["CUDA_VISIBLE_DEVICES"]
    assert seen == {"half": "3", "other half": "3", "whole": "7", "none": ""}
    assert node_of(driver.view(), "large").used_gpus == [1, 1]
    for name in ("half", "whole"):
        driver.do("kill", name)
    driver.create("next", num_gpus=1, labels={"size": "large"})
    assert driver.do("call", "next", "environ")["CUDA_VISIBLE_DEVICES"] == "7"


def test_an_actor_without_gpus_goes_where_there_are_none(driver: Driver) -> None:
    driver.create("probe")
    assert driver.do("call", "probe", "environ")["CUDA_VISIBLE_DEVICES"] == ""
    assert used_cpus(driver.view()) == {"small": 1, "large": 0}


@pytest.mark.parametrize(("num_cpus", "num_threads"), [(0, "1"), (0.5, "1"), (1, "1"), (2.5, "2"), (4, "4")])
def test_libraries_start_as_many_threads_as_the_actor_has_cpus(
    driver: Driver, num_cpus: float, num_threads: str
) -> None:
    driver.create("probe", num_cpus=num_cpus)
    environ = driver.do("call", "probe", "environ")
    assert {environ[name] for name in THREAD_VARIABLES} == {num_threads}


@pytest.mark.parametrize("end", ["closed", "killed", "crashed", "exited", "killed from outside"])
def test_what_an_actor_had_is_free_as_soon_as_its_end_is_known(driver: Driver, end: str) -> None:
    pid = driver.create("probe", num_cpus=2, num_gpus=1)["pid"]
    match end:
        case "closed" | "killed":
            driver.do(end.removesuffix("ed").replace("clos", "close"), "probe")
        case "crashed":
            driver.start("call", "probe", "shoot", "").failure()
        case "exited":
            assert driver.start("call", "probe", "leave", 3).failure().more["exit_code"] == 3
        case _:
            call = driver.start("call", "probe", "sleep", 600)
            os.kill(pid, signal.SIGKILL)
            call.failure()
    wait_used(driver, **EMPTY)
    view = driver.view()
    assert view.actors == []
    assert node_of(view, "large").used_gpus == [0, 0]


def test_an_actor_whose_constructor_fails_keeps_nothing(driver: Driver) -> None:
    failure = driver.start("create", "probe", {"num_cpus": 4}, "no such game").failure()
    assert (failure.type, failure.text) == ("ValueError", "no such game")
    wait_used(driver, **EMPTY)


def test_an_actor_that_is_killed_before_it_has_started_keeps_nothing(driver: Driver) -> None:
    for i in range(10):
        reply = driver.start("create", f"probe-{i}", {"num_cpus": 4})
        # There is no process that could take its time.
        driver.do("kill", f"probe-{i}", within_s=1)
        assert reply.failure().type == "ActorDied"
    wait_used(driver, **EMPTY)


def test_an_actor_that_is_killed_while_it_waits_keeps_no_turn(driver: Driver) -> None:
    driver.create("first", num_cpus=4)
    waiting = driver.start("create", "waiting", {"num_cpus": 4})
    until(lambda: bool(driver.view().waiting))
    driver.do("kill", "waiting")
    assert waiting.failure().type == "ActorDied"
    assert driver.view().waiting == []
    driver.do("kill", "first")
    wait_used(driver, **EMPTY)


def test_two_programs_share_the_cpus(cluster: Cluster, driver: Driver) -> None:
    other = cluster.start_driver()
    driver.create("probe", num_cpus=4)
    other.create("probe", num_cpus=2)
    waiting = other.start("create", "late", {"num_cpus": 3})
    until(lambda: bool(other.view().waiting))
    assert Counter(actor.driver_id for actor in other.view().actors).most_common(1)[0][1] == 1
    driver.do("close", "probe")
    waiting.value(within_s=2)
    assert other.leave() == 0
