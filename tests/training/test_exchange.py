"""A2C's rounds: every batch is complete and of one version of the weights, whatever happens to actors.

And the end of IMPALA's streams, which may come before they have begun.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import trio
import trio.testing

import asyncparl
from asyncparl.training import TrainingConfig, exchange
from asyncparl.training.actor import ActorSetup
from asyncparl.training.build import Interface
from asyncparl.training.environments import CATCH_ID
from asyncparl.training.exchange import ExchangeSetup, NewestWeights, Rounds, Streams
from asyncparl.training.sampler import RolloutRecord

NUM_PLACES = 3
CONFIG = TrainingConfig(env=CATCH_ID, algorithm="a2c", num_actors=NUM_PLACES, envs_per_actor=1)
INTERFACE = Interface((1,), np.dtype(np.float32), 2)


RECORD = RolloutRecord((0,), 1, (), 0.0, 0.0)


class FakeSample(NamedTuple):
    """What came of a turn."""

    name: str
    version: int | None
    record: RolloutRecord


class FakeCall:
    """A call that ends when it is let go, or with an error."""

    def __init__(self, result: Callable[[], object]) -> None:
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
        return self._result()


class FakeActor:
    """Plays when it is let; a rollout is the name of the actor and the version of its weights."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version: int | None = None
        self.versions_sent: list[int] = []
        self.ready = FakeCall(dict)
        self.turns: list[FakeCall] = []
        self.set_weights_error: Exception | None = None
        self.record = RECORD

    def statistics(self) -> FakeCall:
        return self.ready

    def set_weights(self, version: int, packed: Any) -> FakeCall:
        assert packed[0] == version
        self.versions_sent.append(version)
        self.version = version
        call = FakeCall(lambda: "a host")
        call.end(self.set_weights_error)
        return call

    def make_board(self, num_bytes: int, num_slots: int) -> FakeCall:
        call = FakeCall(lambda: None)  # this host has no memory for it: weights are sent
        call.end()
        return call

    def rollout(self) -> FakeCall:
        version = self.version
        self.turns.append(FakeCall(lambda: FakeSample(self.name, version, self.record)))
        return self.turns[-1]

    @property
    def is_playing(self) -> bool:
        return bool(self.turns) and not self.turns[-1]._ended.is_set()


class Table:
    """Three places with an actor each, and the rollouts that they have brought."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
        self.newest = NewestWeights(0, np.zeros(1, np.uint8))
        self.delays: list[float] = []
        self.rounds = Rounds(ExchangeSetup(CONFIG, INTERFACE, None, self.newest, self.delays.append))
        self.brought: list[tuple[str, int]] = []
        self.errors: list[Exception] = []
        self._nursery = nursery
        self._new: list[FakeActor] = []
        monkeypatch.setattr(exchange, "RolloutActor", lambda *_: self._new.pop())

    async def seat(self, name: str, *, is_ready: bool = True) -> FakeActor:
        """Start an actor."""
        actor = FakeActor(name)
        self._new.append(actor)
        if is_ready:
            actor.ready.end()
        self._nursery.start_soon(self._bring)
        await trio.testing.wait_all_tasks_blocked()
        return actor

    async def _bring(self) -> None:
        try:
            async with aclosing(self.rounds.play(ActorSetup(CONFIG, None, 0))) as rollouts:
                async for rollout in rollouts:
                    self.brought.append(cast("Any", rollout)[:2])
        except (asyncparl.ActorDied, ValueError) as error:
            self.errors.append(error)

    async def end_turn(self, actor: FakeActor, error: Exception | None = None) -> None:
        actor.turns[-1].end(error)
        await trio.testing.wait_all_tasks_blocked()

    async def publish(self) -> None:
        """An update is done."""
        self.newest.version += 1
        self.newest.packed = np.array([self.newest.version], np.uint8)
        self.rounds.publish()
        await trio.testing.wait_all_tasks_blocked()


def died() -> asyncparl.ActorDied:
    return asyncparl.ActorDied("RolloutActor#1", "killed by SIGKILL", fate=asyncparl.CallFate.MAY_HAVE_RUN)


async def test_everybody_plays_once_with_the_same_weights_and_then_waits(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    table = Table(monkeypatch, nursery)
    actors = [await table.seat(name) for name in "abc"]
    for version in range(3):
        assert all(actor.is_playing for actor in actors)
        for actor in actors:
            await table.end_turn(actor)
        assert not any(actor.is_playing for actor in actors)
        assert table.brought[-3:] == [("a", version), ("b", version), ("c", version)]
        await table.publish()
    assert [actor.versions_sent for actor in actors] == [[0, 1, 2, 3]] * 3


async def test_another_plays_the_turn_of_one_that_died(monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
    table = Table(monkeypatch, nursery)
    a, b, c = [await table.seat(name) for name in "abc"]
    await table.end_turn(a)
    await table.end_turn(b, died())
    assert [type(error) for error in table.errors] == [asyncparl.ActorDied]
    assert a.is_playing  # it was free
    await table.end_turn(c)
    assert not c.is_playing
    await table.end_turn(a)
    assert table.brought == [("a", 0), ("c", 0), ("a", 0)]
    assert a.versions_sent == [0]  # not twice the same
    # Its successor has come too late for this round, and has a turn in the next one like everybody.
    d = await table.seat("d")
    assert not d.is_playing
    await table.publish()
    assert all(actor.is_playing for actor in (a, c, d))


async def test_a_successor_plays_the_turn_if_nobody_else_is_free(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    table = Table(monkeypatch, nursery)
    a, b, c = [await table.seat(name) for name in "abc"]
    await table.end_turn(b, died())
    d = await table.seat("d")
    assert d.is_playing
    for actor in (a, c, d):
        await table.end_turn(actor)
    assert sorted(table.brought) == [("a", 0), ("c", 0), ("d", 0)]
    assert not any(actor.is_playing for actor in (a, c, d))


async def test_an_actor_that_is_not_there_yet_does_not_hold_up_the_round(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    table = Table(monkeypatch, nursery)
    a, b, late = await table.seat("a"), await table.seat("b"), await table.seat("late", is_ready=False)
    await table.end_turn(a)
    await table.end_turn(b)
    await table.end_turn(a)
    assert table.brought == [("a", 0), ("b", 0), ("a", 0)]
    late.ready.end()
    await trio.testing.wait_all_tasks_blocked()
    assert not late.is_playing
    await table.publish()
    assert all(actor.is_playing for actor in (a, b, late))
    assert late.versions_sent == [1]


async def test_weights_that_an_actor_cannot_take_are_an_error(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    table = Table(monkeypatch, nursery)
    actor = await table.seat("a", is_ready=False)
    actor.set_weights_error = ValueError("another model")
    actor.ready.end()
    await trio.testing.wait_all_tasks_blocked()
    assert [str(error) for error in table.errors] == ["another model"]
    assert table.brought == []


async def test_the_delay_of_weights_is_from_their_publication_to_the_first_step_with_them(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    table = Table(monkeypatch, nursery)
    a, b = await table.seat("a"), await table.seat("b")
    a.record = b.record = replace(RECORD, new_weights=((0, 0.25),))
    await table.end_turn(a)
    await table.end_turn(b)
    await table.end_turn(a)
    assert table.delays == []  # these were published when there were no actors
    table.newest.published_at = trio.current_time() - 2.0
    await table.publish()
    await trio.sleep(30)
    await table.end_turn(a)
    assert table.delays == [2.25]  # however long it played
    await table.end_turn(b)
    await table.end_turn(a)
    assert table.delays == [2.25, 2.25]  # and not again for what it had


async def test_a_stream_that_begins_when_all_are_cancelled_is_cancelled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RolloutActor", lambda *_: FakeActor("late"))
    streams = Streams(ExchangeSetup(CONFIG, INTERFACE, None, NewestWeights(0, np.zeros(1, np.uint8)), print))
    async with trio.open_nursery() as nursery:
        await nursery.start(streams.run)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()  # the streams have ended
        with pytest.raises(trio.Cancelled):
            async with aclosing(streams.play(cast("ActorSetup", None))) as stream:
                await anext(stream)
