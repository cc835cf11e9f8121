"""Objects that are offered from other hosts, by programs that come and go as they like."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.clusters import PYTHON, Cluster, skip_without_hosts
from tests.cluster.processes import PATIENCE_S, PROGRAMS, Driver, Program
from tests.hosts import Host, Network

PORT = 8037


class Site(NamedTuple):
    cluster: Cluster
    manager: Host
    agents: list[Host]
    secret: Path


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    skip_without_hosts()
    folder = tmp_path_factory.mktemp("manager")
    with Network() as network, Cluster(folder) as cluster:
        hosts = [network.host("manager"), network.host("open"), network.host("hidden", nat=True)]
        yield Site(cluster, hosts[0], hosts[1:], new_secret(folder / "secret"))


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    with shared_site.cluster.one_test():
        yield shared_site


def new_secret(path: Path) -> Path:
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path


def start_agent(site: Site, name: str, host: int = 0, secret: Path | None = None) -> Program:
    address = f"{site.manager.ipv4}:{PORT}"
    command = [*PYTHON, str(PROGRAMS / "agent.py"), name, address, str(secret or site.secret)]
    return site.cluster.start(command, site.agents[host])


def start_manager(site: Site, secret: Path | None = None) -> Driver:
    """A driver whose actors are those that are offered."""
    options = {"listen": f"0.0.0.0:{PORT}", "secret_file": str(secret or site.secret)}
    driver = Driver(options, site.manager, site.cluster.new_log(), env=site.cluster.environ())
    site.cluster.add(driver)
    driver.wait_line('@"ready"')
    return driver


def test_an_object_can_be_offered_before_there_is_a_manager(site: Site) -> None:
    agent = start_agent(site, "early")
    agent.wait_errors(f"asyncparl: waiting for a RemoteManager at {site.manager.ipv4}:{PORT}", within_s=8)
    manager = start_manager(site)
    assert "Agent#1 offered by" in manager.do("take", "early")
    assert manager.do("get", "early", "name") == "early"
    assert manager.leave() == 0
    assert agent.wait() == 0
    assert agent.lines == ["let go"]


def test_offered_objects_work_like_actors_wherever_they_are(site: Site) -> None:
    manager = start_manager(site)
    start_agent(site, "open", 0)
    start_agent(site, "hidden", 1)
    names = [take(manager, name) for name in ("a", "b")]
    assert sorted(names) == ["hidden", "open"]
    for name in ("a", "b"):
        assert [manager.do("call", name, "add", number) for number in (1, 2)] == [1, 3]
        assert manager.do("call", name, "double", 21) == 42
        assert manager.do("stream", name, 100) == list(range(100))
        failure = manager.start("call", name, "fail").failure()
        assert failure.type == "LookupError" and failure.text in repr(names)


def test_each_object_lives_and_dies_for_itself(site: Site) -> None:
    manager = start_manager(site)
    agents = {}
    for name in ("killed", "withdrawn", "let go", "left"):
        agents[name] = start_agent(site, name)
        take(manager, name)
    streams = {name: manager.start("collect", name, "forever") for name in agents}
    for name in agents:
        manager.do("wait_for", name, 3)

    start = agents["killed"].send(signal.SIGKILL)
    failure = streams["killed"].failure(within_s=2)
    assert failure.type == "ActorDied" and failure.more["actor"] == "Agent#1"
    assert streams["killed"].at() - start < 1
    agents["killed"].wait()

    agents["withdrawn"].close_input()
    failure = streams["withdrawn"].failure(within_s=2)
    assert failure.type == "ActorDied" and "it was withdrawn" in failure.text
    assert agents["withdrawn"].wait() == 0
    assert agents["withdrawn"].lines == ["withdraws"]

    manager.do("close", "let go")
    assert streams["let go"].failure().type == "ActorDied"
    assert agents["let go"].wait() == 0
    assert agents["let go"].lines == ["let go"]

    assert manager.do("call", "left", "add", 1) == 1
    assert manager.leave() == 0
    assert agents["left"].wait() == 0
    assert agents["left"].lines == ["let go"]


def test_an_object_is_offered_again_to_the_next_manager_if_the_first_is_killed(site: Site) -> None:
    manager = start_manager(site)
    start_agent(site, "patient")
    take(manager, "a")
    assert manager.do("call", "a", "add", 5) == 5
    manager.end(signal.SIGKILL)
    manager = start_manager(site)
    assert take(manager, "a") == "patient"
    assert manager.do("call", "a", "add", 1) == 6


def test_one_with_another_secret_is_refused(site: Site, tmp_path: Path) -> None:
    manager = start_manager(site)
    agent = start_agent(site, "stranger", secret=new_secret(tmp_path / "secret"))
    assert agent.wait() == 1
    assert "asyncparl.errors.AuthenticationError: " in agent.errors()
    assert "the secret is not the one of that cluster" in agent.errors()
    start_agent(site, "friend")
    assert take(manager, "a") == "friend"


def take(manager: Driver, name: str) -> str:
    """The next object; the name that it has over there."""
    manager.do("take", name, within_s=PATIENCE_S)
    return str(manager.do("get", name, "name"))
