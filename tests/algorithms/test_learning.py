"""Whole learning problems in this process, each a few seconds: is the sign right, is the credit right?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asyncparl.algorithms import A2C, GA3C, IMPALA, PPO, Algorithm, Rollout
from asyncparl.rl import MLP, Agent

Array = NDArray[Any]

CATCHERS: dict[str, Callable[[], Algorithm]] = {
    "impala": lambda: IMPALA(MLP(50, 3), learning_rate=2e-3),
    "a2c": lambda: A2C(MLP(50, 3), learning_rate=2e-3),
    "a2c with normalised advantages": lambda: A2C(MLP(50, 3), learning_rate=2e-3, normalise_advantages=True),
    "ppo": lambda: PPO(MLP(50, 3), learning_rate=2e-3),
    "ga3c": lambda: GA3C(MLP(50, 3), learning_rate=2e-3),
}


class Environments(Protocol):
    """B environments side by side that reset themselves within the step that ends an episode."""

    obs: Array  # [B, ...]

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        """Rewards, terminated, truncated, all [B], and the observations before any reset."""
        ...


class Catch:
    """A ball falls ten rows; the paddle below moves left, right or not. The only reward is on the last step."""

    ROWS, COLUMNS, REST = 10, 5, 1

    def __init__(self, num_envs: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.row = np.zeros(num_envs, np.int64)
        self.ball = self.random.integers(self.COLUMNS, size=num_envs)
        self.paddle = np.full(num_envs, self.COLUMNS // 2)
        self.obs = self._observe()

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        self.row += 1
        self.paddle = np.clip(self.paddle + actions - self.REST, 0, self.COLUMNS - 1)
        terminated = self.row == self.ROWS - 1
        rewards = np.where(terminated, np.where(self.ball == self.paddle, 1.0, -1.0), 0.0)
        before_reset = self._observe()
        self.row[terminated] = 0
        self.paddle[terminated] = self.COLUMNS // 2
        self.ball[terminated] = self.random.integers(self.COLUMNS, size=terminated.sum())
        self.obs = self._observe()
        return rewards, terminated, np.zeros_like(terminated), before_reset

    def _observe(self) -> Array:
        board = np.zeros((len(self.row), self.ROWS, self.COLUMNS), np.float32)
        everyone = np.arange(len(self.row))
        board[everyone, self.row, self.ball] = 1.0
        board[everyone, -1, self.paddle] = 1.0
        return board


class EndlessReward:
    """Reward 1 at every step for ever, cut into pieces of five steps: the value is 1 / (1 - gamma) everywhere."""

    LIMIT = 5

    def __init__(self, num_envs: int) -> None:
        self.time = np.arange(num_envs) % self.LIMIT
        self.obs = np.ones((num_envs, 1), np.float32)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        self.time += 1
        truncated = self.time == self.LIMIT
        self.time[truncated] = 0
        return np.ones(len(actions)), np.zeros_like(truncated), truncated, self.obs


def collect(agent: Agent, envs: Environments, num_steps: int) -> Rollout[Array]:
    """`num_steps` of every environment, each reward stored beside the action that it answers."""
    steps, final_obs, final_steps = [], [], []
    for t in range(num_steps):
        obs = envs.obs
        actions, log_probs = agent.sample(obs)
        rewards, terminated, truncated, before_reset = envs.step(actions)
        steps.append((obs, actions, log_probs, rewards.astype(np.float32), terminated, truncated))
        for b in np.flatnonzero(truncated):
            final_obs.append(before_reset[b])
            final_steps.append((t, b))
    obs, actions, log_probs, rewards, terminated, truncated = (np.stack(column) for column in zip(*steps, strict=True))
    return Rollout(
        obs,
        actions,
        log_probs,
        rewards,
        terminated,
        truncated,
        bootstrap_obs=envs.obs,
        final_obs=np.array(final_obs, envs.obs.dtype).reshape(-1, *envs.obs.shape[1:]),
        final_steps=np.array(final_steps, np.int64).reshape(-1, 2),
    )


def train(
    agent: Agent, envs: Environments, num_updates: int, edit: Callable[[Rollout[Array]], Rollout[Array]] | None = None
) -> Rollout[Array]:
    """Learn on-policy, and return the last rollout."""
    for _ in range(num_updates):
        rollout = collect(agent, envs, num_steps=20)
        agent.learn(edit(rollout) if edit else rollout)
    return rollout


def catch_agent(name: str) -> Agent:
    torch.manual_seed(0)
    return Agent(CATCHERS[name]())


def share_caught(agent: Agent) -> float:
    """Of about 400 episodes under the sampled policy, how many ended with the ball on the paddle."""
    last = collect(agent, Catch(64, seed=1), num_steps=60)
    return float((last.rewards[last.terminated] > 0.0).mean())


@pytest.mark.parametrize("name", CATCHERS)
def test_catch_is_learned_though_its_only_reward_is_on_the_last_step(name: str) -> None:
    agent = catch_agent(name)
    assert share_caught(agent) < 0.4
    train(agent, Catch(32, seed=0), num_updates=150)
    assert share_caught(agent) > 0.95


@pytest.mark.parametrize("name", CATCHERS)
def test_catch_is_not_learned_from_rewards_that_arrive_one_step_late(name: str) -> None:
    def shift(rollout: Rollout[Array]) -> Rollout[Array]:
        return rollout._replace(rewards=np.roll(rollout.rewards, 1, axis=0))

    agent = catch_agent(name)
    train(agent, Catch(32, seed=0), num_updates=150, edit=shift)
    assert share_caught(agent) < 0.6


@pytest.mark.parametrize("kind", [IMPALA, A2C, GA3C])
def test_the_value_of_an_endless_reward_is_not_cut_by_a_time_limit(kind: Any) -> None:
    torch.manual_seed(0)
    algorithm = kind(
        MLP(1, 2), discount=0.9, learning_rate=0.02, decay_steps=60 * 20 * 10, optimizer="rmsprop", rms_epsilon=0.01
    )
    agent = Agent(algorithm)
    train(agent, EndlessReward(10), num_updates=60)
    _, value = agent.algorithm.model(torch.ones(1, 1))
    assert abs(value.item() - 10.0) < 0.1
