"""A sampler plays N environments with one policy and cuts what happens into rollouts of T steps.

The observations of a rollout are written by the environment straight into the rollout's own array of T + 1 rows; row T
is `bootstrap_obs`, and the next rollout starts with a copy of it. A rollout belongs to whoever collected it: no later
step writes into it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from asyncparl.algorithms.actor_critic import Precision
from asyncparl.algorithms.arrays import as_tensor
from asyncparl.algorithms.categorical import sample
from asyncparl.algorithms.rollout import Rollout
from asyncparl.training.environments import Episode, Transition, VectorEnvironment


class Policy(Protocol):
    """Chooses an action in each of N environments."""

    def __call__(self, obs: NDArray[Any], /) -> tuple[NDArray[np.integer[Any]], NDArray[np.floating[Any]]]:
        """obs [N, *obs_shape], only to be read during the call -> actions [N], log mu(action | obs) [N]."""


class ActorCriticPolicy:
    """Draws actions from a model's policy, on the CPU.

    Args:
        model: `forward(obs [N, ...])` gives `(logits [N, A], values [N])`. Put in evaluation mode; whoever holds it may
            set its weights between two calls.
        precision: that of the learner's algorithm; with another one the two would not agree on the probabilities.
        seed: of the draws.
    """

    def __init__(self, model: torch.nn.Module, *, precision: Precision = "fp32", seed: int = 0) -> None:
        self._model = model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._precision = precision
        self._generator = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def __call__(self, obs: NDArray[Any], /) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._precision == "bf16"):
            logits, _ = self._model(as_tensor(obs))
        actions, log_probs = sample(logits.float(), self._generator)
        return actions.numpy(), log_probs.numpy()


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """What is worth knowing about a rollout, besides its contents."""

    weights_version: int  # of the policy, all through the rollout
    num_steps: int  # agent steps: T * N
    episodes: tuple[Episode, ...]  # that ended in it, raw returns
    environment_s: float
    inference_s: float


class Sample(NamedTuple):
    """One rollout and its record."""

    rollout: Rollout[NDArray[Any]]
    record: RolloutRecord


class Sampler:
    """Collects rollouts of `num_steps` steps, for ever.

    Args:
        environment: is reset here, and belongs to the sampler from now on.
        policy: may change its weights between two calls of `collect`, not during one.
        num_steps: T.
    """

    def __init__(self, environment: VectorEnvironment, policy: Policy, *, num_steps: int) -> None:
        if num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {num_steps}")
        self._environment = environment
        self._policy = policy
        self._num_steps = num_steps
        self._obs = self._new_obs()  # of the next rollout; row 0 is what the policy sees next
        environment.reset(out=self._obs[0])

    def collect(self, weights_version: int = 0) -> Sample:
        """The next T steps.

        Args:
            weights_version: which weights the policy has now; only noted in the record.
        """
        obs = self._obs
        steps = _Steps.empty(self._num_steps, self._environment.num_envs)
        environment_s = inference_s = 0.0
        for t in range(self._num_steps):
            start = perf_counter()
            actions, log_probs = self._policy(obs[t])
            acted = perf_counter()
            transition = self._environment.step(actions, out=obs[t + 1])
            environment_s += perf_counter() - acted
            inference_s += acted - start
            steps.write(t, actions, log_probs, transition)
        self._obs = self._new_obs()
        self._obs[0] = obs[-1]
        record = RolloutRecord(
            weights_version=weights_version,
            num_steps=self._num_steps * self._environment.num_envs,
            episodes=tuple(self._environment.take_episodes()),
            environment_s=environment_s,
            inference_s=inference_s,
        )
        return Sample(steps.rollout(obs), record)

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()

    def _new_obs(self) -> NDArray[Any]:
        # Not from a pool: who collected the last rollout may keep it. The allocator reuses what was freed.
        shape = (self._num_steps + 1, self._environment.num_envs, *self._environment.obs_shape)
        return np.empty(shape, self._environment.obs_dtype)


@dataclass(slots=True)
class _Steps:
    """The arrays of a rollout under way, but for the observations."""

    actions: NDArray[np.int64]  # [T, N], as those below
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: list[NDArray[Any]] = field(default_factory=list)
    final_steps: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def empty(cls, num_steps: int, num_envs: int) -> _Steps:
        shape = (num_steps, num_envs)
        return cls(
            actions=np.empty(shape, np.int64),
            log_probs=np.empty(shape, np.float32),
            rewards=np.empty(shape, np.float32),
            terminated=np.empty(shape, np.bool_),
            truncated=np.empty(shape, np.bool_),
        )

    def write(self, t: int, actions: NDArray[Any], log_probs: NDArray[Any], transition: Transition) -> None:
        self.actions[t] = actions
        self.log_probs[t] = log_probs
        self.rewards[t] = transition.rewards
        self.terminated[t] = transition.terminated
        self.truncated[t] = transition.truncated
        if len(transition.final_indices):
            self.final_obs.append(transition.final_obs)
            self.final_steps.extend((t, int(b)) for b in transition.final_indices)

    def rollout(self, obs: NDArray[Any]) -> Rollout[NDArray[Any]]:
        no_final_obs = np.empty((0, *obs.shape[2:]), obs.dtype)
        return Rollout(
            obs=obs[:-1],
            actions=self.actions,
            behaviour_log_probs=self.log_probs,
            rewards=self.rewards,
            terminated=self.terminated,
            truncated=self.truncated,
            bootstrap_obs=obs[-1],
            final_obs=np.concatenate(self.final_obs) if self.final_obs else no_final_obs,
            final_steps=np.array(self.final_steps, np.int64).reshape(-1, 2),
        )
