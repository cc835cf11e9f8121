"""What the monitor knows of a cluster comes through this."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.protocol.figures import News, NodeFigures
from asyncparl.protocol.node_messages import ActorExited

EMPTY_VIEW = ClusterView([], [], [], [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A cluster, as it was seen at one moment."""

    view: ClusterView | None = None
    """Who is there; None: it was not asked for."""
    nodes: dict[str, NodeFigures | str] = field(default_factory=dict)
    """The figures of each node, by its id, or why there are none."""
    news: News | None = None
    fault: str = ""
    """Why nothing else is here: for people, with what they can do."""


class Source(Protocol):
    """A cluster that can be looked at."""

    address: str
    """For people."""
    own_id: str
    """The driver that we are ourselves; it is no program of anybody's."""

    async def look(self, *, closely: bool) -> Sight:
        """Look at it; closely: also at every node and actor. What cannot be seen is said in the sight, not raised."""

    def read_log(
        self, node_id: str, actor_id: str, num_lines: int, *, follow: bool
    ) -> AbstractAsyncContextManager[AsyncIterator[list[str]]]:
        """The last lines of an actor's log and, to follow it, what is added until the actor ends.

        Raises:
            ResourceError: there is no such log, or its node cannot be reached.
        """

    async def read_death(self, node_id: str, actor_id: str) -> ActorExited | None:
        """How an actor ended, with its last lines; None if its node does not know it."""

    async def rest(self) -> None:
        """Nobody looks any more: give up what looking closely takes."""
