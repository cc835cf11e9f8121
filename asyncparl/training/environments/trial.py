"""What is wrong with an environment of one's own, in one line, and what gymnasium expects of it instead.

Wrappers, which `gymnasium.make` adds too, trip over most faults in a way that tells their authors little. So when an
environment has failed, what is inside of all wrappers is tried by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from asyncparl.training.errors import told


def interface_fault(env: gymnasium.Env[Any, Any], failed: Literal["reset", "step"]) -> str | None:
    """What an environment, or a wrapper in it, has otherwise than gymnasium, so that one of its methods has failed.

    None: nothing. The environment is of no use afterwards.
    """
    for layer in reversed(_layers(env)):
        whose = "" if layer is env.unwrapped else f" of {type(layer).__name__}"
        if failed == "reset" and not _takes(layer.reset, seed=0, options=None):
            return f"reset(){whose} must take seed and options: def reset(self, *, seed=None, options=None)"
        if failed == "step" and not _takes(layer.step, 0):
            return f"step(){whose} must take an action: def step(self, action)"
    return _core_fault(env.unwrapped, failed)


def reset_fault(started: Any) -> str | None:
    """What is wrong with what `reset` gave."""
    if isinstance(started, tuple) and len(started) == 2:
        return None
    hint = "" if started is None else "; that of the old gym gave obs alone"
    return f"reset() must give (obs, info), not {_number_of(started)}{hint}"


def step_fault(result: Any) -> str | None:
    """What is wrong with what `step` gave, as a whole."""
    if isinstance(result, tuple | list) and len(result) == 5:
        return None
    given = _number_of(result)
    hint = "; that of the old gym gave four, with done instead of terminated and truncated" if given[0] == "4" else ""
    return f"step() must give (obs, reward, terminated, truncated, info), not {given}{hint}"


def _number_of(given: Any) -> str:
    return f"{len(given)} values" if isinstance(given, tuple | list) else type(given).__name__


def value_fault(space: spaces.Space[Any], obs: NDArray[Any]) -> str | None:
    """What is wrong with the numbers of an observation whose shape and type are those of the space."""
    if obs.dtype.kind == "f" and not np.isfinite(obs).all():
        return f"gave an observation with {obs[~np.isfinite(obs)][0]} in it: nothing can be learned from that"
    if isinstance(space, spaces.Box) or space.contains(np.asarray(obs, space.dtype)):
        return None  # bounds of a box are often rough, and nothing depends on them
    text = str(space).replace("\n", " ")
    return f"gave an observation that is not in its observation_space, {text}: {obs.tolist()}; correct one of them"


def _layers(env: gymnasium.Env[Any, Any]) -> list[gymnasium.Env[Any, Any]]:
    """The environment, from its outermost wrapper to what is inside of all."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _takes(method: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # not written in Python
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _core_fault(env: gymnasium.Env[Any, Any], failed: Literal["reset", "step"]) -> str | None:
    """The same, found by calling what is inside of all wrappers."""
    method = "reset"
    try:
        fault = reset_fault(env.reset(seed=0, options=None))
        if fault is None and failed == "step":
            method = "step"
            env.action_space.seed(0)
            fault = step_fault(env.step(env.action_space.sample()))
    except Exception as error:
        return f"{method}() failed: {told(error)}"
    return fault
