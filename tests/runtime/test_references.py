"""Proxies that travel: as arguments and results, to actors and back; exposed objects; names; actors of actors."""

from __future__ import annotations

import os
import pickle
import threading
from typing import Any

import pytest
import trio
import trio.lowlevel

import asyncparl
from asyncparl.protocol.messages import CallKind
from tests.proc import Process


@asyncparl.remote_class(max_concurrency=8)
class Store:
    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}

    def put(self, key: Any, value: Any) -> int:
        self.values[key] = value
        return len(self.values)

    def get(self, key: Any) -> Any:
        return self.values[key]

    def __getitem__(self, key: Any) -> Any:
        return self.values[key]

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return args, kwargs

    def me(self) -> Any:
        return asyncparl.current_actor()

    def pid(self) -> int:
        return os.getpid()

    def say(self, text: str) -> int:
        print(text, flush=True)
        return os.getpid()

    def exit(self) -> None:
        os._exit(3)

    def numbers(self, n: int) -> Any:
        yield from range(n)


@asyncparl.remote_class(max_concurrency=8)
class User:
    """An actor that uses others."""

    async def put(self, store: Any, key: Any, value: Any) -> int:
        return int(await store.put(key, value))

    async def put_many(self, store: Any, values: list[Any]) -> list[int]:
        return await asyncparl.gather([store.put(n, value) for n, value in enumerate(values)])

    async def call_all(self, stores: dict[str, Any]) -> dict[str, int]:
        return {name: await store.pid() for name, store in stores.items()}

    async def make_store(self) -> Any:
        self.store = Store()
        await self.store.put("made by", os.getpid())
        return self.store

    async def ask(self, thing: Any, n: int) -> list[Any]:
        return [await thing.double(i) for i in range(n)]

    async def ask_through_child(self, thing: Any) -> list[Any]:
        async with User() as child:
            return await child.ask(thing, 2)

    async def sum_of(self, store: Any, n: int) -> int:
        total = 0
        async for number in store.numbers(n):
            total += number
        return total

    async def call_itself(self) -> int:
        return int(await asyncparl.current_actor().pid())

    async def expose_something(self) -> Any:
        return asyncparl.expose(Doubler())

    async def find(self, name: str) -> Any:
        return await asyncparl.get_actor(name)

    async def how_it_died(self, store: Any) -> tuple[str, str]:
        try:
            await store.pid()
        except asyncparl.ActorDied as error:
            return error.reason, str(error.fate)
        return "", ""

    def pid(self) -> int:
        return os.getpid()


class Doubler:
    def __init__(self) -> None:
        self.asked = 0

    def double(self, n: int) -> int:
        self.asked += 1
        return 2 * n

    async def double_later(self, n: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * n

    def leave(self) -> None:
        raise SystemExit(3)


async def test_a_proxy_is_an_argument() -> None:
    async with asyncparl.connect():
        store, users = Store(), [User() for _ in range(3)]
        await asyncparl.gather([user.put(store, n, n) for n, user in enumerate(users)])
        assert await store.values == {0: 0, 1: 1, 2: 2}


async def test_a_proxy_can_be_passed_before_its_actor_runs() -> None:
    async with asyncparl.connect():
        user = User()
        await user.pid()
        store = Store()
        assert await user.put(store, 1, 1) == 1


async def test_proxies_are_parts_of_arguments_and_of_results() -> None:
    async with asyncparl.connect():
        stores = {"a": Store(), "b": Store()}
        pids = await User().call_all(stores)
        assert pids == {name: await store.pid() for name, store in stores.items()}
        await stores["a"].put("other", [stores["b"]])
        assert await (await stores["a"].get("other"))[0].pid() == pids["b"]


async def test_calls_of_one_caller_keep_their_order() -> None:
    async with asyncparl.connect():
        assert await User().put_many(Store(), list(range(100))) == list(range(1, 101))


async def test_a_returned_proxy_is_equal_to_the_one_that_is_held() -> None:
    async with asyncparl.connect():
        store = Store()
        again = await store.me()
        assert again == store and hash(again) == hash(store) and {store: 1}[again] == 1
        assert again != Store() and again != "store"


async def test_a_stream_reaches_whoever_holds_a_proxy() -> None:
    async with asyncparl.connect():
        assert await User().sum_of(Store(), 100) == sum(range(100))


async def test_an_actor_calls_itself() -> None:
    async with asyncparl.connect():
        user = User()
        assert await user.call_itself() == await user.pid()


async def test_an_actor_makes_actors_which_end_with_it() -> None:
    async with asyncparl.connect():
        user = User()
        store = await user.make_store()
        assert await store.get("made by") == await user.pid() != await store.pid()
        pid = await store.pid()
        await asyncparl.kill(user)
        with trio.fail_after(10):
            while Process.read(pid) is not None:
                await trio.sleep(0.02)
        with pytest.raises(asyncparl.ActorDied), trio.fail_after(10):
            await store.pid()


async def test_actors_of_several_makers_have_names_of_their_own(capfd: pytest.CaptureFixture[str]) -> None:
    async with asyncparl.connect() as cluster:
        own, user = Store(), User()
        made = await user.make_store()
        assert await made.say("heard") == await made.pid() != await own.pid()
        names = {actor.name for actor in (await cluster.describe()).actors}
        assert names == {"Store#1", "User#1", "User#1/Store#1"}
        await asyncparl.close(made)
        with pytest.raises(asyncparl.ActorDied, match=r"^User#1/Store#1 died: "):
            await made.pid()
    assert "[User#1] [Store#1] heard\n" in capfd.readouterr().out


async def test_everybody_who_calls_hears_how_an_actor_died() -> None:
    async with asyncparl.connect():
        store, user = Store(), User()
        await user.put(store, 1, 1)
        with pytest.raises(asyncparl.ActorDied, match="code 3"):
            await store.exit()
        with trio.fail_after(10):
            reason, _ = await user.how_it_died(store)
        assert "code 3" in reason
        with trio.fail_after(10):
            # One that never knew it hears only that it is over.
            assert "ended" in (await User().how_it_died(store))[0]


async def test_a_borrower_can_close_and_kill() -> None:
    async with asyncparl.connect():
        store = await User().make_store()
        await asyncparl.close(store)
        with pytest.raises(asyncparl.ActorDied), trio.fail_after(10):
            await store.pid()
        for is_known in (False, True):
            other = await User().make_store()
            pid = await other.pid() if is_known else None
            with trio.fail_after(10):
                await asyncparl.kill(other)
            assert pid is None or Process.read(pid) is None
            with pytest.raises(asyncparl.ActorDied), trio.fail_after(10):
                await other.pid()


async def test_actors_call_back_an_object_of_the_program() -> None:
    async with asyncparl.connect():
        doubler = Doubler()
        exposed = asyncparl.expose(doubler)
        users = [User() for _ in range(2)]
        assert await asyncparl.gather([user.ask(exposed, 4) for user in users]) == [[0, 2, 4, 6]] * 2
        assert doubler.asked == 8
        assert await exposed.double_later(4) == 8


async def test_an_actor_that_the_program_never_dialed_calls_it_back() -> None:
    async with asyncparl.connect():
        with trio.fail_after(30):
            assert await User().ask_through_child(asyncparl.expose(Doubler())) == [0, 2]


async def test_an_object_exposed_by_an_actor_is_called_by_others() -> None:
    async with asyncparl.connect():
        exposed = await User().expose_something()
        assert await exposed.double(5) == 10
        assert await User().ask(exposed, 2) == [0, 2]


async def test_an_exposed_object_is_let_go_by_its_process_only() -> None:
    async with asyncparl.connect():
        mine, user = asyncparl.expose(Doubler()), User()
        assert await user.ask(mine, 1) == [0]
        theirs = await user.expose_something()
        with pytest.raises(RuntimeError, match="only that process"):
            await asyncparl.close(theirs)
        await asyncparl.close(mine)
        with pytest.raises(asyncparl.ActorDied, match="not exposed any more"):
            await user.ask(mine, 1)


async def test_an_exposed_object_takes_a_thread_from_its_first_method_without_async_until_it_is_closed() -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "asyncparl Doubler"]

    async with asyncparl.connect():
        exposed = [asyncparl.expose(Doubler()) for _ in range(5)]
        assert await asyncparl.gather([each.double_later(1) for each in exposed]) == [2] * 5
        assert len(threads()) == 0
        assert await exposed[0].double(1) == await exposed[1].double(1) == 2
        assert len(threads()) == 2
        await asyncparl.close(exposed[0])
        assert len(threads()) == 1


async def test_leaving_in_an_exposed_method_is_an_error_of_the_call() -> None:
    async with asyncparl.connect():
        exposed = asyncparl.expose(Doubler())
        with pytest.raises(RuntimeError, match="SystemExit"):
            await exposed.leave()
        assert await exposed.double(1) == 2


async def test_actors_are_found_by_name() -> None:
    async with asyncparl.connect():
        store = Store.options(name="the store")()
        await store.put(1, 1)
        assert await asyncparl.get_actor("the store") == store
        assert await User().find("the store") == store
        with pytest.raises(LookupError, match="no actor named 'nobody'"):
            await asyncparl.get_actor("nobody")
        twin = Store.options(name="the store")()
        with pytest.raises(asyncparl.ResourceError, match="exists already"):
            await twin.pid()
        await asyncparl.kill(store)
        with trio.fail_after(10):
            await Store.options(name="the store")().pid()


async def test_an_actor_is_found_by_name_although_the_master_hears_of_it_after_those_who_look_for_it() -> None:
    async with asyncparl.connect():
        user, other = User(), User()
        with pytest.raises(LookupError):
            await user.find("anybody")  # it is there
        found = user.find("the store"), other.find("the store")
        await trio.sleep(0.1)
        store = Store.options(name="the store")()
        assert await asyncparl.gather(found) == [store, store]


async def test_items_and_calls_of_the_object_itself() -> None:
    async with asyncparl.connect():
        store = Store()
        await store.put("key", "value")
        assert await store["key"] == "value"
        assert await store(1, two=2) == ((1,), {"two": 2})
        with pytest.raises(KeyError):
            await store["nothing"]


@pytest.mark.parametrize(
    "use",
    [
        len,
        iter,
        lambda store: "key" in store,
        lambda store: store.__setitem__(1, 2),
        lambda store: store.__delitem__(1),
    ],
)
async def test_what_cannot_wait_is_a_type_error(use: Any) -> None:
    async with asyncparl.connect():
        store = Store()
        with pytest.raises(TypeError, match=r"wait|iterated"):
            use(store)
        assert store  # has no length, but is there


async def test_a_proxy_outside_of_any_block_says_so() -> None:
    async with asyncparl.connect():
        pickled = pickle.dumps(Store())
    proxy = pickle.loads(pickled)
    assert "out of reach" in repr(proxy)
    with pytest.raises(asyncparl.NotConnectedError, match="outside of"):
        await proxy.pid()
    with pytest.raises(asyncparl.NotConnectedError):
        asyncparl.expose(Doubler())
    with pytest.raises(RuntimeError, match="not an actor's process"):
        asyncparl.current_actor()


async def test_kinds_of_calls_that_proxies_never_make_are_answered() -> None:
    async with asyncparl.connect():
        store = Store()
        await store._handle.call(CallKind.PING, "")
        with pytest.raises(asyncparl.SerializationError, match="unknown kind"):
            await store._handle.call(99, "x")
