"""One process of an actor, with a session that a test plays: what happens on the way to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import trio
from trio.testing import MockClock

from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.master_messages import AskPlace
from asyncparl.protocol.node_messages import ActorStarted, StartActor, StopActor
from asyncparl.protocol.resources import Demand
from asyncparl.runtime.incarnation import Incarnation
from asyncparl.runtime.link import Link


@dataclass(eq=False)
class FakeNode:
    """Notes what it is asked."""

    asked: list[Any] = field(default_factory=list)

    async def request(self, request: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.asked.append(request)


class FakePlaces:
    """The first node has no room after all, and is lost while the actor looks for another one."""

    def __init__(self) -> None:
        self.nodes = [FakeNode(), FakeNode()]
        self.process: Any = None
        self.given_back: list[str] = []
        self._num_found = 0

    async def find(self, request: AskPlace) -> tuple[FakeNode, bytes]:
        await trio.lowlevel.checkpoint()
        self._num_found += 1
        return self.nodes[self._num_found - 1], b"lease"

    async def start_process(self, node: FakeNode, request: StartActor) -> ActorStarted | None:
        await trio.sleep(0.5)
        if node is self.nodes[0]:
            assert self.process.node is node
            self.process.node_lost("silent for 4.5 s")
            return None
        return ActorStarted("unix:///nowhere", 77)

    def give_back(self, actor_id: str) -> None:
        self.given_back.append(actor_id)


class FakeSession:
    """There is a way to no worker."""

    def __init__(self) -> None:
        self.places = FakePlaces()

    async def dial_worker(self, node: FakeNode, actor_id: str, started: ActorStarted) -> Any:
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError("nobody listens")


async def test_a_node_that_had_no_room_and_is_lost_then_is_not_the_end_of_the_process_elsewhere(
    autojump_clock: MockClock,
) -> None:
    session: Any = FakeSession()
    link = Link(LinkCore(name="driver"))
    process = session.places.process = Incarnation(session, AskPlace("a1", "A#1", Demand()), link)
    with trio.fail_after(60):
        report = await process.live(lambda: None)
    assert (process.pid, process.node) == (77, session.places.nodes[1])
    assert "nobody listens" in report.reason and "node is gone" not in report.reason
    first, second = session.places.nodes
    assert first.asked == [] and [type(request) for request in second.asked] == [StopActor]
