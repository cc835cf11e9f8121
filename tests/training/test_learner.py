"""The learner: real updates in a thread of its own, whose errors reach its owner and which never outlives it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import trio
import trio.testing

from asyncparl.algorithms import IMPALA, Rollout, WeightLayout
from asyncparl.rl import MLP
from asyncparl.training import TrainingError
from asyncparl.training.batching import Batch, BatchAssembler
from asyncparl.training.learner import HAND_OVER, Learner, Update

NUM_STEPS, NUM_COLUMNS, OBS_SIZE = 5, 4, 3


def _algorithm() -> IMPALA:
    torch.manual_seed(1)
    return IMPALA(MLP(OBS_SIZE, 2, hidden=(8,)), learning_rate=0.01)


def _batch(version: int = 0, reward: float = 1.0) -> Batch:
    """A batch of its own assembler."""
    assembler = BatchAssembler(
        num_steps=NUM_STEPS, num_columns=NUM_COLUMNS, obs_shape=(OBS_SIZE,), obs_dtype=np.dtype(np.float32)
    )
    steps = (NUM_STEPS, NUM_COLUMNS)
    random = np.random.default_rng(0)
    rollout: Rollout[Any] = Rollout(
        obs=random.standard_normal((*steps, OBS_SIZE), np.float32),
        actions=random.integers(0, 2, steps),
        behaviour_log_probs=np.full(steps, -0.7, np.float32),
        rewards=np.full(steps, reward, np.float32),
        terminated=np.zeros(steps, np.bool_),
        truncated=np.zeros(steps, np.bool_),
        bootstrap_obs=random.standard_normal((NUM_COLUMNS, OBS_SIZE), np.float32),
        final_obs=np.empty((0, OBS_SIZE), np.float32),
        final_steps=np.empty((0, 2), np.int64),
    )
    batch = assembler.add(rollout, version)
    assert batch is not None
    return batch


class Updates:
    """What a learner has said, and a way to wait for it."""

    def __init__(self) -> None:
        self.list: list[Update] = []
        self._send, self._receive = trio.open_memory_channel[None](1000)

    def __call__(self, update: Update) -> None:
        self.list.append(update)
        self._send.send_nowait(None)

    async def wait_for(self, number: int) -> None:
        with trio.fail_after(20):
            for _ in range(number):
                await self._receive.receive()


async def _start(nursery: trio.Nursery, algorithm: Any, updates: Callable[[Update], None], **options: Any) -> Learner:
    learner = Learner(algorithm, on_update=updates, **options)
    await nursery.start(learner.run)
    return learner


async def test_every_batch_becomes_a_version_and_new_weights() -> None:
    algorithm, updates = _algorithm(), Updates()
    layout = WeightLayout.of(algorithm.model)
    first = layout.pack(algorithm.model)
    async with trio.open_nursery() as nursery:
        learner = await _start(nursery, algorithm, updates)
        for version in (0, 0, 1):
            await learner.submit(_batch(version))
        await updates.wait_for(3)
        nursery.cancel_scope.cancel()
    assert [update.version for update in updates.list] == [1, 2, 3]
    assert [update.agent_steps for update in updates.list] == [20, 40, 60]
    assert [set(update.lags.ravel().tolist()) for update in updates.list] == [{0}, {1}, {1}]
    packed = [first, *(update.weights for update in updates.list)]
    assert not any(np.array_equal(before, after) for before, after in itertools.pairwise(packed))
    assert np.array_equal(packed[-1], layout.pack(algorithm.model))
    assert learner.ended_well


@pytest.mark.parametrize("num_threads", [1, 3])
async def test_its_threads_learn_what_a_plain_loop_learns(num_threads: int) -> None:
    expected = _algorithm()
    for _ in range(2):
        expected.learn(_batch().rollout)
    algorithm, updates = _algorithm(), Updates()
    async with trio.open_nursery() as nursery:
        learner = await _start(nursery, algorithm, updates, num_threads=num_threads)
        for _ in range(2):
            await learner.submit(_batch())
        await updates.wait_for(2)
        names = sorted(t.name for t in threading.enumerate() if t.name.startswith("asyncparl-learner"))
        assert names == ["asyncparl-learner", "asyncparl-learner-1", "asyncparl-learner-2"][:num_threads]
        nursery.cancel_scope.cancel()
    for name, tensor in expected.model.state_dict().items():
        torch.testing.assert_close(algorithm.model.state_dict()[name], tensor)


async def test_a_batch_is_given_back_with_its_update() -> None:
    updates, batch = Updates(), _batch()
    async with trio.open_nursery() as nursery:
        learner = await _start(nursery, _algorithm(), updates)
        await learner.submit(batch)
        await updates.wait_for(1)
        nursery.cancel_scope.cancel()
    assert updates.list[0].batch is batch
    assert updates.list[0].losses["entropy"] > 0
    assert min(updates.list[0].times) >= 0


async def test_divergence_is_raised_at_the_owner_and_its_weights_are_not_published() -> None:
    updates = Updates()
    with pytest.RaisesGroup(
        pytest.RaisesExc(TrainingError, match=r"^training diverged in update 2: .*total_loss is nan")
    ):
        async with trio.open_nursery() as nursery:
            learner = await _start(nursery, _algorithm(), updates)
            await learner.submit(_batch())
            await learner.submit(_batch(reward=float("nan")))
            with trio.fail_after(20):
                await trio.sleep_forever()
    assert [update.version for update in updates.list] == [1]
    assert not learner.ended_well


class Faulty(IMPALA):
    def learn(self, rollout: Rollout[torch.Tensor]) -> dict[str, torch.Tensor]:
        raise ZeroDivisionError("in learn")


async def test_what_learn_raises_is_raised_at_the_owner() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ZeroDivisionError, match="in learn")):
        async with trio.open_nursery() as nursery:
            learner = await _start(nursery, Faulty(MLP(OBS_SIZE, 2)), Updates())
            await learner.submit(_batch())
            with trio.fail_after(20):
                await trio.sleep_forever()


class Held(IMPALA):
    """Does not return from `learn` before it is let go."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.entered = threading.Event()
        self.may_go = threading.Event()

    def learn(self, rollout: Rollout[torch.Tensor]) -> dict[str, torch.Tensor]:
        self.entered.set()
        assert self.may_go.wait(30)
        return super().learn(rollout)


async def test_submit_waits_when_enough_batches_wait() -> None:
    algorithm, updates = Held(MLP(OBS_SIZE, 2)), Updates()
    async with trio.open_nursery() as nursery:
        learner = await _start(nursery, algorithm, updates)
        for _ in range(1 + HAND_OVER):
            await learner.submit(_batch())
        nursery.start_soon(learner.submit, _batch())
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 2  # the learner, and the one that waits
        algorithm.may_go.set()
        await updates.wait_for(2 + HAND_OVER)
        nursery.cancel_scope.cancel()


async def test_a_learner_that_does_not_finish_is_given_up_in_time() -> None:
    algorithm = Held(MLP(OBS_SIZE, 2))
    with pytest.RaisesGroup(pytest.RaisesExc(TrainingError, match=r"has not finished its update after 0\.05 s")):
        async with trio.open_nursery() as nursery:
            learner = await _start(nursery, algorithm, Updates(), close_limit_s=0.05)
            await learner.submit(_batch())
            await trio.to_thread.run_sync(algorithm.entered.wait)
            nursery.cancel_scope.cancel()
    assert not learner.ended_well
    algorithm.may_go.set()  # and the thread ends


async def _set_when_all_else_waits(event: threading.Event) -> None:
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()
        event.set()


async def test_cancellation_finishes_the_update_under_way_and_no_other() -> None:
    algorithm, updates = Held(MLP(OBS_SIZE, 2)), Updates()
    async with trio.open_nursery() as nursery:
        learner = await _start(nursery, algorithm, updates)
        await learner.submit(_batch())
        await learner.submit(_batch())
        await trio.to_thread.run_sync(algorithm.entered.wait)
        nursery.start_soon(_set_when_all_else_waits, algorithm.may_go)
        nursery.cancel_scope.cancel()
    assert [update.version for update in updates.list] == [algorithm.updates] == [1]
    assert learner.ended_well


async def test_calls_run_between_updates_in_the_thread() -> None:
    algorithm, updates = _algorithm(), Updates()
    async with trio.open_nursery() as nursery:
        learner = await _start(nursery, algorithm, updates)
        await learner.submit(_batch())
        assert await learner.call(lambda: (algorithm.updates, threading.current_thread().name)) == (
            1,
            "asyncparl-learner",
        )
        with pytest.raises(KeyError):
            await learner.call(lambda: {"a": 1}["b"])
        await learner.submit(_batch())  # an error of a call is not one of the learner
        await updates.wait_for(2)
        nursery.cancel_scope.cancel()


async def test_a_call_to_a_learner_that_has_ended_fails() -> None:
    async with trio.open_nursery() as nursery:
        learner = await _start(nursery, _algorithm(), Updates())
        nursery.cancel_scope.cancel()
    with pytest.raises(TrainingError, match="the learner has ended"):
        await learner.call(lambda: None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
async def test_the_same_code_learns_on_a_gpu() -> None:
    algorithm, updates = IMPALA(MLP(OBS_SIZE, 2).cuda(), precision="bf16"), Updates()
    async with trio.open_nursery() as nursery:
        learner = await _start(nursery, algorithm, updates, device="cuda")
        for _ in range(3):
            await learner.submit(_batch())
        await updates.wait_for(3)
        nursery.cancel_scope.cancel()
    packed = WeightLayout.of(algorithm.model).pack(algorithm.model)
    assert np.array_equal(updates.list[-1].weights, packed)
