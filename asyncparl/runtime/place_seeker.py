"""How a program gets a place for an actor, and its process there: it asks, waits, and says what it waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from asyncparl.errors import AsyncparlError
from asyncparl.protocol.master_messages import AskPlace, ExplainWait, NodeTicket, Placed, WithdrawActor
from asyncparl.protocol.node_messages import ActorStarted, PlaceTaken, StartActor
from asyncparl.protocol.tickets import SignedLease
from asyncparl.runtime.master_link import MasterLink
from asyncparl.runtime.node_link import NodeLink
from asyncparl.speaking import say

_EXPLAIN_AFTER_S = 3.0
_REACH_LIMIT_S = 15.0
_ASK_AGAIN_S = 0.5
_PLACE_LASTS_S = 20.0
"""The master keeps a place that nobody has taken for a minute."""


class PlaceSeeker:
    """For all actors of a session.

    Args:
        node_at: gives the link to a node.
    """

    def __init__(self, master: MasterLink, node_at: Callable[[NodeTicket], NodeLink]) -> None:
        self._master = master
        self._node_at = node_at
        self._told: set[str] = set()
        """What processes wait for, all of those that a node starts: one actor tells it for the others."""

    async def find(self, request: AskPlace) -> tuple[NodeLink, SignedLease]:
        """Wait for a node that has room for an actor, and for the link to it.

        Raises:
            ResourceError: there is none, and there cannot be; or it cannot be reached.
            ValueError: the program cannot be sent there.
        """
        give_up_at = float("inf")
        while True:
            placed = await self._ask_and_explain(request, self._master.request, "the master")
            assert isinstance(placed, Placed)
            asked_at = trio.current_time()
            node = self._node_at(placed.ticket)
            try:
                await node.wait_ready()
            except Exception:
                self.give_back(request.actor_id)
                give_up_at = min(give_up_at, asked_at + _REACH_LIMIT_S)
                if not node.is_lost or trio.current_time() > give_up_at:
                    raise
                # The node went a moment ago, and the master will notice soon: another one may have room.
                await trio.sleep(_ASK_AGAIN_S)
                continue
            if trio.current_time() < asked_at + _PLACE_LASTS_S:
                return node, placed.lease
            # Sending the code took long; make sure that the place is still ours.

    async def start_process(self, node: NodeLink, request: StartActor) -> ActorStarted | None:
        """Have a node start the process of an actor; None if others took its place, so that it needs another one.

        Raises as `NodeLink.request`.
        """
        answer = await self._ask_and_explain(request, node.request, node.name)
        if isinstance(answer, PlaceTaken):
            self.give_back(request.actor_id)
            await trio.sleep(_ASK_AGAIN_S)  # the master may be about to hear of those others
            return None
        assert isinstance(answer, ActorStarted)
        return answer

    def give_back(self, actor_id: str) -> None:
        """Of an actor that may ask once more: what it was given and never took.

        Nobody waits for a master here, who may be silent. One that does not hear it keeps the place for a minute.
        """
        self._master.tell(WithdrawActor(actor_id, is_over=False))

    async def _ask_and_explain(
        self, request: AskPlace | StartActor, ask: Callable[[Any], Awaitable[Any]], whom: str
    ) -> Any:
        """The answer to a request that may have to wait; people are told what for."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._explain_wait, request, ask, whom)
            failure = None
            try:
                answer = await ask(request)
            except AsyncparlError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return answer

    async def _explain_wait(
        self, request: AskPlace | StartActor, ask: Callable[[Any], Awaitable[Any]], whom: str
    ) -> None:
        """Nobody should wonder why nothing happens."""
        said_silent = False
        while True:
            await trio.sleep(_EXPLAIN_AFTER_S)
            reason = ""
            with trio.move_on_after(_EXPLAIN_AFTER_S) as patience, contextlib.suppress(AsyncparlError):
                reason = (await ask(ExplainWait(request.actor_id))).reason
            if reason:
                self._say(request, reason)
                return
            if patience.cancelled_caught and not said_silent:
                said_silent = True
                self._say(request, f"{whom} does not answer")

    def _say(self, request: AskPlace | StartActor, reason: str) -> None:
        if isinstance(request, StartActor):
            if reason in self._told:
                return
            self._told.add(reason)
        say(f"asyncparl: {request.name} waits: {reason}\n")
