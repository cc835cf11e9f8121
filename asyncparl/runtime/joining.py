"""A node as a member of its cluster: it joins, sends heartbeats, tells which leases run, and hears the master's orders.

Nothing of a node dies when its master does. It joins again, with the next incarnation number and all of its leases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from asyncparl.errors import ResourceError
from asyncparl.protocol.control import ALIVE_INTERVAL_S, SILENCE_LIMIT_S
from asyncparl.protocol.master_messages import (
    Heartbeat,
    JoinNode,
    LeaseEnded,
    LeaseStarted,
    LeaveNode,
    Order,
    WatchMaster,
)
from asyncparl.protocol.parties import NodeInfo
from asyncparl.protocol.resources import Lease
from asyncparl.runtime.link import Link
from asyncparl.runtime.master_link import MasterLink, ask, watch
from asyncparl.transport.base import Channel

_LEAVE_LIMIT_S = 2.0


class NodeAtMaster:
    """The node's side of its membership."""

    def __init__(
        self,
        info: NodeInfo,
        leases: Callable[[], list[Lease]],
        follow_order: Callable[[Order], Awaitable[None]],
        dial: Callable[[], Awaitable[Channel]],
        nursery: trio.Nursery,
    ) -> None:
        self._info = info
        self._leases = leases
        self._follow_order = follow_order
        self._nursery = nursery
        self._incarnation = 0
        self._is_leaving = False
        self._clock_offset = 0.0
        self._link = MasterLink("node", dial, self._join)
        self.name = info.name
        """As the cluster calls it."""
        self.joined = trio.Event()
        """Set by the first join."""

    async def run(self, *, once_within_s: float | None) -> None:
        """Be a member until cancelled. Raises as `MasterLink.run`."""
        await self._link.run(once_within_s=once_within_s)

    def tell(self, news: LeaseStarted | LeaseEnded | LeaveNode) -> None:
        """Tell the master; while it is away, the next join tells it all."""
        self._is_leaving = self._is_leaving or isinstance(news, LeaveNode)
        self._link.tell(news)

    async def leave(self) -> None:
        """Tell the master that nothing is left here, and wait for a moment until it knows."""
        if self._link.is_joined:
            with trio.move_on_after(_LEAVE_LIMIT_S):
                try:
                    await ask(await self._link.wait_joined(), LeaveNode(is_over=True))
                except ResourceError:
                    pass

    def cluster_time(self) -> float:
        """The master's clock, as far as known."""
        return trio.current_time() + self._clock_offset

    async def _join(self, link: Link) -> None:
        self._incarnation += 1
        told = {lease.actor_id: lease for lease in self._leases()}
        joined = await ask(link, JoinNode(self._info, self._incarnation, list(told.values()), self._is_leaving))
        # What began or ended meanwhile was told to nobody.
        running = {lease.actor_id: lease for lease in self._leases()}
        for actor_id, lease in told.items():
            if running.get(actor_id) != lease:
                ask(link, LeaseEnded(actor_id, lease.title.num_restarts))
        for actor_id, lease in running.items():
            if told.get(actor_id) != lease:
                ask(link, LeaseStarted(lease))
        self.name = joined.name
        self._set_clock(joined.cluster_time)
        self._nursery.start_soon(self._beat, link)
        self._nursery.start_soon(self._hear_orders, link)
        self.joined.set()

    async def _beat(self, link: Link) -> None:
        next_at, interval_s = trio.current_time(), ALIVE_INTERVAL_S
        while not link.is_lost:
            with trio.move_on_after(SILENCE_LIMIT_S) as patience:
                try:
                    beat = await ask(link, Heartbeat())
                except ResourceError:  # lost, or it does not know us any more
                    link.disconnect()
                    return
                self._set_clock(beat.cluster_time)
                interval_s = beat.interval_s
            if patience.cancelled_caught:
                link.disconnect()
                return
            next_at = max(next_at + interval_s, trio.current_time())  # not later because an answer was slow
            await trio.sleep_until(next_at)

    async def _hear_orders(self, link: Link) -> None:
        try:
            async for order in watch(link, WatchMaster()):
                self._nursery.start_soon(self._follow_order, order)
        except ResourceError:
            pass

    def _set_clock(self, cluster_time: float) -> None:
        self._clock_offset = cluster_time - trio.current_time()
