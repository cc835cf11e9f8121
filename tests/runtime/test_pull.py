"""Objects that other programs offer: they come, serve and go; here between tasks of one program."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.lowlevel

import asyncparl


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCPARL_STATE", str(tmp_path / "state"))


class Agent:
    def __init__(self, name: str = "agent") -> None:
        self.name = name
        self.total = 0

    def add(self, n: int) -> int:
        self.total += n
        return self.total

    def thread(self) -> int:
        return threading.get_ident()

    async def double(self, values: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return 2 * values

    def count(self, n: int) -> Iterator[int]:
        yield from range(n)

    def fail(self) -> None:
        raise LookupError("nothing here")

    def leave(self) -> None:
        sys.exit(3)


async def test_an_offered_object_is_used_like_any_actor() -> None:
    async with asyncparl.RemoteManager("127.0.0.1:0") as manager, trio.open_nursery() as nursery:
        nursery.start_soon(asyncparl.as_remote, Agent("first"), manager.address)
        agent = await manager.get_remote()
        assert [await agent.add(2), await agent.add(3)] == [2, 5]
        assert await agent.name == "first"
        assert (await agent.double(np.arange(3))).tolist() == [0, 2, 4]
        assert [n async for n in agent.count(4)] == [0, 1, 2, 3]
        with pytest.raises(LookupError, match="nothing here"):
            await agent.fail()
        assert "Agent#1" in repr(agent)
        threads = {await agent.thread(), await agent.thread()}
        assert len(threads) == 1
        assert threading.get_ident() not in threads
        await asyncparl.close(agent)
        with pytest.raises(asyncparl.ActorDied, match="let go; the call was never started"):
            await agent.add(1)


async def test_objects_are_taken_in_the_order_of_arrival_and_the_end_lets_them_go() -> None:
    returned: list[str] = []

    async def offer(name: str, address: str) -> None:
        await asyncparl.as_remote(Agent(name), address)
        returned.append(name)

    async with trio.open_nursery() as nursery, asyncparl.RemoteManager("127.0.0.1:0") as manager:
        names = []
        for name in ("a", "b", "c"):
            nursery.start_soon(offer, name, manager.address)
            names.append(await (await anext(manager)).name)
        assert names == ["a", "b", "c"]
    assert sorted(returned) == ["a", "b", "c"]


async def test_an_object_that_is_withdrawn_fails_its_calls_and_is_not_handed_out() -> None:
    async with asyncparl.RemoteManager("127.0.0.1:0") as manager, trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as offers:
                offers.start_soon(asyncparl.as_remote, Agent("gone"), manager.address)
                gone = await manager.get_remote()
                assert await gone.name == "gone"
                scope.cancel()
        with pytest.raises(asyncparl.ActorDied, match="Agent#1 died"):
            await gone.add(1)
        nursery.start_soon(asyncparl.as_remote, Agent("stays"), manager.address)
        agent = await manager.get_remote()
        assert await agent.name == "stays"
        await asyncparl.kill(agent)


async def test_a_manager_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    async with asyncparl.RemoteManager("127.0.0.1:0") as manager:
        address = manager.address  # free again in a moment
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(asyncparl.as_remote, Agent(), address, secret_file=str(secret)))
        await trio.sleep(0.1)
        with trio.fail_after(10):
            async with asyncparl.RemoteManager(address, secret_file=str(secret)) as manager:
                assert await (await manager.get_remote()).add(1) == 1


async def test_another_secret_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("ab" * 32)
    other.chmod(0o600)
    async with asyncparl.RemoteManager("127.0.0.1:0") as manager:
        with trio.fail_after(5), pytest.raises(asyncparl.AuthenticationError):
            await asyncparl.as_remote(Agent(), manager.address, secret_file=str(other))


async def test_what_is_no_manager_says_so() -> None:
    with pytest.raises(ValueError, match="'nowhere' is no address"):
        await asyncparl.as_remote(Agent(), "nowhere")
    async with asyncparl.RemoteManager("127.0.0.1:0") as manager:
        with pytest.raises(asyncparl.ResourceError, match="takes objects of `as_remote` only"):
            async with asyncparl.connect(manager.address):
                pass


async def test_a_method_that_exits_ends_the_offer() -> None:
    async with asyncparl.RemoteManager("127.0.0.1:0") as manager:
        with pytest.raises(BaseExceptionGroup) as raised:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(asyncparl.as_remote, Agent(), manager.address)
                agent = await manager.get_remote()
                with pytest.raises(asyncparl.ActorDied):
                    await agent.leave()
        assert raised.value.subgroup(lambda error: isinstance(error, SystemExit) and error.code == 3)


async def test_the_link_can_be_encrypted() -> None:
    async with asyncparl.RemoteManager("127.0.0.1:0") as manager, trio.open_nursery() as nursery:
        nursery.start_soon(partial(asyncparl.as_remote, Agent(), manager.address, encrypt=True))
        agent = await manager.get_remote()
        assert (await agent.double(np.ones(1_000_000))).sum() == 2_000_000
        await asyncparl.close(agent)
