"""What passes between the learner and the actors of a run: rollouts one way, weights the other.

This is what differs between algorithms, besides the loss; `recipes.py` says which of them uses what.

| exchange    | an actor                       | weights go                         | a batch is complete              |
|-------------|--------------------------------|------------------------------------|----------------------------------|
| `Streams`   | streams rollouts               | to each actor, once per rollout    | when enough columns have come,   |
|             |                                | that was taken of it               | whoever played them              |
| `Rounds`    | plays a rollout when asked     | to each actor that takes a turn,   | when every turn of the round has |
|             |                                | before it plays                    | been played, with those weights  |
| `Predicted` | streams rollouts, asking the   | to the predictors, which lie in    | as for `Streams`                 |
|             | predictors for every action    | the learner's process              |                                  |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import numpy as np
import trio
from numpy.typing import NDArray

import asyncparl
from asyncparl.training.actor import ActorSetup, EnvironmentActor, RolloutActor
from asyncparl.training.build import Interface, ModelClass
from asyncparl.training.config import TrainingConfig
from asyncparl.training.predictor import Predictor
from asyncparl.training.sampler import Sample


@dataclass(slots=True)
class NewestWeights:
    """What the learner published last. One for all that need it."""

    version: int
    packed: NDArray[np.uint8]  # by `WeightLayout`; not written to: it may still be on its way


@dataclass(frozen=True, slots=True)
class ExchangeSetup:
    """What an exchange is made from."""

    config: TrainingConfig
    interface: Interface
    model_class: ModelClass | None
    newest: NewestWeights


class Exchange(ABC):
    """See the top of this file. Everything here happens in the event loop of the learner's process."""

    def __init__(self, setup: ExchangeSetup) -> None:
        self._config = setup.config
        self._newest = setup.newest

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own what works beside the actors, inside `asyncparl.connect()`. Runs until it is cancelled, or that fails."""
        task_status.started()
        await trio.sleep_forever()

    @abstractmethod
    def play(self, setup: ActorSetup) -> AsyncGenerator[Sample, None]:
        """Start an actor, and bring its rollouts. That the next one is asked for means that the last one was taken.

        Raises:
            ActorDied: it did. No rollout is lost that others wait for.
            Exception: what its code raised.
        """

    @abstractmethod
    def publish(self) -> None:
        """The learner has made an update: `newest` has changed."""


# --- IMPALA -------------------------------------------------------------------------------------------------------


class WeightSender:
    """Keeps the weights of one actor new.

    When a rollout of an actor was taken, the actor is due for weights. It gets the newest ones at once, or those of the
    next update if it has the newest already. So an actor is sent at most one set for each rollout that it made, never
    the same twice, and never a second while one is on its way.
    """

    def __init__(self, actor: asyncparl.Proxy, newest: NewestWeights) -> None:
        self._actor = actor
        self._newest = newest
        self._call = actor.set_weights(newest.version, newest.packed)
        self._sent_version = newest.version
        self._is_due = False

    async def rollout_taken(self) -> None:
        """The actor is due.

        Raises:
            Exception: the actor could not take the weights that it was sent last.
        """
        if self._call.done():
            await self._call
        self._is_due = True
        self.offer()

    def offer(self) -> None:
        """Send the newest weights, if the actor is due and has older ones."""
        if self._is_due and self._sent_version != self._newest.version and self._call.done():
            self._call = self._actor.set_weights(self._newest.version, self._newest.packed)
            self._sent_version = self._newest.version
            self._is_due = False


class Streams(Exchange):
    """Actors play on and on, with weights that are a little old."""

    def __init__(self, setup: ExchangeSetup) -> None:
        super().__init__(setup)
        self._senders: set[WeightSender] = set()

    async def play(self, setup: ActorSetup) -> AsyncGenerator[Sample, None]:
        actor = cast("asyncparl.Proxy", RolloutActor(setup))  # mypy ignores what class decorators return
        sender = WeightSender(actor, self._newest)
        self._senders.add(sender)
        try:
            async with aclosing(actor.rollouts()) as rollouts:
                async for sample in rollouts:
                    yield sample
                    await sender.rollout_taken()
        finally:
            self._senders.discard(sender)

    def publish(self) -> None:
        for sender in self._senders:
            sender.offer()


# --- A2C ----------------------------------------------------------------------------------------------------------


class Rounds(Exchange):
    """All rollouts of a batch are played with the weights that will learn from them.

    A round is as many turns as there are places for actors; every update begins one. Whoever is free takes a turn. All
    are free when a round begins, so everybody takes one; where an actor is missing (it is starting, it died, its
    machine went) another one that has finished takes its turn too. A turn that was not played is given back. So the
    batch of a round is always complete, and never holds anything twice.
    """

    def __init__(self, setup: ExchangeSetup) -> None:
        super().__init__(setup)
        self._turns = self._config.num_actors
        self._more_turns = trio.Event()

    async def play(self, setup: ActorSetup) -> AsyncGenerator[Sample, None]:
        actor = cast("asyncparl.Proxy", RolloutActor(setup))
        await actor.statistics()  # it has no turn before it can play: it may be waiting for a machine
        sent_version: int | None = None
        while True:
            await self._take_turn()
            version = self._newest.version  # stays so: the next update is made of this round
            try:
                weights = None if version == sent_version else actor.set_weights(version, self._newest.packed)
                rollout = actor.rollout()  # after the weights: calls keep their order
                if weights is not None:
                    await weights
                sample = await rollout
            except BaseException:
                self._add_turns(1)
                raise
            sent_version = version
            yield sample

    def publish(self) -> None:
        self._add_turns(self._config.num_actors)

    async def _take_turn(self) -> None:
        while self._turns == 0:
            await self._more_turns.wait()
        self._turns -= 1

    def _add_turns(self, number: int) -> None:
        self._turns += number
        self._more_turns.set()
        self._more_turns = trio.Event()


# --- GA3C ---------------------------------------------------------------------------------------------------------


class Predicted(Exchange):
    """Actors hold environments only; the predictors, in threads beside the learner, hold the weights."""

    def __init__(self, setup: ExchangeSetup) -> None:
        super().__init__(setup)
        # With the version, because a resumed run is not to draw again what was drawn before.
        seed = ((setup.config.seed << 32) + (setup.newest.version << 8)) % 2**63
        self._predictor = Predictor(setup.config, setup.interface, setup.model_class, seed=seed)
        self.initial_row = self._predictor.initial_row
        """[1, S] what the model remembers when an episode begins, for actors; None: it has no memory."""
        self.publish()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.proxy = asyncparl.expose(self._predictor, max_concurrency=MAX_PREDICTIONS)
        """Of the predictor, for actors."""
        await self._predictor.run(task_status=task_status)

    async def play(self, setup: ActorSetup) -> AsyncGenerator[Sample, None]:
        actor = cast("asyncparl.Proxy", EnvironmentActor(setup, self.proxy, self.initial_row))
        async with aclosing(actor.rollouts()) as rollouts:
            async for sample in rollouts:
                yield sample

    def publish(self) -> None:
        self._predictor.set_weights(self._newest.version, self._newest.packed)


MAX_PREDICTIONS = 10_000
"""That may be asked for at once: more than any number of actors does, for each asks for two."""
