"""What a page is told: one page of a table, and then only what has changed."""

from __future__ import annotations

import json

import msgspec
import pytest

from asyncparl.monitor.observer import Observer
from asyncparl.monitor.source import Sight
from asyncparl.monitor.views import PAGE_ROWS, VIEWS, Query, actors, attention, changes, events, nodes, overview, runs
from asyncparl.protocol.figures import NodeFigures, ProgramReport
from tests.monitor.fakes import actor, calls, crowd, ended, figures, news, node, node_figures, view


@pytest.fixture
def busy() -> Observer:
    """Two looks at a hundred actors."""
    observer = Observer("alpha:8010", "own")
    for at in (1.0, 2.0):
        observer.observe(crowd(120, at), now=at, wall_time=at)
    return observer


def names(message: dict[str, object]) -> list[str]:
    rows = message["rows"]
    return [rows[key]["name"] for key in message["order"]]  # type: ignore[index,attr-defined]


def test_a_table_comes_in_pages(busy: Observer) -> None:
    first, last = actors(busy, Query()), actors(busy, Query(page=3))
    assert (first["page"], first["pages"], first["found"], first["total"]) == (1, 3, 120, 120)
    assert len(first["rows"]) == PAGE_ROWS and len(last["rows"]) == 20
    assert names(first)[:3] == ["Sim#0", "Sim#1", "Sim#2"]
    assert names(last)[-1] == "Sim#119"


@pytest.mark.parametrize("page", [-1, 0, 99])
def test_a_page_that_is_not_there_is_the_nearest(busy: Observer, page: int) -> None:
    assert actors(busy, Query(page=page))["page"] == (1 if page < 1 else 3)


def test_a_table_is_sorted_both_ways_and_what_is_unknown_comes_last(busy: Observer) -> None:
    assert names(actors(busy, Query(sort="calls", is_descending=True)))[0] == "Sim#119"
    assert names(actors(busy, Query(sort="calls")))[0] == "Sim#0"
    busy.observe(Sight(view=view(node("n0")), nodes={"node-n0": node_figures(3.0)}, news=news()), now=3, wall_time=3)
    for query in (Query(sort="calls"), Query(sort="calls", is_descending=True), Query(sort="nonsense")):
        assert actors(busy, query)["found"] == 108  # those of the nodes that have gone


def test_a_table_is_searched_in_what_people_see(busy: Observer) -> None:
    assert actors(busy, Query(text="sim#11"))["found"] == 11
    assert actors(busy, Query(text="n3"))["found"] == 12
    assert actors(busy, Query(text="nobody")) | {"rows": {}, "order": [], "found": 0} == actors(
        busy, Query(text="nobody")
    )
    assert nodes(busy, Query(text="zone=b"))["found"] == 10


def test_a_state_is_chosen(busy: Observer) -> None:
    assert actors(busy, Query(state="running"))["found"] == 120
    assert actors(busy, Query(state="ended"))["found"] == 0
    assert actors(busy, Query(state="ended"))["counts"] == {"running": 120}


def test_only_what_has_changed_is_told_again(busy: Observer) -> None:
    before = actors(busy, Query())
    assert changes(None, before) == before
    assert changes(before, actors(busy, Query())) == {}
    sight = crowd(120, 3.0)
    del sight.nodes["node-n1"]
    busy.observe(sight, now=3.0, wall_time=3.0)
    told = changes(before, actors(busy, Query()))
    assert set(told) == {"rows"}
    assert len(told["rows"]) == PAGE_ROWS


def test_changes_lead_to_the_same_as_the_whole(busy: Observer) -> None:
    before = actors(busy, Query(sort="calls", is_descending=True))
    busy.observe(crowd(90, 3.5), now=3.5, wall_time=3.5)
    after = actors(busy, Query(sort="calls", is_descending=True))
    told = changes(before, after)
    known = {**before, **told}
    rows = {**before["rows"], **told.get("rows", {})}
    assert {**known, "rows": {key: rows[key] for key in known["order"]}} == after


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_every_view_is_json_of_a_cluster_that_is_empty_or_full(name: str, busy: Observer) -> None:
    for observer in (Observer(), busy):
        json.dumps(VIEWS[name](observer, Query(key="a1")), allow_nan=False)


def test_the_overview_sums_up(busy: Observer) -> None:
    told = overview(busy, Query())
    assert (told["nodes"], told["actors"], told["programs"], told["cpu_share"]) == (10, 120, 1, 0.5)
    assert told["calls_per_s"] == pytest.approx(sum(range(1, 121)))
    assert [row["name"] for row in told["busiest"]] == [f"Sim#{number}" for number in range(112, 120)]
    assert (told["used_gpus"], told["total_gpus"], told["gpu_share"]) == (5.0, 10, 0.25)


def test_a_silent_actor_stays_among_the_busiest_in_the_order_of_the_table(busy: Observer) -> None:
    sight = crowd(120, 3.0)
    seen = sight.nodes["node-n5"]
    assert isinstance(seen, NodeFigures)
    silent = [msgspec.structs.replace(each, calls=None) if each.name == "Sim#5" else each for each in seen.actors]
    sight.nodes["node-n5"] = msgspec.structs.replace(seen, actors=silent)
    busy.observe(sight, now=3.0, wall_time=3.0)
    names = [row["name"] for row in overview(busy, Query())["busiest"]]
    assert names == ["Sim#5", *(f"Sim#{number}" for number in range(113, 120))]


def test_every_page_is_told_of_the_first_alarm_in_words_that_stay_the_same() -> None:
    observer = Observer()
    assert attention(observer.picture) == {"num_alarms": 0, "first_alarm": None}
    told = []
    for second in (1.0, 9.0):
        seen = {"node-alpha": node_figures(second, figures(1, None))}
        sight = Sight(view=view(node(), actor(1)), nodes=dict(seen), news=news())
        told.append(attention(observer.observe(sight, now=second, wall_time=second)))
    text = "Sim#1 is silent (pid 100 on alpha): native code of it may hold Python's lock"
    alarm = {"text": text, "link": "/actors/a1", "is_bad": True}
    assert told == [{"num_alarms": 1, "first_alarm": alarm}] * 2


def test_a_run_is_told_with_how_many_of_its_actors_are_silent_and_what_limits_it() -> None:
    observer = Observer()
    shares = {"waiting_share": 0.37, "copying_share": 0.01, "computing_share": 0.62, "environment_share": 0.9}
    report = ProgramReport("d1", "train.py", 1.0, json.dumps(shares).encode())
    seen = {"node-alpha": node_figures(1.0, figures(1, calls()), figures(2, None))}
    sight = Sight(view=view(node(), actor(1), actor(2)), nodes=dict(seen), news=news(reports=[report]))
    observer.observe(sight, now=1, wall_time=1)
    told = runs(observer, Query())
    assert (told["num_actors"], told["num_silent"]) == (2, 1)
    assert told["verdicts"] == [
        "1 of 2 actors is silent: Sim#2.",
        "The actors limit this run: the learner waits for them, of whom not all answer, 37% of the time.",
    ]
    over = Sight(news=news(reports=[msgspec.structs.replace(report, is_over=True)]))
    observer.observe(over, now=2, wall_time=2)
    assert runs(observer, Query())["verdicts"] == []


def test_nodes_say_whether_any_of_them_has_a_gpu(busy: Observer) -> None:
    assert nodes(busy, Query())["has_gpus"]
    observer = Observer()
    without = msgspec.structs.replace(node(), used_gpus=[])
    observer.observe(Sight(view=view(without), news=news()), now=1, wall_time=1)
    assert not nodes(observer, Query())["has_gpus"]


def test_warnings_are_chosen_among_events() -> None:
    observer = Observer()
    happenings = [ended(1), ended(2, 2, was_asked="True")]
    seen = {"node-alpha": node_figures(1.0, happenings=happenings)}
    observer.observe(Sight(view=view(node()), nodes=dict(seen), news=news()), now=1, wall_time=60)
    assert events(observer, Query())["found"] == 2
    assert events(observer, Query(state="warnings"))["found"] == 1


def test_the_run_that_is_asked_for_is_told_else_the_one_that_goes_on() -> None:
    observer = Observer()
    reports = [
        ProgramReport("over", "old.py", 1.0, b'{"agent_steps": 5}', True),
        ProgramReport("live", "new.py", 2.0, b'{"agent_steps": 9, "mean_return": 1.5}'),
    ]
    observer.observe(Sight(news=news(reports=reports)), now=1, wall_time=1)
    assert runs(observer, Query())["chosen"] == "live"
    assert runs(observer, Query())["history"] == {"x": [9.0], "agent_steps": [9.0], "mean_return": [1.5]}
    assert runs(observer, Query(key="over"))["chosen"] == "over"
    assert runs(observer, Query(key="nothing"))["chosen"] == "live"


@pytest.mark.parametrize(
    ("given", "query"),
    [
        ({}, Query()),
        ({"page": "3", "sort": "-calls", "q": " A "}, Query(page=3, sort="calls", is_descending=True, text="a")),
        ({"page": "-1"}, Query()),
        ({"page": "99999999999999"}, Query()),
        ({"page": "\u0663"}, Query(page=3)),
        ({"id": "a1"}, Query(key="a1")),
    ],
)
def test_a_query_that_makes_no_sense_is_none(given: dict[str, str], query: Query) -> None:
    assert Query.of(given) == query
