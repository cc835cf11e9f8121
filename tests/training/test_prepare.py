"""What a run begins with: nothing, or what an earlier one has saved."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from asyncparl.training import ConfigError, Trainer, TrainingConfig
from asyncparl.training.checkpoint import Counters
from asyncparl.training.environments import CATCH_ID
from asyncparl.training.metrics import Report
from asyncparl.training.prepare import PreparedRun, prepare_new_run, prepare_resumed_run

CONFIG = TrainingConfig(env=CATCH_ID, seed=3, steps=1000, num_actors=1, envs_per_actor=4, batch_size=4)


def _weights(run: PreparedRun) -> list[bytes]:
    return [np.asarray(weight).tobytes() for weight in run.algorithm.model.state_dict().values()]


def test_a_run_that_has_saved_nothing_begins_from_the_start(tmp_path: Path) -> None:
    first = prepare_new_run(CONFIG, run_dir=tmp_path / "run", model=None)
    row = dict.fromkeys(Report.columns(), 0.0)
    first.folder.report(row | {"agent_steps": 80}, {}, step=80)  # learned, but not saved
    first.folder.close()
    warnings: list[str] = []
    again = prepare_resumed_run(tmp_path / "run", {"steps": 2000}, model=None, warn=warnings.append)
    again.folder.close()
    assert warnings == [f"the run in {tmp_path}/run has no checkpoint yet: it begins from the start, with its settings"]
    assert again.config == CONFIG.replace(steps=2000)
    assert again.counters == Counters()
    assert _weights(again) == _weights(first)
    with (tmp_path / "run" / "progress.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == []


def test_a_run_that_cannot_begin_leaves_its_folder_to_others(tmp_path: Path) -> None:
    prepare_new_run(CONFIG, run_dir=tmp_path, model=None).folder.close()
    for wrong in ({"seed": 4}, {"algorithm": "a2c"}, {"device": "tpu7"}):
        with pytest.raises(ConfigError):
            Trainer.resume(tmp_path, changes=wrong)
    prepare_resumed_run(tmp_path, {}, model=None, warn=print).folder.close()
