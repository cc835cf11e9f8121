"""The arithmetic and the simulation behind docs/scaling.md."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from benchmarks import scaling
from benchmarks.scaling import Inputs, Setup, mean_version, simulate, stacked_bytes, tables

CONFIG = scaling.paper_config()
STEPS = CONFIG.unroll_length * CONFIG.envs_per_actor
FAST = Setup(num_actors=4, play_rate=1000.0, learn_rate=1e9, link_bytes_s=1e15, loop_s=1e-9)


@pytest.mark.slow
def test_the_document_has_the_tables_that_follow_from_the_figures() -> None:
    record = json.loads(scaling.RESULTS.with_suffix(".json").read_text())
    document = scaling.DOCUMENT.read_text()
    assert scaling.into_document(tables(Inputs(**record["inputs"]), CONFIG), document) == document


def test_a_frame_that_is_sent_once_is_not_sent_four_times() -> None:
    saved = stacked_bytes(CONFIG) - scaling.rollout_bytes(CONFIG)
    # Four frames for each of 21 observations, against 24 different ones.
    assert saved == (4 * 21 - 24) * 84 * 84 * CONFIG.envs_per_actor


def test_actors_that_nothing_holds_up_play_as_fast_as_they_can() -> None:
    outcome = simulate(FAST, CONFIG)
    assert math.isclose(outcome.steps_per_s, 4 * 1000.0, rel_tol=0.01)
    assert outcome.full() == "nothing"


@pytest.mark.parametrize(
    ("changes", "full", "steps_per_s"),
    [
        ({"learn_rate": 2000.0}, "learner", 2000.0),
        ({"link_bytes_s": 2000.0 / STEPS * scaling.rollout_bytes(CONFIG)}, "network", 2000.0),
        ({"loop_s": STEPS / 2000.0}, "event loop", 2000.0),
    ],
)
def test_the_slowest_stage_holds_up_all_others(changes: dict[str, float], full: str, steps_per_s: float) -> None:
    outcome = simulate(dataclasses.replace(FAST, **changes), CONFIG)
    assert outcome.full() == full
    assert math.isclose(outcome.steps_per_s, steps_per_s, rel_tol=0.01)


def test_more_actors_than_the_learner_takes_add_lag_and_nothing_else() -> None:
    few, many = (simulate(dataclasses.replace(FAST, num_actors=num, learn_rate=2000.0), CONFIG) for num in (4, 40))
    assert math.isclose(few.steps_per_s, many.steps_per_s, rel_tol=0.01)
    assert many.lag > 5 * few.lag


@pytest.mark.parametrize(("pause_s", "version"), [(100.0, 0.0), (0.001, 1.5), (2.0, 1.0)])
def test_steps_are_played_with_what_was_learned_by_the_last_offer_before_them(pause_s: float, version: float) -> None:
    """A rollout from 0 to 4, with an update at 1, 2 and 3: by steps it is 0, 1, 2 and 3; every 2 seconds 0, 0, 2, 2."""
    assert mean_version([1.0, 2.0, 3.0], 0.0, 4.0, pause_s) == version


def test_weights_that_are_offered_in_the_middle_of_rollouts_halve_the_lag() -> None:
    slow = dataclasses.replace(FAST, num_actors=16, play_rate=10.0)
    assert simulate(slow, CONFIG).lag < 0.6 * 16 / 2
