"""What is said of a run."""

from __future__ import annotations

import pytest

from asyncparl.monitor.picture import ActorRow
from asyncparl.monitor.verdicts import verdicts


def balance(waiting: float, copying: float, computing: float, **more: float) -> dict[str, float]:
    return {"waiting_share": waiting, "copying_share": copying, "computing_share": computing, **more}


BUSY_ACTORS = {"environment_share": 0.78, "inference_share": 0.2}
TOO_EARLY = "It is too early to say what limits this run: the learner has not learned from any batch of late."
TURNS = "They take turns, as in A2C, or actors are missing or wait for something else."


@pytest.mark.parametrize(
    ("values", "sentences"),
    [
        ({}, []),
        ({"mean_return": 3.5, "agent_steps": 7}, []),
        (balance(0, 0, 0, mean_lag=0), [TOO_EARLY]),
        (
            balance(0.37, 0.01, 0.62, **BUSY_ACTORS),
            ["The actors limit this run: the learner waits for them 37% of the time."],
        ),
        (
            balance(0.01, 0.05, 0.94, batches_waiting=2, **BUSY_ACTORS),
            ["The learner limits this run: it is busy 99% of the time; 2 batches wait."],
        ),
        (
            balance(0.01, 0.05, 0.94, batches_waiting=1),
            ["The learner limits this run: it is busy 99% of the time; 1 batch waits."],
        ),
        (balance(0.0, 0.0, 1.0), ["The learner limits this run: it is busy 100% of the time."]),
        (balance(0.12, 0.0, 0.88), ["Learner and actors are in balance: the learner waits 12% of the time."]),
        (
            balance(0.65, 0.0, 0.35, environment_share=0.39, inference_share=0.1),
            [f"Neither is always busy: the learner waits 65% of the time, and the actors act 49% of it. {TURNS}"],
        ),
    ],
)
def test_what_limits_a_run_is_said_in_one_sentence(values: dict[str, float], sentences: list[str]) -> None:
    assert verdicts(values, [], {}) == sentences


@pytest.mark.parametrize(
    ("lag", "sentence"),
    [
        (0, "The experience is of the newest weights: no policy lag."),
        (1.44, "The experience is 1.4 updates old on average (policy lag): fresh."),
        (
            12.3,
            "The experience is 12 updates old on average (policy lag): not fresh, but V-trace corrects that.",
        ),
        (48.7, "The experience is 49 updates old on average (policy lag): too old. Fewer actors would help."),
    ],
)
def test_the_policy_lag_is_judged(lag: float, sentence: str) -> None:
    assert verdicts(balance(0.1, 0, 0.9, mean_lag=lag), [], {})[1:] == [sentence]


def test_silent_actors_are_counted_and_named() -> None:
    actors = [
        ActorRow(actor_id=f"a{number}", name=f"Sim#{number}", state="silent" if number < 3 else "running")
        for number in range(1, 5)
    ]
    assert verdicts({}, actors[1:], {}) == ["1 of 3 actors is silent: Sim#2."]
    assert verdicts({}, actors, {}) == ["2 of 4 actors are silent: Sim#1 and 1 more."]
    assert verdicts({}, actors[2:], {}) == []


def test_where_an_actor_is_silent_it_is_the_actors_that_limit_the_run() -> None:
    silent = ActorRow(actor_id="a1", name="Sim#1", state="silent")
    half = balance(0.65, 0.0, 0.35, environment_share=0.39, inference_share=0.1)
    assert verdicts(half, [silent], {}) == [
        "1 of 1 actors is silent: Sim#1.",
        "The actors limit this run: the learner waits for them, of whom not all answer, 65% of the time.",
    ]


@pytest.mark.parametrize(
    ("returns", "sentences"),
    [
        ([-20.3, -20.3, -20.1, -20.4], []),  # too few
        (
            [None, -20.3, -20.4, -20.1, None, -20.4, -20.2],
            ["The return has hardly changed: it is -20.2, and was -20.4 in the middle of the curve."],
        ),
        (
            [-20.3, -20.4, -19, -10, 3.25],
            ["The agent improves: its return has risen from -19 to 3.25 in the second half of the curve."],
        ),
        (
            [0.1, 0.2, 0.9, 0.85, 0.4],
            ["The agent gets worse: its return has fallen from 0.9 to 0.4 in the second half of the curve."],
        ),
        ([0, 0, 0, 0, 0], ["The return has hardly changed: it is 0, and was 0 in the middle of the curve."]),
    ],
)
def test_whether_the_agent_improves_is_said(returns: list[float | None], sentences: list[str]) -> None:
    curves = {"x": [float(10 * index) for index in range(len(returns))], "mean_return": returns}
    assert verdicts({"episodes": 100}, [], curves) == sentences
    assert verdicts({"episodes": 99}, [], curves) == []
