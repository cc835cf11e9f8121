"""The actors, in this process: one plays with the weights it was sent last, the other asks for every action."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asyncparl.rl import WeightLayout
from asyncparl.training import TrainingConfig
from asyncparl.training.actor import ActorSetup, EnvironmentActor, RolloutActor
from asyncparl.training.build import find_interface, make_model
from asyncparl.training.environments import CATCH_ID, COUNTER_ID
from asyncparl.training.environments.counter import counter_reward

CONFIG = TrainingConfig(env=CATCH_ID, envs_per_actor=3, batch_size=3, unroll_length=4)
SETUP = ActorSetup(CONFIG, None, first_environment=0)

LocalActor = cast("Any", RolloutActor).__wrapped__  # mypy ignores what class decorators return


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


def _weights(seed: int) -> NDArray[np.uint8]:
    torch.manual_seed(seed)
    model = make_model(find_interface(CONFIG), None)
    return WeightLayout.of(model).pack(model)


def test_all_steps_of_a_rollout_are_of_the_weights_that_it_names() -> None:
    actor = LocalActor(SETUP)
    actor.set_weights(7, _weights(1))
    rollouts = actor.rollouts()
    assert next(rollouts).record.weights_versions == (7, 7, 7, 7)
    actor.set_weights(9, _weights(2))
    rollout, record = next(rollouts)
    assert record.weights_versions == (9, 9, 9, 9)
    assert rollout.obs.shape == (4, 3, 10, 5)

    model = make_model(find_interface(CONFIG), None)
    WeightLayout.of(model).unpack(_weights(2), model)
    with torch.inference_mode():
        logits, _ = model(torch.from_numpy(rollout.obs).flatten(0, 1))
    log_probs = logits.log_softmax(-1).gather(-1, torch.from_numpy(rollout.actions).view(-1, 1)).view(4, 3)
    np.testing.assert_allclose(rollout.behaviour_log_probs, log_probs.numpy(), rtol=1e-4, atol=1e-6)
    assert actor.statistics()["weights_version"] == 9


async def test_offered_weights_are_played_with_from_the_next_step_on() -> None:
    """Also in the middle of a rollout, each step of which has the probabilities of its own weights."""
    actor = LocalActor(SETUP)
    actor.set_weights(1, _weights(1))
    await actor.offer_weights(2, _weights(2))
    await actor.offer_weights(3, _weights(3))  # the newest one counts
    step = actor._sampler._unroller._environment.step
    steps = iter(range(100))

    def step_and_offer(*args: Any, **kwargs: Any) -> Any:
        if next(steps) == 1:
            actor._offers.append((4, _weights(4), 0.0))  # as the event loop does meanwhile
        return step(*args, **kwargs)

    actor._sampler._unroller._environment.step = step_and_offer
    rollout, record = next(actor.rollouts())
    assert record.weights_versions == (3, 3, 4, 4)
    assert [version for version, _ in record.new_weights] == [3, 4]
    model = make_model(find_interface(CONFIG), None)
    for t, version in enumerate(record.weights_versions):
        WeightLayout.of(model).unpack(_weights(version), model)
        with torch.inference_mode():
            logits, _ = model(torch.from_numpy(rollout.obs[t]))
        log_probs = logits.log_softmax(-1).gather(-1, torch.from_numpy(rollout.actions[t]).view(-1, 1)).view(3)
        np.testing.assert_allclose(rollout.behaviour_log_probs[t], log_probs.numpy(), rtol=1e-4, atol=1e-6)
    assert next(actor.rollouts()).record.weights_versions == (4, 4, 4, 4)
    assert next(actor.rollouts()).record.new_weights == ()


def test_weights_come_before_rollouts() -> None:
    with pytest.raises(RuntimeError, match=r"set_weights\(\) comes before"):
        next(LocalActor(SETUP).rollouts())


def test_weights_of_another_model_are_refused() -> None:
    actor = LocalActor(SETUP)
    with pytest.raises(ValueError, match="the buffer"):
        actor.set_weights(1, _weights(1)[:-64])


def test_actors_with_other_environments_play_other_games() -> None:
    obs = []
    for first_environment in (0, 0, 3):
        actor = LocalActor(dataclasses.replace(SETUP, first_environment=first_environment))
        actor.set_weights(0, _weights(1))
        obs.append(next(actor.rollouts()).rollout.obs)
    assert np.array_equal(obs[0], obs[1])
    assert not np.array_equal(obs[0], obs[2])


def test_a_single_rollout_goes_on_where_the_last_one_ended() -> None:
    actor = LocalActor(SETUP)
    actor.set_weights(0, _weights(1))
    first, second = actor.rollout().rollout, actor.rollout().rollout
    assert np.array_equal(first.bootstrap_obs, second.obs[0])
    assert actor.statistics()["rollouts"] == 2


class FakeCall:
    def __init__(self, prediction: Any) -> None:
        self.prediction = prediction

    def result(self) -> Any:
        return self.prediction


class FakePredictor:
    """Does the action that the step asks for, modulo 4, with a version that grows."""

    def __init__(self) -> None:
        self.asked: list[NDArray[np.float32]] = []

    def predict(self, obs: NDArray[np.float32], state: None) -> FakeCall:
        self.asked.append(obs.copy())
        actions = obs[:, 2].astype(np.int64) % 4
        return FakeCall((actions, -actions.astype(np.float32), len(self.asked), state))


@pytest.mark.parametrize("num_envs", [1, 2, 5])
def test_environments_without_a_network_play_what_they_are_told(num_envs: int) -> None:
    config = TrainingConfig(env=COUNTER_ID, algorithm="ga3c", envs_per_actor=num_envs, unroll_length=4, batch_size=8)
    predictor = FakePredictor()
    actor = cast("Any", EnvironmentActor).__wrapped__(ActorSetup(config, None, first_environment=6), predictor)
    halves = [-(-num_envs // 2), num_envs // 2][: min(num_envs, 2)]
    rollouts = actor.rollouts()
    before: list[Any] = [None] * len(halves)
    seeds: list[float] = []
    for number in range(3 * len(halves)):  # the groups take turns
        group = number % len(halves)
        rollout, record = next(rollouts)
        assert rollout.obs.shape == (4, halves[group], 3)
        assert np.array_equal(rollout.actions, rollout.obs[:, :, 2].astype(np.int64) % 4)
        assert np.array_equal(rollout.behaviour_log_probs, -rollout.actions)
        assert np.array_equal(rollout.rewards, np.vectorize(counter_reward)(rollout.actions))
        assert before[group] is None or np.array_equal(before[group], rollout.obs[0])
        before[group] = rollout.bootstrap_obs
        seeds += rollout.obs[0, :, 0].tolist()
        # Four steps. Of two groups every second request is this one's.
        step = len(halves) * 4 * (number // len(halves)) + group + 1
        assert record.weights_versions == tuple(range(step, step + 4 * len(halves), len(halves)))
    assert sorted(seeds) == sorted(3 * [1_000_006 + i for i in range(num_envs)])


def test_a_group_asks_for_its_next_actions_before_the_other_takes_its_step() -> None:
    config = TrainingConfig(env=COUNTER_ID, algorithm="ga3c", envs_per_actor=2, unroll_length=1, batch_size=2)
    predictor = FakePredictor()
    actor = cast("Any", EnvironmentActor).__wrapped__(ActorSetup(config, None, first_environment=0), predictor)
    assert len(predictor.asked) == 2
    rollouts = actor.rollouts()
    next(rollouts)
    assert [asked[0, 0] for asked in predictor.asked] == [1_000_000, 1_000_001, 1_000_000]
