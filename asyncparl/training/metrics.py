"""Figures of a run: noted as things happen, summed up in a `Report` when one is wanted.

Times are seconds of a clock that the caller reads. Rates, shares and lags are of a window that ends now; returns are
of the last episodes. Nothing here waits, and nothing grows with the length of the run.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Protocol

import numpy as np

from asyncparl.machine import printable

WINDOW_S = 20.0
NUM_EPISODES = 100

_GROUPS = {
    "episodes": ("mean_return", "mean_length"),
    "learner": (
        "mean_lag",
        "max_lag",
        "policy_delay_s",
        "max_policy_delay_s",
        "batch_age_s",
        "waiting_share",
        "copying_share",
        "computing_share",
        "batches_waiting",
    ),
    "run": ("steps_per_s", "updates", "episodes", "loop_lag_ms", "environment_share", "inference_share", "actors"),
}


class UpdateTimes(NamedTuple):
    """Where the learner's thread spent its time for one update."""

    waiting_s: float
    copying_s: float
    computing_s: float


class EpisodeLike(Protocol):
    """A finished episode; see `asyncparl.training.environments.Episode`."""

    @property
    def return_(self) -> float: ...
    @property
    def length(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What only the trainer knows at the moment of a report; see `Report`."""

    agent_steps: int
    updates: int
    episodes: int
    elapsed_s: float
    batches_waiting: int
    rollouts_waiting: int
    actors: int
    actor_restarts: int
    loop_lag_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Situation):
    """The figures at one moment. All but `losses` are columns of progress.csv, in this order.

    Attributes:
        agent_steps: learned from, since the run began; resumed runs go on counting. `updates`, `episodes` and
            `elapsed_s` likewise.
        batches_waiting: complete, and not yet taken by the learner.
        rollouts_waiting: received, and without room in a batch: the learner is behind.
        actors: at work now. `actor_restarts`: since this process began.
        loop_lag_ms: the longest time that the event loop was held up at once.
        steps_per_s: agent steps learned from.
        mean_return: raw, of the last 100 episodes; NaN before the first one ends. `mean_length`: in agent steps.
        mean_lag: by how many updates the weights that acted were older than those that learned, over the steps of
            all batches of the window. `max_lag` likewise.
        policy_delay_s: from the publication of weights to an actor's first step with them, median over all actors; NaN
            if none were new to any. In GA3C to the first actions that a predictor chose. `max_policy_delay_s` likewise.
        batch_age_s: from the first rollout of a batch to the end of its update, mean.
        waiting_share: of the learner's time; with `copying_share` and `computing_share` it adds up to 1.
        environment_share: of the actors' time; with `inference_share` it is what they are busy.
        losses: what the algorithm said of one of its last updates.
    """

    steps_per_s: float
    mean_return: float
    mean_length: float
    mean_lag: float
    max_lag: int
    policy_delay_s: float = float("nan")
    max_policy_delay_s: float = float("nan")
    batch_age_s: float = 0.0
    waiting_share: float
    copying_share: float
    computing_share: float
    environment_share: float
    inference_share: float
    losses: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def columns(cls) -> list[str]:
        """The header of progress.csv."""
        return [each.name for each in fields(cls) if each.name != "losses"]

    def row(self) -> dict[str, float]:
        """The values of `columns`."""
        return {name: getattr(self, name) for name in self.columns()}

    def scalars(self) -> dict[str, float]:
        """The curves for TensorBoard, by group; what is not known yet is left out."""
        curves = {f"{group}/{name}": getattr(self, name) for group, names in _GROUPS.items() for name in names}
        curves |= {f"losses/{name}": value for name, value in self.losses.items()}
        return {name: value for name, value in curves.items() if value == value}


def monitor_values(report: Report, title: str, target_steps: int, run_dir: str) -> dict[str, object]:
    """A report as monitors are told of it; see `asyncparl.Cluster.report`."""
    return {
        "title": title,
        "target_steps": target_steps,
        **report.row(),
        "losses": {name: float(value) for name, value in report.losses.items()},
        "run_dir": printable(run_dir),
    }


class _Update(NamedTuple):
    time: float
    num_steps: int
    times: UpdateTimes
    mean_lag: float
    max_lag: int
    age_s: float


class _Rollout(NamedTuple):
    time: float
    environment_s: float
    inference_s: float


class _Delay(NamedTuple):
    time: float
    delay_s: float


class Metrics:
    """What happened since the process began, and in detail within the window."""

    def __init__(self, *, window_s: float = WINDOW_S) -> None:
        self.num_episodes = 0
        self.losses: Mapping[str, float] = {}
        self._window_s = window_s
        self._began: float | None = None  # when the first rollout arrived: starting up is no training
        self._updates: deque[_Update] = deque()
        self._rollouts: deque[_Rollout] = deque()
        self._delays: deque[_Delay] = deque()
        self._episodes: deque[EpisodeLike] = deque(maxlen=NUM_EPISODES)

    def rollout_arrived(
        self, *, now: float, episodes: Iterable[EpisodeLike], environment_s: float, inference_s: float
    ) -> None:
        """Note one rollout of one actor, and the episodes that ended in it."""
        if self._began is None:
            self._began = now - environment_s - inference_s
        for episode in episodes:
            self._episodes.append(episode)
            self.num_episodes += 1
        self._rollouts.append(_Rollout(now, environment_s, inference_s))
        _forget(self._rollouts, now - self._window_s)

    def weights_played(self, *, now: float, delay_s: float) -> None:
        """Note that weights have been played with for the first time by somebody, so long after their publication."""
        self._delays.append(_Delay(now, delay_s))
        _forget(self._delays, now - self._window_s)

    def batch_learned(
        self, *, now: float, num_steps: int, mean_lag: float, max_lag: int, times: UpdateTimes, age_s: float = 0.0
    ) -> None:
        """Note one update. The lags are of the steps of its batch; `age_s`: see `batch_age.py`."""
        self._updates.append(_Update(now, num_steps, times, mean_lag, max_lag, age_s))
        _forget(self._updates, now - self._window_s)

    @property
    def settled_return(self) -> float | None:
        """`mean_return`, or None before as many episodes have ended as it is to be the mean of."""
        return self.mean_return if len(self._episodes) == NUM_EPISODES else None

    @property
    def mean_return(self) -> float:
        """Raw, of the last episodes; NaN before the first one ends."""
        return _mean([episode.return_ for episode in self._episodes])

    def report(self, situation: Situation, *, now: float) -> Report:
        """Everything at this moment."""
        _forget(self._updates, now - self._window_s)
        _forget(self._rollouts, now - self._window_s)
        _forget(self._delays, now - self._window_s)
        span_s = self._span_s(now)
        waiting, copying, computing = self._learner_shares()
        num_steps = sum(update.num_steps for update in self._updates)
        lag = sum(update.num_steps * update.mean_lag for update in self._updates) / max(num_steps, 1)
        delays_s = [each.delay_s for each in self._delays] or [float("nan")]
        environment, inference = self._actor_shares(max(situation.actors, 1) * span_s)
        return Report(
            **{each.name: getattr(situation, each.name) for each in fields(situation)},
            steps_per_s=num_steps / span_s,
            mean_return=self.mean_return,
            mean_length=_mean([episode.length for episode in self._episodes]),
            mean_lag=lag,
            max_lag=max((update.max_lag for update in self._updates), default=0),
            policy_delay_s=statistics.median(delays_s),
            max_policy_delay_s=max(delays_s),
            batch_age_s=sum(update.age_s for update in self._updates) / max(1, len(self._updates)),
            waiting_share=waiting,
            copying_share=copying,
            computing_share=computing,
            environment_share=environment,
            inference_share=inference,
            losses=dict(self.losses),
        )

    def _span_s(self, now: float) -> float:
        began = now if self._began is None else self._began
        return max(min(now - began, self._window_s), 1e-9)

    def _actor_shares(self, actor_s: float) -> tuple[float, float]:
        """Environment, inference. Rollouts that were begun before the window count as a whole: at most 1 together."""
        environment_s = sum(rollout.environment_s for rollout in self._rollouts)
        inference_s = sum(rollout.inference_s for rollout in self._rollouts)
        all_s = max(actor_s, environment_s + inference_s)
        return environment_s / all_s, inference_s / all_s

    def _learner_shares(self) -> tuple[float, float, float]:
        """Waiting, copying, computing; all 0 before the first update."""
        no_times = UpdateTimes(0.0, 0.0, 0.0)
        totals = np.array([update.times for update in self._updates] or [no_times]).sum(axis=0)
        waiting, copying, computing = (totals / max(totals.sum(), 1e-9)).tolist()
        return waiting, copying, computing


def _forget(notes: deque[_Update] | deque[_Rollout] | deque[_Delay], before: float) -> None:
    while notes and notes[0].time < before:
        notes.popleft()


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values) if values else float("nan")
