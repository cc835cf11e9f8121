"""Actors that their owners start again, as the master sees them: never two at a time, and never gone in between."""

from __future__ import annotations

from asyncparl.protocol.cluster import ClusterCore
from asyncparl.protocol.decisions import DemandRefused, Ended, Found, Granted, Refused, StillHeld, Waiting
from asyncparl.protocol.resources import ActorTitle, Demand, Lease
from tests.protocol.masters import Cluster, info


def title(num_restarts: int = 0) -> ActorTitle:
    return ActorTitle("d1", ("m", "C"), public_name="boss", may_restart=True, num_restarts=num_restarts)


def ask(cluster: Cluster, num_restarts: int = 0, cpus: float = 1) -> Granted | Waiting | StillHeld | Refused:
    return cluster.actors.ask("d1", "a1", "A#1", Demand(cpus), cluster.now, title(num_restarts))


def start(cluster: Cluster, num_restarts: int = 0) -> Lease:
    granted = ask(cluster, num_restarts)
    assert isinstance(granted, Granted)
    assert cluster.actors.lease_started(granted.lease.node_id, "a1", granted.lease)
    return granted.lease


def named(cluster: ClusterCore) -> str | None:
    found = cluster.actors.find_named("boss", "d1")
    return None if found is None else found.actor_id


def test_an_actor_that_died_is_waited_for_until_its_owner_has_started_it_again() -> None:
    cluster = Cluster(info("n1"))
    start(cluster)
    assert cluster.actors.find("a1") == Found("n1")
    cluster.actors.lease_ended("n1", "a1")
    assert cluster.actors.find("a1") is None
    assert cluster.actors.is_known("a1")
    assert named(cluster) == "a1"
    assert start(cluster, 1).title.num_restarts == 1
    assert cluster.actors.find("a1") == Found("n1")
    assert named(cluster) == "a1"


def test_the_next_process_gets_no_place_while_the_last_one_may_run() -> None:
    cluster = Cluster(info("n1"))
    start(cluster)
    assert ask(cluster, 1) == StillHeld("a1")
    assert cluster.actors.why_waiting("a1") == "its last process may still run on name of n1"
    cluster.actors.lease_ended("n1", "a1")
    assert isinstance(ask(cluster, 1), Granted)
    assert cluster.used() == {"n1": 1.0}


def test_after_the_loss_of_its_node_it_gets_a_place_on_another_one() -> None:
    cluster = Cluster(info("n1"), info("n2"))
    assert start(cluster).node_id == "n1"
    cluster.node_disconnected("n1", 1, cluster.now)
    assert cluster.actors.find("a1") is None  # it is back soon, or started elsewhere
    cluster.silent = {"n1"}
    cluster.wait(4)
    assert ask(cluster, 1) == StillHeld("a1")
    cluster.wait(1)
    assert start(cluster, 1).node_id == "n2"
    assert cluster.actors.find("a1") == Found("n2")


def test_a_node_that_comes_back_must_end_the_process_that_was_replaced() -> None:
    cluster = Cluster(info("n1"), info("n2"))
    old = start(cluster)
    cluster.silent = {"n1"}
    cluster.node_disconnected("n1", 1, cluster.now)
    cluster.wait(5)
    assert isinstance(ask(cluster, 1, cpus=5), Refused)
    assert isinstance(cluster.actors.ask("d1", "a2", "A#2", Demand(4), cluster.now), Granted)
    assert isinstance(ask(cluster, 1), Waiting)
    joined = cluster.join_node(info("n1"), 2, [old], cluster.now)
    assert not isinstance(joined, Refused)
    assert joined.unwanted == [old]
    assert cluster.granted() == ["a1 on n1"]  # the place of the next one


def test_a_place_that_the_dead_process_never_took_is_free_at_once() -> None:
    cluster = Cluster(info("n1", 1))
    first, second = ask(cluster), ask(cluster, 1)
    assert isinstance(first, Granted) and isinstance(second, Granted)
    assert second.lease.title.num_restarts == 1
    assert not cluster.actors.lease_started("n1", "a2", None)
    assert cluster.used() == {"n1": 1.0}


def test_a_process_that_starts_late_must_end_and_leaves_the_next_one_its_place() -> None:
    cluster = Cluster(info("n1", 1))
    late, second = ask(cluster), ask(cluster, 1)  # the way to the node was slow, and the owner has given up
    assert isinstance(late, Granted) and isinstance(second, Granted)
    assert not cluster.actors.lease_started("n1", "a1", late.lease)
    assert cluster.placed() == {"a1": "granted on n1"}
    cluster.actors.give_back("a1")  # the node had no room for the second while the first one ran
    cluster.actors.lease_ended("n1", "a1", num_restarts=0)
    assert cluster.placed() == {} and cluster.used() == {"n1": 0.0}


def test_a_node_that_comes_back_with_a_late_process_leaves_the_next_one_its_place() -> None:
    cluster = Cluster(info("n1", 1))
    late, second = ask(cluster), ask(cluster, 1)
    assert isinstance(late, Granted) and isinstance(second, Granted)
    joined = cluster.join_node(info("n1", 1), 2, [late.lease], cluster.now)
    assert not isinstance(joined, Refused)
    assert joined.unwanted == [late.lease]
    assert cluster.placed() == {"a1": "granted on n1"}
    assert cluster.actors.lease_started("n1", "a1", second.lease)


def test_a_later_process_than_the_one_with_a_place_is_the_actor() -> None:
    cluster = Cluster(info("n1", 1))
    first = ask(cluster)
    assert isinstance(first, Granted)
    other = Cluster(info("n1", 1))
    start(other)
    other.actors.lease_ended("n1", "a1")
    later = start(other, 1)
    assert cluster.actors.lease_started("n1", "a1", later)
    cluster.actors.lease_ended("n1", "a1", num_restarts=0)
    assert cluster.placed() == {"a1": "started on n1"}
    cluster.actors.lease_ended("n1", "a1", num_restarts=1)
    assert cluster.placed() == {} and cluster.used() == {"n1": 0.0}


def test_giving_a_place_back_is_not_giving_the_actor_up() -> None:
    cluster = Cluster(info("n1"))
    ask(cluster)
    cluster.actors.give_back("a1")
    assert cluster.used() == {"n1": 0.0}
    assert cluster.actors.find("a1") is None and cluster.actors.is_known("a1")
    cluster.actors.withdraw("a1")
    assert cluster.actors.find("a1") == Ended("its owner has given it up")


def test_an_actor_whose_owner_gives_it_up_ends_with_its_process() -> None:
    cluster = Cluster(info("n1"))
    start(cluster)
    cluster.actors.withdraw("a1")
    assert cluster.actors.find("a1") == Found("n1")
    cluster.actors.lease_ended("n1", "a1")
    assert cluster.actors.find("a1") == Ended("it has ended")
    assert named(cluster) is None


def test_one_that_its_owner_has_given_up_is_not_waited_for_although_a_lost_node_comes_back_with_it() -> None:
    cluster = Cluster(info("n1"))
    lease = start(cluster)
    cluster.silent = {"n1"}
    cluster.wait(5)
    cluster.actors.withdraw("a1")
    assert cluster.actors.find("a1") == Ended("its owner has given it up")
    cluster.join_node(info("n1"), 2, [lease], cluster.now)
    assert cluster.actors.find("a1") == Found("n1")
    cluster.actors.lease_ended("n1", "a1")
    assert cluster.actors.find("a1") == Ended("it has ended")


def test_actors_end_with_the_owner_who_would_have_started_them_again() -> None:
    cluster = Cluster(info("n1"))
    start(cluster)
    cluster.leave_driver("d1")
    assert cluster.actors.find("a1") == Found("n1")
    cluster.actors.lease_ended("n1", "a1")
    assert cluster.actors.find("a1") == Ended("it has ended")
    cluster.join_driver("d1", "train.py", cluster.now)
    start(cluster)
    cluster.actors.lease_ended("n1", "a1")
    cluster.leave_driver("d1")
    assert cluster.actors.find("a1") == Ended("its owner has ended")


def test_actors_end_with_an_actor_that_would_have_started_them_again() -> None:
    cluster = Cluster(info("n1"))
    cluster.join_driver("a0", "an actor", cluster.now)
    for actor_id, owner in (("a0", "d1"), ("a1", "a0")):
        titled = ActorTitle("d1", ("m", "C"), may_restart=True)
        granted = cluster.actors.ask(owner, actor_id, actor_id, Demand(1), cluster.now, titled)
        assert isinstance(granted, Granted)
        assert cluster.actors.lease_started("n1", actor_id, granted.lease)
    assert cluster.actor_ended("n1", "a1") is None
    assert cluster.actors.find("a1") is None
    assert cluster.actor_ended("n1", "a0", num_restarts=7) is None
    assert cluster.actors.find("a1") is None
    assert cluster.actor_ended("n1", "a0") is not None
    assert cluster.actors.find("a1") == Ended("its owner has ended")


def test_what_was_killed_by_somebody_else_is_not_started_again() -> None:
    cluster = Cluster(info("n1"))
    lease = start(cluster)
    cluster.actors.kill("a1")
    cluster.actors.lease_ended("n1", "a1")
    assert cluster.actors.find("a1") == Ended("it was killed")
    assert ask(cluster, 1) == Refused("it was killed")
    joined = cluster.join_node(info("n1"), 2, [lease], cluster.now)
    assert not isinstance(joined, Refused)
    assert joined.unwanted == [lease]


def test_also_between_two_processes_an_actor_can_be_killed() -> None:
    cluster = Cluster(info("n1"))
    start(cluster)
    cluster.actors.lease_ended("n1", "a1")
    cluster.actors.kill("a1")
    assert cluster.actors.find("a1") == Ended("it was killed")
    assert ask(cluster, 1) == Refused("it was killed")


def test_a_new_master_learns_from_the_node_which_process_is_the_actor() -> None:
    old = Cluster(info("n1"))
    start(old)
    old.actors.lease_ended("n1", "a1")
    lease = start(old, 1)
    cluster = Cluster()
    cluster.join_node(info("n1"), 2, [lease], cluster.now)
    assert cluster.actors.find("a1") == Found("n1")
    assert ask(cluster, 2) == StillHeld("a1")
    cluster.actors.lease_ended("n1", "a1", num_restarts=1)
    assert cluster.actors.find("a1") is None


def test_of_two_actors_with_one_name_the_one_stays_that_has_a_place() -> None:
    """The name was given once more by a new master, who could not know of the node that was away."""
    away = start(Cluster(info("n1")))
    for is_full, unwanted in ((False, [away]), (True, [])):
        cluster = Cluster(info("n2", 1))
        if is_full:
            assert cluster.want("a3") == "n2"
        answer = cluster.actors.ask("d1", "a2", "A#2", Demand(1), cluster.now, title())
        joined = cluster.join_node(info("n1", 0), 1, [away], cluster.now)
        assert not isinstance(joined, Refused)
        assert joined.unwanted == unwanted
        if is_full:
            assert isinstance(answer, Waiting)
            assert named(cluster) == "a1"
            assert cluster.wait(1) == [DemandRefused("a2", "an actor named 'boss' exists already")]
        else:
            assert named(cluster) == "a2"
            assert cluster.placed() == {"a2": "granted on n2"}
