"""From the settings of a run to its parts. Driver and actors build the same model here."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from asyncparl.algorithms import ActorCritic
from asyncparl.rl import Model, default_model
from asyncparl.training.checkpoint import Counters
from asyncparl.training.config import TrainingConfig
from asyncparl.training.environments import VectorEnvironment, make_environment
from asyncparl.training.errors import ConfigError, WrongEnvironmentError, first_line, told
from asyncparl.training.schedules import set_schedules

ModelClass = Callable[..., Model]
"""Called as `model_class(obs_shape=..., num_actions=...)`; what `forward` must give stands in `asyncparl.Model`."""


@dataclass(frozen=True, slots=True)
class Interface:
    """What a model must know of its environment."""

    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype[Any]
    num_actions: int

    @classmethod
    def of(cls, environment: VectorEnvironment) -> Interface:
        return cls(environment.obs_shape, environment.obs_dtype, environment.num_actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What a learner works with."""

    config: TrainingConfig
    interface: Interface
    model_class: ModelClass | None
    algorithm: ActorCritic
    counters: Counters


def find_interface(config: TrainingConfig) -> Interface:
    """Make one copy of the environment, try it out, and close it.

    Raises:
        ConfigError: there is no such environment, it is of a kind that is not supported, or something is wrong with it.
    """
    try:
        import_from_here()
        environment = make_environment(config.env, num_envs=1, options=config.env_options)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        environment.try_out()
        return Interface.of(environment)
    except WrongEnvironmentError as error:
        raise ConfigError(str(error)) from error
    finally:
        environment.close()


def make_model(interface: Interface, model_class: ModelClass | None, *, lstm: bool = False) -> Model:
    """The user's model, or the default one for such observations.

    Args:
        lstm: the default one is to have an LSTM.

    Raises:
        ConfigError: there is no default model for them, or the user's cannot be made.
    """
    if model_class is not None:
        try:
            return model_class(obs_shape=interface.obs_shape, num_actions=interface.num_actions)
        except Exception as error:
            raise ConfigError(f"the model cannot be made with obs_shape and num_actions: {told(error)}") from error
    try:
        return default_model(interface.obs_shape, interface.obs_dtype, interface.num_actions, lstm=lstm)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def restore_algorithm(algorithm: ActorCritic, state: dict[str, Any], config: TrainingConfig) -> None:
    """Go on from a checkpoint, with the schedules that `config` gives the run now.

    Raises:
        ConfigError: the checkpoint is of another model, algorithm or optimizer.
    """
    try:
        algorithm.load_state_dict(state)
    except ValueError as error:
        raise ConfigError(f"the checkpoint does not fit the run: {error}") from error
    set_schedules(algorithm, config)


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch: models and environments of users may draw from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


def check_device(name: str) -> torch.device:
    """The torch device of that name.

    Raises:
        ConfigError: torch knows no such device, or has none here.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device {name!r} cannot be used: {first_line(error)}") from error
    return device


def learner_device(config: TrainingConfig) -> torch.device:
    """Where the learner of this process computes.

    Of several learners each has a GPU of its own. The others are given the first ones, so that this one takes the last.

    Raises:
        ConfigError: there is no such device here, or there are not enough.
    """
    device = check_device(config.device)
    if config.num_learners == 1 or device.type != "cuda":
        return device
    num_gpus = torch.cuda.device_count()
    if config.cluster is None and num_gpus < config.num_learners:
        raise ConfigError(f"{config.num_learners} learners are too many for {num_gpus} GPUs: each takes one")
    return torch.device("cuda", num_gpus - 1)


def import_from_here() -> None:
    """Let modules in the current folder count, as for `python -m`: models and environments of users are there."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def import_model(name: str) -> ModelClass:
    """The class behind "module:Class"; modules in the current folder count, as for `python -m`.

    Raises:
        ConfigError: there is no such module or class in it, or it cannot be imported.
    """
    module_name, _, class_name = name.partition(":")
    if not module_name or not class_name:
        raise ConfigError(f"a model is given as module:Class, not {name!r}")
    import_from_here()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"model {name!r}: {error}") from error
    except Exception as error:
        raise ConfigError(f"model {name!r}: {module_name} cannot be imported: {told(error)}") from error
    model_class = getattr(module, class_name, None)
    if model_class is None:
        raise ConfigError(f"model {name!r}: module {module_name} has no {class_name}")
    if not isinstance(model_class, type) or not issubclass(model_class, Model):
        raise ConfigError(f"model {name!r} is no subclass of asyncparl.Model")
    return model_class
