"""The site over real HTTP, with a cluster that is made up."""

from __future__ import annotations

import json
import re
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from asyncparl.monitor import watch as watching
from asyncparl.monitor.access import token_file
from asyncparl.monitor.observer import Observer
from asyncparl.monitor.prometheus import exposition
from asyncparl.monitor.server import Bind, serve
from asyncparl.monitor.source import Sight
from asyncparl.monitor.watch import Watch
from asyncparl.protocol.figures import ProgramReport
from asyncparl.protocol.node_messages import ActorExited
from tests.monitor.fakes import FakeSource, calls, crowd, figures, get, monitor_of, news, node, node_figures, view
from tests.monitor.fakes import actor as an_actor

PAGES = ["/", "/nodes", "/actors", "/actors/a1", "/runs", "/events"]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASYNCPARL_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def one_actor() -> FakeSource:
    seen = {"node-alpha": node_figures(1.0, figures(1, calls((5, 10))))}
    return FakeSource(Sight(view=view(node(), an_actor()), nodes=dict(seen), news=news()))


@pytest.mark.parametrize("path", PAGES)
async def test_every_answer_forbids_whatever_is_not_from_here(path: str) -> None:
    async with monitor_of(one_actor()) as url:
        answer = await get(url, path)
    assert answer.status == 200 and "<title>" in answer.body
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers
    # Nothing inline, and nothing from elsewhere.
    assert "<style" not in answer.body and " style=" not in answer.body and " onclick" not in answer.body
    assert "http://" not in answer.body and "https://" not in answer.body
    assert all('src="/static/' in part[:30] for part in answer.body.split("<script")[1:] if "src" in part[:30])


@pytest.mark.parametrize("path", [*PAGES, "/metrics", "/stream/actors", "/static/monitor.js"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(path: str, method: str) -> None:
    async with monitor_of(one_actor()) as url:
        assert (await get(url, path, method=method)).status == 405


@pytest.mark.parametrize(
    "path", ["/static/../access.py", "/static/%2e%2e/access.py", "/static/..%2faccess.py", "/stream/x", "/nothing"]
)
async def test_what_is_not_there_is_not_there(path: str) -> None:
    async with monitor_of(one_actor()) as url:
        assert (await get(url, path)).status == 404


async def test_a_page_of_somebody_else_whose_name_points_here_gets_nothing() -> None:
    async with monitor_of(one_actor()) as url:
        answer = await get(url, "/actors", Host="evil.example:8011")
        assert answer.status == 400 and "localhost" in answer.body
        assert (await get(url, "/metrics", Host="evil.example")).status == 400
        assert (await get(url, "/static/monitor.js", Host="evil.example")).status == 400


async def test_what_an_id_holds_is_escaped() -> None:
    async with monitor_of(one_actor()) as url:
        answer = await get(url, "/actors/%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert "<script>alert" not in answer.body


async def test_plotly_comes_from_the_installed_package() -> None:
    async with monitor_of(one_actor()) as url:
        answer = await get(url, "/static/plotly.js")
    assert answer.status == 200 and "plotly.js v" in answer.body[:200]


# --- the token -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*PAGES, "/stream/actors", "/stream/log/a1", "/actors/a1/log", "/actors/a1/death"])
async def test_without_the_token_nothing_is_told(path: str) -> None:
    source = one_actor()
    source.logs["a1"] = ["secret"]
    async with monitor_of(source, asks_token=True) as url:
        answer = await get(url, path)
        assert answer.status == 401 and "secret" not in answer.body
        assert answer.headers["www-authenticate"] == "Bearer"
        page = await get(url, path, Accept="text/html")
        assert (page.status, page.headers["location"]) == (303, "/login")
        assert (await get(url, path, Cookie="asyncparl-monitor=9999999999.00")).status == 401
        assert (await get(url, path, Authorization="Bearer wrong")).status == 401
        assert (await get(url, f"{path}?token=anything")).status == 401


async def test_the_token_gives_a_cookie_that_scripts_and_other_sites_do_not_get(own_state: Path) -> None:
    async with monitor_of(one_actor(), asks_token=True) as url:
        token = token_file(own_state).read_text().strip()
        assert (await get(url, "/login")).status == 200
        for wrong in ("", "wrong", token[:-1], f"{token}x", "é" * 20):
            answer = await get(url, "/login", method="POST", body=wrong.encode().decode("latin-1"))
            assert answer.status == 403 and "set-cookie" not in answer.headers
        answer = await get(url, "/login", method="POST", body=token)
        cookie = answer.headers["set-cookie"]
        assert answer.status == 204
        assert "httponly" in cookie.lower() and "samesite=strict" in cookie.lower()
        assert token not in cookie
        assert (await get(url, "/actors", Cookie=cookie.partition(";")[0])).status == 200
        assert (await get(url, "/metrics", Authorization=f"Bearer {token}")).status == 200
        assert (await get(url, "/login", method="POST", body="x" * 2000)).status == 413
        # With a token it may have any name: a proxy may stand in front.
        assert (await get(url, "/actors", Host="cluster.example", Cookie=cookie.partition(";")[0])).status == 200


async def test_the_token_is_shown_once_and_behind_a_hash(own_state: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        async with serve(one_actor(), Bind("127.0.0.1", 0, True, True), say=said.append):
            pass
    token = token_file(own_state).read_text().strip()
    assert f"/login#{token}" in said[0]
    assert token not in said[1] and str(token_file(own_state)) in said[1]


# --- streams -------------------------------------------------------------------------------------------------------


class Stream:
    """Reads events in a thread of its own."""

    def __init__(self, url: str, path: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
        self._connection.request("GET", path)
        self._response = self._connection.getresponse()

    def next(self) -> tuple[str, object]:
        name = ""
        while line := self._response.readline().decode().rstrip("\n"):
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))
        return self.next()

    def close(self) -> None:
        self._response.close()
        self._connection.close()


async def test_a_stream_tells_all_at_first_and_then_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_INTERVAL_S", 0.05)
    source = FakeSource(crowd(3, 1.0))
    async with monitor_of(source) as url:
        stream = await trio.to_thread.run_sync(Stream, url, "/stream/actors?sort=-calls")
        name, told = await trio.to_thread.run_sync(stream.next)
        assert name == "picture" and isinstance(told, dict)
        assert told["total"] == 3
        source.sight = crowd(4, 2.0)
        while "total" not in (told := (await trio.to_thread.run_sync(stream.next))[1]):  # type: ignore[operator]
            pass
        assert isinstance(told, dict) and told["total"] == 4 and "pages" not in told
        await trio.to_thread.run_sync(stream.close)


async def test_nobody_watches_and_nothing_is_asked_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_INTERVAL_S", 0.02), ("_UNWATCHED_S", 0.02), ("_REST_AFTER_S", 0.1)):
        monkeypatch.setattr(watching, name, value)
    source = one_actor()
    async with monitor_of(source) as url:
        with trio.fail_after(5):
            while source.num_looks < 5:
                await trio.sleep(0.01)
        assert source.num_close_looks == 0
        stream = await trio.to_thread.run_sync(Stream, url, "/stream/overview")
        await trio.to_thread.run_sync(stream.next)
        await trio.to_thread.run_sync(stream.close)
        with trio.fail_after(5):
            while not source.num_rests:
                await trio.sleep(0.01)
        looks = source.num_close_looks
        assert looks > 0
        before = source.num_looks
        with trio.fail_after(5):
            while source.num_looks < before + 5:
                await trio.sleep(0.01)
        assert (source.num_close_looks, source.num_rests) == (looks, 1)


async def test_too_many_readers_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_WATCHERS", 1)
    async with monitor_of(one_actor()) as url:
        first = await trio.to_thread.run_sync(Stream, url, "/stream/actors")
        await trio.to_thread.run_sync(first.next)
        for path, name in (("/stream/actors", "refused"), ("/stream/log/a1", "end")):
            second = await trio.to_thread.run_sync(Stream, url, path)
            assert await trio.to_thread.run_sync(second.next) == (name, "too many pages are open; close some")
            await trio.to_thread.run_sync(second.close)
        await trio.to_thread.run_sync(first.close)


async def test_a_log_is_told_searched_and_downloaded() -> None:
    source = one_actor()
    source.logs["a1"] = [f"line {number} <b>" for number in range(1500)]
    async with monitor_of(source) as url:
        for path, num in (("/stream/log/a1", 1000), ("/stream/log/a1?q=LINE%201499", 1)):
            stream = await trio.to_thread.run_sync(Stream, url, path)
            name, lines = await trio.to_thread.run_sync(stream.next)
            assert name == "lines" and isinstance(lines, list)
            assert (len(lines), lines[-1]) == (num, "line 1499 <b>")
            await trio.to_thread.run_sync(stream.close)
        answer = await get(url, "/actors/a1/log")
        assert len(answer.body.splitlines()) == 1500
        assert answer.headers["content-type"].startswith("text/plain")
        assert answer.headers["content-disposition"] == 'attachment; filename="a1.log"'
        missing = await get(url, "/actors/a2/log")
        assert missing.status == 404 and "no such actor" in missing.body


async def test_a_log_that_is_not_there_ends_with_the_reason() -> None:
    async with monitor_of(one_actor()) as url:
        stream = await trio.to_thread.run_sync(Stream, url, "/stream/log/a1")
        name, why = await trio.to_thread.run_sync(stream.next)
        assert (name, why) == ("end", "there is no more of this log: this node has no log of it")
        await trio.to_thread.run_sync(stream.close)


async def test_a_death_report_is_told() -> None:
    source = one_actor()
    source.deaths["a1"] = ActorExited("a1", "killed by SIGKILL", None, 9, ["last words"])
    async with monitor_of(source) as url:
        report = json.loads((await get(url, "/actors/a1/death")).body)
        assert (report["reason"], report["signal"], report["log_tail"]) == ("killed by SIGKILL", 9, ["last words"])
        assert (await get(url, "/actors/nobody/death")).body == "null"


async def test_a_monitor_that_fails_does_not_end_the_block(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(FakeSource):
        async def look(self, *, closely: bool) -> Sight:
            raise RuntimeError("broken")

    async with monitor_of(Broken()):
        await trio.testing.wait_all_tasks_blocked()
    assert "it has failed; everything else goes on" in capsys.readouterr().err


async def test_what_the_block_raises_comes_in_no_group() -> None:
    with pytest.raises(KeyError):
        async with monitor_of(one_actor()):
            raise KeyError("ours")


# --- Prometheus ----------------------------------------------------------------------------------------------------


async def test_the_metrics_are_read_by_prometheus_own_parser() -> None:
    source = FakeSource(crowd(50, 2.0))
    report = {"title": "IMPALA on Pong", "agent_steps": 500, "waiting_share": 0.25, "losses": {"entropy": 1.5}}
    source.sight = Sight(
        view=source.sight.view,
        nodes=source.sight.nodes,
        news=news(reports=[ProgramReport("d1", "train.py", 1.0, json.dumps(report).encode())]),
    )
    async with monitor_of(source) as url:
        answer = await get(url, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answer.body)}
    assert all(name.startswith("asyncparl_") and families[name].documentation for name in families)
    samples = {
        (each.name, *each.labels.values()): each.value for family in families.values() for each in family.samples
    }
    assert samples["asyncparl_up",] == 1
    assert samples["asyncparl_actors", "running"] == 50
    assert samples["asyncparl_node_memory_used_bytes", "n3"] == 3 << 30
    assert samples["asyncparl_run_agent_steps", "train.py", "IMPALA on Pong"] == 500
    assert samples["asyncparl_run_learner_ratio", "waiting", "train.py", "IMPALA on Pong"] == 0.25
    assert samples["asyncparl_run_loss", "entropy", "train.py", "IMPALA on Pong"] == 1.5
    counted = sum(value for key, value in samples.items() if key[0] == "asyncparl_call_duration_seconds_count")
    assert counted == sum(2 * (number + 1) for number in range(50))


def test_buckets_rise_and_end_with_all() -> None:
    observer = Observer()
    observer.observe(crowd(5, 1.0), now=1, wall_time=1)
    text, _ = exposition(observer)
    for family in text_string_to_metric_families(text.decode()):
        if family.name == "asyncparl_call_duration_seconds":
            of_n1 = [each for each in family.samples if each.labels["node"] == "n1" and each.name.endswith("_bucket")]
            values = [each.value for each in of_n1]
            assert values == sorted(values) and of_n1[-1].labels["le"] == "+Inf"


def test_actors_do_not_make_more_metrics() -> None:
    sizes = []
    for num in (100, 1000):
        observer = Observer()
        observer.observe(crowd(num, 1.0), now=1, wall_time=1)
        sizes.append(len(exposition(observer)[0].splitlines()))
    assert sizes[0] == sizes[1]


async def test_a_scrape_looks_once_and_shares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = one_actor()
    async with monitor_of(source) as url:
        for _ in range(5):
            assert (await get(url, "/metrics")).status == 200
    assert source.num_close_looks == 1


async def test_a_look_at_2000_actors_is_quick() -> None:
    watch = Watch(FakeSource(crowd(2000, 1.0)))
    began = trio.current_time()
    await watch.look(no_older_than_s=0)
    assert trio.current_time() - began < 3
    assert len(watch.picture.actors) == 2000


def test_the_board_for_grafana_asks_for_metrics_that_there_are() -> None:
    board = json.loads((Path(__file__).parents[2] / "docs" / "grafana-board.json").read_text())
    observer = Observer()
    sight = crowd(5, 1.0)
    report = {"agent_steps": 1, "mean_return": 1, "steps_per_s": 1, "mean_lag": 1, "batch_age_s": 1, "waiting_share": 1}
    report |= {"batches_waiting": 1, "rollouts_waiting": 1, "policy_delay_s": 0.5}
    reports = [ProgramReport("d1", "train.py", 1.0, json.dumps({**report, "losses": {"entropy": 1}}).encode())]
    observer.observe(Sight(view=sight.view, nodes=sight.nodes, news=news(reports=reports)), now=1, wall_time=1)
    text = exposition(observer)[0].decode()
    there = {each.name for family in text_string_to_metric_families(text) for each in family.samples}
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"asyncparl_\w+", target["expr"])
    }
    assert len(asked) > 15
    assert asked <= there
