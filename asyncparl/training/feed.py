"""One place for an actor: whoever holds it plays, its rollouts are taken, and it gets the newest weights.

How weights travel: when a rollout of an actor was taken, the actor is due for weights. It gets the newest ones at
once, or those of the next update if it has the newest already. So an actor is sent at most one set for each rollout
that it made, never the same twice, and never a second while one is on its way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
import trio
from numpy.typing import NDArray

import asyncparl
from asyncparl.training.sampler import Sample

_TRY_AGAIN_S = 5.0


@dataclass(slots=True)
class NewestWeights:
    """What the learner published last. One for all feeds."""

    version: int
    packed: NDArray[np.uint8]  # by `WeightLayout`; not written to: it may still be on its way


class WeightSender:
    """Keeps the weights of one actor new; see the top of this file."""

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


class Feed:
    """Keeps one place filled, and brings what its actor plays.

    Args:
        start_actor: makes a new actor; never with seeds that one had before.
        take: gets every rollout; while it waits, the actor comes to rest after a few more.
        newest: the weights to send.
        say: told what people should know, one line each.
        max_restarts: actors that may die in this place before it stays empty. One whose machine went did not die.
        is_patient: whether a cluster that has no place for the actor may have one later.
    """

    def __init__(
        self,
        start_actor: Callable[[], asyncparl.Proxy],
        take: Callable[[Sample], Awaitable[None]],
        newest: NewestWeights,
        *,
        say: Callable[[str], None],
        max_restarts: int,
        is_patient: bool,
    ) -> None:
        self._start_actor = start_actor
        self._take = take
        self._newest = newest
        self._say = say
        self._max_restarts = max_restarts
        self._is_patient = is_patient
        self._sender: WeightSender | None = None
        self._is_playing = False
        self.num_deaths = 0
        self.last_death: asyncparl.ActorDied | None = None

    @property
    def has_actor(self) -> bool:
        """Whether somebody plays in this place."""
        return self._is_playing

    @property
    def num_restarts(self) -> int:
        """Actors that were replaced."""
        return min(self.num_deaths, self._max_restarts)

    def weights_published(self) -> None:
        """`newest` has changed."""
        if self._sender is not None:
            self._sender.offer()

    async def run(self) -> None:
        """Keep the place filled. Returns when it stays empty.

        Raises:
            Exception: what the actor's code raised. An actor that fails will fail again: that is for people to see.
        """
        while self.num_deaths <= self._max_restarts:
            try:
                await self._bring_rollouts()
            except asyncparl.ActorDied as death:
                self._note_death(death)
            except asyncparl.ResourceError as error:
                if not self._is_patient:
                    raise
                self._say(f"no place for an actor: {error}; trying again every {_TRY_AGAIN_S:g} s")
                await trio.sleep(_TRY_AGAIN_S)
            finally:
                self._sender = None
                self._is_playing = False

    async def _bring_rollouts(self) -> None:
        actor = self._start_actor()
        self._sender = WeightSender(actor, self._newest)
        async with aclosing(actor.rollouts()) as rollouts:
            async for sample in rollouts:
                self._is_playing = True
                await self._take(sample)
                await self._sender.rollout_taken()

    def _note_death(self, death: asyncparl.ActorDied) -> None:
        if self._is_patient and death.exit_code is None and death.signal is None:
            self._say(f"{death.actor} is lost: {death.reason}; it is replaced")
            return
        self.num_deaths += 1
        self.last_death = death
        self._say(self._obituary(death))

    def _obituary(self, death: asyncparl.ActorDied) -> str:
        what = f"{death.actor} died: {death.reason}"
        if self.num_deaths > self._max_restarts:
            return f"{what}; it is not replaced, after {self.num_deaths} deaths in its place"
        return f"{what}; it is replaced ({self.num_deaths} of at most {self._max_restarts} times)"
