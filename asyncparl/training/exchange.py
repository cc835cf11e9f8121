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
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass

import numpy as np
import trio
from numpy.typing import NDArray

import asyncparl
from asyncparl.training.actor import ActorSetup, EnvironmentActor, RolloutActor
from asyncparl.training.build import Interface, ModelClass
from asyncparl.training.config import TrainingConfig
from asyncparl.training.policy_delay import PolicyDelays
from asyncparl.training.predictor import Predictor
from asyncparl.training.sampler import RolloutRecord
from asyncparl.training.sending import SentSample
from asyncparl.training.weight_board import WeightBoard


@dataclass(slots=True)
class NewestWeights:
    """What the learner published last. One for all that need it."""

    version: int
    packed: NDArray[np.uint8]  # by `WeightLayout`; not written to: it may still be on its way
    published_at: float = 0.0  # by `trio.current_time`


@dataclass(frozen=True, slots=True)
class ExchangeSetup:
    """What an exchange is made from."""

    config: TrainingConfig
    interface: Interface
    model_class: ModelClass | None
    newest: NewestWeights
    note_delay: Callable[[float], None] = lambda _: None
    """Told how many seconds weights took from their publication to an actor's first step with them."""
    learner: int = 0
    """Which of several learners it is for."""


class Exchange(ABC):
    """See the top of this file. Everything here happens in the event loop of the learner's process."""

    def __init__(self, setup: ExchangeSetup) -> None:
        self._config = setup.config
        self._newest = setup.newest
        self._note_delay = setup.note_delay
        self._board: WeightBoard | None = None
        """For weights of actors on this host, while the exchange runs; None: there is none."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own what works beside the actors, inside `asyncparl.connect()`. Runs until it is cancelled, or that fails."""
        num_slots = self._config.num_actors + 1
        with ExitStack() as stack:
            with suppress(OSError):  # then weights are sent to every actor
                self._board = stack.enter_context(WeightBoard(self._newest.packed.nbytes, num_slots))
            task_status.started()
            await trio.sleep_forever()

    def _start_player(self, setup: ActorSetup) -> asyncparl.Proxy:
        """A new actor that has a network."""
        return RolloutActor(setup, None if self._board is None else self._board.address)

    @abstractmethod
    def play(self, setup: ActorSetup) -> AsyncGenerator[SentSample, None]:
        """Start an actor, and bring its rollouts. That the next one is asked for means that the last one was taken.

        Raises:
            ActorDied: it did. No rollout is lost that others wait for.
            Exception: what its code raised.
        """

    @abstractmethod
    def publish(self) -> None:
        """The learner has made an update: `newest` has changed."""


class Delivery:
    """Weights on their way to an actor.

    Args:
        actor: a `RolloutActor`.
        newest: what it is sent.
        board: where it finds them; None, or one that has no room now: they go with the call.
    """

    def __init__(self, actor: asyncparl.Proxy, newest: NewestWeights, board: WeightBoard | None) -> None:
        self.version, self._published_at = newest.version, newest.published_at
        self._board = board
        self._slot = None if board is None else board.lend(newest.version, newest.packed)
        if self._slot is None:
            self._call = actor.set_weights(newest.version, newest.packed)
        else:
            self._call = actor.set_weights_from(newest.version, self._slot)

    def is_over(self) -> bool:
        """Whether `wait` does not wait."""
        return bool(self._call.done())

    async def wait(self) -> bool:
        """Until the actor has them. Whether it sees the board.

        Raises:
            Exception: it could not take them, or died.
        """
        try:
            return bool(await self._call)
        finally:
            if self._board is not None and self._slot is not None:
                self._board.give_back(self._slot)
                self._slot = None

    def age_s(self) -> float:
        """Since these weights were published."""
        return trio.current_time() - self._published_at


# --- IMPALA -------------------------------------------------------------------------------------------------------


StartSoon = Callable[..., None]
"""Starts a task with a function and its arguments."""


class WeightSender:
    """Keeps the weights of one actor new.

    When a rollout of an actor was taken, the actor is due for weights. It gets the newest ones at once, or those of the
    next update if it has the newest already. So an actor is sent at most one set for each rollout that it made, never
    the same twice, and never a second while one is on its way.
    """

    def __init__(
        self,
        actor: asyncparl.Proxy,
        newest: NewestWeights,
        *,
        start_soon: StartSoon,
        delays: PolicyDelays,
        board: WeightBoard | None = None,
    ) -> None:
        self._actor = actor
        self._newest = newest
        self._start_soon = start_soon
        self._delays = delays  # not of the first: they were published when there was no such actor
        self._board = board
        self._sees_board = False
        self._delivery = Delivery(actor, newest, None)
        self._is_due = False

    async def rollout_taken(self, record: RolloutRecord) -> None:
        """The actor is due.

        Raises:
            Exception: the actor could not take the weights that it was sent last.
        """
        if record.since_weights_s is not None:
            self._delays.played(record.weights_version, record.since_weights_s)
        if self._delivery.is_over():
            self._sees_board = await self._delivery.wait()
        self._is_due = True
        self.offer()

    def offer(self) -> None:
        """Send the newest weights, if the actor is due and has older ones."""
        if self._is_due and self._delivery.version != self._newest.version and self._delivery.is_over():
            self._delivery = Delivery(self._actor, self._newest, self._board if self._sees_board else None)
            self._start_soon(self._note_arrival, self._delivery)
            self._is_due = False

    async def _note_arrival(self, delivery: Delivery) -> None:
        try:
            await delivery.wait()
        except Exception:
            return  # `rollout_taken` raises it, or the stream of rollouts
        self._delays.arrived(delivery.version, delivery.age_s())


class Streams(Exchange):
    """Actors play on and on, with weights that are a little old."""

    def __init__(self, setup: ExchangeSetup) -> None:
        super().__init__(setup)
        self._senders: set[WeightSender] = set()
        self._nursery: trio.Nursery | None = None  # while it takes tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await super().run(task_status=task_status)
            finally:
                self._nursery = None

    async def play(self, setup: ActorSetup) -> AsyncGenerator[SentSample, None]:
        actor = self._start_player(setup)
        delays = PolicyDelays(self._note_delay)
        sender = WeightSender(actor, self._newest, start_soon=self._start_soon, delays=delays, board=self._board)
        self._senders.add(sender)
        try:
            async with aclosing(actor.rollouts()) as rollouts:
                async for sample in rollouts:
                    yield sample
                    await sender.rollout_taken(sample.record)
        finally:
            self._senders.discard(sender)

    def publish(self) -> None:
        for sender in self._senders:
            sender.offer()

    def _start_soon(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        if self._nursery is not None:  # else the run is ending, and nobody reads any figures
            self._nursery.start_soon(function, *args)


# --- A2C ----------------------------------------------------------------------------------------------------------


class TurnPlayer:
    """Has an actor play one rollout at a time, with the newest weights: it is sent them if it has others.

    Args:
        actor: a `RolloutActor`.
        newest: stays as it is while a rollout is played.
        note_delay: see `ExchangeSetup`. It is not told of the first weights: there was no such actor before.
        board: where an actor finds weights that sees it.
    """

    def __init__(
        self,
        actor: asyncparl.Proxy,
        newest: NewestWeights,
        note_delay: Callable[[float], None],
        board: WeightBoard | None = None,
    ) -> None:
        self._actor = actor
        self._newest = newest
        self._note_delay = note_delay
        self._board = board
        self._sees_board = False
        self._sent_version: int | None = None

    async def rollout(self) -> SentSample:
        """The next one.

        Raises:
            Exception: what the actor's code raised, or that it died.
        """
        sent_version, delivery = self._sent_version, None
        if self._newest.version != sent_version:
            delivery = Delivery(self._actor, self._newest, self._board if self._sees_board else None)
        rollout = self._actor.rollout()  # after the weights: calls keep their order
        came_after_s = None
        if delivery is not None:
            self._sees_board = await delivery.wait()
            came_after_s, self._sent_version = delivery.age_s(), delivery.version
        sample: SentSample = await rollout
        since_weights_s = sample.record.since_weights_s
        if sent_version is not None and came_after_s is not None and since_weights_s is not None:
            self._note_delay(came_after_s + since_weights_s)
        return sample


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

    async def play(self, setup: ActorSetup) -> AsyncGenerator[SentSample, None]:
        actor = self._start_player(setup)
        await actor.statistics()  # it has no turn before it can play: it may be waiting for a machine
        player = TurnPlayer(actor, self._newest, self._note_delay, self._board)
        while True:
            await self._take_turn()
            try:
                sample = await player.rollout()
            except BaseException:
                self._add_turns(1)
                raise
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
        seed += setup.learner * (setup.config.num_predictors or 1)
        self._predictor = Predictor(
            setup.config, setup.interface, setup.model_class, seed=seed, note_delay=setup.note_delay
        )
        self.initial_row = self._predictor.initial_row
        """[1, S] what the model remembers when an episode begins, for actors; None: it has no memory."""
        self.publish()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.proxy = asyncparl.expose(self._predictor, max_concurrency=MAX_PREDICTIONS)
        """Of the predictor, for actors."""
        await self._predictor.run(task_status=task_status)

    async def play(self, setup: ActorSetup) -> AsyncGenerator[SentSample, None]:
        actor = EnvironmentActor(setup, self.proxy, self.initial_row)
        async with aclosing(actor.rollouts()) as rollouts:
            async for sample in rollouts:
                yield sample

    def publish(self) -> None:
        self._predictor.set_weights(self._newest.version, self._newest.packed)


MAX_PREDICTIONS = 10_000
"""That may be asked for at once: more than any number of actors does, for each asks for two."""
