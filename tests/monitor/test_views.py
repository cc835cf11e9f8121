"""What a page is told: one page of a table, and then only what has changed."""

from __future__ import annotations

import json

import pytest

from asyncparl.monitor.observer import Observer
from asyncparl.monitor.source import Sight
from asyncparl.monitor.views import PAGE_ROWS, VIEWS, Query, actors, changes, events, nodes, overview, runs
from asyncparl.protocol.figures import ProgramReport
from tests.monitor.fakes import crowd, ended, news, node, node_figures, view


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
    assert [row["name"] for row in told["busiest"]][:2] == ["Sim#119", "Sim#118"]
    assert (told["used_gpus"], told["total_gpus"], told["gpu_share"]) == (5.0, 10, 0.25)


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
