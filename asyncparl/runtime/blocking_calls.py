"""Waiting for several calls in a thread without an event loop: `gather` and `as_completed` without `async`."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from typing import TypeVar

from asyncparl.runtime.call import Call, check_thread, checked_calls
from asyncparl.runtime.pending import deadline_after, seconds_until

T = TypeVar("T")


def gather(calls: Iterable[Call[T]], timeout: float | None = None) -> list[T]:
    """The results of all calls, in order.

    The first call to fail cancels the rest, and its exception is raised as it is. So do the end of `timeout` seconds
    (TimeoutError) and Ctrl-C.

    Raises:
        TypeError, ValueError: these are no calls, or `timeout` is no number; nothing is cancelled.
    """
    calls = checked_calls(calls)
    ended = as_completed(calls, timeout)
    try:
        for call in ended:
            call.result()
        return [call.result() for call in calls]
    except BaseException:
        for call in calls:
            call.cancel()
        raise


def as_completed(calls: Iterable[Call[T]], timeout: float | None = None) -> Iterator[Call[T]]:
    """Iterate over the calls as they end, whether well or not: `for call in as_completed(calls): call.result()`.

    Leaving the loop early cancels nothing.

    Raises:
        TimeoutError: in the loop, `timeout` seconds after this was called.
    """
    check_thread("as_completed()", "`async for call in asyncparl.as_completed(...)`")
    return _as_completed(checked_calls(calls), deadline_after(timeout))


def _as_completed(calls: list[Call[T]], deadline: float | None) -> Iterator[Call[T]]:
    news: queue.SimpleQueue[int] = queue.SimpleQueue()
    gates = [_Gate(news, index) for index in range(len(calls))]
    left = set(range(len(calls)))
    try:
        for index, call in enumerate(calls):
            if not call._pending.add_gate(gates[index]):
                news.put(index)
            call._pending.check_answerer()
        while left:
            try:
                index = news.get(timeout=None if deadline is None else seconds_until(deadline))
            except queue.Empty:
                raise TimeoutError(f"{len(left)} of {len(calls)} calls have not ended in time") from None
            if index in left:  # it may be told twice
                left.remove(index)
                yield calls[index]
    finally:
        for index, call in enumerate(calls):
            call._pending.remove_gate(gates[index])


class _Gate:
    """Puts the number of a call into a queue."""

    __slots__ = ("_index", "_news")

    def __init__(self, news: queue.SimpleQueue[int], index: int) -> None:
        self._news = news
        self._index = index

    def release(self) -> None:
        """There is news of the call."""
        self._news.put(self._index)
