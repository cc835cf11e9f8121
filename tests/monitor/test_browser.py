"""The monitor as people see it: a real cluster, a real training run, in a real browser."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import trio

from asyncparl.monitor import watch as watching
from asyncparl.monitor.access import token_file
from tests.cluster.clusters import COMMAND, MASTER, Cluster
from tests.cluster.processes import Driver, Program
from tests.monitor.browser import Browser, Page, skip_without_browser
from tests.monitor.fakes import FakeSource, crowd, monitor_of

pytestmark = pytest.mark.slow

PAGES = {
    "": "RolloutActor#1",
    "nodes": "ready",
    "actors": "RolloutActor#1",
    "runs": "IMPALA on CartPole-v1",
    "events": "node one joined",
}
"""And what is to be read there."""
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
DEATH_LIMIT_S = 2.0


class Site(NamedTuple):
    cluster: Cluster
    url: str
    driver: Driver
    browser: Browser


@pytest.fixture
def browser() -> Iterator[Browser]:
    """One for each test: it starts and ends processes as it pleases, which would be leaks of whoever runs then."""
    skip_without_browser()
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def busy_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    """A master with a monitor, a node, and a training run."""
    skip_without_browser()
    folder = tmp_path_factory.mktemp("monitor")
    with Cluster(folder) as cluster:
        master = cluster.start([*MASTER, "--listen", "127.0.0.1:0", "--monitor", "0"])
        cluster.address = master.wait_line("is ready at").partition(";")[0].rpartition(" ")[2]
        master.wait_errors("asyncparl monitor: ")
        url = master.errors().partition("asyncparl monitor: ")[2].split()[0]
        cluster.start_node("one", "--cpus", "4", "--preload", "torch,numpy,gymnasium,asyncparl.training.actor")
        cluster.warm_up()
        small = ["--actors", "1", "--envs-per-actor", "4", "--batch-size", "4", "--steps", "100000000"]
        options = ["--env", "CartPole-v1", "--cluster", cluster.address, "--report-interval", "1"]
        run = cluster.start(
            ["nice", "-n", "10", *COMMAND, "train", "impala", *options, *small, "--run-dir", str(folder / "run")],
            cwd=folder,
        )
        run.wait_line("steps/s", within_s=60)
        yield cluster, url


@pytest.fixture
def site(busy_cluster: tuple[Cluster, str], browser: Browser) -> Iterator[Site]:
    cluster, url = busy_cluster
    with cluster.one_test():
        yield Site(cluster, url, cluster.start_driver(), browser)


def wait_live(page: Page) -> None:
    page.wait("document.querySelector('#live.on') !== null")


def assert_clean(page: Page, url: str) -> None:
    """Nothing was complained about, nothing asked of anybody else, and nothing is wider than the screen."""
    assert page.errors == []
    assert [asked for asked in page.urls if not asked.startswith((url, "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("size", SIZES)
def test_every_page_shows_the_cluster_without_a_complaint(site: Site, size: str) -> None:
    width, height = SIZES[size]
    for name, text in PAGES.items():
        with site.browser.open(site.url + name, width=width, height=height, is_dark=size == "phone") as page:
            wait_live(page)
            page.wait_text(text, "main")
            if name in ("", "runs"):
                page.wait("document.querySelector('.js-plotly-plot .scatterlayer path.js-line') !== null")
            assert_clean(page, site.url)


def test_a_run_is_shown_with_its_curves_and_figures(site: Site) -> None:
    with site.browser.open(f"{site.url}runs") as page:
        wait_live(page)
        page.wait("document.querySelectorAll('#charts .js-plotly-plot').length === 10")
        figures = page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#figures .tile')]"
            ".map(tile => [...tile.children].map(each => each.innerText)))"
        )
        unknown = [name for name, value in figures.items() if not any(letter.isdigit() for letter in value)]
        assert unknown == [], figures
        shares = [int(figures[f"Learner {what}"].rstrip("%")) for what in ("waits", "computes")]
        assert 80 <= sum(shares) <= 101  # the rest is copying
        before = page.text(".runs .note")
        page.wait(f"document.querySelector('.runs .note').innerText !== {before!r}", 10)
        assert_clean(page, site.url)


def test_an_actor_that_is_killed_dies_on_the_page_within_two_seconds(site: Site) -> None:
    site.driver.create("a")
    with site.browser.open(f"{site.url}actors?q=Probe") as page:
        page.wait_text("running", "#table")
        began = time.monotonic()
        site.driver.start("call", "a", "shoot", "my last words").failure()
        page.wait_text("died", "#table")
        assert time.monotonic() - began < DEATH_LIMIT_S
        assert "killed by SIGKILL" in page.text("#table")
        assert_clean(page, site.url)
        page.go(page.evaluate("document.querySelector('#table .is-failed a').href"))
        page.wait_text("killed by SIGKILL", "#death-reason")
        page.wait_text("my last words", "#death-tail")
        assert "signal 9" in page.text("#death-code")
        page.wait_text("ended: killed by SIGKILL", "#recent")
        assert_clean(page, site.url)
    with site.browser.open(site.url) as page:
        page.wait_text("died: killed by SIGKILL", "#alarms")


def test_what_an_actor_runs_is_shown_with_its_time(site: Site) -> None:
    site.driver.create("a")
    sleep = site.driver.start("call", "a", "sleep", 6)
    with site.browser.open(f"{site.url}actors?q=Probe&state=running") as page:
        page.wait_text("runs sleep (", "#table")
        before = page.text("#table td.wide")
        page.wait(f"document.querySelector('#table td.wide').innerText !== {before!r}")
        assert "runs sleep (" in page.text("#table")
        assert sleep.value() == "slept"
        page.wait_text("waits for calls", "#table")


def test_an_actor_that_waits_for_a_place_says_so(site: Site) -> None:
    site.driver.create("a", num_cpus=2)
    made = site.driver.start("create", "b", {"num_cpus": 2})
    with site.browser.open(f"{site.url}actors?state=waiting") as page:
        page.wait_text("waits for a place: ", "#table")
        page.go(page.evaluate("document.querySelector('#table a').href"))
        page.wait_text("waits for a place: ", "#doing")
        # Its log comes by itself once there is one.
        site.driver.do("close", "a")
        made.value()
        site.driver.do("call", "b", "say", "here I am")
        page.wait_text("here I am", "#log")
        assert_clean(page, site.url)


def test_a_log_is_followed_escaped_searched_and_downloaded(site: Site) -> None:
    site.driver.create("a")
    view = site.driver.view()
    own_id = next(driver.driver_id for driver in view.drivers if f"pid {site.driver.pid} " in driver.name)
    (actor_id,) = [actor.actor_id for actor in view.actors if actor.driver_id == own_id]
    site.driver.do("call", "a", "say", "before <b>bold</b><img src=x onerror=alert(1)>\n\x1b[31mred\x1b[0m")
    with site.browser.open(f"{site.url}actors/{actor_id}") as page:
        page.wait_text("before <b>bold</b><img src=x onerror=alert(1)>", "#log")
        assert page.text("#log").splitlines()[-1] == "red"
        site.driver.do("call", "a", "say", "a needle\nsome hay")
        assert page.wait_text("some hay", "#log") < DEATH_LIMIT_S
        page.type("#log-search", "NEEDLE")
        page.wait("document.querySelector('#log').innerText.trim() === 'a needle'")
        assert page.text("#log mark") == "needle"
        site.driver.do("call", "a", "say", "one more needle\nmore hay")
        page.wait_text("one more needle", "#log")
        assert "hay" not in page.text("#log")
        whole = page.evaluate("fetch(document.querySelector('[download]').href).then(answer => answer.text())")
        assert whole.splitlines()[2:] == ["a needle", "some hay", "one more needle", "more hay"]
        assert_clean(page, site.url)


_FOCUSED = """
(e => e === document.body ? {} : { [e.id || e.innerText]: getComputedStyle(e).outlineStyle })(document.activeElement)
"""


def test_everything_can_be_reached_with_the_keyboard(site: Site) -> None:
    site.driver.create("a")
    with site.browser.open(f"{site.url}actors") as page:
        page.wait_text("Probe#", "#table")
        seen = {}
        for _ in range(40):
            page.press("Tab")
            seen |= page.evaluate(_FOCUSED)
        assert next(iter(seen)) == "Skip to the content"
        for name in ("Overview", "Events", "search", "state", "Calls", "Memory"):
            assert name in seen
        assert any(name.startswith("Probe#") for name in seen)
        assert "none" not in [outline for name, outline in seen.items() if name]
        page.evaluate("[...document.querySelectorAll('th button')].find(e => e.innerText === 'Calls').focus()")
        page.press("Enter")
        page.wait("document.querySelector('th[aria-sort=descending]')?.innerText === 'Calls'")
        assert page.evaluate("location.search") == "?sort=-calls"


def test_search_and_nothing_found(site: Site) -> None:
    with site.browser.open(f"{site.url}actors") as page:
        page.wait_text("RolloutActor#1", "#table")
        page.type("#search", "nobody")
        page.wait_text("Nothing fits.", "#nothing-found")
        page.click("#clear")
        page.wait_text("RolloutActor#1", "#table")


@pytest.fixture
def lonely(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[tuple[Cluster, Program, Program]]:
    """A master without a node, and a monitor that is a program of its own and asks for its token."""
    with Cluster(tmp_path_factory.mktemp("lonely")) as cluster:
        master = cluster.start_master()
        monitor = cluster.start([*COMMAND, "monitor", "--master", cluster.address, "--listen", "0", "--token"])
        monitor.wait_errors("asyncparl monitor: ")
        yield cluster, master, monitor


def test_an_empty_cluster_says_what_to_do_and_so_does_one_that_is_gone(
    lonely: tuple[Cluster, Program, Program], browser: Browser
) -> None:
    cluster, master, monitor = lonely
    link = monitor.errors().partition("asyncparl monitor: ")[2].split()[0]
    with browser.open(link) as page:
        page.wait("location.pathname === '/'")
        wait_live(page)
        assert "#" not in page.evaluate("location.href")
        url = page.evaluate("location.origin") + "/"
        for name, text in (("nodes", "asyncparl-node --master"), ("runs", "asyncparl train"), ("actors", "no actors")):
            page.go(url + name)
            page.wait_text(text, "main")
            assert cluster.address in page.text() and page.errors == []
        master.end(signal.SIGKILL)
        page.wait_text("does not answer", "#fault", within_s=15)
        assert page.errors == []
        monitor.end()
        page.wait_text("If it was stopped, start it again", "#fault")
        assert page.text("#live") == "no connection"


def test_a_wrong_token_is_refused(lonely: tuple[Cluster, Program, Program], browser: Browser) -> None:
    cluster, _, monitor = lonely
    url = monitor.errors().partition("asyncparl monitor: ")[2].partition("login#")[0]
    token = token_file(cluster.state).read_text().strip()
    with browser.open(f"{url}actors") as page:
        page.send("Network.clearBrowserCookies")
        page.go(f"{url}actors")
        page.wait("location.pathname === '/login'")
        page.type("#token", "wrong")
        page.press("Enter")
        page.wait_text("That is not the token.", "#login-text")
        assert page.evaluate("fetch('/stream/actors').then(answer => answer.status)") == 401
        page.type("#token", token)
        page.press("Enter")
        page.wait("location.pathname === '/'")
        wait_live(page)
        (cookie,) = page.send("Network.getCookies", urls=[url])["cookies"]
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
        assert page.evaluate("document.cookie") == ""


async def test_a_thousand_actors_are_a_page_and_a_browser_left_open_does_not_grow(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_INTERVAL_S", 0.02)
    monkeypatch.setattr(watching, "_SHARE", 10.0)
    source = FakeSource(crowd(1000, 1.0))
    async with monitor_of(source) as url, trio.open_nursery() as nursery:
        nursery.start_soon(_go_on, source)
        await trio.to_thread.run_sync(_watch_for_long, browser, url)
        nursery.cancel_scope.cancel()


async def _go_on(source: FakeSource) -> None:
    at = 1.0
    while True:
        await trio.sleep(0.05)
        at += 1.0
        source.sight = crowd(1000, at)


_MEASURE = """
window.longest = window.changes = 0;
(function tick(last) {
  requestAnimationFrame((now) => { longest = Math.max(longest, now - last); tick(now); });
})(performance.now());
new MutationObserver(() => { changes += 1; })
  .observe(document.querySelector("#table"), { childList: true, subtree: true });
"""


def _watch_for_long(browser: Browser, url: str) -> None:
    with browser.open(f"{url}actors?sort=-calls") as page:
        assert page.wait_text("1,000 actors", "#count") < 5
        assert page.evaluate("document.querySelectorAll('#table tbody tr').length") == 50
        page.click("#pager [data-go=last]")
        page.wait_text("page 20 of 20", "#pager")
        # The page goes on to answer while rows change all the time.
        page.evaluate(_MEASURE)
        num_nodes = page.evaluate("document.querySelectorAll('*').length")
        sizes = []
        for target in (20, 60):
            page.wait(f"changes >= {target}", 60)
            page.send("HeapProfiler.collectGarbage")
            sizes.append(page.send("Runtime.getHeapUsage")["usedSize"])
        assert page.evaluate("document.querySelectorAll('*').length") == num_nodes
        assert sizes[1] < sizes[0] * 1.3 + 500_000
        assert page.evaluate("longest") < 1000
        assert page.errors == []
