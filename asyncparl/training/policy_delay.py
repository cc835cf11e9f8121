"""How long new weights take to be played with: from their publication to an actor's first agent step with them.

By one clock, as those of two hosts need not agree: that of the learner's process says when the actor has answered that
it has the weights, and the actor how much later it took the step. So the way of that answer is counted too.
"""

from __future__ import annotations

from collections.abc import Callable


class PolicyDelays:
    """Of one actor: puts the two parts of each delay together.

    Args:
        note: told every delay, in seconds, once both parts of it are known.
    """

    def __init__(self, note: Callable[[float], None]) -> None:
        self._note = note
        self._parts: dict[int, float] = {}  # by version: the one that is known

    def arrived(self, version: int, after_s: float) -> None:
        """The actor has weights, so long after they were published."""
        self._add(version, after_s)

    def played(self, version: int, after_s: float) -> None:
        """It has taken its first step with them, so long after it had them."""
        self._add(version, after_s)
        # It will never play with those that it got before.
        self._parts = {other: part for other, part in self._parts.items() if other >= version}

    def _add(self, version: int, part_s: float) -> None:
        if (other_s := self._parts.pop(version, None)) is None:
            self._parts[version] = part_s
        else:
            self._note(other_s + part_s)
