"""How a learning rate or another weight changes over a training run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearDecay:
    """From `start` in a straight line to `end` after `decay_steps` agent steps; constant where that is None.

    Counted in agent steps, not in updates, so that batch size and number of actors do not change it.
    """

    start: float
    decay_steps: int | None = None
    end: float = 0.0

    def __post_init__(self) -> None:
        if self.decay_steps is not None and self.decay_steps < 1:
            raise ValueError(f"decay_steps is {self.decay_steps}, expected at least 1, or None for a constant")

    def at(self, agent_steps: int) -> float:
        """The value after that many agent steps."""
        if self.decay_steps is None:
            return self.start
        return self.end + (self.start - self.end) * max(0.0, 1.0 - agent_steps / self.decay_steps)
