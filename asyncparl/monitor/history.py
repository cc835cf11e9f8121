"""Curves of bounded size, however long they get."""

from __future__ import annotations

import math
from collections.abc import Mapping

MAX_POINTS = 240


class History:
    """Points of several curves over one axis.

    When there are too many, every second one is dropped and from then on every second one is kept: the whole time is
    always there, ever more coarsely. The last point is always the newest.
    """

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max_points
        self._stride = 1
        self._num_added = 0
        self._axis: list[float] = []
        self._curves: dict[str, list[float | None]] = {}
        self._last_is_spare = False

    def add(self, x: float, values: Mapping[str, float | None]) -> None:
        """One more point; a value that is no finite number is a gap."""
        if self._last_is_spare:
            self._drop_last()
        self._axis.append(x)
        for name in values.keys() - self._curves.keys():
            self._curves[name] = [None] * (len(self._axis) - 1)
        for name, curve in self._curves.items():
            value = values.get(name)
            curve.append(value if value is not None and math.isfinite(value) else None)
        self._last_is_spare = self._num_added % self._stride != 0
        self._num_added += 1
        if len(self._axis) > self._max_points:
            self._thin_out()

    def curves(self, *names: str) -> dict[str, list[float | None]]:
        """The axis as "x", and these curves as far as there are any; all without names."""
        chosen = names or tuple(self._curves)
        return {"x": [*self._axis], **{name: [*self._curves[name]] for name in chosen if name in self._curves}}

    def __len__(self) -> int:
        return len(self._axis)

    def _drop_last(self) -> None:
        self._axis.pop()
        for curve in self._curves.values():
            curve.pop()

    def _thin_out(self) -> None:
        """Of an even number of points the last would go, too: it stays, as the newest."""
        self._stride *= 2
        last = [] if len(self._axis) % 2 else [len(self._axis) - 1]
        kept = [*range(0, len(self._axis), 2), *last]
        self._axis = [self._axis[index] for index in kept]
        self._curves = {name: [curve[index] for index in kept] for name, curve in self._curves.items()}
        self._last_is_spare = (self._num_added - 1) % self._stride != 0
