"""Looks at a cluster as often as somebody wants to see it, and tells those who watch.

Nobody watches: the master is asked for its news every 10 s, so that curves of runs have a past; nodes and actors are
left alone. Somebody watches: everything is looked at about once a second, less often where that takes long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import trio

from asyncparl.monitor.observer import Observer
from asyncparl.monitor.picture import Picture
from asyncparl.monitor.source import Source

MAX_WATCHERS = 64
TOO_MANY = "too many pages are open; close some"
_INTERVAL_S = 1.0
_SLOWEST_S = 15.0
_UNWATCHED_S = 10.0
_REST_AFTER_S = 30.0
_SHARE = 0.1
"""Of the time, that looking may take."""


class TooManyWatchers(Exception):
    """There are `MAX_WATCHERS` of them already."""


class Watch:
    """`run` must be running."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.observer = Observer(source.address, source.own_id)
        self.num_watchers = 0
        self._changed = trio.Event()
        self._wanted = trio.Event()
        self._looking = trio.Lock()
        self._looked_at = float("-inf")
        """When everything was looked at last."""
        self._look_s = 0.0
        self._is_resting = True

    @property
    def picture(self) -> Picture:
        """The last one."""
        return self.observer.picture

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await self._look(closely=self.num_watchers > 0)
            pause_s = min(max(_INTERVAL_S, self._look_s / _SHARE), _SLOWEST_S) if self.num_watchers else _UNWATCHED_S
            with trio.move_on_after(pause_s):
                await self._wanted.wait()
            if not self.num_watchers and trio.current_time() > self._looked_at + _REST_AFTER_S:
                await self._rest()

    async def look(self, *, no_older_than_s: float) -> Picture:
        """Everything, once, for somebody who does not stay: a scrape, a command."""
        if trio.current_time() - self._looked_at > no_older_than_s:
            await self._look(closely=True)
        return self.picture

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Somebody watches, for as long as the block runs.

        Raises:
            TooManyWatchers: now is not the time.
        """
        if self.num_watchers >= MAX_WATCHERS:
            raise TooManyWatchers
        self.num_watchers += 1
        if self.num_watchers == 1:
            self._wanted.set()
            self._wanted = trio.Event()
        try:
            yield
        finally:
            self.num_watchers -= 1

    async def wait_newer(self, number: int) -> Picture:
        """The picture, once there is a newer one than that."""
        while self.picture.number <= number:
            await self._changed.wait()
        return self.picture

    async def _look(self, *, closely: bool) -> None:
        async with self._looking:
            began = trio.current_time()
            self._is_resting = self._is_resting and not closely
            sight = await self.source.look(closely=closely)
            began_to_think = time.perf_counter()
            self.observer.observe(sight, now=trio.current_time(), wall_time=time.time())
            if closely:
                # What others take to answer costs us nothing; but asking those who are slow more often does not help.
                self._look_s = time.perf_counter() - began_to_think + 0.2 * (trio.current_time() - began)
                self._looked_at = trio.current_time()
        self._changed.set()
        self._changed = trio.Event()

    async def _rest(self) -> None:
        if not self._is_resting:
            self._is_resting = True
            await self.source.rest()
