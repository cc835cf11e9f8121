"""What actors write: to their own program, and to whoever asks for it by `asyncparl logs`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import NamedTuple

import psutil
import pytest

from tests.cluster.clusters import COMMAND, Cluster
from tests.cluster.processes import Driver, Program, until


class Site(NamedTuple):
    cluster: Cluster
    nodes: list[Program]
    driver: Driver


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, list[Program]]]:
    with Cluster(tmp_path_factory.mktemp("logs")) as cluster:
        cluster.start_master()
        nodes = [cluster.start_node(name, "--cpus", "4", "--labels", f"name={name}") for name in ("one", "two")]
        for name in ("one", "two"):
            cluster.warm_up(labels={"name": name})
        yield cluster, nodes


@pytest.fixture
def site(shared_site: tuple[Cluster, list[Program]]) -> Iterator[Site]:
    cluster, nodes = shared_site
    with cluster.one_test():
        yield Site(cluster, nodes, cluster.start_driver())


def ids(driver: Driver) -> dict[str, str]:
    """Of the actors of this program, by their names."""
    return {actor.name: actor.actor_id for actor in driver.view().actors}


def test_output_reaches_its_own_program_only(site: Site) -> None:
    other = site.cluster.start_driver()
    for driver, text in [(site.driver, "for the first"), (other, "for the second")]:
        for name in ("one", "two"):
            driver.create(name, labels={"name": name})
            driver.do("call", name, "say", f"{text}, on {name}")
    for driver, text in [(site.driver, "for the first"), (other, "for the second")]:
        for number, name in enumerate(("one", "two"), 1):
            driver.wait_written(f"[Probe#{number}] {text}, on {name}")
        assert driver.leave() == 0
        assert sum(line.startswith("[") for line in driver.lines) == 2


def test_logs_are_read_by_name_and_by_id(site: Site) -> None:
    site.driver.create("a", labels={"name": "one"})
    site.driver.create("b", labels={"name": "two"})
    for name in ("a", "b"):
        site.driver.do("call", name, "say", f"line 1 of {name}\nline 2 of {name}")
        site.driver.wait_written(f"line 2 of {name}")
    for actor in ("Probe#2", ids(site.driver)["Probe#2"]):
        done = site.cluster.asyncparl("logs", actor)
        assert (done.stdout, done.stderr, done.returncode) == ("line 1 of b\nline 2 of b\n", "", 0)
    assert site.cluster.asyncparl("logs", "Probe#1", "-n", "1").stdout == "line 2 of a\n"


def test_an_actor_that_has_a_name_of_its_own_is_listed_and_found_by_it(site: Site) -> None:
    site.driver.create("a", name="critic")
    site.driver.do("call", "a", "say", "a line")
    site.driver.wait_written("a line")
    assert site.cluster.asyncparl("logs", "critic").stdout == "a line\n"
    for command in ("logs", "actors"):
        assert any(line.startswith("Probe#1 (critic) ") for line in site.cluster.asyncparl(command).stdout.splitlines())


def test_all_logs_are_listed(site: Site) -> None:
    site.driver.create("a", labels={"name": "two"})
    (actor_id,) = ids(site.driver).values()
    lines = [line.split() for line in site.cluster.asyncparl("logs").stdout.splitlines()]
    assert lines[0] == ["ACTOR", "ID", "STATE", "NODE", "BYTES"]
    assert ["Probe#1", actor_id, "running", "two", "0"] in lines


def test_following_ends_with_the_actor(site: Site) -> None:
    site.driver.create("a")
    site.driver.do("call", "a", "say", "before")
    site.driver.wait_written("before")
    follower = site.cluster.start([*COMMAND, "logs", "-f", "Probe#1", "--master", site.cluster.address])
    assert follower.read_line() == "before"
    site.driver.do("call", "a", "say", "meanwhile")
    assert follower.read_line(within_s=1) == "meanwhile"
    site.driver.start("call", "a", "shoot", "last words").failure()
    assert follower.read_line(within_s=1) == "last words"
    assert follower.wait(within_s=2) == 0
    assert follower.errors() == ""


def test_logs_outlive_their_actor_and_its_program(site: Site) -> None:
    site.driver.create("a")
    (actor_id,) = ids(site.driver).values()
    site.driver.start("call", "a", "shoot", "last words").failure()
    assert site.driver.leave() == 0
    assert site.cluster.asyncparl("logs", actor_id).stdout == "last words\n"
    # There is nothing to wait for.
    assert site.cluster.asyncparl("logs", "-f", actor_id).stdout == "last words\n"


def test_a_name_that_several_actors_have_is_refused_with_their_ids(site: Site) -> None:
    other = site.cluster.start_driver()
    for driver in (site.driver, other):
        driver.create("a")
    actor_ids = {actor.actor_id for actor in site.driver.view().actors}
    assert len(actor_ids) == 2
    done = site.cluster.asyncparl("logs", "Probe#1")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
    assert all(actor_id in done.stderr for actor_id in actor_ids)
    for actor_id in actor_ids:
        assert site.cluster.asyncparl("logs", actor_id).returncode == 0


def test_an_actor_that_runs_is_preferred_to_those_of_the_same_name_that_have_ended(site: Site) -> None:
    site.driver.create("a")
    site.driver.do("call", "a", "say", "of the one that runs")
    site.driver.wait_written("of the one that runs")
    assert site.cluster.asyncparl("logs", "Probe#1").stdout == "of the one that runs\n"


def test_a_name_that_nobody_has_is_refused(site: Site) -> None:
    done = site.cluster.asyncparl("logs", "Nobody#1")
    assert (done.returncode, done.stderr) == (1, "error: no actor 'Nobody#1'; `asyncparl logs` lists them\n")


def test_one_who_stops_following_leaves_nothing_open_at_the_node(site: Site) -> None:
    site.driver.create("a", labels={"name": "one"})
    followers = [
        site.cluster.start([*COMMAND, "logs", "-f", "Probe#1", "--master", site.cluster.address]) for _ in range(3)
    ]
    site.driver.do("call", "a", "say", "something")
    for follower in followers:
        follower.wait_line("something")
    assert len(open_logs(site.nodes[0])) == 3
    for follower in followers:
        follower.end(signal.SIGKILL)
    site.driver.do("call", "a", "say", "something else")
    until(lambda: not open_logs(site.nodes[0]), within_s=3)


def open_logs(node: Program) -> list[str]:
    """The files of logs that a node has open."""
    return [file.path for file in psutil.Process(node.pid).open_files() if file.path.endswith(".log")]
