"""What passes between the learner and the actors of a run: rollouts one way, weights the other.

This is what differs between algorithms, besides the loss; `recipes.py` says which of them uses what.

| exchange    | an actor                       | weights go                         | a batch is complete              |
|-------------|--------------------------------|------------------------------------|----------------------------------|
| `Streams`   | streams rollouts               | to each actor, for each update if  | when enough columns have come,   |
|             |                                | there is time, between two steps   | whoever played them              |
| `Rounds`    | plays a rollout when asked     | to each actor that takes a turn,   | when every turn of the round has |
|             |                                | before it plays                    | been played, with those weights  |
| `Predicted` | streams rollouts, asking the   | to the predictors, which lie in    | as for `Streams`                 |
|             | predictors for every action    | the learner's process              |                                  |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
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
from asyncparl.training.weight_boards import Seat, WeightBoard, WeightBoards


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
        # With one slot more than there are actors there is always room.
        self._boards = WeightBoards(setup.newest.packed.nbytes, setup.config.num_actors + 1)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own what works beside the actors, inside `asyncparl.connect()`. Runs until it is cancelled, or that fails."""
        with self._boards:
            task_status.started()
            await trio.sleep_forever()

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
    """Weights on their way to an actor: the newest ones at the time when it was made.

    Args:
        actor: a `RolloutActor`.
        newest: what it is sent.
        is_offer: it need not have them before what is called after that, but at once: between two steps of a rollout.
        board: where it finds them; None, or one that has no room now: they go with the call.
    """

    def __init__(
        self, actor: asyncparl.Proxy, newest: NewestWeights, board: WeightBoard | None = None, *, is_offer: bool = False
    ) -> None:
        self.version, self._packed, self._published_at = newest.version, newest.packed, newest.published_at
        self._actor = actor
        self._is_offer = is_offer
        self._board = board
        self._slot: int | None = None
        self._call: Awaitable[str | None] | None = None

    async def start(self) -> None:
        """Tell the actor. Unless it is an offer, calls that follow are made with these weights."""
        actor = self._actor
        if self._board is not None:
            self._slot = await self._board.lend(self.version, self._packed)
        if self._slot is None:
            send = actor.offer_weights if self._is_offer else actor.set_weights
            self._call = send(self.version, self._packed)
        else:
            send = actor.offer_weights_from if self._is_offer else actor.set_weights_from
            self._call = send(self.version, self._slot)

    async def wait(self) -> str | None:
        """Until the actor has them, after `start`. Its host, if it was no board that it was told of.

        Raises:
            Exception: it could not take them, or died.
        """
        assert self._call is not None
        try:
            return await self._call
        finally:
            if self._board is not None and self._slot is not None:
                self._board.give_back(self._slot)
                self._slot = None

    def age_s(self) -> float:
        """Since these weights were published."""
        return trio.current_time() - self._published_at


# --- IMPALA -------------------------------------------------------------------------------------------------------


MAX_OFFERS_PER_S = 100
"""To all actors together, in the middle of rollouts: that costs the event loop a few hundredths of its time."""


class WeightSender:
    """Keeps the weights of one actor new.

    An actor is due for weights when a rollout of it was taken, and after a pause. It gets the newest ones at once, or
    those of the next update if it has the newest already; never the same twice, and never a second set while one is on
    its way.

    Args:
        actor: a `RolloutActor`.
        newest: what it is sent.
        boards: where it may find them.
        delays: told how long they took.
        pause_s: from one set to the next, while no rollout is taken.
    """

    def __init__(
        self,
        actor: asyncparl.Proxy,
        newest: NewestWeights,
        boards: WeightBoards,
        delays: PolicyDelays,
        *,
        pause_s: float,
    ) -> None:
        self._actor = actor
        self._newest = newest
        self._boards = boards
        self._delays = delays  # not of the first: they were published when there was no such actor
        self._pause_s = pause_s
        self._due = trio.Event()
        self._changed = trio.Event()
        self._scope = trio.CancelScope()
        self._failure: Exception | None = None

    def rollout_taken(self, record: RolloutRecord) -> None:
        """The actor is due.

        Raises:
            Exception: the actor could not take the weights that it was sent last, or died.
        """
        if self._failure is not None:
            raise self._failure
        for version, since_s in record.new_weights:
            self._delays.played(version, since_s)
        self._due.set()

    def published(self) -> None:
        """`newest` has changed."""
        self._changed.set()
        self._changed = trio.Event()

    async def run(self, first: Delivery) -> None:
        """Until it is stopped, or fails.

        Args:
            first: of the first weights; it was started.
        """
        with self._scope:
            try:
                await self._send(first)
            except Exception as error:
                self._failure = error

    def stop(self) -> None:
        """The actor is not needed any more."""
        self._scope.cancel()

    async def _send(self, first: Delivery) -> None:
        seat, version = Seat(self._actor, await first.wait() or "", self._boards), first.version
        while True:
            with trio.move_on_after(self._pause_s):
                await self._due.wait()
            self._due = trio.Event()
            board = await seat.board()
            while self._newest.version == version:
                await self._changed.wait()
            delivery = Delivery(self._actor, self._newest, board, is_offer=True)
            await delivery.start()
            await delivery.wait()
            version = delivery.version
            self._delays.arrived(version, delivery.age_s())


class Streams(Exchange):
    """Actors play on and on, with weights that are a little old."""

    def __init__(self, setup: ExchangeSetup) -> None:
        super().__init__(setup)
        self._senders: set[WeightSender] = set()
        self._nursery: trio.Nursery | None = None  # from when it runs

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            await super().run(task_status=task_status)

    async def play(self, setup: ActorSetup) -> AsyncGenerator[SentSample, None]:
        assert self._nursery is not None
        actor = RolloutActor(setup)
        pause_s = self._config.num_actors / MAX_OFFERS_PER_S
        sender = WeightSender(actor, self._newest, self._boards, PolicyDelays(self._note_delay), pause_s=pause_s)
        first = Delivery(actor, self._newest)
        await first.start()
        await trio.lowlevel.checkpoint_if_cancelled()  # when all is cancelled the nursery may have closed before us
        self._nursery.start_soon(sender.run, first)
        self._senders.add(sender)
        try:
            async with aclosing(actor.rollouts()) as rollouts:
                async for sample in rollouts:
                    yield sample
                    sender.rollout_taken(sample.record)
        finally:
            self._senders.discard(sender)
            sender.stop()

    def publish(self) -> None:
        for sender in self._senders:
            sender.published()


# --- A2C ----------------------------------------------------------------------------------------------------------


class TurnPlayer:
    """Has an actor play one rollout at a time, with the newest weights: it is sent them if it has others.

    Args:
        actor: a `RolloutActor`.
        newest: stays as it is while a rollout is played.
        boards: where it may find them.
        note_delay: see `ExchangeSetup`. It is not told of the first weights: there was no such actor before.
    """

    def __init__(
        self,
        actor: asyncparl.Proxy,
        newest: NewestWeights,
        boards: WeightBoards,
        note_delay: Callable[[float], None],
    ) -> None:
        self._actor = actor
        self._newest = newest
        self._boards = boards
        self._note_delay = note_delay
        self._seat: Seat | None = None  # once it has answered
        self._sent_version: int | None = None

    async def rollout(self) -> SentSample:
        """The next one.

        Raises:
            Exception: what the actor's code raised, or that it died.
        """
        sent_version, delivery = self._sent_version, None
        if self._newest.version != sent_version:
            delivery = Delivery(self._actor, self._newest, None if self._seat is None else await self._seat.board())
            await delivery.start()
        rollout = self._actor.rollout()  # after the weights: calls keep their order
        came_after_s = None
        if delivery is not None:
            host = await delivery.wait()
            came_after_s, self._sent_version = delivery.age_s(), delivery.version
            if self._seat is None:
                self._seat = Seat(self._actor, host or "", self._boards)
        sample: SentSample = await rollout
        if sent_version is not None and came_after_s is not None:
            for _, since_s in sample.record.new_weights:
                self._note_delay(came_after_s + since_s)
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
        actor = RolloutActor(setup)
        await actor.statistics()  # it has no turn before it can play: it may be waiting for a machine
        player = TurnPlayer(actor, self._newest, self._boards, self._note_delay)
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
