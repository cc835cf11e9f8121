"""A cluster as its master and its nodes tell of it, over the links that every driver has.

The link to the master is held as long as the monitor runs. Those to the nodes are made when somebody looks closely, and
closed when nobody has for a while.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import trio

from asyncparl.errors import AsyncparlError, ResourceError
from asyncparl.ids import new_driver_id, new_token
from asyncparl.monitor.source import Sight
from asyncparl.protocol.cluster_view import ClusterView, NodeSummary
from asyncparl.protocol.control import MAX_CONTROL_BYTES
from asyncparl.protocol.figures import News, NodeFigures, ReadDeath, ReadFigures, ReadNews
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.master_messages import AskTicket, DescribeCluster, JoinDriver, LeaveDriver
from asyncparl.protocol.node_messages import ActorExited, ReadLog
from asyncparl.runtime.link import MAX_MESSAGE_BYTES, Link
from asyncparl.runtime.master_link import MasterLink, ask, no_master, watch
from asyncparl.runtime.versions import our_versions
from asyncparl.runtime.ways import WayToNode
from asyncparl.transport import Channel, Credentials, dial

_PATIENCE_S = 3.0
"""For an answer of somebody who is there."""
_DIAL_LIMIT_S = 8.0
_DIAL_AGAIN_S = 10.0
_MAX_DIALS = 32
_LOG_CREDIT = 16


class _NodeLink:
    """The link to one node."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.link: Link | None = None
        self.fault = "it is being dialed"
        self.dialed = trio.Event()
        """Whether that went well or not."""
        self.is_held = False
        """A task dials it, or serves its link."""
        self.dial_again_at = 0.0
        self.last_happening = 0


class ClusterSource:
    """See the top of this file. `run` must be running; it ends with `close`.

    Args:
        address: of the master, as `dial` takes it.
        credentials: the secret of drivers; None in a private cluster.
        name: under which the cluster knows us.
    """

    def __init__(self, address: str, credentials: Credentials | None, *, name: str = "monitor") -> None:
        self.address = address.removeprefix("tcp://") if credentials is not None else "a private cluster"
        self._master_address = address
        self._credentials = credentials
        self._name = f"{name} (pid {os.getpid()})"
        self.own_id = new_driver_id()
        self._token = new_token()
        self._master = MasterLink("monitor", self._dial_master, self._join)
        self._nursery: trio.Nursery | None = None
        self._nodes: dict[str, _NodeLink] = {}
        self._dials = trio.CapacityLimiter(_MAX_DIALS)
        self._cluster_id = ""
        self._last_happening = 0

    async def run(self, *, join_within_s: float | None = None) -> None:
        """Hold the link to the master until cancelled, for as long as it takes.

        Raises:
            AuthenticationError: the secret is wrong.
            ResourceError: the master does not take us, or cannot be reached within `join_within_s`.
        """
        failure: Exception | None = None
        async with trio.open_nursery() as self._nursery:
            try:
                await self._master.run(once_within_s=join_within_s)
            except AsyncparlError as error:
                failure = error  # raised outside, so that it comes in no group
            except OSError as error:
                failure = no_master(self._master_address, error)
            self._nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def wait_joined(self) -> None:
        """Until the master has taken us in."""
        await self._master.wait_joined()

    # --- Source ---------------------------------------------------------------------------------------------

    async def look(self, *, closely: bool) -> Sight:
        """See `Source`."""
        try:
            news: News = await self._ask_master(ReadNews(self._last_happening))
            if news.cluster_id != self._cluster_id:  # another master, which counts from 1
                news = news if not self._cluster_id else await self._ask_master(ReadNews(0))
                self._cluster_id, self._last_happening = news.cluster_id, 0
            view: ClusterView | None = (await self._ask_master(DescribeCluster())).view if closely else None
        except AsyncparlError as error:
            return Sight(fault=f"the master of {self.address} does not answer: {error}")
        if news.happenings:
            self._last_happening = news.happenings[-1].number
        nodes = {} if view is None else await self._look_at_nodes(view)
        return Sight(view=view, nodes=nodes, news=news)

    @contextlib.asynccontextmanager
    async def read_log(
        self, node_id: str, actor_id: str, num_lines: int, *, follow: bool
    ) -> AsyncIterator[AsyncIterator[list[str]]]:
        """See `Source`."""
        call = watch(await self._link_to(node_id), ReadLog(actor_id, num_lines, follow), credit=_LOG_CREDIT)

        async def chunks() -> AsyncIterator[list[str]]:
            async for chunk in call:
                yield chunk.lines

        async with contextlib.aclosing(call):
            yield chunks()

    async def read_death(self, node_id: str, actor_id: str) -> ActorExited | None:
        """See `Source`."""
        with trio.move_on_after(_PATIENCE_S), contextlib.suppress(AsyncparlError):
            death: ActorExited = await ask(await self._link_to(node_id), ReadDeath(actor_id))
            return death
        return None

    async def rest(self) -> None:
        """See `Source`."""
        for node in self._nodes.values():
            if node.link is not None:
                node.link.disconnect()
        self._nodes.clear()

    async def close(self) -> None:
        """Leave the cluster."""
        await self.rest()
        self._master.tell(LeaveDriver())

    # --- the master -----------------------------------------------------------------------------------------

    async def _dial_master(self) -> Channel:
        encrypt = self._master_address.startswith("tcp:")
        return await dial(
            self._master_address, credentials=self._credentials, encrypt=encrypt, max_message_bytes=MAX_MESSAGE_BYTES
        )

    async def _join(self, link: Link) -> None:
        await ask(link, JoinDriver(self.own_id, self._name, our_versions(), self._token))

    async def _ask_master(self, request: Any) -> Any:
        with trio.move_on_after(_PATIENCE_S):
            return await self._master.request(request, limit_s=_PATIENCE_S / 2)
        raise ResourceError(f"it has been silent for {_PATIENCE_S:g} s")

    # --- the nodes ------------------------------------------------------------------------------------------

    async def _look_at_nodes(self, view: ClusterView) -> dict[str, NodeFigures | str]:
        present = {node.node_id: node for node in view.nodes}
        for node_id in self._nodes.keys() - present.keys():
            if (link := self._nodes.pop(node_id).link) is not None:
                link.disconnect()
        seen: dict[str, NodeFigures | str] = {}
        async with trio.open_nursery() as nursery:
            for node_id, summary in present.items():
                nursery.start_soon(self._look_at_node, node_id, summary, seen)
        return seen

    async def _look_at_node(self, node_id: str, summary: NodeSummary, seen: dict[str, NodeFigures | str]) -> None:
        link = await self._wait_dialed(node := self._node(node_id, summary.name))
        if link is None:
            seen[node_id] = f"{summary.name} cannot be asked: {node.fault}"
            return
        seen[node_id] = f"{summary.name} has been silent for {_PATIENCE_S:g} s"
        with trio.move_on_after(_PATIENCE_S):
            try:
                figures: NodeFigures = await ask(link, ReadFigures(node.last_happening))
            except AsyncparlError as error:
                seen[node_id] = f"{summary.name} cannot be asked: {error}"
                return
            if figures.happenings:
                node.last_happening = figures.happenings[-1].number
            seen[node_id] = figures

    def _node(self, node_id: str, name: str) -> _NodeLink:
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = _NodeLink(name)
        if not node.is_held and trio.current_time() >= node.dial_again_at:
            assert self._nursery is not None, "`run` comes first"
            node.is_held, node.dialed = True, trio.Event()
            self._nursery.start_soon(self._hold_link, node_id, node)
        return node

    async def _wait_dialed(self, node: _NodeLink) -> Link | None:
        """For a moment: a page that was just opened shall not be empty, nor wait for a node that hangs."""
        with trio.move_on_after(_PATIENCE_S / 2):
            await node.dialed.wait()
        return node.link

    async def _hold_link(self, node_id: str, node: _NodeLink) -> None:
        """Dial a node and serve the link until it is lost; a later look dials again."""
        try:
            async with self._dials:
                node.fault = f"it cannot be reached within {_DIAL_LIMIT_S:g} s"
                with trio.move_on_after(_DIAL_LIMIT_S):
                    node.link = await self._dial_node(node_id)
            node.dialed.set()
            if node.link is not None:
                node.fault = await node.link.run()
        except (OSError, AsyncparlError) as error:
            node.fault = str(error)
        finally:
            node.dialed.set()
            if node.link is not None:
                node.link.lose(lambda _: ResourceError(node.fault))
            node.link, node.is_held = None, False
            node.dial_again_at = trio.current_time() + _DIAL_AGAIN_S

    async def _dial_node(self, node_id: str) -> Link:
        ticket = await self._master.request(AskTicket(node_id), limit_s=_PATIENCE_S)
        way = WayToNode(ticket, self._master, self._master_address, self._credentials)
        channel = await way.dial(encrypt=True)
        link = Link(LinkCore(name="monitor", pid=os.getpid(), max_value_bytes=MAX_CONTROL_BYTES))
        link.attach(channel)
        return link

    async def _link_to(self, node_id: str) -> Link:
        link = await self._wait_dialed(node := self._node(node_id, node_id))
        if link is None:
            raise ResourceError(f"the node of this actor cannot be reached: {node.fault}")
        return link


@contextlib.asynccontextmanager
async def open_source(
    address: str, credentials: Credentials | None, *, name: str = "monitor", join_within_s: float | None = None
) -> AsyncIterator[ClusterSource]:
    """A source, for as long as the block runs. It joins when it can.

    Raises:
        AuthenticationError, ResourceError: as `ClusterSource.run`.
    """
    source = ClusterSource(address, credentials, name=name)
    failures: list[Exception] = []
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run, partial(source.run, join_within_s=join_within_s), failures, nursery.cancel_scope)
        try:
            yield source
            await source.close()
        except BaseException as caught:
            error = caught
        nursery.cancel_scope.cancel()
    # Out here, so that it comes in no group.
    if failures:
        raise failures[0]
    if error is not None:
        raise error


async def _run(run: Any, failures: list[Exception], scope: trio.CancelScope) -> None:
    try:
        await run()
    except AsyncparlError as error:
        failures.append(error)
        scope.cancel()
