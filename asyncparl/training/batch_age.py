"""How old batches are when they have been learned from: since the first of their rollouts arrived."""

from __future__ import annotations


class BatchAges:
    """Follows the columns of rollouts into batches of `num_columns`, and those by their slots."""

    def __init__(self, num_columns: int) -> None:
        self._num_columns = num_columns
        self._num_filled = 0
        self._filling_since = 0.0
        self._began: dict[int, float] = {}

    def added(self, num_columns: int, *, slot: int | None, now: float) -> None:
        """A rollout was added, which may have made the batch in this slot complete."""
        if self._num_filled == 0:
            self._filling_since = now
        self._num_filled += num_columns
        if slot is not None:
            self._began[slot] = self._filling_since
            self._num_filled -= self._num_columns
            self._filling_since = now  # of what is left of this rollout

    def learned(self, slot: int, *, now: float) -> float:
        """The age of the batch in this slot, in seconds."""
        return now - self._began.pop(slot, now)
