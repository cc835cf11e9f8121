"""Any gymnasium environment with one array as observation and a discrete action, stepped in a plain loop.

Not built on `gymnasium.vector.SyncVectorEnv`: the loop here writes each observation straight to where it is needed,
copies the final observation before the environment is reset (SyncVectorEnv keeps the environment's own array, which an
environment that reuses its buffer then overwrites) and took a fifth less time on 16 CartPoles.
"""

from __future__ import annotations

import math
from typing import Any

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
from asyncparl.training.errors import WrongEnvironmentError


class GymnasiumEnvironment(VectorEnvironment):
    """N environments of one gymnasium id in this process and thread.

    Observations in float64 become float32. A Discrete action space may start at any number; ours starts at 0.
    """

    def __init__(
        self, env_id: str, *, num_envs: int, seed: int, options: EnvironmentOptions, filmed: bool = False
    ) -> None:
        self._envs = [_make(env_id, options) for _ in range(num_envs)]
        if filmed:
            self.frames_per_s = _frame_rate(env_id, self._envs[0])
            self._envs[0].close()
            self._envs[0] = _make(env_id, options, render_mode="rgb_array")
        obs_space = _array_space(env_id, self._envs[0].observation_space)
        action_space = _discrete_space(env_id, self._envs[0].action_space)
        self._first_action = int(action_space.start)
        super().__init__(
            num_envs=num_envs,
            obs_shape=tuple(obs_space.shape or ()),
            obs_dtype=_learnable_dtype(obs_space),
            num_actions=int(action_space.n),
            seed=seed,
            clip_rewards=bool(options.clip_rewards),
            frame_stack=_frame_stack(self._envs[0]),
        )
        self._last_stacks = np.empty((num_envs if self.frame_stack > 1 else 0, *self.obs_shape), self.obs_dtype)

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
            elif np.shape(obs) != self.obs_shape:  # numpy would spread a smaller one over the larger
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
        except gymnasium.error.Error as error:
            raise ValueError(f"{env.spec.id if env.spec else env} cannot be drawn: {error}") from error
        return np.array(frame, np.uint8)

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
        started = env.reset(seed=seed)
        if not isinstance(started, tuple) or len(started) != 2:
            raise WrongEnvironmentError(
                f"{_name(env)}: reset() must give (obs, info), not {type(started).__name__}; that of the old gym gave "
                "obs alone"
            )
        obs = started[0]
        if np.shape(obs) != self.obs_shape or not np.can_cast(np.asarray(obs).dtype, self.obs_dtype, "same_kind"):
            raise self._wrong_obs(env, obs)
        return obs

    def _wrong_obs(self, env: gymnasium.Env[Any, Any], obs: Any) -> WrongEnvironmentError:
        given, declared = np.asarray(obs), env.observation_space
        return WrongEnvironmentError(
            f"{_name(env)}: observation_space is {declared.dtype}{list(self.obs_shape)}, but what it gives is "
            f"{given.dtype}{list(given.shape)}: correct one of them"
        )

    def _stack(self, final_obs: list[NDArray[Any]]) -> NDArray[Any]:
        return np.array(final_obs, self.obs_dtype).reshape(len(final_obs), *self.obs_shape)


def _make(env_id: str, options: EnvironmentOptions, **more: Any) -> gymnasium.Env[Any, Any]:
    # The passive checker costs as much as a small environment; shapes are checked at every reset instead.
    return gymnasium.make(
        env_id, max_episode_steps=options.max_episode_steps, disable_env_checker=True, **options.arguments, **more
    )


_TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, TimeLimit, RecordEpisodeStatistics)
"""Wrappers that hand on observations as they are."""


def _frame_stack(env: Any) -> int:
    """How many frames `FrameStackObservation` stacks, if no other wrapper changes what it gives; 1: there is none."""
    while type(env) in _TRANSPARENT:
        env = env.env
    return int(env.stack_size) if type(env) is FrameStackObservation else 1


def _frame_rate(env_id: str, env: gymnasium.Env[Any, Any]) -> float:
    modes = list(env.metadata.get("render_modes", ()))
    if "rgb_array" not in modes:
        raise ValueError(
            f"{env_id!r} cannot be filmed: its render_modes are {modes}; it needs 'rgb_array', and a render() that "
            "gives an array uint8[height, width, 3]"
        )
    return float(env.metadata.get("render_fps") or VectorEnvironment.frames_per_s)


def _step(env: gymnasium.Env[Any, Any], action: int) -> tuple[Any, float, bool, bool]:
    """Observation, reward, terminated, truncated."""
    result: Any = env.step(action)
    if len(result) != 5:
        raise WrongEnvironmentError(
            f"{_name(env)}: step() must give (obs, reward, terminated, truncated, info), not {len(result)} values; "
            "that of the old gym gave four"
        )
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
