"""The sampler: every number of every rollout is the one that the environment gave for that step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asyncparl.algorithms import IMPALA, Precision, to_torch
from asyncparl.algorithms.categorical import action_log_probs
from asyncparl.training.environments import CATCH_ID, COUNTER_ID, Episode, VectorEnvironment, make_environment
from asyncparl.training.environments.counter import TIME_LIMIT, counter_length, counter_reward
from asyncparl.training.sampler import ActorCriticPolicy, Sample, Sampler

NUM_ENVS = 3
NUM_STEPS = 7


def counting_policy(obs: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Actions and log probabilities (exact in binary) that can be told from Counter's observation alone."""
    return obs.sum(-1).astype(np.int64) % 4, -(obs @ np.array([1 / 64, 1 / 8, 1], np.float32))


class CounterStream:
    """One Counter, worked out in plain Python: what the sampler must see, step by step."""

    def __init__(self, seed: int) -> None:
        self.seed, self.episode, self.step = seed, 0, 0

    @property
    def obs(self) -> list[float]:
        return [self.seed, self.episode, self.step]

    def advance(self) -> dict[str, Any]:
        """The fields of one step, by their names in a rollout; `final_obs` is None but at a truncation."""
        actions, log_probs = counting_policy(np.array([self.obs], np.float32))
        result: dict[str, Any] = {
            "obs": self.obs,
            "actions": actions[0],
            "behaviour_log_probs": log_probs[0],
            "rewards": counter_reward(int(actions[0])),
        }
        self.step += 1
        result["terminated"] = self.step == counter_length(self.seed, self.episode)
        result["truncated"] = self.step == TIME_LIMIT and not result["terminated"]
        result["final_obs"] = self.obs if result["truncated"] else None
        if result["terminated"] or result["truncated"]:
            self.episode, self.step = self.episode + 1, 0
        return result


@pytest.fixture
def counter() -> Iterator[VectorEnvironment]:
    environment = make_environment(COUNTER_ID, num_envs=NUM_ENVS, seed=10)
    yield environment
    environment.close()


def check_against_streams(sample: Sample, streams: list[CounterStream]) -> int:
    """Compare a rollout, bit by bit, with the next steps of the streams; how many of those were truncated."""
    rollout, finals = sample.rollout, []
    for t in range(NUM_STEPS):
        steps = [stream.advance() for stream in streams]
        for name in ("obs", "actions", "behaviour_log_probs", "rewards", "terminated", "truncated"):
            assert getattr(rollout, name)[t].tolist() == [step[name] for step in steps], name
        finals += [(t, b, step["final_obs"]) for b, step in enumerate(steps) if step["truncated"]]
    assert rollout.bootstrap_obs.tolist() == [stream.obs for stream in streams]
    assert rollout.final_steps.tolist() == [[t, b] for t, b, _ in finals]
    assert rollout.final_obs.tolist() == [obs for _, _, obs in finals]
    return len(finals)


def test_every_field_of_every_rollout_is_exact(counter: VectorEnvironment) -> None:
    sampler = Sampler(counter, counting_policy, num_steps=NUM_STEPS)
    streams = [CounterStream(seed) for seed in range(10, 10 + NUM_ENVS)]
    num_truncated = [check_against_streams(sampler.collect(), streams) for _ in range(50)]
    assert 0 in num_truncated and max(num_truncated) > 1


def test_a_rollout_is_not_changed_by_those_that_follow(counter: VectorEnvironment) -> None:
    sampler = Sampler(counter, counting_policy, num_steps=NUM_STEPS)
    samples = [sampler.collect() for _ in range(10)]
    streams = [CounterStream(seed) for seed in range(10, 10 + NUM_ENVS)]
    for sample in samples:
        check_against_streams(sample, streams)


def test_a_consumer_that_overwrites_a_rollout_does_not_disturb_the_next(counter: VectorEnvironment) -> None:
    sampler = Sampler(counter, counting_policy, num_steps=NUM_STEPS)
    streams = [CounterStream(seed) for seed in range(10, 10 + NUM_ENVS)]
    for _ in range(5):
        sample = sampler.collect()
        check_against_streams(sample, streams)
        for array in sample.rollout:
            if array is not None:
                array.fill(1)


def test_shapes_and_types_are_those_of_the_convention(counter: VectorEnvironment) -> None:
    rollout = Sampler(counter, counting_policy, num_steps=NUM_STEPS).collect().rollout
    num_final = int(rollout.truncated.sum())
    steps = (NUM_STEPS, NUM_ENVS)
    arrays = {name: array for name, array in rollout._asdict().items() if array is not None}
    assert {name: (array.dtype.name, array.shape) for name, array in arrays.items()} == {
        "obs": ("float32", (*steps, 3)),
        "actions": ("int64", steps),
        "behaviour_log_probs": ("float32", steps),
        "rewards": ("float32", steps),
        "terminated": ("bool", steps),
        "truncated": ("bool", steps),
        "bootstrap_obs": ("float32", (NUM_ENVS, 3)),
        "final_obs": ("float32", (num_final, 3)),
        "final_steps": ("int64", (num_final, 2)),
    }


def test_observations_and_bootstrap_are_one_block_that_nothing_was_copied_to(counter: VectorEnvironment) -> None:
    seen: list[int] = []

    def policy(obs: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        seen.append(obs.ctypes.data)
        return counting_policy(obs)

    rollout = Sampler(counter, policy, num_steps=NUM_STEPS).collect().rollout
    rows = [rollout.obs[t].ctypes.data for t in range(NUM_STEPS)]
    assert seen == rows  # the policy saw the very rows of the rollout
    assert rollout.bootstrap_obs.ctypes.data == rollout.obs.ctypes.data + rollout.obs.nbytes
    assert rollout.obs.flags.c_contiguous and rollout.bootstrap_obs.flags.c_contiguous


def test_the_record_counts_steps_episodes_and_seconds(counter: VectorEnvironment) -> None:
    sampler = Sampler(counter, counting_policy, num_steps=NUM_STEPS)
    samples = [sampler.collect(weights_version=version) for version in (3, 4)]
    assert [set(s.record.weights_versions) for s in samples] == [{3}, {4}]
    assert [s.record.num_steps for s in samples] == [NUM_STEPS * NUM_ENVS] * 2
    for rollout, record in samples:
        assert len(record.episodes) == (rollout.terminated | rollout.truncated).sum()
        assert record.environment_s > 0 and record.inference_s > 0
    first = samples[0].rollout
    end = int((first.terminated | first.truncated)[:, 0].argmax())
    assert Episode(float(first.rewards[: end + 1, 0].sum()), end + 1) in samples[0].record.episodes


def test_the_terminal_reward_of_catch_is_kept() -> None:
    environment = make_environment(CATCH_ID, num_envs=4)

    def follow_the_ball(obs: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        ball, paddle = obs[:, :9].sum(1).argmax(1), obs[:, 9].argmax(1)
        return np.sign(ball - paddle) + 1, np.zeros(4, np.float32)

    sampler = Sampler(environment, follow_the_ball, num_steps=5)
    rollouts = [sampler.collect().rollout for _ in range(18)]
    rewards = np.concatenate([r.rewards for r in rollouts])
    terminated = np.concatenate([r.terminated for r in rollouts])
    assert np.array_equal(rewards, terminated.astype(np.float32)) and rewards.sum() == 40
    environment.close()


def test_pong_is_sampled_as_it_is_played() -> None:
    actions = np.random.default_rng(0).integers(6, size=(60, 2))
    taken = iter(actions)
    environment = make_environment("pong", num_envs=2, seed=9)
    sampler = Sampler(environment, lambda _: (next(taken), np.zeros(2, np.float32)), num_steps=20)
    rollouts = [sampler.collect().rollout for _ in range(3)]
    sampler.close()

    alone = make_environment("pong", num_envs=2, seed=9)
    obs = [alone.reset()] + [alone.step(a).next_obs for a in actions]
    alone.close()
    assert np.array_equal(np.concatenate([r.obs for r in rollouts]), obs[:-1])
    assert np.array_equal(rollouts[-1].bootstrap_obs, obs[-1])
    assert np.array_equal(np.concatenate([r.actions for r in rollouts]), actions)


class CounterModel(torch.nn.Module):
    """An actor-critic for Counter, of 3 numbers and 4 actions, that also has a dropout to tell its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(3, 4))
        self.value = torch.nn.Linear(3, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.policy(obs / 10), self.value(obs).squeeze(-1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_learner_finds_the_log_probabilities_that_the_actor_noted(
    counter: VectorEnvironment, precision: Precision
) -> None:
    model = CounterModel()
    sampler = Sampler(counter, ActorCriticPolicy(model, precision=precision, seed=1), num_steps=NUM_STEPS)
    rollout = to_torch(sampler.collect().rollout)
    logits, _ = IMPALA(model, precision=precision).forward(rollout.obs.flatten(0, 1))
    log_probs = action_log_probs(logits, rollout.actions.flatten())
    # Not bit by bit: the learner's batch is larger, and a matrix product of another size may sum in another order.
    tolerance = 1e-5 if precision == "fp32" else 1e-2
    torch.testing.assert_close(log_probs, rollout.behaviour_log_probs.flatten(), atol=tolerance, rtol=0)
    assert len(set(rollout.actions.flatten().tolist())) > 1


def test_the_seed_of_a_policy_decides_its_draws() -> None:
    model, obs = CounterModel(), np.zeros((50, 3), np.float32)
    one, same, other = (ActorCriticPolicy(model, seed=seed)(obs)[0] for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_rollout_without_steps_is_refused(counter: VectorEnvironment) -> None:
    with pytest.raises(ValueError, match=r"^num_steps must be at least 1, got 0$"):
        Sampler(counter, counting_policy, num_steps=0)
