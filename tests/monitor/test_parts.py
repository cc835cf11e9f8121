"""Histories, histograms, reports, tokens, addresses: the small parts."""

from __future__ import annotations

import json
import math
import os
import stat
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncparl.errors import AuthenticationError, ProtocolError
from asyncparl.monitor.access import Access, is_loopback, keep_token, token_file
from asyncparl.monitor.history import History
from asyncparl.monitor.runs import MAX_RUNS, Runs, read_report
from asyncparl.monitor.server import DEFAULT_PORT, Bind
from asyncparl.monitor.totals import MAX_CLASSES, OTHERS, Totals
from asyncparl.protocol.figures import (
    MAX_REPORT_BYTES,
    NUM_BUCKETS,
    Histogram,
    ProgramReport,
    bucket_limit_s,
)
from asyncparl.runtime.figures import AsyncCallFigures, CallFigures, sum_up
from asyncparl.runtime.gpus import parse_gpus
from asyncparl.runtime.journal import Journal
from asyncparl.runtime.log import Silence
from asyncparl.runtime.reports import MAX_REPORTS, Reports
from tests.monitor.fakes import calls

# --- histories -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 2000), st.integers(4, 50))
@example(1410, 45)
def test_a_history_is_bounded_and_has_both_ends(num: int, most: int) -> None:
    history = History(most)
    for x in range(num):
        history.add(x, {"y": x * 2.0})
    curves = history.curves()
    assert len(curves["x"]) == len(curves["y"]) <= most
    assert curves["x"][0] == 0 and curves["x"][-1] == num - 1
    assert curves["x"] == sorted(set(curves["x"]))  # type: ignore[type-var]
    assert curves["y"] == [x * 2.0 for x in curves["x"]]  # type: ignore[operator]
    if num > most:
        assert len(curves["x"]) >= most // 2


def test_curves_that_begin_late_or_have_no_number_have_gaps() -> None:
    history = History()
    history.add(0, {"a": 1.0})
    history.add(1, {"a": math.nan, "b": 2.0})
    history.add(2, {"a": 3.0, "b": math.inf})
    assert history.curves() == {"x": [0, 1, 2], "a": [1.0, None, 3.0], "b": [None, 2.0, None]}
    assert list(history.curves("b", "c")) == ["x", "b"]


# --- counting ------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(2e-6, 500), min_size=1, max_size=50), st.floats(0.01, 1))
def test_quantiles_are_right_to_within_a_bucket(durations: list[float], share: float) -> None:
    counts = [0] * NUM_BUCKETS
    for duration in durations:
        counts[min((int(duration * 1e9) >> 10).bit_length(), NUM_BUCKETS - 1)] += 1
    found = Histogram(counts).quantile(share)
    exact = sorted(durations)[max(0, math.ceil(share * len(durations) - 1e-9) - 1)]
    assert found is not None
    assert exact / 2.01 <= found <= exact * 2.01


def test_nothing_has_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None


def test_calls_are_counted_and_the_longest_is_what_runs() -> None:
    own, others = CallFigures(), AsyncCallFigures()
    own.begin("quick")
    own.end()
    own.end()  # nothing runs
    others.begin(1, "long")
    others.begin(2, "short")
    own.begin("now")
    told = sum_up(own, others, num_failed=3, num_waiting=4)
    assert (told.num_failed, told.num_waiting, told.num_running, told.running) == (3, 4, 3, "long")
    assert sum(told.durations) == 1 and told.running_s > 0 and told.busy_s > 0
    others.end(1)
    others.end(2)
    own.end()
    told = sum_up(own, others, num_failed=0, num_waiting=0)
    assert (sum(told.durations), told.num_running, told.running, told.running_s) == (4, 0, "", 0.0)


def test_a_duration_is_in_the_bucket_of_its_limit() -> None:
    own = CallFigures()
    own.begin("sleep")
    time.sleep(0.02)
    own.end()
    bucket = own.durations.index(1)
    assert bucket_limit_s(bucket - 1) <= 0.02 * 1.5 and bucket_limit_s(bucket) > 0.02


def test_classes_beyond_the_limit_are_counted_together() -> None:
    totals = Totals()
    for number in range(MAX_CLASSES + 5):
        totals.add(f"Class{number}", "alpha", None, calls((1, 1)))
    assert len(totals.by_class) == MAX_CLASSES + 1
    assert totals.by_class[OTHERS, "alpha"].durations[1] == 5


# --- what is noted and reported ------------------------------------------------------------------------------------


def test_a_journal_passes_on_what_is_said_and_remembers_the_last_of_it() -> None:
    said: list[str] = []

    class Log(Silence):
        def info(self, event: str, **fields: object) -> None:
            said.append(event)

    journal = Journal(Log(), size=3)
    for number in range(5):
        journal.info(f"event {number}", number=number, text="x" * 10_000)
    journal.warning("the last")
    assert said == [f"event {number}" for number in range(5)]
    assert [happening.event for happening in journal.after(0)] == ["event 3", "event 4", "the last"]
    assert [happening.event for happening in journal.after(5)] == ["the last"]
    assert journal.after(6) == []
    assert journal.after(0)[-1].is_warning
    assert len(journal.after(0)[0].fields["text"]) == 500


async def test_the_last_report_of_each_program_is_kept_and_they_are_bounded() -> None:
    reports = Reports()
    for number in range(MAX_REPORTS + 1):
        reports.put(f"d{number}", "program", b"{}")
    reports.put("d1", "program", b'{"new": 1}')
    reports.gone("d1")
    reports.gone("nobody")
    read = {report.driver_id: report for report in reports.read()}
    assert len(read) == MAX_REPORTS and "d0" not in read
    assert (read["d1"].report, read["d1"].is_over, read["d2"].is_over) == (b'{"new": 1}', True, False)
    with pytest.raises(ProtocolError, match="the limit is 16,384"):
        reports.put("d1", "program", b"x" * (MAX_REPORT_BYTES + 1))


@pytest.mark.parametrize(
    ("report", "values"),
    [
        (b'{"a": 1, "b": "x", "c": true, "d": null, "e": [1]}', {"a": 1, "b": "x", "c": True}),
        (b'{"losses": {"pg": 1.5, "deeper": {"x": 1}}}', {"losses/pg": 1.5}),
        (b'{"a": NaN, "b": Infinity}', {}),
        (json.dumps({"a" * 900: "b" * 900}).encode(), {"a" * 200: "b" * 200}),
        (b"[1]", None),
        (b"no json", None),
        (b"\xff", None),
        (b"[" * 10_000, None),
    ],
)
def test_a_report_is_read_as_texts_and_numbers(report: bytes, values: dict[str, object] | None) -> None:
    assert read_report(report) == values


def test_a_report_of_very_many_values_is_cut() -> None:
    read = read_report(json.dumps({f"name {number}": number for number in range(500)}).encode())
    assert read is not None and len(read) == 64


def test_the_curves_of_a_run_begin_with_what_it_has_learned() -> None:
    runs = Runs()

    def tell(steps: int, computing: float, speed: float, lag: float) -> None:
        shares = {"waiting_share": 0.0, "copying_share": 0.0, "computing_share": computing}
        report = json.dumps({"agent_steps": steps, "steps_per_s": speed, "mean_lag": lag, **shares}).encode()
        runs.update([ProgramReport("d1", "train.py", 1.0, report)], now=steps)

    tell(0, 0.0, 0.0, 0.0)
    tell(100, 1.0, 50.0, 2.0)
    tell(
        101, 0.0, 0.0, 0.0
    )  # nothing more for a whole window: that it stands still is known, how old batches are is not
    curves = runs.history("d1").curves("steps_per_s", "mean_lag", "computing_share")
    assert curves == {
        "x": [100, 101], "steps_per_s": [50.0, 0.0], "mean_lag": [2.0, None], "computing_share": [1.0, None],
    }  # fmt: skip


def test_runs_have_curves_over_their_steps_and_are_bounded() -> None:
    runs = Runs()
    for steps in (0, 100, 100, 200):
        report = json.dumps({"agent_steps": steps, "steps_per_s": 50}).encode()
        runs.update([ProgramReport("d1", "train.py", 1.0, report)], now=steps)
    assert runs.history("d1").curves("steps_per_s") == {"x": [0, 100, 200], "steps_per_s": [50, 50, 50]}
    assert runs.steps_per_s() == 50
    rows = runs.update([], now=500)
    assert rows["d1"].is_over and runs.steps_per_s() is None
    for number in range(MAX_RUNS + 5):
        rows = runs.update([ProgramReport(f"n{number}", "train.py", 1.0, b"{}")], now=600)
    assert len(rows) <= MAX_RUNS and "d1" not in rows


# --- who may look --------------------------------------------------------------------------------------------------


def test_the_token_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    token, is_new = keep_token(tmp_path)
    assert is_new and len(token) >= 32
    assert stat.S_IMODE(token_file(tmp_path).stat().st_mode) == 0o600
    assert keep_token(tmp_path) == (token, False)
    assert keep_token(tmp_path / "other")[0] != token


@pytest.mark.parametrize("spoil", ["readable", "empty", "link"])
def test_a_token_that_cannot_be_trusted_is_refused(tmp_path: Path, spoil: str) -> None:
    keep_token(tmp_path)
    path = token_file(tmp_path)
    if spoil == "readable":
        path.chmod(0o644)
    elif spoil == "empty":
        path.write_text("")
    else:
        path.rename(tmp_path / "elsewhere")
        os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(AuthenticationError, match="monitor-token"):
        keep_token(tmp_path)


def test_a_cookie_proves_the_token_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access("a" * 32)
    cookie = access.new_cookie()
    assert "a" * 32 not in cookie
    assert access.may_look({"asyncparl-monitor": cookie}, "")
    assert not Access("b" * 32).may_look({"asyncparl-monitor": cookie}, "")
    until, _, proof = cookie.partition(".")
    for wrong in ("", ".", proof, f"{int(until) + 1}.{proof}", f"{until}.", f"{until}.é", "é.é"):
        assert not access.may_look({"asyncparl-monitor": wrong}, "")
    later = time.time() + 8 * 24 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert not access.may_look({"asyncparl-monitor": cookie}, "")


@pytest.mark.parametrize(
    ("authorization", "may"),
    [(f"Bearer {'a' * 32}", True), (f"bearer {'a' * 32}", True), ("Bearer wrong", False), (f"Basic {'a' * 32}", False),
     ("Bearer", False), ("Bearer é", False), ("a" * 32, False), ("", False)],
)  # fmt: skip
def test_programs_prove_it_in_a_header(authorization: str, may: bool) -> None:
    assert Access("a" * 32).may_look({}, authorization) is may


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("localhost:8011", True), ("127.0.0.1:8011", True), ("[::1]:8011", True), ("localhost", True),
     ("127.9.9.9:1", True), ("evil.example:8011", False),
     ("localhost.evil.example", False), ("10.0.0.1:8011", False), ("", False)],
)  # fmt: skip
def test_without_a_token_only_local_names_are_answered(host: str, is_ours: bool) -> None:
    assert Access().is_addressed_well(host) is is_ours
    assert Access("token").is_addressed_well(host)


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        (True, Bind()),
        ("true", Bind()),
        ("9000", Bind("127.0.0.1", 9000, True)),
        ("0.0.0.0:9000", Bind("0.0.0.0", 9000, True, True)),
        ("[::]:9000", Bind("::", 9000, True, True)),
        ("[::1]:9000", Bind("::1", 9000, True)),
        ("0.0.0.0", Bind("0.0.0.0", DEFAULT_PORT, True, True)),
        ("localhost:0", Bind("localhost", 0, True)),
        ("my-host.example:1", Bind("my-host.example", 1, True, True)),
    ],
)
def test_beyond_this_machine_a_token_is_always_asked_for(text: str | bool, bind: Bind) -> None:
    assert Bind.parse(text) == bind
    assert bind.asks_token is not is_loopback(bind.host)


@pytest.mark.parametrize("text", ["host:99999", "a b:1", "http://x:1", "x/y"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no address for a monitor"):
        Bind.parse(text)


# --- GPUs ----------------------------------------------------------------------------------------------------------

SMI = """0, GPU-aaa, NVIDIA H100 80GB HBM3, 37, 1024, 81559
1, GPU-bbb, NVIDIA H100 80GB HBM3, [N/A], 5, 81559
nonsense
"""


def test_gpus_are_found_by_number_and_by_id_in_the_order_of_the_node() -> None:
    found = parse_gpus(SMI, ["GPU-bbb", "0", "7"])
    assert [(gpu.busy_share, gpu.used_memory_bytes >> 20) for gpu in found] == [(0.0, 5), (0.37, 1024)]
    assert found[0].name == "NVIDIA H100 80GB HBM3"
    assert parse_gpus("", ["0"]) == []
