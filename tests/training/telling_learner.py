"""A learner that says which process it is. Apart from `subjects.py`, for it needs torch.distributed."""

from __future__ import annotations

import os
from pathlib import Path

import asyncparl
from asyncparl.training.learner_actor import LearnerActor, LearnerSetup


@asyncparl.remote_class(max_concurrency=8)
class TellingLearner(LearnerActor):
    """Writes its pid to `learner-INDEX` in the folder that its environments have as an argument."""

    def __init__(self, setup: LearnerSetup) -> None:
        super().__init__(setup)
        assert setup.config.env_options is not None
        folder = Path(setup.config.env_options.arguments["folder"])
        (folder / f"learner-{setup.index}").write_text(str(os.getpid()))
