"""What happens before a run begins: everything that can be wrong with it is found here, before any process starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from asyncparl.rl import Model
from asyncparl.rl.checkpoint import set_random_state
from asyncparl.training.build import (
    Interface,
    ModelClass,
    RunParts,
    find_interface,
    import_model,
    learner_device,
    make_model,
    restore_algorithm,
    seed_generators,
)
from asyncparl.training.check_model import check_model
from asyncparl.training.checkpoint import Checkpoint, Counters, has_checkpoint, load_latest
from asyncparl.training.config import TrainingConfig
from asyncparl.training.environments import EnvironmentOptions
from asyncparl.training.errors import ConfigError
from asyncparl.training.evaluation import Evaluation
from asyncparl.training.metrics import Report
from asyncparl.training.presets import DEFAULTS
from asyncparl.training.recipes import make_algorithm
from asyncparl.training.run_folder import RunFolder, default_run_dir

CHANGEABLE = frozenset(
    {
        "steps", "num_actors", "cluster", "device", "precision", "learner_threads", "num_batches", "max_actor_restarts",
        "checkpoint_interval_s", "report_interval_s", "num_predictors", "prediction_batch_size", "repeatable",
        "evaluate_every", "evaluation_episodes", "schedule_steps", "num_learners", "envs_per_actor",
        "compress_rollouts",
    }
)  # fmt: skip
"""Settings that may differ when a run is resumed; the others would make it another run. docs/training.md lists them."""
CHANGEABLE_ENV_OPTIONS = frozenset({"num_threads"})
"""The same of its `env_options`."""
_BEFORE_ALL_STEPS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun(RunParts):
    """A run that can begin."""

    folder: RunFolder


def prepare_new_run(config: TrainingConfig, *, run_dir: Path | None, model: ModelClass | None) -> PreparedRun:
    """A run from the beginning, in a new folder.

    Raises:
        ConfigError, RunFolderError: it cannot begin; nothing was left behind, unless the folder was new.
    """
    model_class, config = _choose_model(config, model)
    interface = find_interface(config)
    device = learner_device(config)
    seed_generators(config.seed)
    algorithm = make_algorithm(_checked_model(interface, model_class, config).to(device), config)
    folder = RunFolder.create(run_dir or default_run_dir(config.algorithm, config.env, config.seed))
    with folder.closed_on_error():
        folder.write_config(config.to_json())
        _start_tables(folder, config, from_step=None)
    return PreparedRun(
        config=config,
        folder=folder,
        interface=interface,
        model_class=model_class,
        algorithm=algorithm,
        counters=Counters(),
    )


def prepare_resumed_run(
    run_dir: Path, changes: dict[str, Any], *, model: ModelClass | None, warn: Callable[[str], None]
) -> PreparedRun:
    """A run from its last checkpoint, in the same folder; from its beginning, if it has ended before the first one.

    Args:
        changes: settings that differ from now on.
        warn: told of checkpoints that cannot be read, and that there is none.

    Raises:
        ConfigError, RunFolderError: it cannot go on. Its folder is as it was.
    """
    folder = RunFolder.open(run_dir)
    with folder.closed_on_error():
        before = TrainingConfig.from_json(folder.read_config())
        if changes.get("algorithm", before.algorithm) != before.algorithm:
            raise ConfigError(f"the run in {run_dir} is of {before.algorithm}, not of {changes['algorithm']}")
        config = change_config(before, changes)
        model_class, config = _choose_model(config, model)
        checkpoint = _checkpoint_of(folder, config, warn)
        interface = find_interface(config)
        device = learner_device(config)
        seed_generators(config.seed)
        algorithm = make_algorithm(_checked_model(interface, model_class, config).to(device), config)
        if checkpoint is not None:
            restore_algorithm(algorithm, checkpoint.algorithm, config)
            set_random_state(checkpoint.random_state)
        from_step = _BEFORE_ALL_STEPS if checkpoint is None else checkpoint.counters.agent_steps
        _start_tables(folder, config, from_step=from_step)
        folder.write_config(config.to_json())
    return PreparedRun(
        config=config,
        folder=folder,
        interface=interface,
        model_class=model_class,
        algorithm=algorithm,
        counters=Counters() if checkpoint is None else checkpoint.counters,
    )


def _checkpoint_of(folder: RunFolder, config: TrainingConfig, warn: Callable[[str], None]) -> Checkpoint | None:
    """Where a run goes on; None: at its beginning, for it has learned nothing that was saved."""
    if not has_checkpoint(folder.checkpoints):
        warn(f"the run in {folder.path} has no checkpoint yet: it begins from the start, with its settings")
        return None
    checkpoint = load_latest(folder.checkpoints, warn=warn, or_best=True)
    if checkpoint.counters.agent_steps >= config.steps:
        done = f"the run has {checkpoint.counters.agent_steps:,} of {config.steps:,} steps"
        raise ConfigError(f"{done}: there is nothing to resume, unless steps is set higher")
    return checkpoint


def _start_tables(folder: RunFolder, config: TrainingConfig, *, from_step: int | None) -> None:
    folder.start_reports(Report.columns(), from_step=from_step)
    if config.evaluate_every is not None:
        folder.start_evaluations(Evaluation.columns(), from_step=from_step)


def change_config(config: TrainingConfig, changes: dict[str, Any]) -> TrainingConfig:
    """The settings of a resumed run.

    Raises:
        ConfigError: a change is wrong, or would make it another run.
    """
    wrong = sorted(
        f"{name} cannot be changed when a run is resumed"
        for setting, value in changes.items()
        for name in _unchangeable(setting, getattr(config, setting, None), value)
    )
    if wrong:
        wrong[-1] += ": that would be another run, which --config RUN begins with the settings of this one"
        raise ConfigError("\n".join(wrong))
    if DEFAULTS[config.algorithm].is_synchronous:
        _check_same_batch(config, changes)
    return config.replace(**changes)


def _unchangeable(setting: str, before: Any, after: Any) -> list[str]:
    """What of a setting may not come to be so."""
    if setting in CHANGEABLE or before == after:
        return []
    if setting != "env_options":
        return [setting]
    before, after = before or EnvironmentOptions(), after or EnvironmentOptions()
    names = [each.name for each in fields(EnvironmentOptions) if each.name not in CHANGEABLE_ENV_OPTIONS]
    return [f"env_options.{name}" for name in names if getattr(before, name) != getattr(after, name)]


def _check_same_batch(config: TrainingConfig, changes: dict[str, Any]) -> None:
    num_actors = changes.get("num_actors", config.num_actors)
    num_envs = changes.get("envs_per_actor", config.envs_per_actor)
    if num_actors * num_envs != config.batch_size:
        raise ConfigError(
            f"num_actors ({num_actors}) times envs_per_actor ({num_envs}) must stay {config.batch_size} when a run is "
            f"resumed: in {config.algorithm} that is the batch"
        )


def _choose_model(config: TrainingConfig, model: ModelClass | None) -> tuple[ModelClass | None, TrainingConfig]:
    """The class to use, and settings that name it."""
    if model is not None:
        return model, config.replace(model=_model_name(model))
    return (None if config.model is None else import_model(config.model)), config


def _checked_model(interface: Interface, model_class: ModelClass | None, config: TrainingConfig) -> Model:
    model = make_model(interface, model_class, lstm=config.lstm)
    check_model(model, interface)
    return model


def _model_name(model: ModelClass) -> str:
    """As "module:Class", by which others can import it. A script is a module too."""
    module = model.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else module if file is None else Path(file).stem
    return f"{module}:{getattr(model, '__qualname__', model)}"
