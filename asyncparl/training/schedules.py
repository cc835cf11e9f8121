"""What changes over a run, by agent steps: the learning rate and the weight of the entropy, constant or in a line."""

from __future__ import annotations

from asyncparl.algorithms import ActorCritic
from asyncparl.algorithms.schedule import LinearDecay
from asyncparl.training.config import TrainingConfig


def set_schedules(algorithm: ActorCritic, config: TrainingConfig) -> None:
    """Those of the settings. Where the run has come to, the algorithm knows: it counts its steps."""
    steps = config.schedule_steps or config.steps
    learning_rate_end = config.final_learning_rate or 0.0
    algorithm.schedule = LinearDecay(
        config.learning_rate, steps if config.anneal_learning_rate else None, learning_rate_end
    )
    entropy_end = config.final_entropy_cost
    algorithm.entropy_schedule = LinearDecay(
        config.entropy_cost, None if entropy_end is None else steps, entropy_end or 0.0
    )
