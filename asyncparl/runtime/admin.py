"""Looking at a cluster, and stopping it: what `asyncparl status`, `actors`, `logs` and `stop` do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import trio

from asyncparl.errors import AsyncparlError, ResourceError
from asyncparl.ids import new_driver_id, new_token
from asyncparl.protocol.control import MAX_CONTROL_BYTES
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.master_messages import (
    AskTicket,
    DescribeCluster,
    DescribedCluster,
    JoinDriver,
    LeaveDriver,
    StopCluster,
)
from asyncparl.protocol.node_messages import ListLogs, LogInfo, ReadLog
from asyncparl.runtime.link import Link
from asyncparl.runtime.master_link import MasterLink, ask, no_master, watch
from asyncparl.runtime.state import Role, find_secret
from asyncparl.runtime.versions import our_versions
from asyncparl.runtime.ways import WayToNode
from asyncparl.transport import Channel, Credentials, dial
from asyncparl.transport.addresses import TcpAddress

_LOG_CREDIT = 16


class Admin:
    """A connection to a master that runs no program."""

    def __init__(self, address: TcpAddress, role: Role, secret_file: str | None) -> None:
        self._address = address
        self._credentials = Credentials(role, find_secret(role, address.port, secret_file=secret_file))
        self._link: Link | None = None

    async def dial(self) -> Channel:
        """Connect.

        Raises:
            ResourceError: nobody answers there.
            AuthenticationError: the secret is wrong.
        """
        try:
            return await dial(str(self._address), credentials=self._credentials, encrypt=True)
        except OSError as error:
            raise no_master(str(self._address), error) from error

    async def describe(self) -> DescribedCluster:
        """All there is to see."""
        return await self._ask(DescribeCluster())  # type: ignore[no-any-return]

    async def stop_cluster(self) -> None:
        """End every node, then the master."""
        await self._ask(StopCluster())

    async def _ask(self, request: Any) -> Any:
        async with _served(await self.dial()) as link:
            return await ask(link, request)

    @contextlib.asynccontextmanager
    async def nodes(self) -> AsyncIterator[list[NodeLogs]]:
        """Links to all nodes that can be reached, for their logs."""
        view = (await self.describe()).view
        async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as stack:
            master = MasterLink("logs", self.dial, _join)
            nursery.start_soon(master.run)
            await master.wait_joined()
            nodes = []
            for node in view.nodes:
                with contextlib.suppress(OSError, AsyncparlError):
                    ticket = await master.request(AskTicket(node.node_id))
                    way = WayToNode(ticket, master, str(self._address), self._credentials)
                    link = await stack.enter_async_context(_served(await way.dial(encrypt=True)))
                    nodes.append(NodeLogs(node.name, link))
            yield nodes
            master.tell(LeaveDriver())
            nursery.cancel_scope.cancel()


class NodeLogs:
    """The logs of one node."""

    def __init__(self, name: str, link: Link) -> None:
        self.name = name
        self._link = link

    async def infos(self) -> list[LogInfo]:
        """All of them, oldest first."""
        return (await ask(self._link, ListLogs())).logs  # type: ignore[no-any-return]

    async def read(self, actor_id: str, num_lines: int, *, follow: bool) -> AsyncIterator[str]:
        """The last lines, and what is added."""
        async for chunk in watch(self._link, ReadLog(actor_id, num_lines, follow), credit=_LOG_CREDIT):
            for line in chunk.lines:
                yield line


async def _join(link: Link) -> None:
    await ask(link, JoinDriver(new_driver_id(), "asyncparl logs", our_versions(), new_token()))


@contextlib.asynccontextmanager
async def _served(channel: Channel) -> AsyncIterator[Link]:
    """A link over the channel, for as long as the block runs."""
    link = Link(LinkCore(name="admin", pid=os.getpid(), max_value_bytes=MAX_CONTROL_BYTES))
    link.attach(channel)
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            why = await link.run()
            link.lose(lambda _: ResourceError(f"the cluster has gone: {why}"))

        nursery.start_soon(run)
        try:
            yield link
        except BaseException as caught:
            error = caught
        link.disconnect()
        nursery.cancel_scope.cancel()
    link.lose(lambda _: ResourceError("the link was closed"))
    if error is not None:
        raise error
