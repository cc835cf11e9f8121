"""What the first learner is told of another one: the figures of the run, and what people should know."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from asyncparl.training.metrics import EpisodeLike, Metrics, UpdateTimes


class Standing(NamedTuple):
    """How a learner is at this moment; a report has the sums over all of them."""

    batches_waiting: int
    rollouts_waiting: int
    actors: int
    actor_restarts: int
    actors_started: int


class Note(NamedTuple):
    """One call of `Metrics`, but for its time."""

    method: str
    values: dict[str, Any]


class News(NamedTuple):
    """How a learner is, and what happened since the last news."""

    standing: Standing
    notes: list[Note]
    lines: list[str]  # for people

    def tell(self, metrics: Metrics, *, now: float) -> None:
        """Have it noted, as if it had happened now."""
        for note in self.notes:
            getattr(metrics, note.method)(now=now, **note.values)


class NotingMetrics(Metrics):
    """Metrics that are only noted, for somebody else. Bounded by what is played and learned until they are taken.

    Args:
        on_update: called after every update was noted.
    """

    def __init__(self, on_update: Callable[[], None]) -> None:
        super().__init__()
        self._notes: list[Note] = []
        self._on_update = on_update

    def take(self) -> list[Note]:
        """What was noted since the last time."""
        notes, self._notes = self._notes, []
        return notes

    def rollout_arrived(
        self, *, now: float, episodes: Iterable[EpisodeLike], environment_s: float, inference_s: float
    ) -> None:
        values = {"episodes": list(episodes), "environment_s": environment_s, "inference_s": inference_s}
        self._notes.append(Note("rollout_arrived", values))

    def weights_played(self, *, now: float, delay_s: float) -> None:
        self._notes.append(Note("weights_played", {"delay_s": delay_s}))

    def batch_learned(
        self, *, now: float, num_steps: int, mean_lag: float, max_lag: int, times: UpdateTimes, age_s: float = 0.0
    ) -> None:
        lags = {"mean_lag": mean_lag, "max_lag": max_lag}
        values = {"num_steps": num_steps, **lags, "times": times, "age_s": age_s}
        self._notes.append(Note("batch_learned", values))
        self._on_update()
