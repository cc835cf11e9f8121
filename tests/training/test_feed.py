"""Weights on their way to an actor: the newest, once, and one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

import asyncparl
from asyncparl.training.exchange import Delivery, NewestWeights, WeightSender
from asyncparl.training.policy_delay import PolicyDelays
from asyncparl.training.sampler import RolloutRecord
from asyncparl.training.weight_boards import WeightBoards


class FakeCall:
    """A call that ends when the test says so."""

    def __init__(self, result: str | None) -> None:
        self._result = result
        self._ended = trio.Event()
        self.error: Exception | None = None

    def end(self, error: Exception | None = None) -> None:
        self.error = error
        self._ended.set()

    def __await__(self) -> Any:
        yield from self._ended.wait().__await__()
        if self.error is not None:
            raise self.error
        return self._result


class FakeActor:
    """Notes which versions it was sent."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.calls: list[FakeCall] = []

    def set_weights(self, version: int, packed: Any) -> FakeCall:
        assert version == 0  # the first ones; all others are offers
        return self.offer_weights(version, packed)

    def offer_weights(self, version: int, packed: Any) -> FakeCall:
        assert packed[0] == version
        self.versions.append(version)
        self.calls.append(FakeCall("a host"))
        return self.calls[-1]

    def make_board(self, num_bytes: int, num_slots: int) -> FakeCall:
        call = FakeCall(None)  # this host has no memory for it: weights are sent
        call.end()
        return call


PLAYED = RolloutRecord((0,), 1, (), 0.0, 0.0)
PAUSE_S = 10.0


class Sending:
    """A sender at work, and its actor."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.newest = NewestWeights(0, np.zeros(1, np.uint8))
        self.actor = FakeActor()
        self.noted: list[float] = []
        proxy = cast("asyncparl.Proxy", self.actor)
        self._first = Delivery(proxy, self.newest)
        boards, delays = WeightBoards(1, 2), PolicyDelays(self.noted.append)
        self._sender = WeightSender(proxy, self.newest, boards, delays, pause_s=PAUSE_S)

    async def begin(self) -> None:
        await self._first.start()
        self._nursery.start_soon(self._sender.run, self._first)
        await trio.testing.wait_all_tasks_blocked()

    async def publish(self, version: int) -> None:
        self.newest.version, self.newest.packed = version, np.array([version], np.uint8)
        self.newest.published_at = trio.current_time()
        self._sender.published()
        await trio.testing.wait_all_tasks_blocked()

    async def play(self, record: RolloutRecord = PLAYED) -> None:
        """A rollout of the actor was taken."""
        self._sender.rollout_taken(record)
        await trio.testing.wait_all_tasks_blocked()

    async def arrive(self, error: Exception | None = None) -> None:
        """What was sent last is there, or could not be taken."""
        self.actor.calls[-1].end(error)
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def sending(nursery: trio.Nursery) -> Sending:
    sending = Sending(nursery)
    await sending.begin()
    return sending


async def test_a_new_actor_gets_weights_before_it_plays(sending: Sending) -> None:
    assert sending.actor.versions == [0]


async def test_weights_that_an_actor_has_are_not_sent_again(sending: Sending) -> None:
    await sending.arrive()
    await sending.play()
    await sending.play()
    assert sending.actor.versions == [0]


async def test_an_actor_that_played_gets_the_newest_weights_at_once(sending: Sending) -> None:
    await sending.arrive()
    await sending.publish(1)
    await sending.publish(2)
    assert sending.actor.versions == [0]
    await sending.play()
    assert sending.actor.versions == [0, 2]


async def test_an_actor_with_the_newest_weights_gets_the_next_ones_when_they_come(sending: Sending) -> None:
    await sending.arrive()
    await sending.play()
    await sending.publish(1)
    await sending.arrive()
    await sending.publish(2)  # it has not played since
    assert sending.actor.versions == [0, 1]


async def test_after_a_pause_an_actor_gets_the_newest_weights_in_the_middle_of_a_rollout(
    autojump_clock: trio.testing.MockClock, sending: Sending
) -> None:
    await sending.arrive()
    await sending.publish(1)
    await sending.publish(2)
    await trio.sleep(PAUSE_S - 1)
    assert sending.actor.versions == [0]
    await trio.sleep(2)
    assert sending.actor.versions == [0, 2]
    await sending.arrive()
    await trio.sleep(PAUSE_S + 1)
    await sending.publish(3)
    assert sending.actor.versions == [0, 2, 3]


async def test_nothing_is_sent_while_weights_are_on_their_way(sending: Sending) -> None:
    await sending.publish(1)
    await sending.play()
    await sending.play()
    assert sending.actor.versions == [0]
    await sending.publish(2)
    await sending.arrive()
    assert sending.actor.versions == [0, 2]


async def test_weights_that_an_actor_could_not_take_are_an_error(sending: Sending) -> None:
    await sending.arrive(ValueError("another model"))
    with pytest.raises(ValueError, match="another model"):
        await sending.play()


@pytest.mark.parametrize("error", [None, ValueError("another model")])
async def test_the_delay_of_weights_ends_with_the_first_step_that_is_played_with_them(
    autojump_clock: trio.testing.MockClock, sending: Sending, error: Exception | None
) -> None:
    await sending.arrive()
    await sending.play(replace(PLAYED, new_weights=((0, 50.0),)))  # with the first ones
    await sending.publish(1)
    await trio.sleep(3)
    await sending.arrive(error)
    await trio.sleep(4)
    if error is None:
        await sending.play(replace(PLAYED, new_weights=((1, 0.5),)))
        await sending.play(replace(PLAYED, weights_versions=(1,)))
        assert sending.noted == [3.5]
    else:
        with pytest.raises(ValueError, match="another model"):
            await sending.play()
        assert sending.noted == []
