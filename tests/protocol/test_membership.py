"""The life of a node's actors: every move of the diagram, and the deadlines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncparl.protocol.membership import MOVES, ActorState, Membership
from tests.protocol.strategies import many

NEVER = float("inf")


def starting() -> Membership:
    """Actor "a" was started at 100 and has until 160."""
    actors = Membership(start_limit_s=60.0)
    actors.start("a", "Simulator#1", owner=1, now=100.0)
    return actors


def running() -> Membership:
    actors = starting()
    actors.ready("a")
    return actors


def stopping() -> Membership:
    """It has until 105."""
    actors = running()
    assert actors.stop("a", grace_s=5.0, now=100.0)
    return actors


def late() -> Membership:
    """It did not get ready in time, and is to be killed."""
    actors = starting()
    assert actors.overdue(now=160.0)
    return actors


def gone() -> Membership:
    actors = running()
    assert actors.exited("a")
    return actors


def state_of(actors: Membership) -> tuple[ActorState, float] | None:
    """State and deadline of the one actor."""
    members = actors.owned_by(1)
    return (members[0].state, members[0].deadline) if members else None


S = ActorState
STATES = [starting, running, stopping, late, gone]
# State and deadline after each event at 102, in the order of STATES.
EVENTS: dict[str, tuple[Callable[[Membership], Any], list[Any]]] = {
    "ready": (
        lambda actors: actors.ready("a"),
        [(S.RUNNING, NEVER), KeyError, (S.STOPPING, 105.0), (S.STOPPING, 160.0), None],
    ),
    "stop": (
        lambda actors: actors.stop("a", grace_s=10.0, now=102.0),
        [(S.STOPPING, 112.0), (S.STOPPING, 112.0), (S.STOPPING, 105.0), (S.STOPPING, 112.0), None],
    ),
    "stop at once": (
        lambda actors: actors.stop("a", grace_s=0.0, now=102.0),
        [(S.STOPPING, 102.0), (S.STOPPING, 102.0), (S.STOPPING, 102.0), (S.STOPPING, 102.0), None],
    ),
    "exited": (lambda actors: actors.exited("a"), [None] * 5),
    "nothing": (
        lambda actors: actors.overdue(now=102.0),
        [(S.STARTING, 160.0), (S.RUNNING, NEVER), (S.STOPPING, 105.0), (S.STOPPING, 160.0), None],
    ),
}


@pytest.mark.parametrize("event_name", EVENTS)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_every_event_in_every_state(state: Callable[[], Membership], event_name: str) -> None:
    event, outcomes = EVENTS[event_name]
    expected = outcomes[STATES.index(state)]
    actors = state()
    if expected is KeyError:  # a process that gets ready twice is a bug of the node's
        with pytest.raises(KeyError):
            event(actors)
    else:
        event(actors)
        assert state_of(actors) == expected
        assert actors.next_deadline() == (expected[1] if expected else NEVER)
        assert len(actors) == (0 if expected is None else 1)


def test_the_diagram_is_complete() -> None:
    assert MOVES == {
        (S.STARTING, "ready"): S.RUNNING,
        (S.STARTING, "stop"): S.STOPPING,
        (S.STARTING, "exited"): S.GONE,
        (S.RUNNING, "stop"): S.STOPPING,
        (S.RUNNING, "exited"): S.GONE,
        (S.STOPPING, "ready"): S.STOPPING,
        (S.STOPPING, "stop"): S.STOPPING,
        (S.STOPPING, "exited"): S.GONE,
    }


def test_stop_says_whether_there_is_such_an_actor() -> None:
    assert running().stop("a", grace_s=1.0, now=0.0)
    assert stopping().stop("a", grace_s=1.0, now=0.0)
    assert not running().stop("b", grace_s=1.0, now=0.0)
    assert not gone().stop("a", grace_s=1.0, now=0.0)


def test_an_exit_is_news_once() -> None:
    actors = running()
    member = actors.exited("a")
    assert member is not None
    assert (member.actor_id, member.name, member.state) == ("a", "Simulator#1", S.GONE)
    assert actors.exited("a") is None
    assert actors.exited("b") is None


def test_an_id_that_is_taken_is_refused_until_its_actor_is_gone() -> None:
    actors = stopping()
    with pytest.raises(ValueError, match="actor a exists already"):
        actors.start("a", "Simulator#2", owner=2, now=0.0)
    actors.exited("a")
    actors.start("a", "Simulator#2", owner=2, now=0.0)


def test_an_actor_that_does_not_start_in_time_is_killed_and_says_so() -> None:
    actors = starting()
    assert actors.overdue(now=159.9) == []
    [member] = actors.overdue(now=160.0)
    assert (member.actor_id, member.state) == ("a", S.STOPPING)
    assert member.failure == "it did not start within 60 s"


def test_an_overdue_actor_is_named_until_it_has_exited() -> None:
    actors = late()
    assert [member.actor_id for member in actors.overdue(now=161.0)] == ["a"]
    actors.ready("a")  # too late
    assert [member.actor_id for member in actors.overdue(now=162.0)] == ["a"]
    actors.exited("a")
    assert actors.overdue(now=163.0) == []


def test_an_actor_that_was_asked_to_stop_did_not_fail() -> None:
    actors = stopping()
    [member] = actors.overdue(now=105.0)
    assert member.failure == ""


def test_asking_an_overdue_actor_to_stop_does_not_put_its_end_off() -> None:
    actors = late()
    actors.stop("a", grace_s=100.0, now=161.0)
    assert [member.actor_id for member in actors.overdue(now=161.0)] == ["a"]


def test_the_actors_of_a_lost_owner_are_found_and_the_others_go_on() -> None:
    actors = Membership()
    for number, owner in enumerate([1, 2, 1, 1]):
        actors.start(f"a{number}", f"Simulator#{number}", owner, now=0.0)
    actors.ready("a0")
    actors.exited("a3")
    lost = actors.owned_by(1)
    assert [member.actor_id for member in lost] == ["a0", "a2"]

    for member in lost:
        actors.stop(member.actor_id, grace_s=0.0, now=9.0)
    assert [member.actor_id for member in actors.overdue(now=9.0)] == ["a0", "a2"]
    for member in lost:
        actors.exited(member.actor_id)
    assert actors.owned_by(1) == []
    assert [member.actor_id for member in actors.owned_by(2)] == ["a1"]


def test_the_next_deadline_is_the_earliest() -> None:
    actors = Membership(start_limit_s=60.0)
    assert actors.next_deadline() == NEVER
    actors.start("a", "A", 1, now=10.0)
    actors.start("b", "B", 1, now=0.0)
    assert actors.next_deadline() == 60.0
    actors.ready("b")
    assert actors.next_deadline() == 70.0
    actors.stop("b", grace_s=1.0, now=30.0)
    assert actors.next_deadline() == 31.0


@many
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=6))
def test_asking_again_to_stop_never_puts_the_end_off(requests: list[tuple[float, float]]) -> None:
    actors = running()
    ends = []
    for now, grace_s in requests:
        actors.stop("a", grace_s=grace_s, now=now)
        ends.append(now + grace_s)
        assert actors.next_deadline() == min(ends)
    assert actors.overdue(now=min(ends))
