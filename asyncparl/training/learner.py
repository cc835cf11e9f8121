"""The learner: a thread of its own that turns batches into weights, and its owner in the event loop.

    event loop                                   learner thread
    await submit(batch)      --- a queue --->    copy the batch to the device, algorithm.learn, fetch the weights
    on_update(update)        <-- the loop --     weights, lag, losses, where the time went

The two share nothing but these hand-overs. A batch belongs to the thread from `submit` until `on_update` gives it
back. The algorithm belongs to the thread while `run` runs; `call` is how others get at it, between two updates.

The same code serves a GPU: batches lie in pinned memory, their copies are not waited for, and neither is `learn`. Once
in an update the thread does wait, for the new weights; the losses are there by then.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import numpy as np
import outcome
import torch
import trio
from numpy.typing import NDArray

from asyncparl.algorithms import ActorCritic, Algorithm, WeightLayout, to_torch
from asyncparl.training.batching import Batch
from asyncparl.training.errors import LearnersParted, TrainingError
from asyncparl.training.lockstep import Lockstep, UpdateAbandoned
from asyncparl.training.metrics import UpdateTimes
from asyncparl.training.parallel import ParallelMap

T = TypeVar("T")

HAND_OVER = 1
"""Batches that may wait while one is learned from. More would only add policy lag."""

CLOSE_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Update:
    """What one batch has led to."""

    batch: Batch  # given back
    version: int  # of the weights below: how many updates they have seen
    agent_steps: int  # that they have learned from
    weights: NDArray[np.uint8]  # packed by `WeightLayout`, new memory
    lags: NDArray[np.int64]  # [T, B] of each step: the version that learned from it minus the one that acted
    times: UpdateTimes
    losses: Mapping[str, float]


class Learner:
    """See the top of this file.

    Args:
        algorithm: its model is on `device` already. `algorithm.updates` is the version of its weights.
        on_update: called in the event loop after every update.
        num_threads: CPU threads that torch uses for it.
        lockstep: with other learners; None: it is the only one.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        on_update: Callable[[Update], None],
        device: torch.device | str = "cpu",
        num_threads: int = 1,
        lockstep: Lockstep | None = None,
        close_limit_s: float = CLOSE_LIMIT_S,
    ) -> None:
        self._algorithm = algorithm
        self._on_update = on_update
        self._device = torch.device(device)
        self._layout = WeightLayout.of(algorithm.model)
        self._num_threads = num_threads
        self._lockstep = lockstep
        self._close_limit_s = close_limit_s
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._room = trio.Semaphore(HAND_OVER + 1)
        self._ended = trio.Event()
        self._stopping = False
        self._error: BaseException | None = None
        self._idle_since = 0.0

    # --- in the event loop ------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the thread. Runs until it is cancelled, or the thread fails.

        Cancellation: the thread is asked to stop after the update under way, and waited for.

        Raises:
            TrainingError: a loss or a weight is not finite any more, or the thread does not stop in time.
            LearnersParted: another learner has gone.
            Exception: whatever `algorithm.learn` raised.
        """
        loop = trio.lowlevel.current_trio_token()
        # A daemon, so that a `learn` that never returns cannot also keep the process from ending.
        thread = threading.Thread(target=self._work, args=(loop,), name="asyncparl-learner", daemon=True)
        thread.start()
        task_status.started()
        try:
            await self._ended.wait()
        finally:
            self._stopping = True
            if self._lockstep is not None:
                self._lockstep.close()
            self._jobs.put(None)
            with trio.move_on_after(self._close_limit_s, shield=True):
                await self._ended.wait()
            if not self._ended.is_set():
                raise TrainingError(f"the learner has not finished its update after {self._close_limit_s:g} s")
            thread.join()
        if self._error is not None:
            raise self._error

    @property
    def ended_well(self) -> bool:
        """Whether the thread is gone, and the algorithm in the state after a whole update."""
        return self._ended.is_set() and (self._error is None or isinstance(self._error, LearnersParted))

    async def submit(self, batch: Batch) -> None:
        """Hand over a batch; waits while enough of them wait already.

        Cancellation: the batch was not handed over.
        """
        await self._room.acquire()
        self._jobs.put(lambda: self._learn(batch))

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the thread, after the batches that were submitted before; its result or exception.

        Raises:
            TrainingError: the thread ended first.
        """
        results: list[outcome.Outcome[T]] = []
        done = trio.Event()
        loop = trio.lowlevel.current_trio_token()

        def job() -> None:
            results.append(outcome.capture(function))
            loop.run_sync_soon(done.set)

        self._jobs.put(job)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_wait_then_cancel, done, nursery.cancel_scope)
            nursery.start_soon(_wait_then_cancel, self._ended, nursery.cancel_scope)
        if not results:
            raise TrainingError("the learner has ended")
        return results[0].unwrap()

    def _deliver(self, update: Update) -> None:
        self._room.release()
        self._on_update(update)

    # --- in the thread ----------------------------------------------------------------------------------------

    def _work(self, loop: trio.lowlevel.TrioToken) -> None:
        try:
            self._loop = loop
            with self._threads(), self._together():
                self._idle_since = perf_counter()
                while (job := self._jobs.get()) is not None and not self._stopping:
                    job()
        except UpdateAbandoned:
            pass  # we were asked to end while the others had nothing to learn from
        except BaseException as error:
            self._error = error
        finally:
            _call_soon(loop, self._ended.set)

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """Several CPU threads: parts of a batch at the same time where the algorithm can do that, else torch's."""
        algorithm, num_threads = self._algorithm, self._num_threads
        if self._device.type != "cpu" or not isinstance(algorithm, ActorCritic) or not algorithm.can_be_split:
            torch.set_num_threads(num_threads)  # of this thread
            yield
            return
        torch.set_num_threads(1)
        with ParallelMap(num_threads, name="asyncparl-learner", prepare=lambda: torch.set_num_threads(1)) as parallel:
            algorithm.use_threads(parallel, num_threads)
            try:
                yield
            finally:
                algorithm.use_threads(map, 1)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """With the other learners, if there are any."""
        if self._lockstep is None:
            yield
            return
        assert isinstance(self._algorithm, ActorCritic)
        self._algorithm.learn_together(self._lockstep.together)
        try:
            yield
        finally:
            self._algorithm.learn_together(None)

    def _learn(self, batch: Batch) -> None:
        algorithm = self._algorithm
        taken, waited_before_s = perf_counter(), self._waited_s()
        lags = batch.policy_lag(algorithm.updates)
        rollout = to_torch(batch.rollout, self._device, non_blocking=True)
        copied = perf_counter()
        metrics = algorithm.learn(rollout)
        weights = self._layout.pack(algorithm.model)
        losses = {name: float(value) for name, value in metrics.items()}
        _check_finite(losses, algorithm.updates)
        done = perf_counter()
        waited_s = self._waited_s() - waited_before_s
        times = UpdateTimes(taken - self._idle_since + waited_s, copied - taken, done - copied - waited_s)
        self._idle_since = done
        update = Update(batch, algorithm.updates, algorithm.agent_steps, weights, lags, times, losses)
        _call_soon(self._loop, lambda: self._deliver(update))

    def _waited_s(self) -> float:
        """For other learners, so far."""
        return 0.0 if self._lockstep is None else self._lockstep.waited_s


def _check_finite(losses: Mapping[str, float], update: int) -> None:
    # A loss that is not finite makes the gradient so, and that the weights: no actor may get them.
    wrong = [f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value)]
    if wrong:
        raise TrainingError(f"training diverged in update {update}: {', '.join(wrong)}")


async def _wait_then_cancel(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _call_soon(loop: trio.lowlevel.TrioToken, function: Callable[[], object]) -> None:
    try:
        loop.run_sync_soon(function)
    except trio.RunFinishedError:
        pass  # the owner gave up on us
