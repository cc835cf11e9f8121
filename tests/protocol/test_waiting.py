"""Whose turn it is when places are scarce, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from asyncparl.protocol.resources import Demand, Need
from asyncparl.protocol.waiting import WaitingDemand, WaitingQueue
from tests.protocol.masters import Cluster, info


def fill(cluster: Cluster, num_actors: int) -> None:
    for number in range(num_actors):
        assert cluster.want(f"x{number}") == "n1"
        cluster.actors.lease_started("n1", f"x{number}")


def test_equal_demands_are_served_in_the_order_of_arrival() -> None:
    cluster = Cluster(info("n1", 2))
    fill(cluster, 2)
    for number in range(4):
        assert cluster.want(f"a{number}") == "waits"
    cluster.actors.lease_ended("n1", "x0")
    cluster.actors.lease_ended("n1", "x1")
    assert cluster.want("a4") == "waits"  # it asks while there is room, but is not the first
    assert cluster.granted() == ["a0 on n1", "a1 on n1"]
    assert cluster.waiting() == ["a2", "a3", "a4"]


def test_a_large_demand_is_overtaken_for_ten_seconds_only() -> None:
    cluster = Cluster(info("n1", 4), info("n2", 1))
    assert cluster.want("y") == "n2"
    fill(cluster, 4)
    assert cluster.want("big", cpus=4) == "waits"
    cluster.actors.lease_ended("n1", "x0")
    assert cluster.want("small1") == "n1"
    cluster.wait(9)
    cluster.actors.lease_ended("n1", "x1")
    assert cluster.want("small2") == "n1"
    cluster.wait(1)
    cluster.actors.lease_ended("n1", "x2")
    assert [cluster.want("small3"), cluster.want("small4", cpus=0)] == ["waits", "n2"]
    reason = "needs 1 CPU: what is free is kept for others that have waited longer"
    assert cluster.actors.why_waiting("small3") == reason
    for actor_id in ("small1", "x3"):
        cluster.actors.lease_ended("n1", actor_id)
        assert cluster.granted() == []
    cluster.actors.lease_ended("n2", "y")  # where the big one could never go
    assert cluster.granted() == ["small3 on n2"]
    cluster.actors.lease_ended("n1", "small2")
    assert cluster.granted() == ["big on n1"]


def test_who_waits_for_a_gpu_does_not_keep_others_from_cpus() -> None:
    cluster = Cluster(info("n1", 4, num_gpus=1))
    assert [cluster.want("a1", gpus=1), cluster.want("a2", gpus=1)] == ["n1", "waits"]
    cluster.wait(10)
    # One of the three free CPUs is kept for a2.
    assert [cluster.want("b1"), cluster.want("b2"), cluster.want("b3")] == ["n1", "n1", "waits"]
    cluster.actors.lease_ended("n1", "a1")
    assert cluster.granted() == ["a2 on n1", "b3 on n1"]


def test_a_withdrawn_demand_keeps_nobody_waiting() -> None:
    cluster = Cluster(info("n1", 4))
    fill(cluster, 3)
    assert cluster.want("big", cpus=4) == "waits"
    cluster.wait(10)
    assert cluster.want("small") == "waits"
    cluster.actors.withdraw("big")
    assert cluster.granted() == ["small on n1"]


def test_a_large_demand_is_served_however_many_small_ones_keep_coming() -> None:
    cluster = Cluster(info("n1", 4))
    fill(cluster, 4)
    running = [f"x{number}" for number in range(4)]
    assert cluster.want("big", cpus=4) == "waits"
    for second in range(30):  # each small one runs for four seconds, and another is always there
        cluster.want(f"small{second}")
        cluster.actors.lease_ended("n1", running.pop(0))
        granted = [grant.split()[0] for grant in cluster.granted()]
        if "big" in granted:
            assert second == 13  # patience ends after ten seconds, and four end within four
            return
        running += granted
        cluster.wait(1)
    pytest.fail("the large demand was starved")


def test_who_did_not_fit_is_not_tried_again_until_something_is_free() -> None:
    queue = WaitingQueue()
    for number in range(6):
        queue.add(f"a{number}", "", "d1", Demand(1 + number % 2), now=0.0)
    tried: list[str] = []

    def refuse(waiting: WaitingDemand, first: Sequence[Need]) -> bool:
        tried.append(waiting.actor_id)
        return False

    for _ in range(3):
        queue.place(refuse, now=1.0)
    assert tried == ["a0", "a1"]  # the oldest of each shape, once
    queue.something_is_free()
    queue.place(refuse, now=1.0)
    assert tried[2:] == ["a0", "a1"]
    queue.remove("a0")
    queue.place(refuse, now=1.0)
    assert tried[4:] == ["a1", "a2"]
    queue.add("b", "", "d1", Demand(5), now=1.0)
    queue.place(refuse, now=1.0)
    assert tried[6:] == ["b"]
    assert [waiting.actor_id for waiting in queue] == ["a1", "a2", "a3", "a4", "a5", "b"] and len(queue) == 6


def test_many_of_one_shape_are_placed_in_one_pass() -> None:
    cluster = Cluster(info("n1", 5))
    fill(cluster, 5)
    assert [cluster.want(f"a{number}") for number in range(5)] == ["waits"] * 5
    for number in range(5):
        cluster.actors.lease_ended("n1", f"x{number}")
    assert cluster.granted() == [f"a{number} on n1" for number in range(5)]
