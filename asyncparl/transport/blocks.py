"""Which parts of a range of memory are in use. Knows offsets only, and touches no memory.

The lowest place that is large enough is taken, so that few bytes are used again and again: they are in page tables and
caches already, where fresh pages cost thirty times as much as the copy itself.
"""

from __future__ import annotations

import bisect

BLOCK_ALIGNMENT = 4096
_TAKES_OF_AN_EPOCH = 64


class Blocks:
    """The blocks of `num_bytes` bytes of memory; each has a multiple of `BLOCK_ALIGNMENT` bytes.

    Attributes:
        touched_end: what lies beyond has never been taken, or was given up by `trim`: it has no memory yet.
    """

    def __init__(self, num_bytes: int) -> None:
        self.touched_end = 0
        self._sizes: dict[int, int] = {}
        self._free_starts = [0]  # in order; never two that touch
        self._free_ends = [num_bytes - num_bytes % BLOCK_ALIGNMENT]
        self._num_takes = 0
        self._reached = self._reached_before = 0  # the highest ends of this epoch and of the last one

    def take(self, num_bytes: int) -> int | None:
        """The start of a block of at least so many bytes, one or more; None if there is no room."""
        size = num_bytes + -num_bytes % BLOCK_ALIGNMENT
        for index, (start, end) in enumerate(zip(self._free_starts, self._free_ends, strict=True)):
            if end - start >= size:
                self._cut(index, size)
                self._sizes[start] = size
                self._note(start + size)
                return start
        return None

    def give_back(self, start: int) -> None:
        """A block that was taken is free again."""
        end = start + self._sizes.pop(start)
        index = bisect.bisect(self._free_starts, start)
        starts, ends = self._free_starts, self._free_ends
        joins_left = index > 0 and ends[index - 1] == start
        joins_right = index < len(starts) and starts[index] == end
        if joins_left and joins_right:
            ends[index - 1] = ends.pop(index)
            del starts[index]
        elif joins_left:
            ends[index - 1] = end
        elif joins_right:
            starts[index] = start
        else:
            starts.insert(index, start)
            ends.insert(index, end)

    def trim(self) -> tuple[int, int] | None:
        """The range whose memory is to be given back to the system: used once, and by none of the last takes."""
        if self._num_takes < _TAKES_OF_AN_EPOCH:
            return None
        needed = max(self._reached, self._reached_before, self._end_of_last())
        self._num_takes, self._reached_before, self._reached = 0, self._reached, 0
        if needed >= self.touched_end:
            return None
        unused = needed, self.touched_end
        self.touched_end = needed
        return unused

    @property
    def num_in_use(self) -> int:
        """How many blocks are taken."""
        return len(self._sizes)

    def _cut(self, index: int, size: int) -> None:
        if self._free_ends[index] - self._free_starts[index] == size:
            del self._free_starts[index], self._free_ends[index]
        else:
            self._free_starts[index] += size

    def _note(self, end: int) -> None:
        self._num_takes += 1
        self._reached = max(self._reached, end)
        self.touched_end = max(self.touched_end, end)

    def _end_of_last(self) -> int:
        last = max(self._sizes, default=0)
        return last + self._sizes.get(last, 0)
