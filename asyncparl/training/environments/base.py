"""What a sampler needs of an environment: many copies of one game, stepped together.

Rules:
1. Auto-reset is SAME_STEP. When an episode ends at a step, the observation that this step hands out is the first one
   of the next episode. No step ignores its action.
2. `terminated` and `truncated` are never both set: an episode that really ended was not cut. The last observation of
   an episode that was cut is in `final_obs`; that of one that ended is of no use to a learner and is dropped.
3. Every array that is handed out belongs to the caller. Simulators reuse their buffers, so adapters copy an
   observation exactly once: into `out` if the caller gave one (a row of its rollout), else into a new array.
4. Episode statistics are of whole episodes of the game, with raw rewards: unclipped, undiscounted, and across the
   loss of a life even where the learner sees that as an end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SEEDS_PER_RUN = 1_000_000
_SEED_RANGE = 2**31 - SEEDS_PER_RUN  # ALE takes 31-bit seeds; the rest is room for the sub-environments' own offsets


class Episode(NamedTuple):
    """One finished episode."""

    return_: float  # sum of the raw rewards
    length: int  # agent steps


class Transition(NamedTuple):
    """The result of one step of N sub-environments. All arrays belong to the caller."""

    next_obs: NDArray[Any]  # [N, *obs_shape] what the policy sees next, after auto-reset
    rewards: NDArray[np.float32]  # [N] clipped if the environment was made so
    terminated: NDArray[np.bool_]  # [N]
    truncated: NDArray[np.bool_]  # [N]
    final_obs: NDArray[Any]  # [K, *obs_shape] the last observation of each truncated episode
    final_indices: NDArray[np.int64]  # [K] the sub-environment of each, ascending


class RawStep(NamedTuple):
    """What an adapter returns to `VectorEnvironment.step`."""

    rewards: NDArray[Any]  # [N] unclipped
    terminated: NDArray[np.bool_]  # [N]
    truncated: NDArray[np.bool_]  # [N]
    game_ended: NDArray[np.bool_]  # [N] a whole episode is over; differs from the flags where a life is an episode
    final_obs: NDArray[Any]  # [K, *obs_shape]


class VectorEnvironment(ABC):
    """N copies of one environment with discrete actions. An adapter implements `_reset`, `_step` and `_close`."""

    frames_per_s = 30.0
    """Of a video in which time passes as it should; a frame for every agent step."""

    def __init__(
        self,
        *,
        num_envs: int,
        obs_shape: tuple[int, ...],
        obs_dtype: np.dtype[Any],
        num_actions: int,
        seed: int,
        clip_rewards: bool,
        frame_stack: int = 1,
    ) -> None:
        """`frame_stack`: see the attribute; all others as `make_environment` has them."""
        self.num_envs = num_envs
        self.obs_shape = obs_shape
        self.frame_stack = frame_stack
        """Observations are stacks of so many frames along their first axis, the newest last. Each is the one before
        it without the oldest frame, and with a new one; but for the first of an episode, after `terminated` or
        `truncated`, which may be anything. 1: they are not known to be stacks."""
        self.obs_dtype = obs_dtype
        self.num_actions = num_actions
        self._seed = seed
        self._clip_rewards = clip_rewards
        self._running = False
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._episodes: list[Episode] = []

    def reset(self, seed: int | None = None, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Start every sub-environment anew; episodes under way are not counted.

        Args:
            seed: sub-environment i gets `seed + i`. None: the seed that the environment was made with, so that two
                calls start the same stream twice.
            out: [N, *obs_shape] to write the observations to.

        Returns:
            [N, *obs_shape] the first observations: `out`, or a new array.
        """
        seed = self._seed if seed is None else seed
        if not 0 <= seed <= 2**31 - self.num_envs:
            raise ValueError(f"seed must be between 0 and 2**31 - {self.num_envs}, got {seed}")
        obs = self._destination(out)
        self._returns[:] = 0
        self._lengths[:] = 0
        self._reset(seed, obs)
        self._running = True
        return obs

    def step(self, actions: NDArray[np.integer[Any]], *, out: NDArray[Any] | None = None) -> Transition:
        """Take one action in every sub-environment.

        Args:
            actions: [N] integers from 0 to num_actions - 1.
            out: [N, *obs_shape] to write the next observations to; it becomes `next_obs`.

        Raises:
            ValueError: if `actions` or `out` is not as above.
            RuntimeError: before `reset`, or after `close`.
        """
        if not self._running:
            raise RuntimeError("step() needs reset() first, and is of no use after close()")
        self._check_actions(actions)
        obs = self._destination(out)
        raw = self._step(actions, obs)
        self._count(raw.rewards, raw.game_ended)
        rewards = np.clip(raw.rewards, -1, 1) if self._clip_rewards else raw.rewards
        return Transition(
            next_obs=obs,
            rewards=rewards.astype(np.float32),
            terminated=raw.terminated,
            truncated=raw.truncated,
            final_obs=raw.final_obs,
            final_indices=np.flatnonzero(raw.truncated),
        )

    def take_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call, oldest first; the list is the caller's."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def frame(self) -> NDArray[np.uint8]:
        """[height, width, 3] what the first sub-environment shows now, for people.

        Raises:
            RuntimeError: the environment was not made with `filmed=True`.
            ValueError: it cannot be drawn after all, such as for want of a package; in one line.
        """
        raise RuntimeError("frame() needs an environment that was made with filmed=True")

    def try_out(self) -> None:
        """Reset, and step if anything can be wrong with that, before a run depends on it. Of no use afterwards.

        Raises:
            WrongEnvironmentError: one line: it does something else than it declares, or than gymnasium expects.
        """
        self.reset()

    def close(self) -> None:
        """Free the simulators. May be called twice."""
        self._running = False
        self._close()

    @abstractmethod
    def _reset(self, seed: int, out: NDArray[Any]) -> None:
        """Start sub-environment i with `seed + i`; write the first observations to `out`."""

    @abstractmethod
    def _step(self, actions: NDArray[np.integer[Any]], out: NDArray[Any]) -> RawStep:
        """Step, auto-reset in the same step, write the next observations to `out`."""

    @abstractmethod
    def _close(self) -> None:
        """Free the simulators; nothing may go wrong the second time."""

    def _count(self, rewards: NDArray[Any], game_ended: NDArray[np.bool_]) -> None:
        self._returns += rewards
        self._lengths += 1
        if game_ended.any():
            for i in np.flatnonzero(game_ended):
                self._episodes.append(Episode(float(self._returns[i]), int(self._lengths[i])))
            self._returns[game_ended] = 0
            self._lengths[game_ended] = 0

    def _destination(self, out: NDArray[Any] | None) -> NDArray[Any]:
        shape = (self.num_envs, *self.obs_shape)
        if out is None:
            return np.empty(shape, self.obs_dtype)
        if out.shape != shape or out.dtype != self.obs_dtype:
            raise ValueError(f"out must be {self.obs_dtype}{list(shape)}, got {out.dtype}{list(out.shape)}")
        return out

    def _check_actions(self, actions: NDArray[np.integer[Any]]) -> None:
        # Not left to the simulators: ALE answers an action out of range by never answering again.
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(f"actions must be integers[{self.num_envs}], got {actions.dtype}{list(actions.shape)}")
        if actions.min() < 0 or actions.max() >= self.num_actions:
            raise ValueError(f"actions must be from 0 to {self.num_actions - 1}, got {actions.tolist()}")


def environment_seed(base_seed: int, first_environment: int = 0) -> int:
    """The seed to make one actor's environments with, so that no two in a run are seeded alike.

    Args:
        base_seed: the seed of the whole run.
        first_environment: how many sub-environments the actors before this one hold; sub-environment i then gets
            the returned seed + i. Actor a of equal ones passes `a * num_envs`.

    Runs with different base seeds below 2147 share no seed either; above that the seeds wrap around.
    """
    if base_seed < 0 or not 0 <= first_environment < SEEDS_PER_RUN:
        raise ValueError(f"base_seed {base_seed} or first_environment {first_environment} is out of range")
    return (base_seed * SEEDS_PER_RUN + first_environment) % _SEED_RANGE
