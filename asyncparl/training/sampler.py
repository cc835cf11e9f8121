"""A sampler plays N environments with one policy and cuts what happens into rollouts of T steps.

An unroller is the half of it that knows no policy: somebody else says what is done in each step.

The observations of a rollout are written by the environment straight into the rollout's own array of T + 1 rows; row T
is `bootstrap_obs`, and the next rollout starts with a copy of it. A rollout belongs to whoever collected it: no later
step writes into it.

The state of a policy with a memory is kept by the unroller, from one step to the next: it is given out with every
observation, is the initial one again where an episode has ended, and is noted in each rollout as it was at its first
step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, Protocol, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray

from asyncparl.algorithms.actor_critic import Precision
from asyncparl.algorithms.arrays import as_tensor
from asyncparl.algorithms.categorical import action_log_probs, sample
from asyncparl.algorithms.recurrence import Memory
from asyncparl.algorithms.rollout import Rollout
from asyncparl.training.environments import Episode, Transition, VectorEnvironment


class Policy(Protocol):
    """Chooses an action in each of N environments."""

    def __call__(self, obs: NDArray[Any], /) -> tuple[NDArray[np.integer[Any]], NDArray[np.floating[Any]]]:
        """obs [N, *obs_shape], only to be read during the call -> actions [N], log mu(action | obs) [N]."""


class PolicyWithMemory(Protocol):
    """Chooses an action in each of N environments, and remembers something of each."""

    def __call__(
        self, obs: NDArray[Any], state: NDArray[Any], /
    ) -> tuple[NDArray[np.integer[Any]], NDArray[np.floating[Any]], NDArray[Any]]:
        """obs [N, *obs_shape] and state [N, S], only to be read during the call -> as `Policy`, and the next state."""


class ActorCriticPolicy:
    """Draws actions from a model's policy, or takes its best ones, on the device where the model lies.

    A `PolicyWithMemory` if the model has a memory, else a `Policy`.

    Args:
        model: `forward(obs [N, ...])` gives `(logits [N, A], values [N])`; one with a memory as `Model` says. Put in
            evaluation mode; whoever holds it may set its weights between two calls.
        precision: that of the learner's algorithm; with another one the two would not agree on the probabilities.
        seed: of the draws.
        deterministic: take the most probable action, always.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        precision: Precision = "fp32",
        seed: int = 0,
        deterministic: bool = False,
    ) -> None:
        self._deterministic = deterministic
        self._model = model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._memory = Memory.of(model)
        self._precision = precision
        self._device = next(model.parameters()).device
        self._generator = torch.Generator(self._device).manual_seed(seed)

    def initial_state(self, num_envs: int) -> NDArray[np.float32] | None:
        """[N, S] what the model remembers when an episode begins; None: it has no memory."""
        return None if self._memory is None else self._memory.initial_rows(num_envs).numpy()

    @overload
    def __call__(self, obs: NDArray[Any], /) -> tuple[NDArray[np.int64], NDArray[np.float32]]: ...

    @overload
    def __call__(
        self, obs: NDArray[Any], state: NDArray[Any], /
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]: ...

    @torch.inference_mode()
    def __call__(self, obs: NDArray[Any], state: NDArray[Any] | None = None, /) -> tuple[NDArray[Any], ...]:
        if (state is None) != (self._memory is None):
            has, gets = ("no memory", "a") if self._memory is None else ("a memory", "no")
            raise ValueError(f"{type(self._model).__name__} has {has}, but gets {gets} state: see initial_state()")
        tensors = [_aligned(as_tensor(each)).to(self._device) for each in (obs, state) if each is not None]
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._precision == "bf16"):
            logits, _, *next_state = self._model(*tensors) if self._memory is None else self._memory.step(*tensors)
        return tuple(each.cpu().numpy() for each in (*self._choose(logits), *next_state))

    def _choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions and their log-probabilities."""
        if self._deterministic:
            actions = logits.argmax(-1)
            log_probs = action_log_probs(logits.float(), actions)
        else:
            actions, log_probs = sample(logits.float(), self._generator)
        return actions, log_probs


class RememberingPolicy:
    """A `Policy` that keeps the memory of another one itself, for one episode in each environment.

    Args:
        policy: is given the state, and returns the next one.
        initial_state: [N, S] of it.
    """

    def __init__(self, policy: PolicyWithMemory, initial_state: NDArray[Any]) -> None:
        self._policy = policy
        self._state = initial_state

    def __call__(self, obs: NDArray[Any], /) -> tuple[NDArray[np.integer[Any]], NDArray[np.floating[Any]]]:
        actions, log_probs, self._state = self._policy(obs, self._state)
        return actions, log_probs


def _aligned(obs: torch.Tensor) -> torch.Tensor:
    """As torch itself aligns: how a product is rounded may depend on where in memory its factors lie."""
    return obs.clone() if obs.is_floating_point() and obs.data_ptr() % 64 else obs


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """What is worth knowing about a rollout, besides its contents."""

    weights_versions: tuple[int, ...]  # [T] of the policy, as it chose the actions of each step
    num_steps: int  # agent steps: T * N
    episodes: tuple[Episode, ...]  # that ended in it, raw returns
    environment_s: float
    inference_s: float
    new_weights: tuple[tuple[int, float], ...] = ()
    """Versions that were played with for the first time, and for how many seconds the actor had had them by then."""


class Sample(NamedTuple):
    """One rollout and its record."""

    rollout: Rollout[NDArray[Any]]
    record: RolloutRecord


class Unroller:
    """Steps N environments with the actions that it is given, and cuts what happens into rollouts of T steps.

    Args:
        environment: is reset here, and belongs to the unroller from now on.
        num_steps: T.
        initial_state: [N, S] float32, what the policy remembers when an episode begins; None: it has no memory.
    """

    def __init__(
        self, environment: VectorEnvironment, *, num_steps: int, initial_state: NDArray[np.float32] | None = None
    ) -> None:
        if num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {num_steps}")
        self._environment = environment
        self._num_steps = num_steps
        self._initial_state = initial_state
        self.state = initial_state
        """[N, S] what the policy remembers when it sees `obs`. Only to be read."""
        self._steps = self._no_steps()
        environment.reset(out=self._steps.obs[0])

    @property
    def obs(self) -> NDArray[Any]:
        """[N, *obs_shape] what the policy sees next. Only to be read; valid as long as its holder pleases."""
        row: NDArray[Any] = self._steps.obs[self._steps.t]
        return row

    def step(
        self,
        actions: NDArray[np.integer[Any]],
        log_probs: NDArray[np.floating[Any]],
        state: NDArray[np.floating[Any]] | None = None,
        *,
        weights_version: int = 0,
        inference_s: float = 0.0,
    ) -> Sample | None:
        """One step of every environment.

        Args:
            actions: [N] what the policy does about `obs`.
            log_probs: [N] log mu(action | obs).
            state: [N, S] what the policy remembers now; where an episode ends in this step it is forgotten.
            weights_version: of the policy; only noted, in the record.
            inference_s: how long it was waited for; likewise.

        Returns:
            The rollout that is complete now, if one is.

        Raises:
            ValueError: there is a state but no initial one, or the other way round. No step was taken.
        """
        if (state is None) != (self._initial_state is None):
            raise ValueError("step() takes a state exactly if the unroller was made with an initial_state")
        steps, start = self._steps, perf_counter()
        transition = self._environment.step(actions, out=steps.obs[steps.t + 1])
        steps.environment_s += perf_counter() - start
        steps.inference_s += inference_s
        steps.add(actions, log_probs, transition, weights_version)
        self._remember(state, transition)
        if steps.t < self._num_steps:
            return None
        self._steps = self._no_steps()
        self._steps.obs[0] = steps.obs[-1]
        return steps.sample(self._environment.take_episodes())

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()

    def _remember(self, state: NDArray[np.floating[Any]] | None, transition: Transition) -> None:
        if self._initial_state is None or state is None:
            return
        ended = transition.terminated | transition.truncated
        # A new array only if need be; the last one may be part of a rollout, or be on its way to a predictor.
        self.state = np.where(ended[:, None], self._initial_state, state) if ended.any() else state

    def _no_steps(self) -> _Steps:
        # Not from a pool: who collected the last rollout may keep it. The allocator reuses what was freed.
        environment = self._environment
        steps = _Steps.empty(self._num_steps, environment.num_envs, environment.obs_shape, environment.obs_dtype)
        steps.initial_state = None if self.state is None else self.state.copy()
        return steps


class Sampler:
    """Collects rollouts of `num_steps` steps, for ever.

    Args:
        environment: is reset here, and belongs to the sampler from now on.
        policy: may change its weights between two steps.
        num_steps: T.
        initial_state: [N, S] float32, of a policy with a memory; None: it has none.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        policy: Policy | PolicyWithMemory,
        *,
        num_steps: int,
        initial_state: NDArray[np.float32] | None = None,
    ) -> None:
        self._unroller = Unroller(environment, num_steps=num_steps, initial_state=initial_state)
        self._policy = policy

    def collect(self, weights_version: int | Callable[[], int] = 0) -> Sample:
        """The next T steps.

        Args:
            weights_version: which weights the policy has, for the record. A function is asked before every step, and
                may give the policy others.
        """
        collected: Sample | None = None
        while collected is None:
            version = weights_version() if callable(weights_version) else weights_version
            start = perf_counter()
            actions, log_probs, state = self._act()
            inference_s = perf_counter() - start
            collected = self._unroller.step(actions, log_probs, state, weights_version=version, inference_s=inference_s)
        return collected

    def _act(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        obs, state = self._unroller.obs, self._unroller.state
        if state is None:
            return (*cast("Policy", self._policy)(obs), None)
        return cast("PolicyWithMemory", self._policy)(obs, state)

    def close(self) -> None:
        """Close the environment."""
        self._unroller.close()


@dataclass(slots=True)
class _Steps:
    """A rollout under way."""

    obs: NDArray[Any]  # [T + 1, N, *obs_shape]
    actions: NDArray[np.int64]  # [T, N], as those below
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_obs: list[NDArray[Any]] = field(default_factory=list)
    final_steps: list[tuple[int, int]] = field(default_factory=list)
    initial_state: NDArray[np.float32] | None = None  # [N, S]
    t: int = 0  # how many steps it has
    versions: list[int] = field(default_factory=list)
    environment_s: float = 0.0
    inference_s: float = 0.0

    @classmethod
    def empty(cls, num_steps: int, num_envs: int, obs_shape: tuple[int, ...], obs_dtype: np.dtype[Any]) -> _Steps:
        shape = (num_steps, num_envs)
        return cls(
            obs=np.empty((num_steps + 1, num_envs, *obs_shape), obs_dtype),
            actions=np.empty(shape, np.int64),
            log_probs=np.empty(shape, np.float32),
            rewards=np.empty(shape, np.float32),
            terminated=np.empty(shape, np.bool_),
            truncated=np.empty(shape, np.bool_),
        )

    def add(self, actions: NDArray[Any], log_probs: NDArray[Any], transition: Transition, version: int) -> None:
        t = self.t
        self.actions[t] = actions
        self.log_probs[t] = log_probs
        self.rewards[t] = transition.rewards
        self.terminated[t] = transition.terminated
        self.truncated[t] = transition.truncated
        if len(transition.final_indices):
            self.final_obs.append(transition.final_obs)
            self.final_steps.extend((t, int(b)) for b in transition.final_indices)
        self.versions.append(version)
        self.t += 1

    def sample(self, episodes: Iterable[Episode]) -> Sample:
        """The rollout, now that it is complete."""
        record = RolloutRecord(
            weights_versions=tuple(self.versions),
            num_steps=self.actions.size,
            episodes=tuple(episodes),
            environment_s=self.environment_s,
            inference_s=self.inference_s,
        )
        return Sample(self._rollout(), record)

    def _rollout(self) -> Rollout[NDArray[Any]]:
        no_final_obs = np.empty((0, *self.obs.shape[2:]), self.obs.dtype)
        return Rollout(
            obs=self.obs[:-1],
            actions=self.actions,
            behaviour_log_probs=self.log_probs,
            rewards=self.rewards,
            terminated=self.terminated,
            truncated=self.truncated,
            bootstrap_obs=self.obs[-1],
            final_obs=np.concatenate(self.final_obs) if self.final_obs else no_final_obs,
            final_steps=np.array(self.final_steps, np.int64).reshape(-1, 2),
            initial_state=self.initial_state,
        )
