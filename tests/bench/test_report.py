"""Tables of measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncparl.bench.report import Row, Table, render, save


def cells(text: str, name: str) -> list[str]:
    """Of the row of that name, without the name."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_a_row_shows_its_median_and_its_spread() -> None:
    text = render("Title", [Table("", [Row("call", "us", [3.0, 1.0, 2.0], target="5", note="warm")])], "command")
    assert cells(text, "call") == ["2 us", "1", "3", "5", "warm"]


@pytest.mark.parametrize(("unit", "limit", "ours"), [("us", 100.0, 150.0), ("/s", 300.0, 200.0)])
def test_a_limit_is_so_many_times_better_whether_more_is_better_or_less(unit: str, limit: float, ours: float) -> None:
    table = Table("", [Row("socket", unit, [limit]), Row("call", unit, [ours], limit="socket")])
    assert cells(render("Title", [table], "command"), "call")[4] == "1.5x"


@pytest.mark.parametrize(("unit", "ours", "theirs"), [("us", 100.0, 300.0), ("/s", 300.0, 100.0)])
def test_a_peer_that_is_slower_shows_how_many_times_better_asyncparl_is(unit: str, ours: float, theirs: float) -> None:
    row = Row("call", unit, [ours], peers={"Ray": [theirs]})
    (cell,) = [cell for cell in cells(render("Title", [Table("", [row])], "command"), "call") if "x)" in cell]
    assert cell == f"{theirs:.0f} {unit} (3x)"


def test_ratios_to_a_limit_are_of_samples_that_were_taken_together() -> None:
    slow_and_fast_moods = Row("socket", "us", [1.0, 10.0, 100.0])
    row = Row("call", "us", [2.0, 20.0, 200.0], limit="socket")
    assert cells(render("Title", [Table("", [slow_and_fast_moods, row])], "command"), "call")[4] == "2x"


def test_ratios_to_a_peer_are_of_medians_for_it_was_measured_later() -> None:
    row = Row("call", "us", [1.0, 10.0, 100.0], peers={"Ray": [20.0, 30.0, 30.0, 1.0]})
    assert "25 us (2.5x)" in cells(render("Title", [Table("", [row])], "command"), "call")


def test_only_columns_with_something_in_them_are_shown() -> None:
    text = render("Title", [Table("First", [Row("call", "us", [1.0])])], "command")
    assert "limit" not in text and "x:" not in text
    both = Table("Second", [Row("a", "us", [1.0], peers={"Ray": [2.0]}), Row("b", "us", [1.0])])
    assert cells(render("Title", [both], "command"), "b") == ["1 us", "1", "1", "", "", ""]


def test_a_limit_that_was_not_measured_is_left_blank() -> None:
    text = render("Title", [Table("", [Row("call", "us", [1.0], limit="socket")])], "command")
    assert cells(text, "call")[4] == ""


def test_results_are_saved_for_people_and_for_programs(tmp_path: Path) -> None:
    table = Table("Calls", [Row("call", "us", [1.0, 2.0], peers={"Ray": [4.0]})], ["Ray: ray 1.0"])
    save("Title", [table], "asyncparl bench calls", tmp_path / "new" / "calls")
    text = (tmp_path / "new" / "calls.md").read_text()
    assert "- Ray: ray 1.0" in text and "`asyncparl bench calls`" in text
    record = json.loads((tmp_path / "new" / "calls.json").read_text())
    assert record["tables"][0]["rows"][0] | {"peers": None} == {
        "name": "call", "unit": "us", "samples": [1.0, 2.0], "target": "", "note": "", "limit": "", "peers": None,
        "median": 1.5,
    }  # fmt: skip
    assert record["tables"][0]["rows"][0]["peers"] == {"Ray": [4.0]}
    assert record["machine"]["python"]
