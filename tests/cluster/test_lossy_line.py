"""A line that loses a third of all packets, more than TCP can hide: nothing hangs, and nothing is lost for good."""

from __future__ import annotations

import time
from itertools import chain
from pathlib import Path

import pytest

from tests.cluster.clusters import Cluster, skip_without_hosts
from tests.cluster.processes import Program, until
from tests.hosts import Host, Network

LOSS, DELAY_S = 0.3, 0.1
NUM_SLOTS, NUM_ITEMS = 2, 20
LIMIT_S = 240.0


@pytest.mark.slow
def test_actors_that_a_very_bad_line_costs_are_replaced_and_every_item_comes_once(tmp_path: Path) -> None:
    """Now and then the node is silent for too long, or cannot be dialed in time."""
    skip_without_hosts()
    with Network() as network, Cluster(tmp_path) as cluster:
        master, bad = network.host("master"), network.host("bad", loss=LOSS, delay_s=DELAY_S)
        cluster.start_master(master)
        driver = cluster.start_driver(master)
        start = time.monotonic()
        training = driver.start("train", NUM_SLOTS, NUM_ITEMS)
        start_until_joined(cluster, bad)
        joined = time.monotonic()
        received = training.value(LIMIT_S)
        print(f"joined after {joined - start:.1f} s, {NUM_ITEMS} items each after {time.monotonic() - joined:.1f} s;")
        print("\n".join(line for line in driver.lines if not line.startswith("@")))
        for slot in received:
            assert all(items == list(range(len(items))) for items in slot)
            assert len(list(chain.from_iterable(slot))) == NUM_ITEMS
        assert driver.leave() == 0


def start_until_joined(cluster: Cluster, host: Host) -> None:
    """A node gives up when it has not joined within 15 s, which happens there; a process manager starts it again."""
    for _ in range(5):
        node = cluster.start_node("bad", "--cpus", str(NUM_SLOTS), host=host, waits=False)
        until(lambda: has_joined(node) or node.process.poll() is not None)  # noqa: B023
        if has_joined(node):
            return
    raise AssertionError(node.errors())


def has_joined(node: Program) -> bool:
    node.read_lines()
    return any("has joined" in line for line in node.lines)
