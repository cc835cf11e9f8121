"""Who decides whether an actor that has died is started again: its own budget, or the group that it belongs to.

The actor asks, `Supervisor.died`, and is given a `Restart`, or not. It is the actor that does it, see `actor.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import trio

from asyncparl.protocol.node_messages import ActorExited
from asyncparl.protocol.restarts import RestartBudget


class Restart:
    """Actors that start again together: not before all of them have ended, nor before the pause is over."""

    def __init__(self, actors: Collection[object], pause_s: float) -> None:
        self._running = set(actors)
        self._not_before = trio.current_time() + pause_s
        self._all_ended = trio.Event()

    def ended(self, actor: object) -> None:
        """One of them has no process any more."""
        self._running.discard(actor)
        if not self._running:
            self._all_ended.set()

    async def wait(self) -> None:
        """Until they may start."""
        await self._all_ended.wait()
        await trio.sleep_until(self._not_before)


class Supervised(Protocol):
    """What a supervisor needs of an actor."""

    name: str

    def start_again(self, restart: Restart, reason: str) -> None:
        """End its process, if it has one, and have it take part in a restart. Open calls are told the reason."""


class Supervisor(Protocol):
    """Decides for one actor or several. Asked in their event loop; must not block."""

    def joined(self, actor: Supervised) -> None:
        """An actor was made that is under its care."""

    def died(self, actor: Supervised, death: ActorExited) -> Restart | None:
        """Its process has ended, and nobody wanted that. None: it stays dead, and `why_spent` says why."""

    def never_started(self, actor: Supervised, error: BaseException) -> None:
        """It has no object and will have none: its first constructor failed, or there is no place for it."""

    def why_spent(self) -> str:
        """For people; may be empty."""

    def gone(self, actor: Supervised) -> None:
        """It has ended for good."""


class LoneSupervisor:
    """For one actor, that of `max_restarts`."""

    def __init__(self, max_restarts: int, window_s: float | None) -> None:
        self._budget = RestartBudget(max_restarts, window_s)

    def joined(self, actor: Supervised) -> None:
        """It is alone."""

    def died(self, actor: Supervised, death: ActorExited) -> Restart | None:
        """As long as there is budget."""
        return restart_after(self._budget.died(trio.current_time()), [actor])

    def never_started(self, actor: Supervised, error: BaseException) -> None:
        """Its callers are told."""

    def why_spent(self) -> str:
        """For people."""
        return self._budget.why_spent()

    def gone(self, actor: Supervised) -> None:
        """There was only this one."""


def restart_after(pause_s: float | None, actors: Sequence[object]) -> Restart | None:
    """What a budget has granted."""
    return None if pause_s is None else Restart(actors, pause_s)
