"""What the figures of a training run mean, in plain sentences. The rules are in docs/monitor.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asyncparl.monitor.picture import ActorRow
from asyncparl.monitor.runs import LEARNER_SHARES, is_number

_ACTOR_SHARES = ("environment_share", "inference_share")
_MIN_RETURNS = 5
_MIN_EPISODES = 100
_NOISE = 0.15
"""Of the largest return so far: less is no change."""
_LEARNER_WAITS = 0.25
_LEARNER_IS_BUSY = 0.05
"""If it waits for less than that."""
_ACTORS_ARE_BUSY = 0.8
_FRESH_UPDATES = 5.0
_OLD_UPDATES = 30.0


def verdicts(
    values: Mapping[str, Any], actors: Sequence[ActorRow], curves: Mapping[str, Sequence[float | None]]
) -> list[str]:
    """Of a run that goes on: what it reports, the actors of its program, and its curves so far over "x"."""
    is_whole = not any(row.state == "silent" for row in actors)
    return [*_of_actors(actors), *_of_return(values, curves), *_of_balance(values, is_whole), *_of_lag(values)]


def _of_actors(actors: Sequence[ActorRow]) -> Iterator[str]:
    silent = [row.name for row in actors if row.state == "silent"]
    if silent:
        names = silent[0] if len(silent) == 1 else f"{silent[0]} and {len(silent) - 1} more"
        yield f"{len(silent)} of {len(actors)} actors {'is' if len(silent) == 1 else 'are'} silent: {names}."


def _of_return(values: Mapping[str, Any], curves: Mapping[str, Sequence[float | None]]) -> Iterator[str]:
    """By the return in the middle of what is known, and now."""
    pairs = zip(curves.get("x", ()), curves.get("mean_return", ()), strict=False)
    known = [(x, value) for x, value in pairs if x is not None and value is not None]
    episodes = values.get("episodes")
    if len(known) < _MIN_RETURNS or (is_number(episodes) and episodes < _MIN_EPISODES):
        return  # noise
    middle = (known[0][0] + known[-1][0]) / 2
    before, now = next(value for x, value in known if x >= middle), known[-1][1]
    noise = _NOISE * max(abs(value) for _, value in known)
    change = f"from {_figure(before)} to {_figure(now)} in the second half of the curve"
    if abs(now - before) <= noise:
        was = f"was {_figure(before)} in the middle of the curve"
        yield f"The return has hardly changed: it is {_figure(now)}, and {was}."
    elif now > before:
        yield f"The agent improves: its return has risen {change}."
    else:
        yield f"The agent gets worse: its return has fallen {change}."


def _of_balance(values: Mapping[str, Any], is_whole: bool) -> Iterator[str]:
    shares = [values.get(name) for name in LEARNER_SHARES]
    if not all(map(is_number, shares)):
        return  # it is no training, or nothing that we know
    if not any(shares):
        yield "It is too early to say what limits this run: the learner has not learned from any batch of late."
        return
    waits = float(values["waiting_share"])
    acts = sum(float(share) for share in map(values.get, _ACTOR_SHARES) if is_number(share))
    if waits < _LEARNER_IS_BUSY:
        yield f"The learner limits this run: it is busy {1 - waits:.0%} of the time{_queue(values)}."
    elif waits < _LEARNER_WAITS:
        yield f"Learner and actors are in balance: the learner waits {waits:.0%} of the time."
    elif acts >= _ACTORS_ARE_BUSY or not is_whole:
        few = "" if is_whole else ", of whom not all answer,"
        yield f"The actors limit this run: the learner waits for them{few} {waits:.0%} of the time."
    else:
        yield (
            f"Neither is always busy: the learner waits {waits:.0%} of the time, and the actors act {acts:.0%} of it. "
            "They take turns, as in A2C, or actors are missing or wait for something else."
        )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _queue(values: Mapping[str, Any]) -> str:
    waiting = values.get("batches_waiting")
    if not is_number(waiting) or not waiting:
        return ""
    return f"; {waiting:.0f} {'batch waits' if waiting == 1 else 'batches wait'}"


def _of_lag(values: Mapping[str, Any]) -> Iterator[str]:
    lag = values.get("mean_lag")
    if not is_number(lag) or not any(values.get(name) for name in LEARNER_SHARES):
        return
    if lag == 0:
        yield "The experience is of the newest weights: no policy lag."
        return
    age = f"The experience is {_figure(float(f'{lag:.2g}'))} updates old on average (policy lag)"
    if lag < _FRESH_UPDATES:
        yield f"{age}: fresh."
    elif lag < _OLD_UPDATES:
        is_ga3c = str(values.get("title", "")).startswith("GA3C")
        yield f"{age}: not fresh, {'and nothing corrects that' if is_ga3c else 'but V-trace corrects that'}."
    else:
        yield f"{age}: too old. Fewer actors would help."
