"""Weights on their way to an actor: the newest, once, and one at a time."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import asyncparl
from asyncparl.training.exchange import NewestWeights, WeightSender


class FakeCall:
    """A call that ends when the test says so."""

    def __init__(self) -> None:
        self.is_done = False
        self.error: Exception | None = None

    def done(self) -> bool:
        return self.is_done

    def __await__(self) -> Any:
        yield from ()
        if self.error is not None:
            raise self.error


class FakeActor:
    """Notes which versions it was sent."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.calls: list[FakeCall] = []

    def set_weights(self, version: int, packed: Any) -> FakeCall:
        assert packed[0] == version
        self.versions.append(version)
        self.calls.append(FakeCall())
        return self.calls[-1]


def _sender() -> tuple[WeightSender, NewestWeights, FakeActor]:
    newest, actor = NewestWeights(0, np.zeros(1, np.uint8)), FakeActor()
    return WeightSender(cast("asyncparl.Proxy", actor), newest), newest, actor


def _publish(sender: WeightSender, newest: NewestWeights, version: int) -> None:
    newest.version, newest.packed = version, np.array([version], np.uint8)
    sender.offer()


async def test_a_new_actor_gets_weights_before_it_plays() -> None:
    _, _, actor = _sender()
    assert actor.versions == [0]


async def test_weights_that_an_actor_has_are_not_sent_again() -> None:
    sender, _, actor = _sender()
    actor.calls[0].is_done = True
    await sender.rollout_taken()
    await sender.rollout_taken()
    assert actor.versions == [0]


async def test_an_actor_that_played_gets_the_newest_weights_at_once() -> None:
    sender, newest, actor = _sender()
    actor.calls[0].is_done = True
    _publish(sender, newest, 1)
    _publish(sender, newest, 2)
    assert actor.versions == [0]
    await sender.rollout_taken()
    assert actor.versions == [0, 2]


async def test_an_actor_with_the_newest_weights_gets_the_next_ones_when_they_come() -> None:
    sender, newest, actor = _sender()
    actor.calls[0].is_done = True
    await sender.rollout_taken()
    _publish(sender, newest, 1)
    _publish(sender, newest, 2)  # it has not played since
    assert actor.versions == [0, 1]


async def test_nothing_is_sent_while_weights_are_on_their_way() -> None:
    sender, newest, actor = _sender()
    _publish(sender, newest, 1)
    await sender.rollout_taken()
    await sender.rollout_taken()
    assert actor.versions == [0]
    actor.calls[0].is_done = True
    _publish(sender, newest, 2)
    assert actor.versions == [0, 2]


async def test_weights_that_an_actor_could_not_take_are_an_error() -> None:
    sender, _, actor = _sender()
    actor.calls[0].is_done, actor.calls[0].error = True, ValueError("another model")
    with pytest.raises(ValueError, match="another model"):
        await sender.rollout_taken()
