"""The way to a node: its socket file on this machine, else its port, else a relay at the master's port."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import trio

from asyncparl.errors import AuthenticationError, ResourceError
from asyncparl.machine import host_identity
from asyncparl.protocol.master_messages import AskTicket, NodeTicket, OpenRelay
from asyncparl.protocol.parties import Versions
from asyncparl.protocol.tickets import ticket_key_id
from asyncparl.runtime.lending import SHARED_BYTES
from asyncparl.runtime.link import MAX_MESSAGE_BYTES
from asyncparl.runtime.master_link import MasterLink
from asyncparl.transport import Credentials, DialRefused, Tunnel, dial
from asyncparl.transport.base import Channel

_DIRECT_LIMIT_S = 10.0
_RELAY_AFTER_S = 0.5
"""A firewall that swallows everything looks like a slow network at first; the relay is there for both."""
_DIRECT_AGAIN_S = 60.0
"""How long a relay is the way that is known; then somebody looks whether there is a shorter one by now."""
_LOOPBACK = ("tcp://127.", "tcp://[::1]", "tcp://localhost")


class _Race:
    """Several attempts, of which one is enough."""

    def __init__(self, known: str | None) -> None:
        self.known = known
        """The way that is known, as of `WayToNode`."""
        self.channel: Channel | None = None
        self.failure: OSError | AuthenticationError | None = None
        self.addresses_failed = trio.Event()
        self.may_relay = True

    def is_won(self) -> bool:
        """Whether there is a channel."""
        return self.channel is not None

    def win(self, channel: Channel) -> None:
        """The first one wins; another one that arrives in the same moment is closed."""
        if self.channel is None:
            self.channel = channel
        else:
            channel.close()


class WayToNode:
    """Dials one node, and remembers how it worked."""

    def __init__(
        self, ticket: NodeTicket, master: MasterLink, master_address: str, credentials: Credentials | None
    ) -> None:
        self._ticket = ticket
        self._master = master
        self._master_address = master_address
        self._credentials = credentials
        self._known: str | None = None
        """The address that worked, empty for the relay."""
        self._direct_again_at = 0.0
        self._silences: Counter[str] = Counter()
        """How often the relay answered before an address did: the others have their turn first."""
        self.is_local = ticket.node.host == host_identity() and self._socket_file() is not None

    @property
    def versions(self) -> Versions:
        """What the node runs."""
        return self._ticket.node.versions

    def renew(self, ticket: NodeTicket) -> None:
        """A newer ticket, for the same node."""
        self._ticket = ticket

    async def dial(self, route: str = "", *, encrypt: bool) -> Channel:
        """A new connection to the node, or with a route to one of its workers.

        Args:
            route: which worker.
            encrypt: whatever leaves this machine.

        Raises:
            AuthenticationError: the node does not take our ticket, not even a new one.
            OSError: the node cannot be reached by any way, or has nothing at this route.
        """
        try:
            return await self._dial(route, encrypt)
        except AuthenticationError:
            if not self._ticket.ticket:
                raise
        # Expired, or the node started anew since.
        self._ticket = await self._master.request(AskTicket(self._ticket.node.node_id))
        return await self._dial(route, encrypt)

    async def _dial(self, route: str, encrypt: bool) -> Channel:
        """By the way that is known; else by whichever answers first, the relay being asked a little later."""
        race = _Race(self._known_way())
        try:
            await self._run_race(race, route, encrypt)
        except BaseException:
            if race.channel is not None:  # given up in the moment of the answer
                race.channel.close()
            raise
        if race.channel is None:
            raise race.failure or OSError(f"{self._ticket.node.name} has no address that can be dialed")
        return race.channel

    async def _run_race(self, race: _Race, route: str, encrypt: bool) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._try_addresses, race, nursery.cancel_scope, route, encrypt)
            if self._credentials is not None:
                if race.known != "":
                    with trio.move_on_after(_RELAY_AFTER_S):
                        await race.addresses_failed.wait()
                    # What a node says for good, it says for the relay too.
                    race.may_relay = not isinstance(race.failure, (AuthenticationError, DialRefused))
                if race.may_relay and not self._known and not race.is_won():
                    await self._try_relay(race, route, encrypt)
                    if race.is_won():
                        nursery.cancel_scope.cancel()

    def _known_way(self) -> str | None:
        """One dial in a while does not know the relay. What goes through it by then stays there."""
        if self._known != "" or trio.current_time() < self._direct_again_at:
            return self._known
        self._direct_again_at = trio.current_time() + _DIRECT_AGAIN_S
        return None

    async def _try_addresses(self, race: _Race, scope: trio.CancelScope, route: str, encrypt: bool) -> None:
        for address in sorted(self._addresses(race.known), key=self._silences.__getitem__):
            try:
                channel = await self._dial_address(address, route, encrypt)
            except trio.Cancelled:
                self._silences[address] += 1
                raise
            except DialRefused as error:
                self._known = address
                race.failure = error
                break
            except (OSError, AuthenticationError) as error:
                race.failure = race.failure or error
            except ValueError as error:
                race.failure = race.failure or OSError(f"the node says that it is at {address!r}: {error}")
            else:
                self._known = address
                race.win(channel)
                scope.cancel()
                return
        race.addresses_failed.set()

    async def _try_relay(self, race: _Race, route: str, encrypt: bool) -> None:
        try:
            channel = await self._dial_relay(route, encrypt)
        except (OSError, AuthenticationError) as error:
            race.failure = race.failure or error
        else:
            if self._known is None:
                self._known, self._direct_again_at = "", trio.current_time() + _DIRECT_AGAIN_S
            race.win(channel)

    async def _dial_address(self, address: str, route: str, encrypt: bool) -> Channel:
        return await dial(
            address,
            credentials=self._ticket_credentials(),
            route=route,
            encrypt=encrypt and address.startswith("tcp:"),
            may_stall=bool(route),
            max_message_bytes=MAX_MESSAGE_BYTES,
            shared_bytes=SHARED_BYTES if route else 0,
            timeout_s=_DIRECT_LIMIT_S,
        )

    async def _dial_relay(self, route: str, encrypt: bool) -> Channel:
        try:
            relay = await self._master.request(OpenRelay(self._ticket.node.node_id, may_stall=bool(route)))
        except ResourceError as error:
            raise OSError(f"{self._ticket.node.name} cannot be reached: {error}") from error
        assert self._credentials is not None
        return await dial(
            f"tcp://{self._ticket.node.name}:1",  # a name for messages; the tunnel leads there
            credentials=self._ticket_credentials(),
            route=route,
            encrypt=encrypt,
            may_stall=bool(route),
            tunnel=Tunnel(self._master_address, self._credentials, relay.route),
            max_message_bytes=MAX_MESSAGE_BYTES,
        )

    def _addresses(self, known: str | None) -> Iterator[str]:
        if known == "":
            return
        if known is not None:
            yield known
            return
        if (path := self._socket_file()) is not None and self.is_local:
            yield path
        for address in self._ticket.node.addresses:
            if address.startswith("tcp:") and (self.is_local or not address.startswith(_LOOPBACK)):
                yield address

    def _socket_file(self) -> str | None:
        """The node's socket file, if this user may use it."""
        for address in self._ticket.node.addresses:
            path = address.removeprefix("ipc://")
            if path != address and os.access(path, os.W_OK):
                return address
        return None

    def _ticket_credentials(self) -> Credentials | None:
        if not self._ticket.ticket:
            return None
        return Credentials(ticket_key_id(self._ticket.ticket), self._ticket.key)
