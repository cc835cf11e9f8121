"""Whether a model gives what an actor-critic needs, found out with a few observations before a run begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from asyncparl.algorithms.recurrence import Memory
from asyncparl.rl import Model
from asyncparl.training.build import Interface
from asyncparl.training.errors import ConfigError, told

_NUM_OBS = 3


def check_model(model: Model, interface: Interface) -> None:
    """Call `forward` once, in evaluation mode and without gradients.

    Args:
        model: on any device; it is left as it was.
        interface: of the environment: the observations are zeros of its shape and type.

    Raises:
        ConfigError: it fails, or does not give `(logits [N, num_actions], values [N])` of floating-point numbers, and
            its next state if it has a memory; or it has no parameters.
    """
    name = type(model).__qualname__
    if not any(True for _ in model.parameters()):
        raise ConfigError(f"model {name} has no parameters: there is nothing to learn")
    try:
        memory = Memory.of(model)
    except ValueError as error:
        raise ConfigError(f"model {error}") from error
    device = next(model.parameters()).device
    obs = torch.from_numpy(np.zeros((_NUM_OBS, *interface.obs_shape), interface.obs_dtype)).to(device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            given = _call(model, memory, obs)
    except Exception as error:
        what = f"{interface.obs_dtype}[{', '.join(map(str, obs.shape))}]"
        raise ConfigError(
            f"model {name}: forward fails for observations {what}: {told(error)}; observations arrive in the type "
            "in which the environment has them, so a network may have to call obs.float()"
        ) from error
    finally:
        model.train(was_training)
    _check_given(name, given, interface.num_actions)


def _call(model: Model, memory: Memory | None, obs: torch.Tensor) -> Any:
    if memory is None:
        return model(obs)
    logits, values, _ = memory.step(obs, memory.initial_rows(len(obs), obs.device))
    return logits, values


def _check_given(name: str, given: Any, num_actions: int) -> None:
    wanted = f"(logits [N, {num_actions}], values [N])"
    if not isinstance(given, tuple) or len(given) != 2 or not all(isinstance(each, torch.Tensor) for each in given):
        raise ConfigError(f"model {name}: forward must give {wanted}, two tensors, not {_described(given)}")
    logits, values = given
    if tuple(logits.shape) != (_NUM_OBS, num_actions):
        raise ConfigError(
            f"model {name}: forward must give {wanted}; for N = {_NUM_OBS} its logits are {list(logits.shape)}: the "
            f"last layer of the policy needs {num_actions} outputs, one for each action"
        )
    if tuple(values.shape) != (_NUM_OBS,):
        hint = ": squeeze them, values.squeeze(-1)" if tuple(values.shape) == (_NUM_OBS, 1) else ""
        raise ConfigError(
            f"model {name}: forward must give {wanted}; for N = {_NUM_OBS} its values are {list(values.shape)}{hint}"
        )
    for part, tensor in (("logits", logits), ("values", values)):
        if not tensor.is_floating_point():
            raise ConfigError(f"model {name}: its {part} must be floating-point numbers, not {tensor.dtype}")


def _described(given: Any) -> str:
    if isinstance(given, tuple | list):
        return f"{type(given).__name__} of {', '.join(type(each).__name__ for each in given)}"
    return type(given).__name__
