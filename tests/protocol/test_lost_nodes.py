"""Nodes that are away, as the master sees them: what they had, what they still may start, and who they are later."""

from __future__ import annotations

import pytest

from asyncparl.protocol.decisions import NodeJoined, NodeLost, Refused
from tests.protocol.masters import Cluster, info, lease


def test_a_disconnected_node_gets_nothing_and_has_five_seconds_to_come_back() -> None:
    cluster = Cluster(info())
    assert cluster.want("a1") == "n1"
    cluster.wait(3)
    cluster.node_disconnected("n1", 1, cluster.now)
    assert [node.state for node in cluster.view().nodes] == ["disconnected"]
    assert cluster.want("a2") == "waits"
    assert cluster.actors.why_waiting("a2") == "only name of n1 could hold it, and is not connected now"
    assert cluster.wait(4) == []
    assert cluster.join_node(info(), 2, [], cluster.now) == NodeJoined("name of n1", unwanted=[])
    assert cluster.granted() == ["a2 on n1"]
    assert cluster.wait(9) == []


def test_a_disconnected_node_that_does_not_come_back_is_lost() -> None:
    cluster = Cluster(info())
    cluster.node_disconnected("n1", 1, cluster.now)
    assert cluster.wait(4) == []
    reason = "its connection broke, and it did not come back within 5 s"
    assert cluster.wait(1) == [NodeLost("n1", "name of n1", reason)]


def test_the_end_of_an_older_connection_is_no_news() -> None:
    cluster = Cluster(info())
    assert cluster.join_node(info(), 3, [], 100.0) == NodeJoined("name of n1", unwanted=[])
    cluster.node_disconnected("n1", 1, 100.0)
    assert cluster.want("a1") == "n1"


@pytest.mark.parametrize("incarnation", [0, 1])
def test_an_older_incarnation_is_refused(incarnation: int) -> None:
    cluster = Cluster(info())
    before = cluster.view()
    reason = f"node n1 has joined as incarnation 1; this is {incarnation}"
    assert cluster.join_node(info(), incarnation, [], 100.0) == Refused(reason)
    assert cluster.view() == before


def test_a_lost_node_comes_back_with_a_higher_incarnation_only() -> None:
    cluster = Cluster(info())
    cluster.silent = {"n1"}
    cluster.wait(5)
    reason = "incarnation 1 of node n1 was declared lost; this is 1"
    assert cluster.join_node(info(), 1, [], cluster.now) == Refused(reason)
    cluster.heard_node("n1", cluster.now)  # nothing of the old one is heard
    assert cluster.actors.lease_started("n1", "a1", lease("a1"))
    assert cluster.view().nodes == [] and cluster.view().actors == []
    joined = cluster.join_node(info(), 2, [lease("a1")], cluster.now)
    assert joined == NodeJoined("name of n1", unwanted=[])
    assert cluster.placed() == {"a1": "started on n1"}


def test_a_place_on_a_node_that_was_lost_and_is_back_is_kept_for_whoever_may_still_start_there() -> None:
    cluster = Cluster(info("n1", 1))
    assert [cluster.want("a1"), cluster.want("a2")] == ["n1", "waits"]
    cluster.silent = {"n1"}
    cluster.wait(5)
    cluster.join_node(info("n1", 1), 2, [], cluster.now)
    assert cluster.granted() == []  # the owner of a1 may not know that its node was lost, and has the lease
    assert cluster.placed() == {"a1": "granted on n1"}
    cluster.silent = set()
    cluster.actors.withdraw("a1")
    assert cluster.granted() == ["a2 on n1"]


def test_nor_is_it_kept_for_longer_than_if_the_node_had_never_been_lost() -> None:
    cluster = Cluster(info("n1", 1))
    assert [cluster.want("a1"), cluster.want("a2")] == ["n1", "waits"]
    cluster.silent = {"n1"}
    cluster.wait(5)
    cluster.silent = set()
    cluster.join_node(info("n1", 1), 2, [], cluster.now)
    cluster.wait(54)  # a1 may have started and ended meanwhile, and its node had nobody to tell that
    assert cluster.granted() == []
    cluster.wait(1)
    assert cluster.granted() == ["a2 on n1"]
