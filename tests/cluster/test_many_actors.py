"""Hundreds of actors on one machine leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.clusters import Cluster
from tests.cluster.processes import Program, until

NUM_ACTORS = 200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        cluster.start_master()
        yield cluster


def test_hundreds_of_actors_come_and_go_without_a_trace(cluster: Cluster) -> None:
    node = cluster.start_node("node")
    cluster.warm_up()
    before = what_is_left(cluster, node)
    driver = cluster.start_driver()
    for _ in range(2):
        start = time.monotonic()
        assert driver.do("make_crowd", NUM_ACTORS, within_s=60) == NUM_ACTORS
        made_s = time.monotonic() - start
        assert what_is_left(cluster, node)["processes"] == before["processes"] + NUM_ACTORS
        start = time.monotonic()
        driver.do("close_crowd", within_s=60)
        print(f"{NUM_ACTORS} actors answered after {made_s:.1f} s, were closed in {time.monotonic() - start:.1f} s")
        until(lambda: driver.view().actors == [], within_s=1)
    assert driver.leave() == 0
    with contextlib.suppress(AssertionError):
        until(lambda: what_is_left(cluster, node) == before, within_s=3)
    fds = Path(f"/proc/{node.pid}/fd")
    print("the node has open:", sorted(os.readlink(fd) for fd in fds.iterdir()))
    assert what_is_left(cluster, node) == before


def what_is_left(cluster: Cluster, node: Program) -> dict[str, int]:
    """Numbers of things that belong to actors."""
    process = psutil.Process(node.pid)
    return {
        "processes": len(process.children(recursive=True)),
        "descriptors": process.num_fds(),
        "sockets": sum(path.is_socket() for path in cluster.temporary.rglob("*")),
        "folders": sum(path.is_dir() for path in cluster.temporary.rglob("*")),
    }
