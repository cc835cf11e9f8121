"""The order of what is said of one call, where a part of it travels in fragments, which takes its time.

Items of a stream, and what ends it, come one after the other; answers of different calls may overtake each other. What
ends the callee itself, the answer to `CLOSE`, comes after everything else.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from asyncparl.protocol.fragments import Cutter, Transfer
from asyncparl.protocol.messages import Message
from asyncparl.protocol.values import NOTHING, Encoded, Large


class Outgoing(NamedTuple):
    """A message to be sent and what travels with it."""

    message: Message
    value: Encoded = NOTHING
    is_unchanging: bool = False
    """Nobody changes the memory of the value any more, as far as that is known."""

    def detach(self) -> Outgoing:
        """The same with memory of its own: it waits, and the user may change his arrays."""
        return self._replace(value=self.value.detach()) if self.value.buffers else self


class _Lane:
    __slots__ = ("followers", "transfer")

    def __init__(self, transfer: Transfer[Outgoing]) -> None:
        self.transfer = transfer
        self.followers: deque[Outgoing] = deque()


class Lanes:
    """Of the peer's calls.

    Args:
        cutter: what sends in fragments.
        outgoing: where everything else is put.

    Attributes:
        open: calls of which something is on its way in fragments, or waits for that.
    """

    def __init__(self, cutter: Cutter[Outgoing], outgoing: deque[Outgoing]) -> None:
        self.open: dict[int, _Lane] = {}
        self._cutter = cutter
        self._outgoing = outgoing
        self._last: list[Outgoing] = []

    def say(self, call_id: int, outgoing: Outgoing, *, is_last: bool = False) -> None:
        """An item or an answer; what is last comes after all that was said before."""
        if (lane := self.open.get(call_id)) is not None:
            lane.followers.append(outgoing.detach())
        elif isinstance(outgoing.value, Large):
            self.open[call_id] = _Lane(self._cutter.add(outgoing))
        elif self.open and is_last:
            self._last.append(outgoing.detach())
        else:
            self._outgoing.append(outgoing)

    def sent(self, call_id: int) -> None:
        """The last fragment of an item or of an answer leaves: what comes after it may follow."""
        lane = self.open[call_id]
        while lane.followers:
            outgoing = lane.followers.popleft()
            if isinstance(outgoing.value, Large):
                lane.transfer = self._cutter.add(outgoing)
                return
            self._outgoing.append(outgoing)
        self._end(call_id)

    def stop(self, call_id: int, instead: Outgoing | None) -> Transfer[Outgoing]:
        """Nobody wants what is said of a call, if it is not sent yet; what was on its way. `instead`: its answer."""
        transfer = self.open[call_id].transfer
        if instead is not None:
            self._outgoing.append(instead)
        self._end(call_id)
        return transfer

    def clear(self) -> None:
        """Nothing is said any more."""
        self.open.clear()
        self._last.clear()

    def _end(self, call_id: int) -> None:
        del self.open[call_id]
        if not self.open:
            self._outgoing.extend(self._last)
            self._last.clear()
