"""Places for actors: what the core grants is signed here, and told to the driver that asked, now or when it is time.

With a place comes a ticket for its node. Both are made with the secret of nodes, which drivers do not have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import trio

from asyncparl.errors import ResourceError
from asyncparl.protocol.cluster import ClusterCore
from asyncparl.protocol.decisions import Ended, Found, Granted, Refused, StillHeld, Waiting
from asyncparl.protocol.leases import START_LIMIT_S
from asyncparl.protocol.master_messages import AskPlace, NamedActor, NodeTicket, Placed
from asyncparl.protocol.tickets import Ticket, encode_ticket, sign_lease, ticket_key

TICKET_LIFE_S = 600.0
_UNKNOWN_LIMIT_S = 6.0
"""Longer than a node takes to join again."""
_UNKNOWN_NAME_LIMIT_S = 0.5
"""Longer than a request takes to come here. Whoever makes an actor because there is none of a name waits for it."""
LEASE_LIFE_S = START_LIMIT_S - 5.0
"""Shorter, because a node learns the time late, and the master of a start: nobody else may have the place by then."""


@dataclass(slots=True, eq=False)
class _Asking:
    """An actor whose driver waits to hear where it may run."""

    decided: trio.Event = field(default_factory=trio.Event)
    decision: Granted | Refused | None = None
    num_waiting: int = 0


class Places:
    """Those who asked for a place. `node_secret` is empty in a private cluster; nodes know the `cluster_time` too."""

    def __init__(self, core: ClusterCore, node_secret: bytes, cluster_time: Callable[[], float]) -> None:
        self._core = core
        self._actors = core.actors
        self._node_secret = node_secret
        self._cluster_time = cluster_time
        self._asking: dict[str, _Asking] = {}
        self._changed = trio.Event()
        self._settled_at = trio.current_time() + (_UNKNOWN_LIMIT_S if node_secret else 0.0)
        """By then the nodes that an earlier master had have joined. A private cluster has no second master."""

    def ask(self, driver_id: str, request: AskPlace) -> Placed | Coroutine[Any, Any, Placed]:
        """A place, or the wait for it. Others may get theirs by the way.

        Raises:
            ResourceError: there can never be one.
        """
        decision = self._ask_core(driver_id, request)
        if isinstance(decision, StillHeld):
            return self._ask_later(driver_id, request)
        return self._answer(driver_id, request, decision)

    def _answer(
        self, driver_id: str, request: AskPlace, decision: Granted | Waiting | Refused
    ) -> Placed | Coroutine[Any, Any, Placed]:
        if isinstance(decision, Waiting):
            asking = self._asking.setdefault(request.actor_id, _Asking())
            self.hand_out()
            return self._wait(driver_id, request.actor_id, asking)
        self.hand_out()
        return self._placed(driver_id, decision)

    def ticket(self, driver_id: str, node_id: str) -> NodeTicket:
        """How a driver reaches a node.

        Raises:
            ResourceError: there is no such node.
        """
        info = self._core.node_info(node_id)
        if info is None:
            raise ResourceError(f"node {node_id} is not in the cluster")
        if not self._node_secret:
            return NodeTicket(info, b"", b"")
        ticket = encode_ticket(Ticket(driver_id, node_id, self._cluster_time() + TICKET_LIFE_S, os.urandom(16)))
        return NodeTicket(info, ticket, ticket_key(self._node_secret, ticket))

    async def find(self, driver_id: str, actor_id: str) -> NodeTicket:
        """How a driver reaches the node of an actor, once the actor runs.

        Raises:
            ResourceError: the actor has ended, or nobody knows it.
        """
        give_up_at = trio.current_time() + _UNKNOWN_LIMIT_S
        while True:
            match self._actors.find(actor_id):
                case Found(node_id):
                    return self.ticket(driver_id, node_id)
                case Ended(reason):
                    raise ResourceError(reason)
            if self._actors.is_known(actor_id):
                await self._changed.wait()
                continue
            # Its owner may be about to ask for a place, or its node about to join us again.
            with trio.move_on_at(give_up_at) as patience:
                await self._changed.wait()
            if patience.cancelled_caught:
                raise ResourceError("no such actor is in the cluster")

    async def find_named(self, driver_id: str, name: str) -> NamedActor | None:
        """The actor of this name; None if nobody has made one.

        Who has made it may have told others before us: those are not to be told that there is none. And the node of a
        detached one may not have joined yet, if we are a new master.
        """
        with trio.move_on_at(max(trio.current_time() + _UNKNOWN_NAME_LIMIT_S, self._settled_at)):
            while (found := self._actors.find_named(name, driver_id)) is None:
                await self._changed.wait()
        return None if found is None else NamedActor(*found)

    def hand_out(self) -> None:
        """Tell those whose turn it is. For after anything that may have freed something."""
        self._changed.set()
        self._changed = trio.Event()
        for decision in self._actors.take_grants(trio.current_time()):
            self._decide(decision.lease.actor_id, decision)

    def refuse(self, actor_id: str, reason: str) -> None:
        """It will never get one."""
        self._decide(actor_id, Refused(reason))

    def give_back(self, actor_id: str) -> None:
        """Its owner does not take what it was given, and may ask for it once more."""
        self._actors.give_back(actor_id)
        self.hand_out()

    def withdraw(self, actor_id: str) -> None:
        """It is not wanted any more."""
        self._actors.withdraw(actor_id)
        self.refuse(actor_id, "it was withdrawn")
        self.hand_out()

    def kill(self, actor_id: str) -> None:
        """Somebody else than its owner has ended it."""
        self._actors.kill(actor_id)
        self.refuse(actor_id, "it was killed")
        self.hand_out()

    async def wait_ended(self, actor_id: str) -> None:
        """Until its node says that it has ended, or is lost."""
        while self._actors.node_of(actor_id) is not None:
            await self._changed.wait()

    async def _ask_later(self, driver_id: str, request: AskPlace) -> Placed:
        """Once nothing of the actor can run any more: its node says so, or is lost."""
        while isinstance(decision := self._ask_core(driver_id, request), StillHeld):
            await self._changed.wait()
        answer = self._answer(driver_id, request, decision)
        return answer if isinstance(answer, Placed) else await answer

    def _ask_core(self, driver_id: str, request: AskPlace) -> Granted | Waiting | StillHeld | Refused:
        now = trio.current_time()
        return self._actors.ask(driver_id, request.actor_id, request.name, request.demand, now, request.title)

    async def _wait(self, driver_id: str, actor_id: str, asking: _Asking) -> Placed:
        asking.num_waiting += 1
        try:
            await asking.decided.wait()
        finally:
            asking.num_waiting -= 1
            if not asking.num_waiting and self._asking.get(actor_id) is asking:
                del self._asking[actor_id]
        assert asking.decision is not None
        return self._placed(driver_id, asking.decision)

    def _placed(self, driver_id: str, decision: Granted | Refused) -> Placed:
        if isinstance(decision, Refused):
            raise ResourceError(decision.reason)
        lease = decision.lease
        signed = sign_lease(self._node_secret, lease, self._cluster_time() + LEASE_LIFE_S)
        return Placed(signed, self.ticket(driver_id, lease.node_id))

    def _decide(self, actor_id: str, decision: Granted | Refused) -> None:
        if (asking := self._asking.pop(actor_id, None)) is not None:
            asking.decision = decision
            asking.decided.set()
