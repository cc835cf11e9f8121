"""Nodes come and go under a program that trains: it gets every item once, whoever dies."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from asyncparl.protocol.cluster_view import NodeSummary
from tests.cluster.clusters import Cluster
from tests.cluster.processes import Driver, until

NUM_SLOTS, NUM_ITEMS = 3, 200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        cluster.start_master()
        yield cluster


def test_a_program_replaces_the_actors_of_a_node_that_dies_by_those_of_one_that_joins(cluster: Cluster) -> None:
    nodes = [cluster.start_node(f"node-{i}", "--cpus", "1") for i in range(NUM_SLOTS)]
    driver = cluster.start_driver()
    training = driver.start("train", NUM_SLOTS, NUM_ITEMS)
    driver.do("wait_trained", 60)
    nodes[1].send(signal.SIGKILL)
    driver.wait_written("died")
    cluster.start_node("late", "--cpus", "1")
    received = training.value()
    lives = [len(slot) for slot in received]
    assert sorted(lives) == [1, 1, 2]
    for slot in received:
        # The numbers of each actor begin with 0; there is no gap and nothing twice.
        assert all(items == list(range(len(items))) for items in slot)
        assert len(list(chain.from_iterable(slot))) == NUM_ITEMS
    until(lambda: not any(node.used_cpus for node in ready_nodes(driver)), within_s=1)
    assert {node.name for node in ready_nodes(driver)} == {"node-0", "node-2", "late"}
    assert driver.leave() == 0


def ready_nodes(driver: Driver) -> list[NodeSummary]:
    return [node for node in driver.view().nodes if node.state == "ready"]
