"""The actor, in this process: plays with the weights it was sent last."""

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
from asyncparl.training.actor import ActorSetup, RolloutActor
from asyncparl.training.build import find_interface, make_model
from asyncparl.training.environments import CATCH_ID

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
    assert next(rollouts).record.weights_version == 7
    actor.set_weights(9, _weights(2))
    rollout, record = next(rollouts)
    assert record.weights_version == 9
    assert rollout.obs.shape == (4, 3, 10, 5)

    model = make_model(find_interface(CONFIG), None)
    WeightLayout.of(model).unpack(_weights(2), model)
    with torch.inference_mode():
        logits, _ = model(torch.from_numpy(rollout.obs).flatten(0, 1))
    log_probs = logits.log_softmax(-1).gather(-1, torch.from_numpy(rollout.actions).view(-1, 1)).view(4, 3)
    np.testing.assert_allclose(rollout.behaviour_log_probs, log_probs.numpy(), rtol=1e-4, atol=1e-6)
    assert actor.statistics()["weights_version"] == 9


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
