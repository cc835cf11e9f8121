"""The predictor: many requests become one batch, everybody gets what is theirs, its threads end with their owner."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import trio
import trio.testing
from numpy.typing import NDArray
from torch import Tensor

from asyncparl.rl import Model, WeightLayout
from asyncparl.training import TrainingConfig
from asyncparl.training.build import Interface
from asyncparl.training.environments import CATCH_ID
from asyncparl.training.predictor import Predictor

NUM_ACTIONS = 4
INTERFACE = Interface((1,), np.dtype(np.float32), NUM_ACTIONS)
LIMIT_S = 30


class Follower(Model):
    """Does what the observation says, plus `shift`; all but surely."""

    def __init__(self, obs_shape: Sequence[int], num_actions: int) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(()))
        self.num_actions = num_actions

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        actions = (obs[:, 0] + self.shift).long() % self.num_actions
        return 1000.0 * torch.nn.functional.one_hot(actions, self.num_actions).float(), obs[:, 0]


class Gate(Follower):
    """Notes every batch, and begins one only when it may."""

    entered = threading.Semaphore(0)
    may_go = threading.Semaphore(0)
    batches: list[list[float]] = []  # noqa: RUF012 - shared on purpose: the predictor makes the model
    threads: set[str] = set()  # noqa: RUF012

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        self.batches.append(obs[:, 0].tolist())
        self.threads.add(threading.current_thread().name)
        self.entered.release()
        assert self.may_go.acquire(timeout=LIMIT_S)
        return super().forward(obs)


@pytest.fixture(autouse=True)
def _new_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("entered", threading.Semaphore(0)), ("may_go", threading.Semaphore(0)), ("batches", [])):
        monkeypatch.setattr(Gate, name, value)
    monkeypatch.setattr(Gate, "threads", set())


def _predictor(model_class: type[Model], **settings: Any) -> Predictor:
    settings = {"envs_per_actor": 1, "prediction_batch_size": 8, **settings}
    config = TrainingConfig(env=CATCH_ID, algorithm="ga3c", **settings)
    predictor = Predictor(config, INTERFACE, model_class, seed=1)
    predictor.set_weights(7, _weights(model_class, 0.0))
    return predictor


def _weights(model_class: type[Model], shift: float) -> NDArray[np.uint8]:
    model = model_class(obs_shape=(1,), num_actions=NUM_ACTIONS)  # type: ignore[call-arg]
    with torch.no_grad():
        model.shift.fill_(shift)  # type: ignore[operator, union-attr]
    return WeightLayout.of(model).pack(model)


def _obs(*numbers: int) -> NDArray[np.float32]:
    return np.array(numbers, np.float32).reshape(-1, 1)


class Asker:
    """Asks, without waiting; and what came of it, by the first observation."""

    def __init__(self, predictor: Predictor, nursery: trio.Nursery) -> None:
        self._predictor = predictor
        self._nursery = nursery
        self.answers: dict[int, tuple[list[int], list[float], int]] = {}

    async def ask(self, *numbers: int) -> None:
        self._nursery.start_soon(self._ask, numbers)
        await trio.testing.wait_all_tasks_blocked()

    async def _ask(self, numbers: tuple[int, ...]) -> None:
        actions, log_probs, version, _ = await self._predictor.predict(_obs(*numbers))
        self.answers[numbers[0]] = (actions.tolist(), log_probs.tolist(), version)

    async def wait_for(self, number: int) -> None:
        with trio.fail_after(LIMIT_S):
            while len(self.answers) < number:
                await trio.sleep(0.001)


async def _wait_entered() -> None:
    assert await trio.to_thread.run_sync(lambda: Gate.entered.acquire(timeout=LIMIT_S))


async def test_a_request_is_answered_with_its_own_actions() -> None:
    predictor = _predictor(Follower)
    async with trio.open_nursery() as nursery:
        await nursery.start(predictor.run)
        asker = Asker(predictor, nursery)
        for first in range(20):
            await asker.ask(first, first + 1, first + 2)
        await asker.wait_for(20)
        nursery.cancel_scope.cancel()
    for first, (actions, log_probs, version) in asker.answers.items():
        assert actions == [(first + i) % NUM_ACTIONS for i in range(3)]
        assert log_probs == [0.0] * 3
        assert version == 7


async def test_what_waits_is_one_batch_up_to_the_limit() -> None:
    predictor = _predictor(Gate)
    async with trio.open_nursery() as nursery:
        await nursery.start(predictor.run)
        asker = Asker(predictor, nursery)
        await asker.ask(0)
        await _wait_entered()
        for first in (10, 20, 30):  # eight fit; nine do not
            await asker.ask(first, first + 1, first + 2)
        Gate.may_go.release(3)
        await asker.wait_for(4)
        nursery.cancel_scope.cancel()
    assert Gate.batches == [[0], [10, 11, 12, 20, 21, 22], [30, 31, 32]]
    assert all(
        actions == [n % NUM_ACTIONS for n in range(f, f + len(actions))] for f, (actions, *_) in asker.answers.items()
    )


async def test_a_request_larger_than_the_limit_is_a_batch_of_its_own() -> None:
    predictor = _predictor(Gate, prediction_batch_size=2)
    Gate.may_go.release(10)
    async with trio.open_nursery() as nursery:
        await nursery.start(predictor.run)
        asker = Asker(predictor, nursery)
        await asker.ask(1, 2, 3)
        await asker.wait_for(1)
        nursery.cancel_scope.cancel()
    assert Gate.batches == [[1, 2, 3]]


async def test_new_weights_count_from_the_next_batch_on() -> None:
    predictor = _predictor(Gate)
    async with trio.open_nursery() as nursery:
        await nursery.start(predictor.run)
        asker = Asker(predictor, nursery)
        await asker.ask(0)
        await _wait_entered()
        predictor.set_weights(8, _weights(Gate, 1.0))
        predictor.set_weights(9, _weights(Gate, 2.0))
        await asker.ask(1)
        Gate.may_go.release(2)
        await asker.wait_for(2)
        nursery.cancel_scope.cancel()
    assert asker.answers == {0: ([0], [0.0], 7), 1: ([3], [0.0], 9)}


async def test_the_event_loop_goes_on_while_a_batch_is_computed() -> None:
    predictor = _predictor(Gate)
    async with trio.open_nursery() as nursery:
        await nursery.start(predictor.run)
        await Asker(predictor, nursery).ask(0)
        await _wait_entered()
        with trio.fail_after(LIMIT_S):
            for _ in range(100):
                await trio.lowlevel.checkpoint()
        assert Gate.threads == {"asyncparl-predictor-0"}
        Gate.may_go.release()
        nursery.cancel_scope.cancel()


async def test_several_predictors_work_at_once_if_there_is_work() -> None:
    predictor = _predictor(Gate, num_predictors=2)
    async with trio.open_nursery() as nursery:
        await nursery.start(predictor.run)
        asker = Asker(predictor, nursery)
        await asker.ask(0)
        await _wait_entered()
        await asker.ask(1)
        await _wait_entered()  # though the first batch is not done
        Gate.may_go.release(2)
        await asker.wait_for(2)
        nursery.cancel_scope.cancel()
    assert Gate.threads == {"asyncparl-predictor-0", "asyncparl-predictor-1"}


async def test_a_request_that_is_given_up_harms_nobody() -> None:
    predictor = _predictor(Gate)
    async with trio.open_nursery() as nursery:
        await nursery.start(predictor.run)
        asker = Asker(predictor, nursery)
        with trio.move_on_after(0.01):
            await predictor.predict(_obs(0))
        await _wait_entered()
        await asker.ask(1)
        Gate.may_go.release(2)
        await asker.wait_for(1)
        nursery.cancel_scope.cancel()
    assert asker.answers == {1: ([1], [0.0], 7)}


class Faulty(Follower):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        raise ZeroDivisionError("in forward")


@pytest.mark.parametrize("num_predictors", [1, 3])
async def test_what_the_model_raises_is_raised_at_the_owner(num_predictors: int) -> None:
    predictor = _predictor(Faulty, num_predictors=num_predictors)
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError, match="in forward")):
        async with trio.open_nursery() as nursery:
            await nursery.start(predictor.run)
            with trio.fail_after(LIMIT_S):
                await predictor.predict(_obs(0))


async def test_two_predictors_draw_different_actions() -> None:
    class Uniform(Follower):
        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            return torch.zeros(len(obs), NUM_ACTIONS) + 0.0 * self.shift, obs[:, 0]

    drawn = []
    for seed in (1, 1, 2):
        config = TrainingConfig(env=CATCH_ID, algorithm="ga3c", envs_per_actor=1)
        predictor = Predictor(config, INTERFACE, Uniform, seed=seed)
        predictor.set_weights(0, _weights(Uniform, 0.0))
        async with trio.open_nursery() as nursery:
            await nursery.start(predictor.run)
            drawn.append((await predictor.predict(_obs(*range(100))))[0].tolist())
            nursery.cancel_scope.cancel()
    assert drawn[0] == drawn[1] != drawn[2]
