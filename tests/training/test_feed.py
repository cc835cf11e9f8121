"""Weights on their way to an actor: the newest, once, and one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

import asyncparl
from asyncparl.training.exchange import NewestWeights, WeightSender
from asyncparl.training.policy_delay import PolicyDelays
from asyncparl.training.sampler import RolloutRecord


class FakeCall:
    """A call that ends when the test says so."""

    def __init__(self) -> None:
        self.is_done = False
        self.error: Exception | None = None
        self.takes_s = 0.0

    def done(self) -> bool:
        return self.is_done

    def __await__(self) -> Any:
        yield from trio.sleep(self.takes_s).__await__()  # noqa: ASYNC105 - which it is, in this way
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


PLAYED = RolloutRecord(0, 1, (), 0.0, 0.0)


def _sender() -> tuple[WeightSender, NewestWeights, FakeActor]:
    newest, actor = NewestWeights(0, np.zeros(1, np.uint8)), FakeActor()
    sender = WeightSender(
        cast("asyncparl.Proxy", actor), newest, start_soon=lambda *_: None, delays=PolicyDelays(lambda _: None)
    )
    return sender, newest, actor


def _publish(sender: WeightSender, newest: NewestWeights, version: int) -> None:
    newest.version, newest.packed = version, np.array([version], np.uint8)
    sender.offer()


async def test_a_new_actor_gets_weights_before_it_plays() -> None:
    _, _, actor = _sender()
    assert actor.versions == [0]


async def test_weights_that_an_actor_has_are_not_sent_again() -> None:
    sender, _, actor = _sender()
    actor.calls[0].is_done = True
    await sender.rollout_taken(PLAYED)
    await sender.rollout_taken(PLAYED)
    assert actor.versions == [0]


async def test_an_actor_that_played_gets_the_newest_weights_at_once() -> None:
    sender, newest, actor = _sender()
    actor.calls[0].is_done = True
    _publish(sender, newest, 1)
    _publish(sender, newest, 2)
    assert actor.versions == [0]
    await sender.rollout_taken(PLAYED)
    assert actor.versions == [0, 2]


async def test_an_actor_with_the_newest_weights_gets_the_next_ones_when_they_come() -> None:
    sender, newest, actor = _sender()
    actor.calls[0].is_done = True
    await sender.rollout_taken(PLAYED)
    _publish(sender, newest, 1)
    _publish(sender, newest, 2)  # it has not played since
    assert actor.versions == [0, 1]


async def test_nothing_is_sent_while_weights_are_on_their_way() -> None:
    sender, newest, actor = _sender()
    _publish(sender, newest, 1)
    await sender.rollout_taken(PLAYED)
    await sender.rollout_taken(PLAYED)
    assert actor.versions == [0]
    actor.calls[0].is_done = True
    _publish(sender, newest, 2)
    assert actor.versions == [0, 2]


async def test_weights_that_an_actor_could_not_take_are_an_error() -> None:
    sender, _, actor = _sender()
    actor.calls[0].is_done, actor.calls[0].error = True, ValueError("another model")
    with pytest.raises(ValueError, match="another model"):
        await sender.rollout_taken(PLAYED)


@pytest.mark.parametrize("error", [None, ValueError("another model")])
async def test_the_delay_of_weights_ends_with_the_first_step_that_is_played_with_them(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, error: Exception | None
) -> None:
    noted: list[float] = []
    newest, actor = NewestWeights(0, np.zeros(1, np.uint8)), FakeActor()
    delays = PolicyDelays(noted.append)
    sender = WeightSender(cast("asyncparl.Proxy", actor), newest, start_soon=nursery.start_soon, delays=delays)
    actor.calls[0].is_done = True
    await sender.rollout_taken(replace(PLAYED, since_weights_s=50.0))  # with the first ones
    newest.published_at = trio.current_time()
    _publish(sender, newest, 1)
    actor.calls[1].is_done, actor.calls[1].takes_s, actor.calls[1].error = True, 3.0, error
    await trio.sleep(7)
    if error is None:
        await sender.rollout_taken(replace(PLAYED, weights_version=1, since_weights_s=0.5))
        await sender.rollout_taken(replace(PLAYED, weights_version=1))
        assert noted == [3.5]
    else:
        with pytest.raises(ValueError, match="another model"):
            await sender.rollout_taken(PLAYED)
        assert noted == []
