"""One place for an actor: whoever holds it plays, and its rollouts are taken."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import trio

import asyncparl
from asyncparl.training.sending import SentSample

_TRY_AGAIN_S = 5.0


class Feed:
    """Keeps one place filled, and brings what its actor plays.

    Args:
        play: starts a new actor, never with seeds that one had before, and brings its rollouts; see `Exchange`.
        take: gets every rollout; while it waits, the actor comes to rest after a few more.
        say: told what people should know, one line each.
        max_restarts: actors that may die in this place before it stays empty. One whose machine went did not die.
        is_patient: whether a cluster that has no place for the actor may have one later.
    """

    def __init__(
        self,
        play: Callable[[], AsyncGenerator[SentSample, None]],
        take: Callable[[SentSample], Awaitable[None]],
        *,
        say: Callable[[str], None],
        max_restarts: int,
        is_patient: bool,
    ) -> None:
        self._play = play
        self._take = take
        self._say = say
        self._max_restarts = max_restarts
        self._is_patient = is_patient
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
                self._is_playing = False

    async def _bring_rollouts(self) -> None:
        async with aclosing(self._play()) as rollouts:
            async for sample in rollouts:
                self._is_playing = True
                await self._take(sample)

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
