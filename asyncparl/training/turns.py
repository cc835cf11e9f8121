"""What makes a run repeatable: actors and learner take turns, so that nothing depends on who is faster.

A round: every actor plays one rollout, all with the same weights; the rollouts are taken in the order of the actors,
however fast each was; the next round begins when the learner has made all updates that these rollouts were enough for.
In GA3C the actors play one after the other, so that the predictor draws for them in that order.

Two such runs with the same settings, on one machine and with the same versions of everything, have the same weights
bit for bit after every update. So do two runs that are resumed from one checkpoint.
"""

from __future__ import annotations

import itertools
import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import trio
from numpy.typing import NDArray

import asyncparl
from asyncparl.rl import keep_freed_memory
from asyncparl.training.actor import ActorSetup, RolloutActor, repeated
from asyncparl.training.errors import TrainingError
from asyncparl.training.exchange import Exchange, ExchangeSetup, Predicted, TurnPlayer
from asyncparl.training.sampler import Sampler
from asyncparl.training.sending import SentSample


class Turns(Exchange):
    """See the top of this file; subclasses say how an actor plays."""

    _one_at_a_time = False
    """Whether an actor plays only when the rollout of the one before it was taken."""

    def __init__(self, setup: ExchangeSetup) -> None:
        super().__init__(setup)
        self._num_started = 0  # rollouts, over all actors
        self._num_taken = 0
        self._num_updates = 0
        self._num_players = 0
        self._changed = trio.Event()

    async def play(self, setup: ActorSetup) -> AsyncGenerator[SentSample, None]:
        """As `Exchange.play`.

        Raises:
            TrainingError: an actor died. With another one in its place the run would repeat nothing.
        """
        place, num_places = self._num_players, self._config.num_actors
        self._num_players += 1
        rollout = self._start(setup)
        for round_ in itertools.count():
            first = round_ * num_places
            mine = first + place
            await self._begin(mine if self._one_at_a_time else first)
            try:
                sample = await rollout()
            except asyncparl.ActorDied as death:
                raise TrainingError(f"a repeatable run ends when an actor dies; {death}") from death
            await self._wait_until_wanted(mine, begun=mine + 1 if self._one_at_a_time else first + num_places)
            yield sample
            self._num_taken += 1
            self._notify()

    def publish(self) -> None:
        self._num_updates += 1
        self._notify()

    @abstractmethod
    def _start(self, setup: ActorSetup) -> Callable[[], Awaitable[SentSample]]:
        """A new actor; what has it play its next rollout, with the newest weights."""

    def _all_is_learned(self) -> bool:
        num_columns = self._num_taken * self._config.envs_per_actor
        return self._num_updates == num_columns // self._config.batch_size

    async def _begin(self, num_taken: int) -> None:
        """Wait until so many rollouts were taken, and everything that they were enough for was learned."""
        while not (self._num_taken == num_taken and self._all_is_learned()):
            await self._changed.wait()
        self._num_started += 1
        self._notify()

    async def _wait_until_wanted(self, number: int, *, begun: int) -> None:
        """Wait until the rollouts before it were taken, and so many have begun: they all play with the same weights."""
        while not (self._num_taken == number and self._num_started == begun):
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class RolloutTurns(Turns):
    """Of actors that have a network."""

    def _start(self, setup: ActorSetup) -> Callable[[], Awaitable[SentSample]]:
        return TurnPlayer(RolloutActor(setup), self._newest, self._boards, self._note_delay).rollout


class PredictedTurns(Turns):
    """Of actors that ask for their actions."""

    _one_at_a_time = True

    def __init__(self, setup: ExchangeSetup) -> None:
        super().__init__(setup)
        self._predicted = Predicted(setup)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self._predicted.run(task_status=task_status)

    def publish(self) -> None:
        self._predicted.publish()
        super().publish()

    def _start(self, setup: ActorSetup) -> Callable[[], Awaitable[SentSample]]:
        predicted = self._predicted
        actor = AskingActor(setup, predicted.proxy, predicted.initial_row)
        return lambda: actor.rollout(self._newest.version)


@asyncparl.remote_class
class AskingActor:
    """Plays one rollout when it is asked to; somebody else chooses the actions. Asks for nothing in between."""

    def __init__(self, setup: ActorSetup, predictor: asyncparl.Proxy, initial_row: NDArray[np.float32] | None) -> None:
        """As for `EnvironmentActor`."""
        keep_freed_memory()
        setup.prepare_process()

        def ask(obs: NDArray[Any], state: NDArray[Any] | None = None) -> Any:
            actions, log_probs, _, next_state = predictor.predict(obs, state).result()
            return (actions, log_probs) if next_state is None else (actions, log_probs, next_state)

        num_envs = setup.config.envs_per_actor
        environment = setup.make_environment(num_envs)
        self._pack = setup.packer(environment)
        self._sampler = Sampler(
            environment,
            ask,
            num_steps=setup.config.unroll_length,
            initial_state=repeated(initial_row, num_envs),
        )

    def rollout(self, version: int) -> SentSample:
        """The next rollout. `version`: of the weights that the predictor has."""
        return self._pack(self._sampler.collect(version))


@contextmanager
def deterministic_torch(device: str) -> Iterator[None]:
    """Have torch use only what gives the same result every time, in this process; afterwards it is as it was.

    What torch has no such implementation of raises RuntimeError.
    """
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first handle is made
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
