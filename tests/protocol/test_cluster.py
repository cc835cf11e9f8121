"""The master's decisions, one situation after another, with the values written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from asyncparl.protocol.cluster import ClusterCore
from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.protocol.decisions import (
    DemandRefused,
    DriverGone,
    DriverJoined,
    Ended,
    Granted,
    NodeJoined,
    NodeLost,
    Refused,
)
from asyncparl.protocol.nodes import MAX_REMEMBERED, NODE_MOVES, NodeState
from asyncparl.protocol.parties import Versions, version_fault
from asyncparl.protocol.resources import Capacity, Demand, Lease
from tests.protocol.masters import INF, Cluster, info, lease

# --- nodes ------------------------------------------------------------------------------------------------------


def test_the_moves_of_a_node() -> None:
    ready, draining, lost, gone = NodeState.READY, NodeState.DRAINING, NodeState.LOST, NodeState.GONE
    expected = {
        (ready, "join"): ready,
        (ready, "drain"): draining,
        (ready, "leave"): gone,
        (ready, "lost"): lost,
        (draining, "join"): draining,
        (draining, "drain"): draining,
        (draining, "leave"): gone,
        (draining, "lost"): lost,
        (lost, "join"): ready,
    }
    assert expected == NODE_MOVES


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"versions": Versions("0.3.1", "3.12.4")}, "it runs asyncparl 0.3.1, but this cluster runs 0.3.0"),
        ({"versions": Versions("0.3.0", "3.11.4")}, "it runs Python 3.11.4, but this cluster runs 3.12"),
        ({"capacity": Capacity(-1)}, "cpus is -1: it must be 0 or more"),
        ({"node_id": ""}, "the id of a node must have 1 to 64 letters, digits, dashes and underscores, not ''"),
        ({"node_id": "é"}, "the id of a node must have 1 to 64 letters, digits, dashes and underscores, not 'é'"),
    ],
)
def test_a_node_that_cannot_take_part_is_told_why(changes: dict[str, Any], reason: str) -> None:
    cluster = Cluster()
    assert cluster.join_node(msgspec.structs.replace(info(), **changes), 1, [], 100.0) == Refused(reason)
    assert cluster.view().nodes == []


@pytest.mark.parametrize("versions", [Versions("0.3.0", "3.12.9"), Versions("0.3.0", "3.12.4+", "2.0")])
def test_another_patch_of_python_or_another_minor_version_of_numpy_is_fine(versions: Versions) -> None:
    joined = Cluster().join_node(msgspec.structs.replace(info(), versions=versions), 1, [], 100.0)
    assert joined == NodeJoined("name of n1", unwanted=[])


def test_a_node_that_reports_an_impossible_lease_is_refused() -> None:
    reason = "the lease of name of a1 is for node n2"
    assert Cluster().join_node(info(), 1, [lease("a1", "n2")], 100.0) == Refused(reason)


def test_names_are_made_unique_and_kept() -> None:
    cluster = Cluster(info("n1", name="gpu-1"), info("n2", name="gpu-1"), info("n3", name="gpu-1"), info("n4"))
    names = ["gpu-1", "gpu-1-2", "gpu-1-3", "name of n4"]
    assert [node.name for node in cluster.view().nodes] == names
    cluster.leave_node("n1")
    joined = cluster.join_node(info("n2", name="gpu-1"), 2, [], 100.0)
    assert isinstance(joined, NodeJoined) and joined.name == "gpu-1-2"
    joined = cluster.join_node(info("n3", name="gpu-1-2"), 2, [], 100.0)
    assert isinstance(joined, NodeJoined) and joined.name == "gpu-1-2-2"
    found = cluster.node_info("n2")
    assert found == msgspec.structs.replace(info("n2"), name="gpu-1-2")
    assert cluster.node_info("n1") is None


def test_a_silent_node_is_lost_after_five_seconds_with_its_actors() -> None:
    cluster = Cluster(info("n1", 2), info("n2", 2))
    assert [cluster.want(f"a{i}", strategy="spread") for i in range(3)] == ["n1", "n2", "n1"]
    cluster.actors.lease_started("n1", "a0")
    cluster.silent = {"n1"}
    assert cluster.wait(4) == []
    assert cluster.placed() == {"a0": "started on n1", "a1": "granted on n2", "a2": "granted on n1"}
    assert cluster.wait(1) == [NodeLost("n1", "name of n1", "nothing was heard of it for 5 s")]
    assert cluster.placed() == {"a1": "granted on n2"}
    assert cluster.used() == {"n2": 1.0}
    assert cluster.wait(5) == []


def test_a_master_that_was_held_up_loses_nobody() -> None:
    cluster = Cluster(info())
    cluster.wait(1)
    cluster.now += 30.0
    assert cluster.tick(cluster.now) == []
    cluster.silent = {"n1"}
    assert cluster.wait(3) == []
    [decision] = cluster.wait(1)
    assert isinstance(decision, NodeLost)


def test_of_an_actor_that_was_refused_others_are_told_why() -> None:
    cluster = Cluster(info("n1", 1))
    reason = cluster.want("a1", cpus=9)
    assert reason.startswith("needs 9 CPUs")
    assert cluster.actors.find("a1") == Ended(f"it was never started: {reason}")


def test_what_a_node_reports_replaces_what_was_believed() -> None:
    cluster = Cluster(info())
    assert [cluster.want(f"a{i}") for i in range(4)] == ["n1"] * 4
    for actor_id in ("a0", "a1"):
        cluster.actors.lease_started("n1", actor_id)
    joined = cluster.join_node(info(), 2, [lease("a1"), lease("a2"), lease("old", driver_id="d0")], 101.0)
    assert isinstance(joined, NodeJoined)
    states = {"a1": "started on n1", "a2": "started on n1", "a3": "granted on n1", "old": "started on n1"}
    assert cluster.placed() == states
    assert cluster.used() == {"n1": 4.0}


def test_a_granted_actor_that_the_node_can_no_longer_hold_is_over() -> None:
    cluster = Cluster(info(num_gpus=2))
    assert cluster.want("a1", gpus=2) == cluster.want("a2") == "n1"
    assert cluster.placed() == {"a1": "granted on n1", "a2": "granted on n1"}
    assert isinstance(cluster.join_node(info(num_gpus=1), 2, [], 100.0), NodeJoined)
    assert cluster.placed() == {"a2": "granted on n1"}


def test_a_restarted_master_learns_of_leases_and_may_be_over_booked() -> None:
    cluster = Cluster(info("n1", 2))
    assert cluster.want("a9") == "n1"
    leases = [lease("a1"), lease("a2")]
    cluster.join_node(info("n1", 2), 2, leases, 100.0)
    assert cluster.used() == {"n1": 3.0}
    assert cluster.want("a3") == "waits"
    assert cluster.want("a4", cpus=0) == "n1"
    cluster.actors.lease_ended("n1", "a1")
    assert cluster.granted() == []
    cluster.actors.lease_ended("n1", "a2")
    assert cluster.granted() == ["a3 on n1"]


def test_a_driver_that_asks_a_restarted_master_again_gets_the_place_that_it_had() -> None:
    cluster = Cluster(info("n1", 1), info("n2", 1))
    assert [cluster.want("x"), cluster.want("y"), cluster.want("a1")] == ["n1", "n2", "waits"]
    cluster.join_node(info("n3", 1), 1, [lease("a1", "n3")], 100.0)
    assert cluster.granted() == ["a1 on n3"]
    assert cluster.want("a1") == "n3"
    assert cluster.granted() == []


def test_an_actor_that_has_another_place_must_end() -> None:
    cluster = Cluster(info("n1"), info("n2"))
    assert cluster.want("a1") == "n1"
    joined = cluster.join_node(info("n2"), 2, [lease("a1", "n2"), lease("a2", "n2")], 100.0)
    assert isinstance(joined, NodeJoined) and joined.unwanted == [lease("a1", "n2")]
    assert not cluster.actors.lease_started("n2", "a1", lease("a1", "n2"))
    cluster.actors.lease_ended("n2", "a1")  # which ends nothing on n1
    assert cluster.placed() == {"a1": "granted on n1", "a2": "started on n2"}


def test_a_drained_node_gets_nothing_new_and_keeps_what_it_has_until_it_leaves() -> None:
    cluster = Cluster(info())
    cluster.want("a1")
    cluster.drain_node("n1")
    assert cluster.want("a2") == "waits"
    assert cluster.actors.why_waiting("a2") == "there is no node yet that takes actors"
    cluster.actors.withdraw("a2")
    assert cluster.actors.lease_started("n1", "a1")
    assert cluster.wait(2) == []
    assert isinstance(cluster.join_node(info(), 2, [lease("a1")], cluster.now), NodeJoined)
    assert [node.state for node in cluster.view().nodes] == ["draining"]
    assert cluster.placed() == {"a1": "started on n1"}
    cluster.actors.lease_ended("n1", "a1")
    assert cluster.wait(2) == []
    cluster.leave_node("n1")
    assert cluster.wait(1) == [] and cluster.view().nodes == []


def test_a_node_that_leaves_takes_its_actors_with_it() -> None:
    cluster = Cluster(info("n1"), info("n2"))
    assert [cluster.want("a1", strategy="spread"), cluster.want("a2", strategy="spread")] == ["n1", "n2"]
    for _ in range(2):
        cluster.leave_node("n1")
        assert cluster.placed() == {"a2": "granted on n2"}


def test_lost_nodes_are_remembered_for_an_hour() -> None:
    cluster = Cluster(info())
    cluster.silent = {"n1"}
    cluster.wait(5)
    cluster.now += 3598.0
    cluster.wait(1)
    assert isinstance(cluster.join_node(info(), 1, [], cluster.now), Refused)
    cluster.wait(1)
    assert isinstance(cluster.join_node(info(), 1, [], cluster.now), NodeJoined)


@pytest.mark.slow
def test_at_most_ten_thousand_lost_nodes_are_remembered() -> None:
    cluster = Cluster()
    for number in range(MAX_REMEMBERED + 3):
        cluster.join_node(info(f"n{number}", name=f"n{number}"), 1, [], 100.0)
    for second in range(1, 6):
        cluster.tick(100.0 + second)
    assert cluster.view().nodes == []
    answers = [cluster.join_node(info(f"n{number}"), 1, [], 105.0) for number in range(4)]
    assert [isinstance(answer, NodeJoined) for answer in answers] == [True, True, True, False]


# --- drivers ----------------------------------------------------------------------------------------------------


def test_a_driver_that_comes_back_keeps_its_turn_and_its_places() -> None:
    cluster = Cluster(info("n1", 1))
    assert [cluster.want("a1"), cluster.want("a2")] == ["n1", "waits"]
    cluster.driver_disconnected("d1", cluster.now)
    assert cluster.wait(4) == []
    assert cluster.join_driver("d1", "train.py", cluster.now) == DriverJoined("train.py")
    assert cluster.join_driver("d1", "train.py", cluster.now) == DriverJoined("train.py")
    assert [driver.is_connected for driver in cluster.view().drivers] == [True]
    assert cluster.wait(9) == []
    assert [cluster.want("a1"), cluster.want("a2")] == ["n1", "waits"]


def test_of_a_driver_that_does_not_come_back_only_started_actors_stay() -> None:
    cluster = Cluster(info("n1", 2))
    cluster.join_driver("d2", "train.py", cluster.now)
    assert [cluster.want(actor_id) for actor_id in ("a1", "a2", "a3")] == ["n1", "n1", "waits"]
    assert cluster.want("b1", driver_id="d2") == "waits"
    cluster.actors.lease_started("n1", "a1")
    cluster.driver_disconnected("d1", cluster.now)
    cluster.wait(3)
    cluster.driver_disconnected("d1", cluster.now)  # again: the time goes on
    assert cluster.wait(1) == []
    assert cluster.placed() == {"a1": "started on n1", "a2": "granted on n1"}
    assert cluster.wait(1) == [DriverGone("d1", "train.py")]
    assert cluster.granted() == ["b1 on n1"]
    assert cluster.placed() == {"a1": "started on n1", "b1": "granted on n1"}
    assert [driver.name for driver in cluster.view().drivers] == ["train.py-2"]
    assert cluster.leave_driver("d1") is None
    cluster.actors.lease_ended("n1", "a1")
    assert cluster.used() == {"n1": 1.0}


def test_who_has_not_joined_or_is_another_gets_nothing() -> None:
    cluster = Cluster(info("n1", 1))
    cluster.join_driver("d2", "other", 100.0)
    assert cluster.want("a1", driver_id="d3") == "driver d3 has not joined"
    assert [cluster.want("a1"), cluster.want("a2")] == ["n1", "waits"]
    assert cluster.want("a1", driver_id="d2") == "actor a1 belongs to another driver"
    assert cluster.want("a2", driver_id="d2") == "actor a2 belongs to another driver"
    assert cluster.want("a" * 65).startswith("the id of an actor must have 1 to 64 letters")
    assert isinstance(cluster.join_driver("", "x", 100.0), Refused)


# --- actors -----------------------------------------------------------------------------------------------------


def test_asking_again_changes_nothing() -> None:
    cluster = Cluster(info("n1", 1))
    first = cluster.actors.ask("d1", "a1", "A#1", Demand(), 100.0)
    assert first == Granted(Lease("a1", "A#1", "d1", "n1", Demand(), [], 0.0))
    cluster.want("a2")
    cluster.want("a3")
    before = cluster.view()
    assert cluster.actors.ask("d1", "a1", "other", Demand(99), 100.0) == first
    assert cluster.want("a2", cpus=0) == "waits"
    assert cluster.view() == before
    cluster.actors.lease_started("n1", "a1")
    assert cluster.actors.ask("d1", "a1", "A#1", Demand(), 100.0) == first


def test_the_gpus_of_a_lease() -> None:
    cluster = Cluster(info(num_gpus=2))
    shares = {}
    for actor_id, gpus in (("a1", 0.5), ("a2", 1), ("a3", 0.25), ("a4", 0)):
        answer = cluster.actors.ask("d1", actor_id, "", Demand(gpus=gpus), 100.0)
        assert isinstance(answer, Granted)
        shares[actor_id] = answer.lease.gpu_ids, answer.lease.gpu_share
    assert shares == {"a1": ([0], 0.5), "a2": ([1], 1.0), "a3": ([0], 0.25), "a4": ([], 0.0)}
    assert cluster.view().nodes[0].used_gpus == [0.75, 1.0]


def test_ten_tenths_fill_one_cpu() -> None:
    cluster = Cluster(info("n1", 1))
    assert [cluster.want(f"a{i}", cpus=0.1) for i in range(11)] == ["n1"] * 10 + ["waits"]
    for i in range(10):
        cluster.actors.lease_ended("n1", f"a{i}")
    assert cluster.granted() == ["a10 on n1"]
    cluster.actors.withdraw("a10")
    assert cluster.used() == {"n1": 0.0}


def test_the_private_cluster_makes_nobody_wait() -> None:
    cluster = Cluster(info("n1", INF))
    assert [cluster.want(f"a{i}", cpus=1000) for i in range(3)] == ["n1"] * 3
    [node] = cluster.view().nodes
    assert (node.used_cpus, node.total_cpus) == (3000.0, None)
    assert msgspec.json.decode(msgspec.json.encode(cluster.view()), type=ClusterView) == cluster.view()


@pytest.mark.parametrize(
    ("demand", "reason"),
    [
        ({"cpus": 5}, "needs 5 CPUs; the node with the most has 4 (name of n1)"),
        ({"gpus": 1}, "needs 1 GPU; the node with the most has 0 (name of n1)"),
        ({"labels": {"zone": "b"}}, "no node has the label zone=b"),
        ({"cpus": -1}, "num_cpus is -1: it must be 0 or more"),
        ({"gpus": 1.5}, "num_gpus is 1.5: ask for a whole number of GPUs, or for a part of one"),
    ],
)
def test_what_can_never_be_is_refused_at_once(demand: dict[str, Any], reason: str) -> None:
    cluster = Cluster(info("n1", 4, zone="a"))
    assert cluster.want("a1", **demand) == reason
    assert cluster.waiting() == []


def test_a_new_master_waits_five_seconds_for_nodes() -> None:
    cluster = Cluster(now=1.0)
    assert [cluster.want("a1"), cluster.want("a2", cpus=9)] == ["waits", "waits"]
    assert cluster.actors.why_waiting("a1") == "there is no node yet that takes actors"
    cluster.join_node(info(), 1, [], 2.0)
    assert cluster.granted() == ["a1 on n1"]
    assert cluster.wait(3) == []
    reason = "needs 9 CPUs; the node with the most has 4 (name of n1)"
    assert cluster.want("a3", cpus=9) == "waits"
    assert cluster.wait(1) == [DemandRefused("a2", reason), DemandRefused("a3", reason)]
    assert cluster.want("a4", cpus=9) == reason


def test_where_there_is_no_node_everything_waits_for_the_first_one() -> None:
    cluster = Cluster(info("n1", 4))
    cluster.leave_node("n1")
    assert cluster.wait(100) == []
    assert [cluster.want("a1", cpus=8), cluster.want("a2")] == ["waits", "waits"]
    assert cluster.wait(1000) == []
    cluster.join_node(info("n2", 4), 1, [], cluster.now)
    assert cluster.granted() == ["a2 on n2"]
    assert cluster.wait(1) == [DemandRefused("a1", "needs 8 CPUs; the node with the most has 4 (name of n2)")]


def test_demands_wait_five_seconds_for_a_node_that_was_lost() -> None:
    cluster = Cluster(info("n1", 4), info("n2", 8))
    assert cluster.want("a1", cpus=8) == "n2"
    cluster.actors.lease_started("n2", "a1")
    assert cluster.want("a2", cpus=8) == "waits"
    cluster.silent = {"n2"}
    [lost] = cluster.wait(5)
    assert isinstance(lost, NodeLost)
    assert cluster.want("a3", cpus=8) == "waits"
    assert cluster.wait(4) == []
    cluster.join_node(info("n2", 8), 2, [], cluster.now)
    assert cluster.granted() == ["a2 on n2"]
    cluster.wait(5)
    reason = "needs 8 CPUs; the node with the most has 4 (name of n1)"
    assert cluster.wait(4) == []
    assert cluster.wait(1) == [DemandRefused("a3", reason)]
    assert cluster.want("a4", cpus=8) == reason


def test_nobody_waits_for_a_lost_node_that_was_about_to_leave() -> None:
    cluster = Cluster(info("n1", 4), info("n2", 8))
    cluster.drain_node("n2")
    cluster.silent = {"n2"}
    assert any(isinstance(decision, NodeLost) for decision in cluster.wait(5))
    assert cluster.want("a1", cpus=8) == "needs 8 CPUs; the node with the most has 4 (name of n1)"


def test_a_node_that_came_back_smaller_is_not_missed() -> None:
    cluster = Cluster(info("n1", 8))
    cluster.silent = {"n1"}
    cluster.wait(5)
    assert isinstance(cluster.join_node(info("n1", 4), 2, [], cluster.now), NodeJoined)
    assert cluster.want("a1", cpus=8) == "needs 8 CPUs; the node with the most has 4 (name of n1)"


def test_demands_that_only_a_leaving_node_could_hold_are_refused() -> None:
    cluster = Cluster(info("n1", 4), info("n2", 8))
    assert [cluster.want("a1", cpus=8), cluster.want("a2", cpus=8)] == ["n2", "waits"]
    cluster.drain_node("n2")
    [refused] = cluster.wait(1)
    assert isinstance(refused, DemandRefused) and refused.actor_id == "a2"


def test_an_actor_that_does_not_start_within_a_minute_loses_its_place() -> None:
    cluster = Cluster(info("n1", 3))
    cluster.want("a1")
    cluster.wait(10)
    assert [cluster.want("a2"), cluster.want("a3"), cluster.want("a4")] == ["n1", "n1", "waits"]
    cluster.actors.lease_started("n1", "a2")
    cluster.wait(49)
    assert cluster.placed() == {"a1": "granted on n1", "a2": "started on n1", "a3": "granted on n1"}
    cluster.wait(1)
    assert cluster.placed() == {"a2": "started on n1", "a3": "granted on n1"}
    assert cluster.granted() == ["a4 on n1"]
    cluster.wait(10)
    assert cluster.placed() == {"a2": "started on n1", "a4": "granted on n1"}
    # It starts after all, with the lease that it was given.
    assert cluster.actors.lease_started("n1", "a1", lease("a1"))
    assert cluster.placed()["a1"] == "started on n1"


@pytest.mark.parametrize(
    ("wrong", "actor_id"),
    [(None, "a1"), (lease("a1", "n2"), "a1"), (lease("a2"), "a1"), (lease("a1", cpus=-1), "a1")],
)
def test_an_actor_without_a_valid_lease_must_end(wrong: Lease | None, actor_id: str) -> None:
    cluster = Cluster(info())
    assert not cluster.actors.lease_started("n1", actor_id, wrong)
    assert cluster.placed() == {}


def test_what_is_withdrawn_is_free_unless_it_has_started() -> None:
    cluster = Cluster(info("n1", 2))
    assert [cluster.want(f"a{i}") for i in range(5)] == ["n1", "n1", "waits", "waits", "waits"]
    cluster.actors.lease_started("n1", "a0")
    for actor_id in ("a0", "a1", "a2", "nobody"):
        cluster.actors.withdraw(actor_id)
        cluster.actors.withdraw(actor_id)
    assert cluster.granted() == ["a3 on n1"]
    assert cluster.placed() == {"a0": "started on n1", "a3": "granted on n1"}
    assert cluster.waiting() == ["a4"]


def test_a_place_that_was_lost_before_it_was_told_is_not_told() -> None:
    cluster = Cluster(info("n1", 1))
    assert [cluster.want("a1"), cluster.want("a2"), cluster.want("a3")] == ["n1", "waits", "waits"]
    cluster.actors.lease_ended("n1", "a1")
    assert cluster.want("a4") == "waits"  # a2 comes first, and has the place now
    cluster.actors.withdraw("a2")
    assert cluster.granted() == ["a3 on n1"]
    assert cluster.granted() == []


# --- what people see --------------------------------------------------------------------------------------------


def test_the_cluster_in_words_and_numbers() -> None:
    cluster = Cluster(info("n1", 2, num_gpus=1, zone="b"))
    cluster.want("a1", cpus=1.5, gpus=0.5)
    cluster.actors.lease_started("n1", "a1")
    cluster.want("a2")
    cluster.wait(3)
    assert msgspec.to_builtins(cluster.view()) == {
        "nodes": [
            {
                "node_id": "n1",
                "name": "name of n1",
                "state": "ready",
                "host": "host",
                "addresses": ["tcp://n1:1"],
                "labels": {"zone": "b"},
                "num_actors": 1,
                "used_cpus": 1.5,
                "total_cpus": 2,
                "used_gpus": [0.5],
                "used_memory_bytes": 0,
                "total_memory_bytes": 0,
            }
        ],
        "drivers": [{"driver_id": "d1", "name": "train.py", "is_connected": True}],
        "actors": [
            {
                "actor_id": "a1",
                "name": "name of a1",
                "driver_id": "d1",
                "node_id": "n1",
                "state": "started",
                "demand": msgspec.to_builtins(Demand(1.5, 0.5)),
                "gpu_ids": [0],
            }
        ],
        "waiting": [
            {
                "actor_id": "a2",
                "name": "name of a2",
                "driver_id": "d1",
                "demand": msgspec.to_builtins(Demand(1)),
                "waiting_s": 3.0,
                "reason": "needs 1 CPU: 1.5 of 2 are in use on 1 node",
            }
        ],
    }


@pytest.mark.parametrize(
    "late",
    [
        lambda cluster: cluster.heard_node("n9", 101.0),
        lambda cluster: cluster.node_disconnected("n9", 1, 101.0),
        lambda cluster: cluster.drain_node("n9"),
        lambda cluster: cluster.leave_node("n9"),
        lambda cluster: cluster.driver_disconnected("d9", 101.0),
        lambda cluster: cluster.leave_driver("d9"),
        lambda cluster: cluster.actors.withdraw("a9"),
        lambda cluster: cluster.actors.lease_ended("n9", "a1"),
        lambda cluster: cluster.actors.lease_ended("n1", "a9"),
        lambda cluster: cluster.actors.lease_started("n9", "a1", lease("a1", "n9")),
        lambda cluster: cluster.actors.take_grants(101.0),
    ],
)
def test_what_comes_too_late_changes_nothing(late: Callable[[ClusterCore], Any]) -> None:
    cluster = Cluster(info("n1", 1))
    cluster.want("a1")
    cluster.want("a2")
    before = cluster.view()
    late(cluster)
    assert cluster.view() == before
    assert cluster.actors.why_waiting("a9") is None


@pytest.mark.parametrize(
    ("ours", "theirs", "fault"),
    [
        ("2.4.6", "2.1.0", None),
        ("2.4.6", "1.26.4", "it has numpy 1.26.4, but the other side has numpy 2.4.6"),
        ("", "1.26.4", None),
        ("2.4.6", "", None),
    ],
)
def test_another_major_version_of_numpy_is_a_fault(ours: str, theirs: str, fault: str | None) -> None:
    assert version_fault(Versions("1", "3.11", ours), Versions("1", "3.11", theirs)) == fault
