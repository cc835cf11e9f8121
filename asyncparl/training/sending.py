"""What actors send: rollouts in as few bytes as is worth the time."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from asyncparl.algorithms.rollout import Rollout
from asyncparl.training.compression import CompressedRollout
from asyncparl.training.environments import VectorEnvironment
from asyncparl.training.frames import FrameRollout, pack_frames
from asyncparl.training.sampler import RolloutRecord, Sample


class SentSample(NamedTuple):
    """A `Sample` on its way."""

    rollout: Rollout[NDArray[Any]] | FrameRollout | CompressedRollout
    record: RolloutRecord


def pack_sample(sample: Sample, environment: VectorEnvironment, *, compress: bool = False) -> SentSample:
    """What an actor sends of what it has played in this environment."""
    rollout = pack_frames(sample.rollout) if environment.frame_stack > 1 else sample.rollout
    return SentSample(CompressedRollout.of(rollout) if compress else rollout, sample.record)
