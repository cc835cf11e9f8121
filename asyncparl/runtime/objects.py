"""What of a process can be called by others: the actor itself, which is object 0, and what was exposed."""

from __future__ import annotations

import itertools

import trio

from asyncparl.errors import ActorDied, CallFate
from asyncparl.protocol.events import CallArrived
from asyncparl.protocol.messages import Call, CallKind
from asyncparl.runtime.exceptions import pack_exception
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.host import ActorHost
from asyncparl.runtime.link import Link

_MAX_OBJECTS = 1 << 32
_GONE = pack_exception(ActorDied("the object", "it is not exposed any more", fate=CallFate.NEVER_STARTED), note="")


class Objects:
    """The callee of every link of one process: finds the object that a call is for."""

    def __init__(self, process_id: str, num_restarts: int = 0) -> None:
        self.process_id = process_id
        """By which references name this process."""
        self._hosts: dict[int, ActorHost] = {}
        # An actor that is started again has its id still, so its objects must have others than those of the last time.
        self._next_id = itertools.count(num_restarts * _MAX_OBJECTS + 1)
        self._links: set[Link] = set()
        self._opened = trio.Event()

    def serve_actor(self, host: ActorHost) -> None:
        """Object 0."""
        self._hosts[0] = host

    def expose(self, host: ActorHost) -> int:
        """One more object; its number."""
        object_id = next(self._next_id)
        self._hosts[object_id] = host
        return object_id

    def withdraw(self, object_id: int) -> None:
        """It can be called no more; calls that run are answered."""
        self._hosts.pop(object_id, None)

    def link_lost(self, link: Link) -> None:
        """Nobody hears the answers of this link any more."""
        self._links.discard(link)
        for host in self._hosts.values():
            host.link_lost(link)

    def find_link(self, process_id: str) -> Link | None:
        """A link that joins us to that process, whoever dialed. From any thread."""
        for link in tuple(self._links):
            if link.core.peer is not None and link.core.peer.process_id == process_id and not link.is_lost:
                return link
        return None

    @property
    def is_receiving(self) -> bool:
        """Whether something large is on its way here."""
        return any(link.core.is_receiving for link in self._links)

    def thread_for(self, object_id: int, kind: int, name: str) -> Executor | None:
        """The thread that must be free for such a call to be answered, if it takes one. From any thread."""
        host = self._hosts.get(object_id)
        return None if host is None else host.thread_for(kind, name)

    async def wait_link(self, process_id: str) -> Link:
        """The same, as soon as there is one."""
        while (link := self.find_link(process_id)) is None:
            await self._opened.wait()
        return link

    # --- told by the links ----------------------------------------------------------------------------------

    def link_opened(self, link: Link) -> None:
        """The peer has said who it is."""
        self._links.add(link)
        self._opened.set()
        self._opened = trio.Event()

    def call_arrived(self, link: Link, arrived: CallArrived) -> None:
        """Something is called."""
        host = self._hosts.get(arrived.call.object_id)
        if host is not None:
            host.call_arrived(link, arrived)
        elif arrived.call.kind == CallKind.CLOSE:
            link.answer_returned(arrived.call.call_id)
        else:
            link.answer_raised(arrived.call.call_id, *_GONE)

    def running(self, call: Call) -> tuple[str, float]:
        """What keeps a call waiting that has not started: a method of its own object, else of another one here."""
        hosts = sorted(self._hosts.items(), key=lambda item: item[0] != call.object_id)
        return next((running for _, host in hosts if (running := host.running(call))[0]), ("", 0.0))

    def cancel_arrived(self, link: Link, call_id: int) -> None:
        """A call is not wanted any more. Whose it is its host knows."""
        for host in list(self._hosts.values()):
            host.cancel_arrived(link, call_id)

    def grant_arrived(self, link: Link, call_id: int) -> None:
        """A stream may go on."""
        for host in list(self._hosts.values()):
            host.grant_arrived(link, call_id)
