"""Which actors there are and were, for those who hold a reference or know a name.

    unknown --known--> THERE --ended--> ENDED (remembered, the last 100,000 of them)
                         ^                |
                         +-----known------+      asked for once more

An actor that its owner starts again when it dies keeps its id, and is not ended until the owner gives it up.

Names belong to a program, so that two programs may use the same ones; those of detached actors, which outlive their
program, belong to the cluster.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from asyncparl.protocol.resources import ActorTitle

MAX_REMEMBERED = 100_000


class Known(NamedTuple):
    """An actor that is there."""

    name: str
    """For people."""
    title: ActorTitle


class _End(NamedTuple):
    reason: str
    is_final: bool
    """Not even its owner may ask for it once more."""


class Directory:
    """See the head of this file."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._restarting: dict[str, str] = {}
        """Actors that their owners start again, and these owners."""
        self._given_up: OrderedDict[str, None] = OrderedDict()
        """Actors that their owners do not start again any more, whatever nodes still tell of them; the last 100,000."""
        self._ids: dict[tuple[str, str], str] = {}
        """(program, or empty; name) -> actor id."""
        self._ended: OrderedDict[str, _End] = OrderedDict()

    def namesake(self, actor_id: str, title: ActorTitle) -> str | None:
        """Another actor that is called so."""
        owner = self._ids.get(_key(title)) if title.public_name else None
        return None if owner == actor_id else owner

    def name_fault(self, actor_id: str, title: ActorTitle) -> str | None:
        """Why an actor cannot be called so, or None."""
        taken = self.namesake(actor_id, title) is not None
        return f"an actor named {title.public_name!r} exists already" if taken else None

    def known(self, actor_id: str, name: str, driver_id: str, title: ActorTitle) -> None:
        """The actor waits for a place, or runs."""
        self._ended.pop(actor_id, None)
        if title.may_restart and actor_id not in self._given_up:
            self._restarting[actor_id] = driver_id
        self._known[actor_id] = Known(name, title)
        if title.public_name:
            self._ids.setdefault(_key(title), actor_id)

    def over(self, actor_id: str, reason: str) -> None:
        """The actor does not run any more, which is its end if it is not started again."""
        if actor_id not in self._restarting:
            self.ended(actor_id, reason)

    def given_up(self, actor_id: str) -> None:
        """The owner says that it is over. It may run for a while yet where the owner does not see it."""
        self._given_up[actor_id] = None
        if len(self._given_up) > MAX_REMEMBERED:
            self._given_up.popitem(last=False)

    def will_not_restart(self, actor_id: str) -> None:
        """The owner does not start it again."""
        self._restarting.pop(actor_id, None)

    def restarter(self, actor_id: str) -> str | None:
        """The owner who starts the actor again when it dies, if it has such a one."""
        return self._restarting.get(actor_id)

    def restarting(self, driver_id: str) -> list[str]:
        """The actors that this owner would start again."""
        return [actor_id for actor_id, owner in self._restarting.items() if owner == driver_id]

    def release_name(self, actor_id: str) -> None:
        """Others may be called so, although the actor may not have ended quite."""
        known = self._known.get(actor_id)
        if known is not None and self._ids.get(_key(known.title)) == actor_id:
            del self._ids[_key(known.title)]

    def ended(self, actor_id: str, reason: str, *, is_final: bool = False) -> None:
        """The actor is gone for good. Final: nor may its owner, who may not have heard of it, start it again."""
        self._restarting.pop(actor_id, None)
        self.release_name(actor_id)
        self._known.pop(actor_id, None)
        if self.why_never_again(actor_id) is None:
            self._ended[actor_id] = _End(reason, is_final)
        if len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)

    def get(self, actor_id: str) -> Known | None:
        """What is known of an actor that is there."""
        return self._known.get(actor_id)

    def why_ended(self, actor_id: str) -> str | None:
        """How an actor ended; None if it has not, or nobody knows."""
        end = self._ended.get(actor_id)
        return None if end is None else end.reason

    def why_never_again(self, actor_id: str) -> str | None:
        """Why an actor must not be started again; None if it may."""
        end = self._ended.get(actor_id)
        return end.reason if end is not None and end.is_final else None

    def find_named(self, name: str, program_id: str) -> str | None:
        """The actor of this name: the program's own, else a detached one."""
        return self._ids.get((program_id, name)) or self._ids.get(("", name))


def _key(title: ActorTitle) -> tuple[str, str]:
    return "" if title.is_detached else title.program_id, title.public_name
