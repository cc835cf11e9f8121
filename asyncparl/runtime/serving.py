"""Serving control requests over links: what a node and a master do alike.

A request that has to wait is a task; its answer, or what it raises, goes back. A request that streams gets an
`EventStream`, into which its owner puts events at any time; they leave as the peer grants credit.
"""

from __future__ import annotations

import os
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import trio

from asyncparl.errors import CallCancelled, ProtocolError
from asyncparl.protocol.control import MAX_CONTROL_BYTES, Answer, decode_request, encode_control
from asyncparl.protocol.events import CallArrived
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.messages import Call, CallKind
from asyncparl.protocol.values import NOTHING
from asyncparl.runtime.exceptions import describe_exception
from asyncparl.runtime.link import Link
from asyncparl.speaking import say
from asyncparl.transport.base import Channel


class EventStream:
    """Events for one peer, in order. What has not left waits here; its owner bounds it by `num_waiting`."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._call_id = 0
        self._events: deque[Answer] = deque()
        self._room = trio.Event()
        self.feeding = trio.CancelScope()
        """Cancelled when nobody takes the events any more; for a task that makes them."""

    def open(self, link: Link, call_id: int) -> None:
        """The peer asks for the events."""
        self._link, self._call_id = link, call_id
        self.flush()

    def close(self) -> None:
        """The peer does not take them any more."""
        self._link = None
        self.feeding.cancel()

    def send(self, event: Answer) -> None:
        """Send it, or keep it until the peer takes it."""
        self._events.append(event)
        self.flush()

    def flush(self) -> None:
        """Send what there is credit for."""
        while self._events and self._link is not None and self._link.has_credit(self._call_id):
            self._link.send_item(self._call_id, encode_control(self._events.popleft()))
        if not self._events:
            self._room.set()
            self._room = trio.Event()

    async def wait_sent(self) -> None:
        """Until nothing waits."""
        while self._events:
            await self._room.wait()

    def finish(self) -> None:
        """There will be no more events."""
        if self._link is not None:
            self._link.answer_returned(self._call_id, streamed=True)
            self._link = None

    @property
    def num_waiting(self) -> int:
        """Events that have not left."""
        return len(self._events)


class Peer:
    """Who is at the other end of a link that we serve. Node and master derive from it what they know of theirs."""

    def __init__(self, key_id: str = "", host: str = "") -> None:
        self.key_id = key_id
        """What it proved itself by."""
        self.host = host
        """Where it dialed from, if that was another machine."""
        self.link: Link
        self.streams: dict[int, EventStream] = {}
        self.requests: dict[int, trio.CancelScope] = {}

    def disconnect(self) -> None:
        """End its link."""
        self.link.disconnect()


AnswerRequest = Callable[[Any, Any], Answer | Coroutine[Any, Any, Answer | None] | None]
StartStream = Callable[[Any, Any], EventStream]


class RequestServer:
    """Serves links with the functions of its owner."""

    def __init__(
        self, name: str, nursery: trio.Nursery, answer: AnswerRequest, streams: Mapping[type, StartStream]
    ) -> None:
        self._name = name
        self._note = f"raised in the {name}"
        self._nursery = nursery
        self._answer = answer
        self._streams = streams
        self._peers: dict[Link, Peer] = {}

    async def serve(self, channel: Channel, peer: Peer) -> str:
        """Serve one link until it is lost; returns why. Its requests are cancelled then."""
        link = peer.link = Link(LinkCore(name=self._name, pid=os.getpid(), max_value_bytes=MAX_CONTROL_BYTES), self)
        self._peers[link] = peer
        try:
            link.attach(channel)
            return await link.run()
        except Exception:
            # Whatever one peer made go wrong is no reason to fail the others.
            say(traceback.format_exc())
            return "an error in serving it"
        finally:
            link.lose(lambda _: CallCancelled("the link was lost"))
            del self._peers[link]
            for scope in peer.requests.values():
                scope.cancel()
            for stream in peer.streams.values():
                stream.close()

    # --- told by the links ----------------------------------------------------------------------------------

    def link_opened(self, link: Link) -> None:
        """The peer has said who it is; what it may do was decided before."""

    def call_arrived(self, link: Link, arrived: CallArrived) -> None:
        """Something is asked."""
        if arrived.call.kind != CallKind.CONTROL:
            raise ProtocolError(f"a {self._name} serves control requests only")
        request = decode_request(arrived.frame.payload)
        peer, call_id = self._peers[link], arrived.call.call_id
        start_stream = self._streams.get(type(request))
        try:
            if start_stream is not None:
                peer.streams[call_id] = stream = start_stream(peer, request)
                stream.open(link, call_id)
                return
            answer = self._answer(peer, request)
        except Exception as error:
            link.answer_raised(call_id, describe_exception(error, note=self._note))
            return
        if isinstance(answer, Coroutine):
            peer.requests[call_id] = trio.CancelScope()
            self._nursery.start_soon(self._finish_request, peer, call_id, answer)
        else:
            link.answer_returned(call_id, NOTHING if answer is None else encode_control(answer))

    def cancel_arrived(self, link: Link, call_id: int) -> None:
        """The peer has lost interest."""
        peer = self._peers[link]
        if (scope := peer.requests.get(call_id)) is not None:
            scope.cancel()
        elif (stream := peer.streams.pop(call_id, None)) is not None:
            stream.close()
            link.answer_cancelled(call_id)

    def running(self, _call: Call) -> tuple[str, float]:
        """Requests are in nobody's way."""
        return "", 0.0

    def grant_arrived(self, link: Link, call_id: int) -> None:
        """The peer takes more events."""
        if (stream := self._peers[link].streams.get(call_id)) is not None:
            stream.flush()

    async def _finish_request(self, peer: Peer, call_id: int, pending: Coroutine[Any, Any, Answer | None]) -> None:
        link = peer.link
        with peer.requests[call_id] as scope:
            try:
                answer = await pending
                link.answer_returned(call_id, NOTHING if answer is None else encode_control(answer))
            except Exception as error:
                link.answer_raised(call_id, describe_exception(error, note=self._note))
        if scope.cancelled_caught and not link.is_lost:
            link.answer_cancelled(call_id)
        del peer.requests[call_id]
