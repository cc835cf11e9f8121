"""From what was seen to what is shown."""

from __future__ import annotations

import msgspec
import pytest

from asyncparl.monitor.observer import MAX_ENDED, Observer
from asyncparl.monitor.picture import Alarm, Picture
from asyncparl.monitor.source import Sight
from asyncparl.protocol.figures import ActorFigures, Happening, NodeFigures, WorkerFigures
from tests.monitor.fakes import actor, calls, ended, figures, news, node, node_figures, view, waiting


class Looking:
    """An observer, and the time."""

    def __init__(self) -> None:
        self.observer = Observer("alpha:8010", "own")
        self.at = 0.0

    def look(self, *parts: object, seen: NodeFigures | str | None = None, more: Sight | None = None) -> Picture:
        """One second later: parts of a view, and what node alpha says."""
        self.at += 1.0
        sight = Sight(
            view=view(*parts),  # type: ignore[arg-type]
            nodes={} if seen is None else {"node-alpha": seen},
            news=news(),
        )
        return self.observer.observe(more or sight, now=self.at, wall_time=100 + self.at)


@pytest.fixture
def looking() -> Looking:
    return Looking()


def test_rates_are_those_between_two_looks_by_the_clock_of_the_node(looking: Looking) -> None:
    first = looking.look(node(), actor(), seen=node_figures(10.0, figures(1, calls((5, 100)), cpu_s=1.0)))
    assert first.actors["a1"].calls_per_s is None
    second = looking.look(node(), actor(), seen=node_figures(14.0, figures(1, calls((5, 140)), cpu_s=3.0)))
    row = second.actors["a1"]
    assert (row.calls_per_s, row.cpu_share, row.num_calls) == (10.0, 0.5, 140)
    assert second.nodes["node-alpha"].calls_per_s == 10.0


def test_figures_that_were_measured_before_change_nothing(looking: Looking) -> None:
    looking.look(node(), actor(), seen=node_figures(10.0, figures(1, calls((5, 100)))))
    looking.look(node(), actor(), seen=node_figures(12.0, figures(1, calls((5, 120)))))
    again = looking.look(node(), actor(), seen=node_figures(12.0, figures(1, calls((5, 120)))))
    assert again.actors["a1"].calls_per_s == 10.0


def awaiting(number: int = 1, running: str = "", running_s: float = 0.0) -> WorkerFigures:
    counted = calls(running=running, running_s=running_s)
    return msgspec.structs.replace(counted, num_awaited=number, awaited="Store#1.get", awaited_s=4.0)


@pytest.mark.parametrize(
    ("made", "state", "doing", "doing_s"),
    [
        (calls((3, 1)), "running", "waits for calls", None),
        (calls(running="sample", running_s=3.5), "running", "runs sample", 3.5),
        (awaiting(running="play", running_s=5.0), "running", "waits for Store#1.get, in play", 4.0),
        (awaiting(2, running="play"), "running", "waits for Store#1.get and 1 more, in play", 4.0),
        (awaiting(), "running", "waits for Store#1.get", 4.0),
        (None, "silent", "native code of it may hold Python's lock", None),
    ],
)
def test_an_actor_says_what_it_does(
    looking: Looking, made: object, state: str, doing: str, doing_s: float | None
) -> None:
    row = looking.look(node(), actor(), seen=node_figures(1.0, figures(1, made))).actors["a1"]  # type: ignore[arg-type]
    assert (row.state, row.doing, row.doing_s, row.program, row.node) == (state, doing, doing_s, "train.py", "alpha")


def stopped(number: int = 1) -> ActorFigures:
    return msgspec.structs.replace(figures(number, None), is_stopped=True)


def test_a_silent_actor_says_since_when_what_it_did_and_shows_nothing_old(looking: Looking) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, figures(1, calls((5, 10), running="rollouts", running_s=0.1))))
    looking.look(node(), actor(), seen=node_figures(2.0, stopped()))
    row = looking.look(node(), actor(), seen=node_figures(29.0, stopped())).actors["a1"]
    assert (row.state, row.silent_s, row.is_stopped) == ("silent", 27.0, True)
    assert row.doing == "stopped (SIGSTOP); it was running rollouts"
    assert (row.calls_per_s, row.busy_share, row.p50_s, row.p99_s, row.num_waiting) == (None,) * 5
    again = looking.look(node(), actor(), seen=node_figures(30.0, figures(1, calls((5, 12))))).actors["a1"]
    assert (again.state, again.silent_s, again.is_stopped, again.doing) == ("running", None, False, "waits for calls")
    assert again.p50_s is not None


def test_silence_is_an_alarm_with_its_time_and_an_event_and_so_is_its_end(looking: Looking) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, figures(1, calls(running="rollouts"))))
    for second in (2.0, 3.0, 29.0):
        picture = looking.look(node(), actor(), seen=node_figures(second, stopped()))
    text = "Sim#1 is silent (pid 100 on alpha): stopped (SIGSTOP); it was running rollouts"
    assert picture.alarms == (Alarm(text, "/actors/a1", 27.0),)
    assert picture.alarms[0].line == f"{text} (27 s)"
    (event,) = picture.events
    assert (event.text, event.time, event.is_warning, event.actor_id) == (text, 102.0, True, "a1")
    # A node that cannot be asked says nothing of its actors.
    looking.look(node(), actor(), seen="alpha cannot be asked")
    picture = looking.look(node(), actor(), seen=node_figures(31.0, figures(1, calls())))
    assert [event.text for event in picture.events] == ["Sim#1 answers again", text]
    assert not picture.alarms and not picture.events[0].is_warning


@pytest.mark.parametrize(("lasts_s", "num_events"), [(2.0, 0), (3.0, 2)])
def test_a_short_silence_that_has_another_reason_is_no_event(looking: Looking, lasts_s: float, num_events: int) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, figures(1, calls())))
    for second in (2.0, 2.0 + lasts_s):
        looking.look(node(), actor(), seen=node_figures(second, figures(1, None)))
    picture = looking.look(node(), actor(), seen=node_figures(20.0, figures(1, calls())))
    assert len(picture.events) == num_events


def test_an_actor_that_dies_in_its_silence_does_not_answer_again(looking: Looking) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, stopped()))
    looking.look(node(), actor(), seen=node_figures(2.0, happenings=[ended(1)]))
    again = msgspec.structs.replace(figures(1, calls()), pid=200)
    picture = looking.look(node(), actor(), seen=node_figures(3.0, again))
    assert {event.text.partition(" (")[0] for event in picture.events} == {
        "Sim#1 is silent",
        "Sim#1 ended: killed by SIGKILL",
    }


def test_an_actor_without_a_process_is_starting(looking: Looking) -> None:
    picture = looking.look(node(), actor(state="granted"), seen=node_figures(1.0, figures(1, None, pid=0)))
    assert (picture.actors["a1"].state, picture.actors["a1"].pid) == ("starting", None)


def test_an_actor_that_waits_says_for_what_and_raises_an_alarm(looking: Looking) -> None:
    picture = looking.look(node(), waiting(7, waiting_s=40))
    row = picture.actors["a7"]
    assert (row.state, row.doing, row.doing_s) == ("waiting", "waits for a place: no node has a free CPU", 40)
    assert [alarm.link for alarm in picture.alarms] == ["/actors/a7"]
    assert not looking.look(node(), waiting(7, waiting_s=3)).alarms


def test_a_node_that_cannot_be_asked_says_why_and_its_actors_are_still_there(looking: Looking) -> None:
    picture = looking.look(node(), actor(), seen="alpha cannot be asked: no route to host")
    assert picture.nodes["node-alpha"].fault == "alpha cannot be asked: no route to host"
    assert picture.nodes["node-alpha"].cpu_share is None
    assert picture.actors["a1"].state == "running"
    assert "alpha cannot be asked: no route to host" in [alarm.text for alarm in picture.alarms]


def test_a_death_is_shown_with_its_reason_and_is_an_alarm(looking: Looking) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, figures(1, calls((3, 9)))))
    # The master has not heard of it yet.
    picture = looking.look(node(), actor(), seen=node_figures(2.0, happenings=[ended(1)]))
    assert "a1" not in picture.actors
    row = picture.ended["a1"]
    assert (row.state, row.is_failed, row.doing, row.num_calls) == ("ended", True, "killed by SIGKILL", 9)
    assert picture.alarms[0].text == "Sim#1 died: killed by SIGKILL"
    event = picture.events[0]
    assert (event.text, event.is_warning, event.actor_id) == ("Sim#1 ended: killed by SIGKILL", True, "a1")


@pytest.mark.parametrize("fields", [{"was_asked": "True"}, {"signal": "None", "exit_code": "0"}])
def test_an_end_that_was_asked_for_is_no_alarm(looking: Looking, fields: dict[str, str]) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, figures(1, calls())))
    picture = looking.look(node(), seen=node_figures(2.0, happenings=[ended(1, **fields)]))
    assert not picture.ended["a1"].is_failed
    assert not picture.alarms


def test_an_actor_that_is_started_again_is_no_more_among_the_ended(looking: Looking) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, figures(1, calls((3, 50)))))
    looking.look(node(), seen=node_figures(2.0, happenings=[ended(1)]))
    again = msgspec.structs.replace(figures(1, calls((3, 2))), pid=200)
    picture = looking.look(node(), actor(), seen=node_figures(3.0, again))
    assert (picture.actors["a1"].state, picture.ended) == ("running", {})
    # It counts from 0 again: that is no fall.
    assert picture.actors["a1"].calls_per_s is None


def test_actors_of_a_node_that_is_gone_have_died(looking: Looking) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, figures(1, calls())))
    picture = looking.look()
    assert picture.ended["a1"].doing == "its node alpha is gone"
    assert picture.ended["a1"].is_failed


def test_an_actor_that_vanished_from_a_node_that_is_there_has_not_died_yet(looking: Looking) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, figures(1, calls())))
    assert not looking.look(node(), seen=node_figures(2.0)).ended


def test_the_ended_are_bounded_and_the_oldest_go(looking: Looking) -> None:
    happenings = [ended(number, number) for number in range(1, MAX_ENDED + 11)]
    picture = looking.look(node(), seen=node_figures(1.0, happenings=happenings))
    assert len(picture.ended) == MAX_ENDED
    assert "a10" not in picture.ended and "a11" in picture.ended


def test_a_fault_keeps_what_was_seen(looking: Looking) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, figures(1, calls())))
    picture = looking.look(more=Sight(fault="the master does not answer"))
    assert picture.fault == "the master does not answer"
    assert "a1" in picture.actors
    assert looking.look(node(), actor(), seen=node_figures(2.0, figures(1, calls()))).fault == ""


def test_the_monitor_itself_is_no_program(looking: Looking) -> None:
    assert [program["name"] for program in looking.look(node()).programs] == ["train.py"]


def test_events_of_master_and_nodes_are_merged_by_time_and_come_once(looking: Looking) -> None:
    joined = Happening(1, 30.0, False, "node joined", {"node": "alpha", "host": "10.0.0.2", "actors": "0"})
    strange = Happening(2, 40.0, True, "something new", {"what": "x"})
    for _ in range(2):
        picture = looking.observer.observe(
            Sight(
                view=view(node()),
                nodes={"node-alpha": node_figures(1.0, happenings=[ended(1, at=35.0)])},
                news=news(joined, strange),
            ),
            now=1.0,
            wall_time=100.0,
        )
    texts = [event.text for event in picture.events]
    assert texts == ["something new: what x", "Sim#1 ended: killed by SIGKILL", "node alpha joined from 10.0.0.2"]


def test_counters_of_a_class_never_fall(looking: Looking) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, figures(1, calls((5, 100)))))
    looking.look(node(), seen=node_figures(2.0, happenings=[ended(1)]))
    looking.look(node(), actor(2), seen=node_figures(3.0, figures(2, calls((5, 7)))))
    total = looking.observer.totals.by_class["Sim", "alpha"]
    assert total.durations[5] == 107


def test_the_history_is_that_of_the_whole_cluster(looking: Looking) -> None:
    looking.look(node(), actor(), seen=node_figures(1.0, figures(1, calls((5, 0)))))
    for second in range(2, 12):
        looking.look(node(), actor(), seen=node_figures(float(second), figures(1, calls((5, 10 * second)))))
    curves = looking.observer.history.curves()
    assert len(curves["x"]) == 4  # one in three seconds
    assert curves["calls"][1:] == [10.0] * 3
    assert curves["cpu"] == [0.5] * 4
