"""What the pages make of figures that are made up, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import msgspec
import pytest
import trio

from asyncparl.monitor.source import Sight
from asyncparl.protocol.figures import ActorFigures, ProgramReport
from tests.monitor.browser import Browser, Page, skip_without_browser
from tests.monitor.fakes import FakeSource, actor, calls, figures, monitor_of, news, node, node_figures, view

pytestmark = pytest.mark.slow

REPORT = {
    "title": "IMPALA on pong",
    "agent_steps": 191_000,
    "target_steps": 1_000_000,
    "updates": 1193,
    "episodes": 200,
    "elapsed_s": 181.0,
    "steps_per_s": 696.4,
    "mean_return": -20.553,
    "mean_lag": 1.4436,
    "batches_waiting": 0,
    "actors": 2,
    "waiting_share": 0.37,
    "copying_share": 0.01,
    "computing_share": 0.62,
    "environment_share": 0.9,
    "inference_share": 0.08,
    "losses": {"learning_rate": 0.0006, "entropy": 1.7731},
}


@pytest.fixture
def browser() -> Iterator[Browser]:
    skip_without_browser()
    with Browser() as browser:
        yield browser


def training(at: float, second: ActorFigures, *, has_gpu: bool = False) -> Sight:
    """A run with two actors, on a machine with two CPUs."""
    first = figures(1, calls((12, int(9 * at)), running="rollouts", running_s=0.1), cpu_s=at / 2)
    seen = msgspec.structs.replace(node_figures(at, first, second), num_cpus=2)
    there = node() if has_gpu else msgspec.structs.replace(node(), used_gpus=[])
    seen = seen if has_gpu else msgspec.structs.replace(seen, gpus=[])
    steps = 191_000 + int(100 * at)
    report = ProgramReport("d1", "train.py", 1.0, json.dumps({**REPORT, "agent_steps": steps}).encode())
    return Sight(view=view(there, actor(1), actor(2)), nodes={"node-alpha": seen}, news=news(reports=[report]))


def healthy(at: float) -> ActorFigures:
    return figures(2, calls((12, int(7 * at)), running="rollouts", running_s=0.1), pid=24175, cpu_s=at / 2)


def stopped() -> ActorFigures:
    return msgspec.structs.replace(figures(2, None, pid=24175), is_stopped=True)


async def watch(browser: Browser, source: FakeSource, look: Callable[[Browser, str], None]) -> None:
    async with monitor_of(source) as url:
        await trio.to_thread.run_sync(look, browser, url)


def tiles(page: Page) -> dict[str, list[str]]:
    found: dict[str, list[str]] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#figures .tile')]"
        ".map(tile => [...tile.children].map(each => each.innerText)).map(([name, ...rest]) => [name, rest]))"
    )
    return found


def look_at(page: Page, source: FakeSource, *sights: Sight) -> None:
    """Let the page have them, one after the other."""
    for sight in sights:
        source.sight = sight
        number = source.num_close_looks
        while source.num_close_looks < number + 2:
            page.evaluate("new Promise(resolve => setTimeout(resolve, 100))")


async def test_an_actor_that_falls_silent_is_to_be_seen_on_every_page(browser: Browser) -> None:
    source = FakeSource(training(1.0, healthy(1.0)))

    def look(browser: Browser, url: str) -> None:
        with browser.open(url) as page:
            page.wait_text("all ready", "[data-note=nodes]")
            look_at(page, source, training(2.0, healthy(2.0)))
            page.wait_text("Sim#2", "#busiest")
            assert page.text("#alarms") == ""
            look_at(page, source, training(3.0, stopped()), training(30.0, stopped()))
            said = "Sim#2 is silent (pid 24175 on alpha): stopped (SIGSTOP); it was running rollouts"
            page.wait_text(said, "#alarms")
            page.wait_text("for 27 s", "#alarms")
            page.wait_text(said, "#recent")
            assert "silent for 27 s: stopped (SIGSTOP); it was running rollouts" in page.text("#busiest .is-silent")
            assert page.evaluate("document.querySelector('#attention').hidden")
            for name in ("nodes", "actors", "runs", "events", "actors/a1"):
                page.go(url + name)
                page.wait_text(f"Needs attention (1): {said}", "#attention")
                assert page.evaluate("document.querySelector('#attention').pathname") == "/actors/a2"
                if name == "runs":
                    page.wait_text("1 of 2 actors is silent: Sim#2.", "#verdicts")
                    assert tiles(page)["Actors"] == ["2", "1 of 2 answer"]
                assert page.errors == []
            page.go(url + "actors")
            page.wait_text("silent for 27 s", "#table .is-silent")
            cells = page.evaluate(
                "Object.fromEntries([...document.querySelectorAll('#table .is-silent td')]"
                ".map(cell => [cell.dataset.label, cell.innerText]))"
            )
            assert [cells[name] for name in ("Calls", "Busy", "p50", "p99", "Queue")] == ["\u2013"] * 5
            look_at(page, source, training(31.0, healthy(31.0)))
            page.wait("document.querySelector('#attention').hidden")
            page.go(url)
            page.wait_text("Sim#2 answers again", "#recent")
            assert page.errors == []

    await watch(browser, source, look)


async def test_a_run_says_what_limits_it_and_how_far_it_is(browser: Browser) -> None:
    source = FakeSource(training(1.0, healthy(1.0)))

    def look(browser: Browser, url: str) -> None:
        with browser.open(f"{url}runs") as page:
            page.wait_text("The actors limit this run: the learner waits for them 37% of the time.", "#verdicts")
            page.wait_text("The experience is 1.4 updates old on average (policy lag): fresh.", "#verdicts")
            shown = tiles(page)
            assert shown["Return"] == ["-20.6", "mean of the last 100 of 200 episodes"]
            assert shown["Progress"] == ["19.1%", "191k of 1M steps"]
            assert shown["Time to go"] == ["19 min 21 s", "elapsed: 3 min 1 s"]
            assert shown["Policy lag"][0] == "1.44 updates"
            assert shown["Learning rate"][0] == "0.0006"
            assert shown["Actors"] == ["2", ""]
            page.go(url)
            page.wait_text("IMPALA on pong", "#runs")
            assert "191k of 1M steps, 696 steps/s, return -20.6" in page.text("#runs")
            assert page.evaluate("document.querySelector('#runs a').pathname") == "/runs"
            assert page.errors == []

    await watch(browser, source, look)


@pytest.mark.parametrize("has_gpu", [False, True])
async def test_gpus_are_shown_where_there_are_any(browser: Browser, has_gpu: bool) -> None:
    source = FakeSource(training(1.0, healthy(1.0), has_gpu=has_gpu))

    def look(browser: Browser, url: str) -> None:
        with browser.open(url) as page:
            page.wait_text("of 2 CPUs", "[data-note=cpu]")
            assert ("GPU" in page.text("main")) is has_gpu
            page.go(f"{url}nodes")
            page.wait_text("50% of 2 CPUs", "#table")
            assert ("GPU" in page.text("#table")) is has_gpu

    await watch(browser, source, look)


async def test_what_is_measured_is_said_without_a_mouse(browser: Browser) -> None:
    source = FakeSource(training(1.0, healthy(1.0)))

    def look(browser: Browser, url: str) -> None:
        for name, words in {
            "actors": ["Busy", "CPU", "p99"],
            "nodes": ["CPUs leased"],
            "runs": ["Policy delay"],
        }.items():
            with browser.open(url + name, width=390, height=844) as page:
                page.wait("!document.querySelector('#glossary').hidden")
                page.evaluate("document.querySelector('#glossary summary').focus()")
                page.press("Enter")
                page.wait("document.querySelector('#glossary').open")
                told = page.text("#meanings")
                assert "undefined" not in told and all(word in told for word in words)
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        with browser.open(f"{url}actors") as page:
            titles = "[...document.querySelectorAll('th button')].map(each => [each.innerText, each.title])"
            assert dict(page.evaluate(titles))["Busy"].startswith("Of the time, that a method")

    await watch(browser, source, look)


async def test_axes_are_wide_enough_and_gaps_are_no_lines(browser: Browser) -> None:
    def look(browser: Browser, url: str) -> None:
        with browser.open(f"{url}runs") as page:
            assert page.evaluate("axisRange([6e-4, null, 6e-4], true, 0.1)") == pytest.approx([0, 6.3e-4])
            assert page.evaluate("axisRange([0, 0], true, 0.1)") == [0, 1]
            assert page.evaluate("axisRange([0.2, 0.5], true, 0.1, 1)") == [0, 1.05]
            assert page.evaluate("axisRange([7, 7], false, 0.1)") == pytest.approx([6.65, 7.35])
            # Noise is a small part of the axis, whether returns are large or small; what rises fills it.
            for scale in (1, 0.01):
                low, high = page.evaluate(f"axisRange([-20.55 * {scale}, -20.25 * {scale}], false, 0.25)")
                assert (high - low) / scale > 5
                low, high = page.evaluate(f"axisRange([-20 * {scale}, 18 * {scale}], false, 0.25)")
                assert (high - low) / scale == pytest.approx(38 * 1.1)
            assert page.evaluate("withGaps([0, 3, 6, 40, 43], [{name: 'a', y: [1, 2, null, 4, 5]}, {name: 'b'}])") == [
                [0, 3, 6, 6, 40, 43],
                [{"name": "a", "y": [1, 2, None, None, 4, 5]}, {"name": "b"}],
            ]
            assert page.evaluate("markers([1, null, 2, 3, null]).marker.size") == [5, 0, 0, 0, 0]
            for value, text in {18512: "18.5k", 10**8: "100M", 999_960: "1M", 1234: "1,230", 0.4747: "0.47"}.items():
                assert page.evaluate(f"format.short({value})") == text

    await watch(browser, FakeSource(training(1.0, healthy(1.0))), look)


async def test_a_program_of_somebodys_own_may_report_what_it_likes(browser: Browser) -> None:
    texts = dict.fromkeys([*REPORT, "losses"], "12345")
    reports = [ProgramReport("d1", "mine.py", 1.0, json.dumps(texts).encode())]
    source = FakeSource(Sight(view=view(node()), news=news(reports=reports)))

    def look(browser: Browser, url: str) -> None:
        for name in ("", "runs"):
            with browser.open(url + name) as page:
                page.wait_text("12345", "#runs")
                page.wait("document.querySelector('#live.on') !== null")
                assert page.errors == []

    await watch(browser, source, look)
