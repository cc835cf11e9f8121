"""Sums over all actors of a class, for counters that never fall: those of single actors end with them."""

from __future__ import annotations

from dataclasses import dataclass, field

from asyncparl.protocol.figures import NUM_BUCKETS, WorkerFigures

MAX_CLASSES = 50
MAX_KEYS = 2000
OTHERS = "others"
"""The class of all those beyond the first `MAX_CLASSES`."""


@dataclass(slots=True)
class Total:
    """Of one class on one node."""

    durations: list[int] = field(default_factory=lambda: [0] * NUM_BUCKETS)
    num_failed: int = 0
    busy_s: float = 0.0


class Totals:
    """By class and node. What an actor did while nobody looked counts as soon as somebody does, if it still lives."""

    def __init__(self) -> None:
        self.by_class: dict[tuple[str, str], Total] = {}
        self._classes: set[str] = set()

    def add(self, class_name: str, node: str, before: WorkerFigures | None, after: WorkerFigures) -> None:
        """What one actor has done since the last look."""
        total = self._total(class_name, node)
        old = [0] * NUM_BUCKETS if before is None else before.durations
        for bucket, (new_count, old_count) in enumerate(zip(after.durations, old, strict=False)):
            total.durations[bucket] += max(0, new_count - old_count)
        total.num_failed += max(0, after.num_failed - (0 if before is None else before.num_failed))
        total.busy_s += max(0.0, after.busy_s - (0.0 if before is None else before.busy_s))

    def _total(self, class_name: str, node: str) -> Total:
        if class_name not in self._classes and len(self._classes) >= MAX_CLASSES:
            class_name = OTHERS
        self._classes.add(class_name)
        key = (class_name, node)
        if key not in self.by_class and len(self.by_class) >= MAX_KEYS:
            key = (OTHERS, OTHERS)
        return self.by_class.setdefault(key, Total())
