"""The demands that wait for a place, and whose turn it is.

The rule, in the order of arrival:

1. Whoever fits gets its place, also if older demands still wait: they could not have used it now.
2. A demand that has waited for `PATIENCE_S` comes first on every node that could hold it: younger ones get there only
   what it does not need (`placement.takes_from`). So a large demand is not starved by small ones, while a demand that
   uses nothing of what it waits for goes on.

Demands of the same shape (need and strategy) fit or do not fit together, so only the oldest of each shape is tried. A
shape that did not fit is not tried again until something was freed: a pass costs nothing for those who wait in vain.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from asyncparl.protocol.resources import UNTITLED, ActorTitle, Demand, Need, need_of

PATIENCE_S = 10.0

Shape = tuple[Need, str]


@dataclass(slots=True, frozen=True)
class WaitingDemand:
    """One actor that has no place yet."""

    actor_id: str
    actor_name: str
    driver_id: str
    demand: Demand
    since: float
    number: int
    """Grows with every demand: the order of arrival."""
    title: ActorTitle = UNTITLED

    @property
    def shape(self) -> Shape:
        return need_of(self.demand), self.demand.strategy


@dataclass(slots=True)
class WaitingQueue:
    """All demands that wait. Each is in it once."""

    _num_added: int = 0
    _by_id: dict[str, WaitingDemand] = field(default_factory=dict)
    _lines: dict[Shape, OrderedDict[str, WaitingDemand]] = field(default_factory=dict)
    _stuck: set[Shape] = field(default_factory=set)
    """Shapes that did not fit the last time, and nothing was freed since."""

    def add(
        self,
        actor_id: str,
        actor_name: str,
        driver_id: str,
        demand: Demand,
        now: float,
        title: ActorTitle = UNTITLED,
    ) -> None:
        """Enter a demand at the end. Its id must not be there yet."""
        assert actor_id not in self._by_id, f"actor {actor_id} waits already"
        self._num_added += 1
        waiting = WaitingDemand(actor_id, actor_name, driver_id, demand, now, self._num_added, title)
        self._by_id[actor_id] = waiting
        self._lines.setdefault(waiting.shape, OrderedDict())[actor_id] = waiting

    def get(self, actor_id: str) -> WaitingDemand | None:
        return self._by_id.get(actor_id)

    def remove(self, actor_id: str) -> WaitingDemand | None:
        """Somebody does not wait any more; None if he did not. What it had the first claim on is free for others."""
        if actor_id not in self._by_id:
            return None
        self.something_is_free()
        return self._take_out(actor_id)

    def something_is_free(self) -> None:
        """Resources were given back, or a node came: everybody may fit now."""
        self._stuck.clear()

    def place(self, try_to_place: Callable[[WaitingDemand, Sequence[Need]], bool], now: float) -> None:
        """Give everybody who can have it his place.

        `try_to_place` gets a demand and the needs that come before it, and says whether it got a place.
        """
        first: list[Need] = []
        heads = [(_head(line).number, shape) for shape, line in self._lines.items()]
        heapq.heapify(heads)
        while heads:
            _, shape = heapq.heappop(heads)
            head = _head(self._lines[shape])
            if shape not in self._stuck and try_to_place(head, first):
                self._take_out(head.actor_id)
                if line := self._lines.get(shape):
                    heapq.heappush(heads, (_head(line).number, shape))
                continue
            self._stuck.add(shape)
            if now - head.since >= PATIENCE_S:
                first.append(shape[0])

    def lines(self) -> list[list[WaitingDemand]]:
        """All demands, those of one shape together."""
        return [list(line.values()) for line in self._lines.values()]

    def __iter__(self) -> Iterator[WaitingDemand]:
        """In the order of arrival."""
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def _take_out(self, actor_id: str) -> WaitingDemand:
        waiting = self._by_id.pop(actor_id)
        line = self._lines[waiting.shape]
        del line[actor_id]
        if not line:
            del self._lines[waiting.shape]
        return waiting


def _head(line: OrderedDict[str, WaitingDemand]) -> WaitingDemand:
    return next(iter(line.values()))
