"""Any gymnasium environment with one array as observation and a discrete action, stepped in a plain loop.

Not built on `gymnasium.vector.SyncVectorEnv`: the loop here writes each observation straight to where it is needed,
copies the final observation before the environment is reset (SyncVectorEnv keeps the environment's own array, which an
environment that reuses its buffer then overwrites) and took a fifth less time on 16 CartPoles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    FrameStackObservation,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TimeLimit,
)
from numpy.typing import NDArray

from asyncparl.training.environments.base import RawStep, VectorEnvironment
from asyncparl.training.environments.options import EnvironmentOptions
from asyncparl.training.environments.trial import interface_fault, reset_fault, step_fault, value_fault
from asyncparl.training.errors import WrongEnvironmentError, told


class GymnasiumEnvironment(VectorEnvironment):
    """N environments of one gymnasium id in this process and thread.

    Observations in float64 become float32. A Discrete action space may start at any number; ours starts at 0.

    Args:
        envs: made with `make_one`; they are closed with this one. If this raises, those in the list are the
            caller's to close.
    """

    def __init__(
        self,
        env_id: str,
        envs: list[gymnasium.Env[Any, Any]],
        *,
        seed: int,
        options: EnvironmentOptions,
        filmed: bool = False,
    ) -> None:
        self._envs = envs
        if filmed:
            self.frames_per_s = _frame_rate(env_id, envs[0])
            envs.append(_make_filmed(env_id, options))
            envs[0], unfilmed = envs.pop(), envs[0]
            unfilmed.close()
        obs_space = _array_space(env_id, _space(env_id, self._envs[0], "observation_space"))
        action_space = _discrete_space(env_id, _space(env_id, self._envs[0], "action_space"))
        self._first_action = int(action_space.start)
        super().__init__(
            num_envs=len(self._envs),
            obs_shape=tuple(obs_space.shape or ()),
            obs_dtype=_learnable_dtype(obs_space),
            num_actions=int(action_space.n),
            seed=seed,
            clip_rewards=bool(options.clip_rewards),
            frame_stack=_frame_stack(self._envs[0]),
        )
        self._last_stacks = np.empty((self.num_envs if self.frame_stack > 1 else 0, *self.obs_shape), self.obs_dtype)

    def _reset(self, seed: int, out: NDArray[Any]) -> None:
        for i, env in enumerate(self._envs):
            out[i] = self._start_episode(env, seed + i)
            self._watch_stack(i, out[i], is_first=True)

    def _step(self, actions: NDArray[np.integer[Any]], out: NDArray[Any]) -> RawStep:
        rewards = np.empty(self.num_envs, np.float64)
        terminated = np.empty(self.num_envs, np.bool_)
        truncated = np.zeros(self.num_envs, np.bool_)
        final_obs: list[NDArray[Any]] = []
        for i, action in enumerate(actions.tolist()):
            env = self._envs[i]
            obs, rewards[i], ended, cut = _step(env, self._first_action + action)
            terminated[i] = ended
            if cut and not ended:
                truncated[i] = True
                final_obs.append(np.array(obs, self.obs_dtype))
            if cut or ended:
                obs = self._start_episode(env, None)
            elif not self._fits(obs):  # numpy would spread a smaller one over the larger
                raise self._wrong_obs(env, obs)
            out[i] = obs
            self._watch_stack(i, out[i], is_first=cut or ended)
        return RawStep(rewards, terminated, truncated, terminated | truncated, self._stack(final_obs))

    def frame(self) -> NDArray[np.uint8]:
        env = self._envs[0]
        if env.render_mode is None:
            return super().frame()
        try:
            frame: Any = env.render()
        except gymnasium.error.Error as error:  # what is missing, in gymnasium's own words
            raise ValueError(f"{_name(env)} cannot be drawn: {error}") from error
        except ImportError as error:
            raise ValueError(f"{_name(env)} cannot be drawn: {_needed(error)}") from error
        except NotImplementedError as error:
            raise ValueError(f"{_name(env)} cannot be drawn: it has no render(); {_WANTED_FRAME}") from error
        except Exception as error:
            raise ValueError(f"{_name(env)} cannot be drawn: render() failed: {told(error)}") from error
        if not isinstance(frame, np.ndarray) or frame.shape[2:] != (3,) or frame.dtype.kind not in "iu":
            is_array = isinstance(frame, np.ndarray)
            given = f"{frame.dtype}{list(frame.shape)}" if is_array else type(frame).__name__
            raise ValueError(f"{_name(env)} cannot be drawn: {_WANTED_FRAME}, not {given}")
        return frame.astype(np.uint8)

    def try_out(self) -> None:
        self._try("reset", self.reset)
        self._try("step", lambda: self.step(np.zeros(self.num_envs, np.int64)).next_obs)

    def _try(self, method: Literal["reset", "step"], observe: Callable[[], NDArray[Any]]) -> None:
        env = self._envs[0]
        try:
            obs = observe()
        except Exception as error:
            fault = interface_fault(env, method)
            if fault is None and isinstance(error, WrongEnvironmentError):
                raise
            fault = fault or f"{method}() failed: {told(error)}"
            raise WrongEnvironmentError(f"{_name(env)}: {fault}") from error
        for each in obs:
            if (fault := value_fault(env.observation_space, each)) is not None:
                raise WrongEnvironmentError(f"{_name(env)}: {method}() {fault}")

    def _close(self) -> None:
        while self._envs:
            self._envs.pop().close()

    def _watch_stack(self, i: int, obs: NDArray[Any], *, is_first: bool) -> None:
        """Where an environment reuses its array, the wrapper stacks the newest frame alone: that is none of ours."""
        if self.frame_stack > 1:
            if not is_first and not np.array_equal(obs[:-1], self._last_stacks[i, 1:]):
                self.frame_stack = 1
            self._last_stacks[i] = obs

    def _start_episode(self, env: gymnasium.Env[Any, Any], seed: int | None) -> Any:
        started: Any = env.reset(seed=seed)
        if (fault := reset_fault(started)) is not None:
            raise WrongEnvironmentError(f"{_name(env)}: {fault}")
        obs = started[0]
        if not self._fits(obs):
            raise self._wrong_obs(env, obs)
        return obs

    def _fits(self, obs: Any) -> bool:
        """Whether an observation has the shape that was declared, and a type that becomes the declared one."""
        if type(obs) is not np.ndarray:
            try:
                obs = np.asarray(obs)
            except ValueError:  # lists of several lengths
                return False
        if obs.shape != self.obs_shape:
            return False
        return obs.dtype == self.obs_dtype or np.can_cast(obs.dtype, self.obs_dtype, "same_kind")

    def _wrong_obs(self, env: gymnasium.Env[Any, Any], obs: Any) -> WrongEnvironmentError:
        declared = env.observation_space
        try:
            array = np.asarray(obs)
            given = f"{array.dtype}{list(array.shape)}" if array.dtype != object else f"of type {type(obs).__name__}"
        except ValueError:
            given = f"a {type(obs).__name__} of parts with several lengths"
        return WrongEnvironmentError(
            f"{_name(env)}: observation_space is {declared.dtype}{list(self.obs_shape)}, but what it gives is "
            f"{given}: correct one of them"
        )

    def _stack(self, final_obs: list[NDArray[Any]]) -> NDArray[Any]:
        return np.array(final_obs, self.obs_dtype).reshape(len(final_obs), *self.obs_shape)


def make_one(env_id: str, options: EnvironmentOptions, **more: Any) -> gymnasium.Env[Any, Any]:
    """An environment as gymnasium makes it. Raises whatever that raises, or the environment's own class."""
    # The passive checker costs as much as a small environment; shapes are checked at every reset instead.
    return gymnasium.make(
        env_id, max_episode_steps=options.max_episode_steps, disable_env_checker=True, **options.arguments, **more
    )


_WANTED_FRAME = "render() must give an array uint8[height, width, 3] where render_mode is 'rgb_array'"


def _make_filmed(env_id: str, options: EnvironmentOptions) -> gymnasium.Env[Any, Any]:
    keeps = "def __init__(self, ..., render_mode=None), that keeps it: self.render_mode = render_mode"
    try:
        env = make_one(env_id, options, render_mode="rgb_array")
    except TypeError as error:  # it could be made without
        raise ValueError(f"{env_id!r} cannot be filmed: its class must take render_mode: {keeps}") from error
    except Exception as error:
        raise ValueError(f"{env_id!r} cannot be filmed: {_needed(error)}") from error
    if env.render_mode != "rgb_array":
        env.close()
        raise ValueError(f"{env_id!r} cannot be filmed: its render_mode is {env.render_mode}: it needs {keeps}")
    return env


def _needed(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"it needs the module {error.name}, which is not installed: pip install the package that brings it"
    return told(error)


_TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, TimeLimit, RecordEpisodeStatistics)
"""Wrappers that hand on observations as they are."""


def _frame_stack(env: Any) -> int:
    """How many frames `FrameStackObservation` stacks, if no other wrapper changes what it gives; 1: there is none."""
    while type(env) in _TRANSPARENT:
        env = env.env
    return int(env.stack_size) if type(env) is FrameStackObservation else 1


def _frame_rate(env_id: str, env: gymnasium.Env[Any, Any]) -> float:
    modes = list(env.metadata.get("render_modes") or ())
    if "rgb_array" not in modes:
        raise ValueError(
            f"{env_id!r} cannot be filmed: its render_modes are {modes}; it needs 'rgb_array', and a render() that "
            "gives an array uint8[height, width, 3]"
        )
    return float(env.metadata.get("render_fps") or VectorEnvironment.frames_per_s)


def _step(env: gymnasium.Env[Any, Any], action: int) -> tuple[Any, float, bool, bool]:
    """Observation, reward, terminated, truncated."""
    result: Any = env.step(action)
    if (fault := step_fault(result)) is not None:
        raise WrongEnvironmentError(f"{_name(env)}: {fault}")
    obs, reward, terminated, truncated, _ = result
    try:
        number, flags = float(reward), (bool(terminated), bool(truncated))
    except (TypeError, ValueError) as error:
        ends = f"terminated {terminated!r}, truncated {truncated!r}"
        raise WrongEnvironmentError(
            f"{_name(env)}: step() must give a number as reward and two booleans, not reward {reward!r}, {ends}"
        ) from error
    if not math.isfinite(number):
        raise WrongEnvironmentError(f"{_name(env)}: step() gave the reward {number}: nothing can be learned from that")
    return obs, number, *flags


def _name(env: gymnasium.Env[Any, Any]) -> str:
    return env.spec.id if env.spec is not None else str(env)


def _space(env_id: str, env: gymnasium.Env[Any, Any], name: str) -> spaces.Space[Any]:
    space: Any = getattr(env, name, None)
    if isinstance(space, spaces.Space):
        return space
    example = "Box(-1, 1, (4,), numpy.float32)" if name == "observation_space" else "Discrete(2)"
    expected = f"gymnasium expects one of its spaces, of the class or made in __init__: gymnasium.spaces.{example}"
    if space is None:
        raise ValueError(f"{env_id!r} has no {name}: {expected}")
    raise ValueError(f"{env_id!r} has {type(space).__module__}.{type(space).__qualname__} as {name}: {expected}")


def _array_space(env_id: str, space: spaces.Space[Any]) -> spaces.Space[Any]:
    if not isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        raise ValueError(
            f"{env_id!r} observes {space}; only arrays (Box, MultiBinary, MultiDiscrete) are supported: "
            "register it with a wrapper such as gymnasium.wrappers.FlattenObservation"
        )
    if np.dtype(space.dtype).kind not in "biuf":
        raise ValueError(f"{env_id!r} observes {space}; only arrays of numbers or booleans are supported")
    return space


def _discrete_space(env_id: str, space: spaces.Space[Any]) -> spaces.Discrete:
    if not isinstance(space, spaces.Discrete):
        raise ValueError(
            f"{env_id!r} acts in {space}; only Discrete actions are supported: register it with a "
            "gymnasium.ActionWrapper that has a list of such actions to choose from"
        )
    return space


def _learnable_dtype(space: spaces.Space[Any]) -> np.dtype[Any]:
    dtype = np.dtype(space.dtype)
    return np.dtype(np.float32) if dtype == np.float64 else dtype
