"""Figures: what a report says follows from what was noted, and old news leave the window."""

from __future__ import annotations

import math

import msgspec
import pytest

from asyncparl.training.environments import Episode
from asyncparl.training.metrics import Metrics, Report, Situation, UpdateTimes, monitor_values

HERE = Situation(
    agent_steps=0, updates=0, episodes=0, elapsed_s=0.0, batches_waiting=0, rollouts_waiting=0, actors=2,
    actor_restarts=0, loop_lag_ms=0.0,
)  # fmt: skip


def _learn(metrics: Metrics, now: float, lags: list[int], times: tuple[float, float, float] = (0.0, 0.0, 1.0)) -> None:
    mean_lag = sum(lags) / len(lags)
    metrics.batch_learned(now=now, num_steps=640, mean_lag=mean_lag, max_lag=max(lags), times=UpdateTimes(*times))


def _arrive(metrics: Metrics, now: float, *episodes: Episode) -> None:
    metrics.rollout_arrived(now=now, episodes=episodes, environment_s=0.5, inference_s=0.25)


def test_nothing_is_known_before_anything_happens() -> None:
    report = Metrics().report(HERE, now=100.0)
    assert report.steps_per_s == 0
    assert math.isnan(report.mean_return)
    assert "episodes/mean_return" not in report.scalars()


def test_the_return_is_of_the_last_100_episodes() -> None:
    metrics = Metrics()
    _arrive(metrics, 1.0, *(Episode(-21.0, 10) for _ in range(50)), *(Episode(3.0, 20) for _ in range(99)))
    report = metrics.report(HERE, now=1.0)
    assert metrics.num_episodes == 149
    assert report.mean_return == pytest.approx((99 * 3.0 - 21.0) / 100)
    assert report.mean_length == pytest.approx((99 * 20 + 10) / 100)


def test_speed_counts_from_the_first_rollout_and_forgets_what_is_old() -> None:
    metrics = Metrics(window_s=10.0)
    _arrive(metrics, 50.75)  # it took 0.75 s: training began at 50
    _learn(metrics, 52.0, [0])
    assert metrics.report(HERE, now=52.0).steps_per_s == pytest.approx(640 / 2)
    _learn(metrics, 61.0, [0])
    assert metrics.report(HERE, now=61.0).steps_per_s == pytest.approx(1280 / 10)
    assert metrics.report(HERE, now=62.5).steps_per_s == pytest.approx(640 / 10)
    assert metrics.report(HERE, now=90.0).steps_per_s == 0


def test_lag_is_over_all_steps_of_the_window() -> None:
    metrics = Metrics(window_s=10.0)
    _learn(metrics, 0.0, [9, 9])
    _learn(metrics, 11.0, [0, 1, 1, 2])
    _learn(metrics, 12.0, [3, 3])
    metrics.batch_learned(now=12.0, num_steps=1280, mean_lag=1.5, max_lag=2, times=UpdateTimes(0.0, 0.0, 1.0))
    report = metrics.report(HERE, now=12.0)
    assert report.mean_lag == pytest.approx((640 * 1 + 640 * 3 + 1280 * 1.5) / 2560)
    assert report.max_lag == 3


def test_the_policy_delay_is_of_what_was_played_with_in_the_window() -> None:
    metrics = Metrics(window_s=10.0)
    assert math.isnan(metrics.report(HERE, now=0.0).policy_delay_s)
    assert "learner/policy_delay_s" not in metrics.report(HERE, now=0.0).scalars()
    for now, delay_s in ((1.0, 50.0), (8.0, 0.5), (9.0, 3.0), (12.0, 0.25)):
        metrics.weights_played(now=now, delay_s=delay_s)
    report = metrics.report(HERE, now=12.0)
    assert (report.policy_delay_s, report.max_policy_delay_s) == (0.5, 3.0)
    assert report.scalars()["learner/max_policy_delay_s"] == 3.0
    assert math.isnan(metrics.report(HERE, now=30.0).max_policy_delay_s)


def test_the_learners_time_is_split() -> None:
    metrics = Metrics()
    _learn(metrics, 1.0, [0], times=(1.0, 0.5, 2.0))
    _learn(metrics, 2.0, [0], times=(0.0, 0.5, 4.0))
    report = metrics.report(HERE, now=2.0)
    assert (report.waiting_share, report.copying_share, report.computing_share) == pytest.approx((1 / 8, 1 / 8, 6 / 8))


def test_the_actors_time_is_shared_by_all_of_them() -> None:
    metrics = Metrics()
    for now in (0.75, 1.5):
        _arrive(metrics, now)
    report = metrics.report(HERE, now=2.0)
    # Two actors for two seconds, of which environments took 2 * 0.5.
    assert (report.environment_share, report.inference_share) == pytest.approx((1.0 / 4, 0.5 / 4))


def test_actors_cannot_have_been_busier_than_all_the_time() -> None:
    """A rollout that was begun long before the window: the actor was stopped meanwhile, say."""
    metrics = Metrics()
    for _ in range(9):
        _arrive(metrics, 1.0)
    report = metrics.report(HERE, now=2.0)
    assert (report.environment_share, report.inference_share) == pytest.approx((2 / 3, 1 / 3))


def test_monitors_can_be_told_of_a_folder_of_any_name() -> None:
    values = monitor_values(Metrics().report(HERE, now=0.0), "a run", 10, "runs/\udce9")
    assert msgspec.json.decode(msgspec.json.encode(values))["run_dir"] == "runs/\\udce9"


def test_a_row_has_every_column() -> None:
    report = Metrics().report(HERE, now=0.0)
    assert list(report.row()) == Report.columns()
    assert Report.columns()[:4] == ["agent_steps", "updates", "episodes", "elapsed_s"]
