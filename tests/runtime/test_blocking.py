"""asyncparl without `async`: calls in the main thread, in others, beside event loops, and in the methods of actors."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import trio
import trio.testing

import asyncparl
from asyncparl import blocking
from asyncparl.runtime.call import STREAM_CREDIT
from tests.runtime.actors import AsyncEcho, Broken, Echo
from tests.runtime.blocking_helpers import LIMIT_S, Plain, User, in_threads, until


@pytest.fixture
def cluster() -> Iterator[blocking.Cluster]:
    with blocking.connect() as cluster:
        yield cluster


# --- calls ------------------------------------------------------------------------------------------------------


def test_calls_attributes_and_exceptions(cluster: blocking.Cluster) -> None:
    echo = Echo(5)
    assert [echo.add(1).result() for _ in range(3)] == [6, 7, 8]
    assert echo.total.result() == 8
    blocking.set_attribute(echo, "total", 40)
    assert echo.add(2).result(timeout=LIMIT_S) == 42
    call = echo.fail("bad input")
    for _ in range(2):
        with pytest.raises(ValueError, match="bad input"):
            call.result()
    with pytest.raises(AttributeError, match="private"):
        blocking.set_attribute(echo, "_total", 1)
    with pytest.raises(RuntimeError, match="no such device"):
        Broken().work().result()


def test_a_timeout_ends_the_wait_and_not_the_call(cluster: blocking.Cluster) -> None:
    actor = AsyncEcho()
    call = actor.wait_for_event()
    for seconds in (0, 0.05):
        with pytest.raises(TimeoutError, match=r"AsyncEcho#1\.wait_for_event has not ended"):
            call.result(timeout=seconds)
    assert not call.done()
    actor.set_event().result()
    assert call.result(timeout=float("inf")) == "woken"


def test_a_cancelled_call_raises_and_ends_over_there(cluster: blocking.Cluster) -> None:
    actor = AsyncEcho()
    call = actor.wait_for_event()
    assert actor.cancelled.result() == 0  # it has started
    threading.Timer(0.05, call.cancel).start()
    with pytest.raises(asyncparl.CallCancelled):
        call.result()
    until(lambda: actor.cancelled.result() == 1)
    call.cancel()  # no effect


def test_a_generator_streams_into_a_plain_loop(cluster: blocking.Cluster) -> None:
    assert list(Echo().count(100)) == list(range(100))
    assert list(AsyncEcho().count(50)) == list(range(50))
    assert [int(array[0]) for array in Echo().same_array(5)] == list(range(5))
    items = []
    with pytest.raises(KeyError, match="half-way"):
        for item in Echo().fail_halfway():
            items.append(item)  # noqa: PERF402
    assert items == [1]


def test_a_stream_is_only_a_few_items_ahead_and_ends_with_its_loop(cluster: blocking.Cluster) -> None:
    echo = Echo()
    stream = echo.forever()
    assert [next(stream) for _ in range(5)] == list(range(5))
    until(lambda: echo.total.result() == 5 + STREAM_CREDIT)
    assert echo.total.result() == 5 + STREAM_CREDIT
    stream.cancel()
    until(lambda: echo.total.result() == -1)
    for item in echo.forever():
        if item == 3:
            break
    until(lambda: echo.total.result() == -1)
    with pytest.raises(asyncparl.CallCancelled):
        next(stream)


@pytest.mark.parametrize("timeout", ["x", float("nan"), True, 10**400], ids=["text", "NaN", "bool", "too many digits"])
def test_a_timeout_that_is_no_number_is_one_clear_error(cluster: blocking.Cluster, timeout: Any) -> None:
    call = Echo(0).add(1)
    for wait in (call.result, lambda timeout: blocking.gather([call], timeout=timeout)):
        with pytest.raises((TypeError, ValueError), match=r"^timeout (must be a number of seconds|has too many)"):
            wait(timeout)
    assert call.result(timeout=LIMIT_S) == 1


def test_a_stream_has_no_result_and_a_plain_call_no_items(cluster: blocking.Cluster) -> None:
    echo = Echo()
    with pytest.raises(TypeError, match="use `for`"):
        echo.forever().result()
    with pytest.raises(TypeError, match="use `for`"):
        echo.count(0).result()
    with pytest.raises(TypeError, match=r"ask for its result\(\)"):
        list(echo.echo(1))


def test_gather_keeps_the_order_and_cancels_at_the_first_error(cluster: blocking.Cluster) -> None:
    echo, other = Echo(), AsyncEcho()
    assert blocking.gather([echo.echo(n) for n in range(3000)]) == list(range(3000))
    assert blocking.gather([]) == []
    waiting = other.wait_for_event()
    with pytest.raises(ValueError, match="first"):
        blocking.gather([waiting, echo.fail("first")])
    with pytest.raises(asyncparl.CallCancelled):
        waiting.result()
    waiting = other.wait_for_event()
    with pytest.raises(TimeoutError, match="1 of 2 calls"):
        blocking.gather([echo.add(1), waiting], timeout=0.2)
    assert waiting.done()
    wrong: Any
    for wrong in ([echo.add], echo.add(1)):
        with pytest.raises(TypeError, match="expected"):
            blocking.gather(wrong)


def test_as_completed_gives_the_fast_ones_first_and_cancels_nothing(cluster: blocking.Cluster) -> None:
    slow, fast = AsyncEcho(), Echo()
    calls = [slow.wait_for_event(), fast.echo("fast"), fast.echo("again")]
    for call in blocking.as_completed([*calls, calls[1]]):
        assert call.result() == "fast"
        break
    with pytest.raises(TimeoutError, match="1 of 3"):
        for call in blocking.as_completed(calls, timeout=0.2):
            assert call.result() in ("fast", "again")
    slow.set_event().result()
    assert {call.result() for call in blocking.as_completed(calls)} == {"fast", "again", "woken"}


def test_an_actor_as_context_manager_ends_with_its_block(cluster: blocking.Cluster) -> None:
    with Echo() as echo:
        pid = echo.pid().result()
    assert not psutil.pid_exists(pid)
    with pytest.raises(ZeroDivisionError), Echo() as echo:
        busy = echo.sleep(600)
        raise ZeroDivisionError
    with pytest.raises(asyncparl.ActorDied, match="killed by its owner"):
        busy.result()
    with pytest.raises(RuntimeError, match="no such device"), Broken():
        pass
    closed, killed = Echo(), Echo()
    answered = closed.echo(1)
    blocking.close(closed)
    assert answered.result() == 1
    blocking.kill(killed)
    until(lambda: cluster.num_actors == 0)


def test_objects_are_exposed_and_actors_found_by_name(cluster: blocking.Cluster) -> None:
    plain = blocking.expose(Plain(40))
    assert plain.plus(2).result() == 42
    assert User().sum_of(Echo(3), 4).result() == 6 + 4
    echo = Echo.options(name="the echo")(7)
    echo.echo().result()
    assert blocking.get_actor("the echo") == echo
    assert plain.total_of(echo).result() == 7
    with pytest.raises(LookupError):
        blocking.get_actor("nobody")
    with pytest.raises(RuntimeError, match="not an actor's process"):
        blocking.current_actor()
    assert [node.name for node in cluster.describe().nodes] == ["this machine"]
    blocking.close(plain)
    with pytest.raises(asyncparl.ActorDied, match="not exposed any more"):
        plain.plus(2).result()


# --- threads ----------------------------------------------------------------------------------------------------


def test_many_threads_call_at_once_and_each_keeps_its_order(cluster: blocking.Cluster) -> None:
    echo = Echo()

    def call_often(index: int) -> list[Any]:
        mine = Echo(index)
        for _ in range(50):
            echo.add(1).result()
        return blocking.gather([mine.add(1) for _ in range(200)])

    results = in_threads(8, call_often)
    assert results == [[index + n + 1 for n in range(200)] for index in range(8)]
    assert echo.total.result() == 8 * 50


def test_all_threads_that_wait_for_a_call_get_its_value(cluster: blocking.Cluster) -> None:
    actor = AsyncEcho()
    for _ in range(20):
        call = Echo().echo({"a": object}) if _ == 0 else actor.nap(0.01)
        results = in_threads(6, lambda _, call=call: call.result())  # type: ignore[misc]
        assert all(result is results[0] for result in results)


def test_each_item_of_a_stream_goes_to_one_of_its_threads(cluster: blocking.Cluster) -> None:
    stream = Echo().count(500)
    parts = in_threads(4, lambda _: list(stream))
    assert sorted(item for part in parts for item in part) == list(range(500))


def test_cancels_that_meet_answers_settle_every_call_once(cluster: blocking.Cluster) -> None:
    echo = Echo()

    def cancel_some(_: int) -> None:
        for n in range(200):
            call = echo.echo(n)
            for _ in range(n % 40):
                call.done()
            call.cancel()
            outcomes = []
            for _ in range(2):
                try:
                    outcomes.append(call.result(timeout=LIMIT_S))
                except asyncparl.CallCancelled:
                    outcomes.append("cancelled")
            assert outcomes in ([n, n], ["cancelled", "cancelled"])

    in_threads(4, cancel_some)
    assert echo.echo("alive").result() == "alive"


async def test_tasks_and_threads_wait_for_the_same_call() -> None:
    async with asyncparl.connect():
        actor = AsyncEcho()
        call = actor.wait_for_event()
        results: list[str] = []

        async def wait_as_task() -> None:
            results.append(await call)

        async def wait_in_thread() -> None:
            results.append(await trio.to_thread.run_sync(call.result))

        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(wait_as_task)
                    nursery.start_soon(wait_in_thread)
                await trio.testing.wait_all_tasks_blocked()
                await actor.set_event()
        assert results == ["woken"] * 6


async def test_a_thread_that_waits_keeps_a_call_from_being_cancelled_with_its_task() -> None:
    async with asyncparl.connect():
        actor = AsyncEcho()
        call = actor.wait_for_event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, call.result)
            while not call._pending.gates:
                await trio.sleep(0.01)
            with trio.move_on_after(0.05):
                await call
            assert not call.done()
            await actor.set_event()
        assert await call == "woken"


async def test_a_cancel_in_a_thread_wakes_tasks() -> None:
    async with asyncparl.connect():
        actor = AsyncEcho()
        call, other = actor.wait_for_event(), actor.wait_for_event()

        async def cancel() -> None:
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(call.cancel)
            await trio.to_thread.run_sync(other.cancel)

        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel)
                async for ended in asyncparl.as_completed([call]):
                    assert ended is call
                with pytest.raises(asyncparl.CallCancelled):
                    await other


async def test_threads_of_a_connected_trio_program_need_no_connection_of_their_own() -> None:
    def use() -> list[Any]:
        with Echo(1) as echo:
            assert echo.add(1).result() == 2
            with pytest.raises(RuntimeError, match="can use its actors"):
                blocking.connect()
            return list(echo.count(3))

    async with asyncparl.connect():
        assert await trio.to_thread.run_sync(use) == [0, 1, 2]


async def test_exposed_objects_of_a_trio_program_use_the_proxies_that_they_are_given() -> None:
    async with asyncparl.connect():
        assert await asyncparl.expose(Plain(1)).total_of(Echo(5)) == 5


async def test_the_event_loop_is_never_stopped() -> None:
    with pytest.raises(RuntimeError, match=r"async with asyncparl\.connect"):
        blocking.connect()
    async with asyncparl.connect():
        echo = Echo()
        call = echo.echo(1)
        assert await call == 1
        for wait in (call.result, echo.total.result, lambda: blocking.gather([call])):
            with pytest.raises(RuntimeError, match="would stop the event loop"):
                wait()
        with pytest.raises(RuntimeError, match="`async for`"):
            for _ in echo.count(3):
                pass
        with pytest.raises(RuntimeError, match="`async with`"), echo:
            pass
        for end in (blocking.close, blocking.kill):
            with pytest.raises(RuntimeError, match="await asyncparl"):
                end(echo)
        with pytest.raises(RuntimeError, match=r"await asyncparl\.get_actor"):
            blocking.get_actor("x")
        with pytest.raises(TypeError, match="list of calls"):
            await asyncparl.gather(call)


async def end_early(waiting: Any) -> None:
    with trio.fail_after(LIMIT_S):
        await waiting


def test_what_cannot_be_done_in_a_foreign_event_loop_says_what_to_do(cluster: blocking.Cluster) -> None:
    actor = Echo()
    refused: dict[str, Callable[[], Any]] = {
        r"Echo\(\.\.\.\)": Echo,
        r"expose\(\.\.\.\)": lambda: asyncparl.expose([]),
        r"report\(\.\.\.\)": lambda: cluster.report(steps=1),
        r"get_actor\('x'\)": lambda: end_early(asyncparl.get_actor("x")),
        r"close\(<asyncparl actor Echo#1 .*>\)": lambda: end_early(asyncparl.close(actor)),
        r"kill\(<asyncparl actor Echo#1 .*>\)": lambda: end_early(asyncparl.kill(actor)),
    }

    async def main() -> None:
        for name, function in refused.items():
            with pytest.raises(RuntimeError, match=rf"^{name} .*`async with asyncparl\.connect\(\):`.* in a thread"):
                if (result := function()) is not None:
                    await result
        assert await trio.to_thread.run_sync(lambda: Echo(4).add(1).result()) == 5

    trio.run(main)
    assert actor.add(1).result() == 1


def test_a_call_is_not_awaited_in_a_foreign_event_loop(cluster: blocking.Cluster) -> None:
    actor = AsyncEcho()
    call, other, stream = actor.wait_for_event(), actor.wait_for_event(), actor.count(3)

    async def wait() -> None:
        for waiting in (call, anext(stream), asyncparl.gather([other])):
            with pytest.raises(RuntimeError, match="event loop in another thread"):
                await waiting
        await trio.to_thread.run_sync(actor.set_event().result)
        assert await trio.to_thread.run_sync(call.result) == "woken"

    async def wait_in_asyncio() -> None:
        with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
            await call

    trio.run(wait)
    asyncio.run(wait_in_asyncio())


def test_asyncio_programs_waitin_threads() -> None:
    async def main() -> None:
        with blocking.connect():
            actor = AsyncEcho()
            call = actor.wait_for_event()
            waiting = asyncio.create_task(asyncio.to_thread(call.result))
            await asyncio.to_thread(actor.set_event().result)
            assert await waiting == "woken"
            echoes = [Echo(0), await asyncio.to_thread(Echo, 1)]
            assert await asyncio.gather(*[asyncio.to_thread(echo.add(1).result) for echo in echoes]) == [1, 2]

    asyncio.run(main())


def test_ctrl_c_interrupts_a_wait_and_nothing_else(cluster: blocking.Cluster) -> None:
    actor = AsyncEcho()
    call, stream = actor.wait_for_event(), actor.wait_for_event()
    actor.cancelled.result()
    waits: list[Callable[[], Any]] = [
        call.result,
        lambda: call.result(timeout=600),
        lambda: list(stream),
        lambda: list(blocking.as_completed([call])),
    ]
    for wait in waits:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert time.monotonic() - started < 5
        timer.join()
    actor.set_event().result()
    assert call.result() == "woken"


def test_ctrl_c_before_there_is_a_loop_is_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        blocking.connect()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops what it meets in __del__
def test_ctrl_c_at_any_moment_leaves_the_actor_usable(cluster: blocking.Cluster) -> None:
    echo = Echo()
    echo.echo().result()

    def interrupt(pause_s: float) -> None:
        over = threading.Event()

        def shoot(pause_s: float = pause_s) -> None:
            while not over.wait(pause_s):
                os.kill(os.getpid(), signal.SIGINT)
                pause_s = 0.5  # again, if it was dropped

        thread = threading.Thread(target=shoot)
        with pytest.raises(KeyboardInterrupt):
            thread.start()
            while True:
                assert echo.echo(1).result() == 1
                assert list(echo.count(3)) == [0, 1, 2]
        over.set()
        thread.join()

    for number in range(200):
        interrupt(0.00001 * number)
    assert echo.echo("alive").result(timeout=LIMIT_S) == "alive"
    gc.collect()  # what tracebacks hold
    until(lambda: echo._handle._link.core.caller.num_open == 0)  # type: ignore[attr-defined]


# --- actors -----------------------------------------------------------------------------------------------------


def test_methods_without_async_use_the_proxies_that_they_are_given(cluster: blocking.Cluster) -> None:
    user, echo = User(), Echo()
    assert user.add_to(echo, 20).result() == list(range(1, 21))
    assert user.sum_of(echo, 10).result() == 45 + 10
    assert user.in_thread(echo).result() == 15


def test_methods_without_async_make_actors_and_expose_objects(cluster: blocking.Cluster) -> None:
    user = User()
    made = user.make(3).result()
    assert made.total.result() == 4
    assert not psutil.pid_exists(user.make_for_a_moment().result())
    exposed = user.expose(5).result()
    assert exposed.plus(1).result() == 6
    blocking.kill(user)
    with pytest.raises(asyncparl.ActorDied):
        for _ in range(1000):
            made.add(1).result(timeout=LIMIT_S)


@pytest.mark.parametrize("how", ["method", "with a timeout", "attribute", "stream", "gather"])
def test_who_waits_for_itself_is_told(how: str, cluster: blocking.Cluster) -> None:
    user = User()
    with pytest.raises(RuntimeError, match="cannot be answered while this thread waits"):
        user.wait_for_itself(how).result(timeout=LIMIT_S)
    assert user.quick().result() == 1


def test_a_method_may_wait_for_an_async_one_of_the_same_actor(cluster: blocking.Cluster) -> None:
    assert User().wait_for_itself("async").result(timeout=LIMIT_S) == 1
    with pytest.raises(RuntimeError, match="cannot be answered"):
        User(wait_for_itself=True).quick().result(timeout=LIMIT_S)  # nothing is served before the constructor is done


def test_an_exposed_object_that_waits_for_itself_is_told_too(cluster: blocking.Cluster) -> None:
    plain, other = blocking.expose(Plain(1)), blocking.expose(Plain(2))
    with pytest.raises(RuntimeError, match="cannot be answered"):
        plain.ask(plain).result(timeout=LIMIT_S)
    assert plain.ask(other).result(timeout=LIMIT_S) == 3
