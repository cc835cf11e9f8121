"""What happens before a run begins: everything that can be wrong with it is found here, before any process starts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asyncparl.algorithms import ActorCritic
from asyncparl.rl.checkpoint import set_random_state
from asyncparl.training.build import (
    Interface,
    ModelClass,
    check_device,
    find_interface,
    import_model,
    make_model,
    restore_algorithm,
)
from asyncparl.training.checkpoint import Counters, load_latest
from asyncparl.training.config import TrainingConfig
from asyncparl.training.errors import ConfigError
from asyncparl.training.metrics import Report
from asyncparl.training.recipes import make_algorithm
from asyncparl.training.run_folder import RunFolder, default_run_dir

CHANGEABLE = frozenset(
    {
        "steps", "num_actors", "cluster", "device", "precision", "learner_threads", "num_batches", "max_actor_restarts",
        "checkpoint_interval_s", "report_interval_s", "num_predictors", "prediction_batch_size",
    }
)  # fmt: skip
"""Settings that may differ when a run is resumed; the others would make it another run."""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run that can begin."""

    config: TrainingConfig
    folder: RunFolder
    interface: Interface
    model_class: ModelClass | None
    algorithm: ActorCritic
    counters: Counters


def prepare_new_run(config: TrainingConfig, *, run_dir: Path | None, model: ModelClass | None) -> PreparedRun:
    """A run from the beginning, in a new folder.

    Raises:
        ConfigError, RunFolderError: it cannot begin; nothing was left behind, unless the folder was new.
    """
    model_class, config = _choose_model(config, model)
    interface = find_interface(config)
    device = check_device(config.device)
    _seed_generators(config.seed)
    algorithm = make_algorithm(make_model(interface, model_class).to(device), config)
    folder = RunFolder.create(run_dir or default_run_dir(config.algorithm, config.env, config.seed))
    folder.write_config(config.to_json())
    folder.start_reports(Report.columns(), step_column="agent_steps")
    return PreparedRun(config, folder, interface, model_class, algorithm, Counters())


def prepare_resumed_run(
    run_dir: Path, changes: dict[str, Any], *, model: ModelClass | None, warn: Callable[[str], None]
) -> PreparedRun:
    """A run from its last checkpoint, in the same folder.

    Args:
        changes: settings that differ from now on.
        warn: told of checkpoints that cannot be read.

    Raises:
        ConfigError, RunFolderError: it cannot go on. Its folder is as it was.
    """
    folder = RunFolder.open(run_dir)
    before = TrainingConfig.from_json(folder.read_config())
    if changes.get("algorithm", before.algorithm) != before.algorithm:
        raise ConfigError(f"the run in {run_dir} is of {before.algorithm}, not of {changes['algorithm']}")
    config = change_config(before, changes)
    model_class, config = _choose_model(config, model)
    checkpoint = load_latest(folder.checkpoints, warn=warn)
    if checkpoint.counters.agent_steps >= config.steps:
        done = f"the run has {checkpoint.counters.agent_steps:,} of {config.steps:,} steps"
        raise ConfigError(f"{done}: there is nothing to resume, unless steps is set higher")
    interface = find_interface(config)
    device = check_device(config.device)
    algorithm = make_algorithm(make_model(interface, model_class).to(device), config)
    restore_algorithm(algorithm, checkpoint.algorithm, config)
    set_random_state(checkpoint.random_state)
    folder.start_reports(Report.columns(), step_column="agent_steps", from_step=checkpoint.counters.agent_steps)
    folder.write_config(config.to_json())
    return PreparedRun(config, folder, interface, model_class, algorithm, checkpoint.counters)


def change_config(config: TrainingConfig, changes: dict[str, Any]) -> TrainingConfig:
    """The settings of a resumed run.

    Raises:
        ConfigError: a change is wrong, or would make it another run.
    """
    wrong = sorted(name for name, value in changes.items() if name not in CHANGEABLE and value != getattr(config, name))
    if wrong:
        raise ConfigError("\n".join(f"{name} cannot be changed when a run is resumed" for name in wrong))
    return config.replace(**changes)


def _choose_model(config: TrainingConfig, model: ModelClass | None) -> tuple[ModelClass | None, TrainingConfig]:
    """The class to use, and settings that name it."""
    if model is not None:
        return model, config.replace(model=f"{model.__module__}:{getattr(model, '__qualname__', model)}")
    return (None if config.model is None else import_model(config.model)), config


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - models of users may draw from it
    torch.manual_seed(seed)
