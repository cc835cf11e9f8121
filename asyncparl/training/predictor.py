"""The predictor of GA3C: chooses the actions of all actors, in threads of its own, many at a time.

    event loop                                     a predictor's thread
    await predict(obs)      --- a queue --->       take what waits, one forward pass, draw the actions
    the actor is answered   <-- the loop --

Every thread has a copy of the weights, which it exchanges for the newest ones between two batches; the learner's own
are never touched. A thread takes whatever waits, up to `prediction_batch_size` observations, and never waits for more.
That is all the adjustment there is, and it needs no knob: under a light load a request is answered at once and alone;
the longer a batch takes, the more wait meanwhile, and the larger, and cheaper for each, is the next one. Of several
threads only those work that find something waiting, so `num_predictors` is an upper limit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
import trio
from numpy.typing import NDArray

from asyncparl.rl import WeightLayout
from asyncparl.training.build import Interface, ModelClass, make_model
from asyncparl.training.config import TrainingConfig
from asyncparl.training.errors import TrainingError
from asyncparl.training.sampler import ActorCriticPolicy

Prediction = tuple[NDArray[np.int64], NDArray[np.float32], int, NDArray[np.float32] | None]
"""Actions [N], their log-probabilities [N], the version of the weights that chose them, and the next state [N, S]."""

CLOSE_LIMIT_S = 30.0


@dataclass(eq=False, slots=True)
class _Request:
    """Somebody waits for actions."""

    obs: NDArray[Any]  # [N, *obs_shape]
    state: NDArray[Any] | None  # [N, S] of a model with a memory
    answered: trio.Event = field(default_factory=trio.Event)
    prediction: Prediction | None = None


class Predictor:
    """See the top of this file. Actors see it as an object that is exposed, and call `predict`.

    Args:
        config: how many threads, what they may take at once, and the rest that a policy needs.
        interface: of the environment. model_class: of the network.
        seed: of the draws.
        note_delay: told how many seconds weights took until a thread had chosen actions with them, but for its first.
    """

    def __init__(
        self,
        config: TrainingConfig,
        interface: Interface,
        model_class: ModelClass | None,
        *,
        seed: int,
        note_delay: Callable[[float], None] = lambda _: None,
    ) -> None:
        assert config.num_predictors is not None and config.prediction_batch_size is not None
        self._max_batch = config.prediction_batch_size
        self._models = [
            make_model(interface, model_class, lstm=config.lstm).to(config.device) for _ in range(config.num_predictors)
        ]
        self._policies = [
            ActorCriticPolicy(model, precision=config.precision, seed=seed + number)
            for number, model in enumerate(self._models)
        ]
        self.initial_row = self._policies[0].initial_state(1)
        """[1, S] what the model remembers when an episode begins; None: it has no memory."""
        self._layout = WeightLayout.of(self._models[0])
        self._note_delay = note_delay
        self._newest: tuple[int, NDArray[np.uint8], float] | None = (
            None  # replaced as a whole: threads read it without a lock
        )
        self._requests: deque[_Request] = deque()
        self._news = threading.Condition()
        self._stopping = False
        self._num_running = config.num_predictors
        self._ended = trio.Event()
        self._error: BaseException | None = None

    # --- in the event loop ------------------------------------------------------------------------------------

    def set_weights(self, version: int, packed: NDArray[np.uint8]) -> None:
        """Predict with these from the next batch on. Before `run`, too."""
        self._newest = (version, packed, perf_counter())

    async def predict(self, obs: NDArray[Any], state: NDArray[Any] | None = None) -> Prediction:
        """Actions for observations [N, *obs_shape], with the states [N, S] of a model that has a memory."""
        request = _Request(obs, state)
        with self._news:
            self._requests.append(request)
            self._news.notify()
        await request.answered.wait()
        assert request.prediction is not None
        return request.prediction

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the threads. Runs until it is cancelled, or one of them fails.

        Cancellation: they are asked to stop after the batch in hand, and waited for.

        Raises:
            TrainingError: a thread does not stop in time.
            Exception: what the model raised.
        """
        self._loop = trio.lowlevel.current_trio_token()
        threads = [
            # Daemons, so that a `forward` that never returns cannot also keep the process from ending.
            threading.Thread(target=self._work, args=(number,), name=f"asyncparl-predictor-{number}", daemon=True)
            for number in range(self._num_running)
        ]
        for thread in threads:
            thread.start()
        task_status.started()
        try:
            await self._ended.wait()
        finally:
            self._stop()
            with trio.move_on_after(CLOSE_LIMIT_S, shield=True):
                await self._ended.wait()
            if not self._ended.is_set():
                raise TrainingError(f"a predictor has not finished its batch after {CLOSE_LIMIT_S:g} s")
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error

    def _thread_ended(self) -> None:
        self._num_running -= 1
        if self._num_running == 0:
            self._ended.set()

    # --- in the threads ---------------------------------------------------------------------------------------

    def _work(self, number: int) -> None:
        try:
            torch.set_num_threads(1)  # of this thread
            version: int | None = None
            while requests := self._take():
                assert self._newest is not None
                last_version, (version, packed, published_at) = version, self._newest
                if version != last_version:
                    self._layout.unpack(packed, self._models[number])
                self._answer(requests, self._policies[number], version)
                if last_version not in (None, version):
                    self._call_soon(partial(self._note_delay, perf_counter() - published_at))
        except BaseException as error:
            self._error = error
            self._stop()  # the others too
        finally:
            self._call_soon(self._thread_ended)

    def _take(self) -> list[_Request]:
        """What waits, up to the limit, as soon as anything does; nothing: it is time to stop."""
        with self._news:
            while not self._requests and not self._stopping:
                self._news.wait()
            taken: list[_Request] = []
            num_obs = 0
            while self._requests and not self._stopping:
                num_obs += len(self._requests[0].obs)
                if taken and num_obs > self._max_batch:
                    break
                taken.append(self._requests.popleft())
            return taken

    def _answer(self, requests: list[_Request], policy: ActorCriticPolicy, version: int) -> None:
        obs = _joined([request.obs for request in requests])
        states = [request.state for request in requests if request.state is not None]
        next_state: NDArray[np.float32] | None = None
        if states:
            actions, log_probs, next_state = policy(obs, _joined(states))
        else:
            actions, log_probs = policy(obs)
        start = 0
        for request in requests:
            part = slice(start, start + len(request.obs))
            request.prediction = (
                actions[part],
                log_probs[part],
                version,
                None if next_state is None else next_state[part],
            )
            start = part.stop
        self._call_soon(lambda: [request.answered.set() for request in requests])

    def _stop(self) -> None:
        with self._news:
            self._stopping = True
            self._news.notify_all()

    def _call_soon(self, function: Callable[[], object]) -> None:
        try:
            self._loop.run_sync_soon(function)
        except trio.RunFinishedError:
            pass  # the owner gave up on us


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """One below the other; without a copy if it is only one."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
