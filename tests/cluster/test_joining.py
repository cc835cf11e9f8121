"""How nodes and programs find a cluster, over IPv4, over IPv6 and by name, and what is seen of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.cluster.clusters import COMMAND, Cluster, skip_without_hosts, used_cpus
from tests.hosts import Host, Network


class Site(NamedTuple):
    cluster: Cluster
    master: Host
    far: Host


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    skip_without_hosts()
    with Network() as network, Cluster(tmp_path_factory.mktemp("joining")) as cluster:
        site = Site(cluster, network.host("master"), network.host("far"))
        cluster.start_master(site.master)
        yield site


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    with shared_site.cluster.one_test():
        yield shared_site


@pytest.mark.parametrize("way", ["ipv4", "ipv6", "name"])
def test_nodes_and_programs_join_by_any_address(site: Site, way: str) -> None:
    cluster, master, far = site
    address = {"ipv4": f"{master.ipv4}:8010", "ipv6": f"[{master.ipv6}]:8010", "name": "localhost:8010"}[way]
    # There is no name service between the hosts.
    host = master if way == "name" else far
    node = cluster.start_node(f"by-{way}", "--cpus", "3", "--labels", f"way={way}", host=host, master=address)
    driver = cluster.start_driver(host, address=address)
    driver.create("probe", labels={"way": way})
    assert used_cpus(driver.view()) == {f"by-{way}": 1}
    status = cluster.asyncparl("status", "--json", host=far)
    assert status.returncode == 0, status.stderr
    view = json.loads(status.stdout)["view"]
    assert [(each["name"], each["state"], each["total_cpus"], each["used_cpus"]) for each in view["nodes"]] == [
        (f"by-{way}", "ready", 3, 1)
    ]
    assert driver.leave() == 0
    assert node.end() == 0


def test_nodes_of_the_same_name_get_different_ones(site: Site) -> None:
    nodes = [site.cluster.start_node("twin", host=site.far) for _ in range(2)]
    assert "'twin-2'" in nodes[1].lines[-1]
    status = site.cluster.asyncparl("status", host=site.master).stdout
    assert [line.split()[0] for line in status.splitlines()[2:]] == ["twin", "twin-2"]
    assert [node.end() for node in nodes] == [0, 0]


def test_status_fails_in_one_line_where_no_master_answers(site: Site) -> None:
    status = site.cluster.run([*COMMAND, "status", "--master", f"{site.far.ipv4}:8010"], site.far)
    assert status.returncode == 1
    assert status.stderr.startswith("error: ") and len(status.stderr.splitlines()) == 1
