"""Calls that may take only so long: whatever state their actor is in, they end then, and say what is known."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio

import asyncparl
from asyncparl import CallFate, CallTimedOut, blocking
from asyncparl.runtime.alarms import Alarms
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.limits import LAST_WORD_S
from tests.runtime.limited import Dying, Exposed, Slow
from tests.runtime.mortals import SlowlyRestored

LIMIT_S = 0.4
LATE_S = 2.0
"""By so much a loaded machine may be late; by far less than what the methods would take."""


@pytest.fixture
async def slow() -> AsyncIterator[Any]:
    async with asyncparl.connect(), Slow() as actor:
        await actor.pid()
        yield actor


@contextlib.contextmanager
def times_out(timeout_s: float = LIMIT_S) -> Iterator[list[CallTimedOut]]:
    """What is raised inside, in time."""
    caught: list[CallTimedOut] = []
    start = time.monotonic()
    with pytest.raises(CallTimedOut) as raised:
        yield caught
    took_s = time.monotonic() - start
    assert timeout_s - 0.01 <= took_s <= timeout_s + LAST_WORD_S + LATE_S
    assert raised.value.timeout_s == timeout_s
    caught.append(raised.value)


# --- what becomes of the call -----------------------------------------------------------------------------------


async def test_a_call_that_ends_in_time_is_like_any_other(slow: Any) -> None:
    assert await slow.add.options(timeout_s=60)(1, 2) == 3
    with pytest.raises(LookupError):
        await slow.fail_later.options(timeout_s=60)(0.01)
    assert await slow.begun.options(timeout_s=60) == []


async def test_an_async_method_is_cancelled_where_it_waits(slow: Any) -> None:
    with times_out() as caught:
        await slow.nap.options(timeout_s=LIMIT_S)("nap", 60)
    [error] = caught
    assert (error.actor, error.method, error.has_started) == ("Slow#1", "nap", True)
    assert error.running_s == pytest.approx(LIMIT_S, abs=LATE_S)
    assert str(error).startswith("Slow#1.nap has not ended within 0.4 s; it has been running for 0.")
    assert error.fate is CallFate.MAY_HAVE_RUN
    assert await slow.cancelled == ["nap"]


async def test_a_method_without_async_is_left_to_finish_and_its_result_is_dropped(slow: Any) -> None:
    with times_out() as caught:
        await slow.sleep.options(timeout_s=LIMIT_S)("sleep", 1.0)
    assert caught[0].has_started
    assert caught[0].running == "sleep"
    assert await slow.add(1, 2) == 3  # after it has finished
    assert await slow.begun == ["sleep"]


async def test_a_call_behind_a_long_method_never_starts_and_the_error_names_that_method(slow: Any) -> None:
    long = slow.sleep("long", 1.2)
    await trio.sleep(0.1)
    with times_out() as caught:
        await slow.sleep.options(timeout_s=LIMIT_S)("behind", 60)
    [error] = caught
    assert (error.has_started, error.running, error.fate) == (False, "sleep", CallFate.NEVER_STARTED)
    assert "it never started, as Slow#1 has been running sleep for 0." in str(error)
    assert await long == "long"
    assert await slow.begun == ["long"]


async def test_an_async_call_without_a_turn_never_starts(slow: Any) -> None:
    naps = [slow.nap(str(number), 60) for number in range(2)]  # as many as run at once
    with times_out() as caught:
        await slow.nap.options(timeout_s=LIMIT_S)("third", 0)
    assert caught[0].has_started is False
    assert caught[0].running == "nap"
    for nap in naps:
        nap.cancel()
    assert await slow.nap("next", 0) == "next"
    assert sorted(await slow.begun) == ["0", "1", "next"]


async def test_while_the_constructor_runs_a_call_never_starts() -> None:
    async with asyncparl.connect():
        slow = Slow(1.5)
        with times_out(0.7) as caught:
            await slow.add.options(timeout_s=0.7)(1, 2)
        assert caught[0].has_started is False
        assert caught[0].running in ("__init__", "")  # "": its process was being started
        assert await slow.add(1, 2) == 3


async def test_a_call_of_an_actor_that_waits_for_a_place_never_starts() -> None:
    async with asyncparl.connect(cpus=1), Slow() as first:
        await first.pid()
        second = Slow()
        with times_out() as caught:
            await second.pid.options(timeout_s=LIMIT_S)()
        assert str(caught[0]) == "Slow#2.pid has not ended within 0.4 s; it never started"


async def test_an_actor_that_is_stopped_holds_nobody_up_and_goes_on_afterwards(slow: Any) -> None:
    pid = await slow.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        with times_out() as caught:
            await slow.add.options(timeout_s=LIMIT_S)(1, 2)
        assert caught[0].has_started is None
        assert caught[0].fate is CallFate.MAY_HAVE_RUN
        assert "whether it started is not known, as Slow#1 did not answer" in str(caught[0])
    finally:
        os.kill(pid, signal.SIGCONT)
    assert await slow.add(3, 4) == 7


async def test_what_nobody_hears_of_any_more_starts_only_while_there_was_time(slow: Any) -> None:
    """Behind a method, in a process that stands still past the deadline: it looks at the time before it starts."""
    pid = await slow.pid()
    long = slow.sleep("long", 0.6)
    behind = slow.sleep.options(timeout_s=LIMIT_S)("behind", 0)
    await slow.nap("so that it has arrived", 0)
    os.kill(pid, signal.SIGSTOP)
    await trio.sleep(0.8)
    os.kill(pid, signal.SIGCONT)
    with pytest.raises(CallTimedOut):
        await behind
    assert await long == "long"
    assert "behind" not in await slow.begun


async def test_a_link_that_ends_before_the_time_is_a_death_as_ever(slow: Any) -> None:
    call = slow.nap.options(timeout_s=30)("nap", 60)
    await slow.pid()
    slow._handle._link.disconnect()
    with pytest.raises(asyncparl.ActorDied):
        await call


# --- streams ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["items", "items_later"])
async def test_each_item_of_a_stream_has_the_time(slow: Any, method: str) -> None:
    stream = getattr(slow, method).options(timeout_s=LIMIT_S)(0, 0.25, 0.25, 0.25, 1.5)
    items = []
    with pytest.raises(CallTimedOut) as caught:
        async for item in stream:
            items.append(item)  # noqa: PERF401  # those before the error count
    assert items == [0, 1, 2, 3]
    assert str(caught.value) == f"Slow#1.{method} has given no next item within 0.4 s"
    assert caught.value.has_started
    assert await slow.add(1, 2) == 3
    if method == "items_later":
        assert await slow.cancelled == ["item 4"]


async def test_the_first_item_has_it_from_the_call_on(slow: Any) -> None:
    with times_out() as caught:
        await anext(slow.items_later.options(timeout_s=LIMIT_S)(60))
    assert caught[0].has_started
    assert not caught[0].is_item


async def test_a_slow_consumer_has_all_the_time_it_likes(slow: Any) -> None:
    items = []
    async for item in slow.items_later.options(timeout_s=0.2)(0, 0, 0, 0):
        await trio.sleep(0.3)
        items.append(item)
    assert items == [0, 1, 2, 3]


# --- several attempts -------------------------------------------------------------------------------------------


async def test_the_time_is_for_all_attempts_together() -> None:
    async with asyncparl.connect():
        dying = Dying()
        with times_out(1.5) as caught:  # the pauses between the processes grow: 0.1, 0.2, 0.4 s
            await dying.get.options(timeout_s=1.5)(0.2)
        assert caught[0].has_started is not False
        await asyncparl.kill(dying)


async def test_calls_that_were_given_up_are_not_kept_while_an_actor_does_not_start() -> None:
    async with asyncparl.connect(cpus=1), Slow() as first:
        await first.pid()
        second: Any = Slow.options(max_restarts=1)()
        for _ in range(50):
            calls = [second.add.options(timeout_s=0.001)(1, 2) for _ in range(20)]
            for call in calls:
                with pytest.raises(CallTimedOut):
                    await call
        assert len(second._handle._waiting) < 100
        await asyncparl.kill(second)


async def test_the_callee_knows_of_the_time_of_a_call_that_may_run_twice() -> None:
    async with asyncparl.connect(), Slow.options(max_restarts=1)() as slow:
        await slow.pid()
        long = slow.sleep("long", 1.2)
        await trio.sleep(0.1)
        with times_out() as caught:
            await slow.look.options(timeout_s=LIMIT_S)()
        assert (caught[0].has_started, caught[0].running) == (False, "sleep")
        assert await slow.look.options(timeout_s=60)() == ["long"]
        await long


async def test_a_call_that_waits_for_the_next_process_is_given_up_there() -> None:
    async with asyncparl.connect():
        actor = SlowlyRestored(1.5)
        await actor.get()
        with pytest.raises(asyncparl.ActorDied):
            await actor.shoot()
        with times_out() as caught:
            await actor.get.options(timeout_s=LIMIT_S)()
        assert caught[0].has_started is False
        assert await actor.get() == 1


# --- calls that calls make --------------------------------------------------------------------------------------


async def test_calls_that_an_async_method_waits_for_end_with_it(slow: Any) -> None:
    async with Slow() as other:
        with times_out():
            await slow.nap_of.options(timeout_s=LIMIT_S)(other, "inner", 60)
        with trio.fail_after(LATE_S):
            while await other.cancelled != ["inner"]:
                await trio.sleep(0.01)


async def test_calls_that_a_method_without_async_waits_for_go_on(slow: Any) -> None:
    async with Slow() as other:
        with times_out():
            await slow.sleep_of.options(timeout_s=LIMIT_S)(other, "inner", 1.0)
        assert await slow.add(1, 2) == 3
        assert await other.begun == ["inner"]


async def test_who_does_not_catch_it_passes_it_on(slow: Any) -> None:
    async with Slow() as other:
        with pytest.raises(CallTimedOut) as caught:
            await slow.nap_of_limited(other, LIMIT_S)
        assert (caught.value.actor, caught.value.method, caught.value.has_started) == ("Slow#2", "nap", True)
        assert "raised in Slow#1" in caught.value.__notes__[-1]


async def test_an_object_of_the_program_can_be_called_with_a_limit(slow: Any) -> None:
    exposed = asyncparl.expose(Exposed())
    assert await exposed.nap.options(timeout_s=60)("here", 0) == "here"
    with times_out():
        await exposed.nap.options(timeout_s=LIMIT_S)("here", 60)
    with pytest.raises(CallTimedOut, match=r"^Exposed of a program\.nap has not ended"):
        await slow.nap_of_limited(exposed, LIMIT_S)


# --- who waits --------------------------------------------------------------------------------------------------


async def test_it_ends_whether_or_not_anybody_waits_and_is_an_error_like_others(slow: Any) -> None:
    call = slow.nap.options(timeout_s=LIMIT_S)("forgotten", 60)
    with pytest.raises(CallTimedOut):
        await asyncparl.gather([call, slow.nap("other", 60)])
    assert call.done()
    for _ in range(2):
        with pytest.raises(TimeoutError) as caught:
            await call
        assert isinstance(caught.value, asyncparl.AsyncparlError)
    calls = [slow.nap.options(timeout_s=limit_s)("nap", 60) for limit_s in (0.3, 0.1)]
    assert [call async for call in asyncparl.as_completed(calls)] == calls[::-1]


async def test_a_shorter_timeout_of_trio_comes_first(slow: Any) -> None:
    with trio.move_on_after(0.1) as scope:
        await slow.nap.options(timeout_s=LIMIT_S)("nap", 60)
    assert scope.cancelled_caught
    await trio.sleep(LIMIT_S)  # its own time is nobody's any more
    assert await slow.cancelled == ["nap"]


async def test_cancelling_and_the_end_of_the_time_may_come_together(slow: Any) -> None:
    for number in range(20):
        call = slow.nap.options(timeout_s=0.02)("nap", 60)
        await trio.sleep(0.015 + number / 2000)
        call.cancel()
        with pytest.raises((CallTimedOut, asyncparl.CallCancelled)):
            await call
    assert await slow.add(1, 2) == 3


async def test_an_answer_that_is_there_is_in_time_even_if_nobody_could_look(slow: Any) -> None:
    call = slow.add.options(timeout_s=0.2)(1, 2)
    time.sleep(0.5)  # noqa: ASYNC251  # the program does something else, as learners do
    assert await call == 3


async def test_so_is_an_item_that_is_there(slow: Any) -> None:
    async def do_something_else() -> None:
        await trio.sleep(0.05)
        time.sleep(0.4)  # noqa: ASYNC251  # as above

    for _ in range(5):
        stream = slow.items_later.options(timeout_s=0.25)(0, 0.15)
        assert await anext(stream) == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(do_something_else)
            assert await anext(stream) == 1


async def test_a_limit_leaves_nothing_behind(slow: Any) -> None:
    alarms = slow._handle.loop.alarms
    for _ in range(300):
        await slow.add.options(timeout_s=3600)(1, 2)
    gc.collect()
    assert len(alarms._deadlines) == 0
    assert len(alarms._deadlines._heap) < 100


def test_an_alarm_that_is_set_when_its_loop_ends_does_no_harm() -> None:
    class Thing:
        def time_is_up(self) -> None:
            raise AssertionError

    alarms: list[Alarms] = []

    async def main() -> None:
        alarms.append(EventLoop().alarms)
        alarms[0].set(trio.current_time() + 60, Thing())

    trio.run(main)
    alarms[0].set(0.0, Thing())


def test_a_thread_waits_no_longer_than_that() -> None:
    with blocking.connect():
        slow: Any = Slow()
        slow.pid().result()
        with times_out():
            slow.nap.options(timeout_s=LIMIT_S)("nap", 60).result()
        with times_out():
            next(slow.items_later.options(timeout_s=LIMIT_S)(60))
        with pytest.raises(CallTimedOut, match="no next item"):
            list(slow.items_later.options(timeout_s=0.2)(0, 60))
        with pytest.raises(CallTimedOut):
            blocking.gather([slow.nap.options(timeout_s=LIMIT_S)("nap", 60), slow.nap("nap", 60)])
        with pytest.raises(TimeoutError, match="it goes on"):  # that of `result`, which ends nothing
            slow.nap.options(timeout_s=60)("nap", 0.5).result(timeout=0.1)
        assert slow.add.options(timeout_s=60)(1, 2).result() == 3


def test_many_threads_at_once() -> None:
    with blocking.connect():
        slow: Any = Slow.options(max_concurrency=64)()
        wrong: list[object] = []

        def use(index: int) -> None:
            for number in range(30):
                is_long = (index + number) % 3 == 0
                call = slow.nap.options(timeout_s=0.05 if is_long else 60)("nap", 60 if is_long else 0)
                try:
                    value = call.result()
                except CallTimedOut:
                    value = None
                if (value is None) != is_long:
                    wrong.append((index, number, value))

        threads = [threading.Thread(target=use, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


# --- the default of an actor ------------------------------------------------------------------------------------


async def test_an_actor_may_have_a_limit_for_all_of_its_calls() -> None:
    async with asyncparl.connect(), Slow.options(call_timeout_s=LIMIT_S)(1.0) as slow:
        await slow.pid.options(timeout_s=None)()  # its constructor takes longer; the call says so
        with times_out():
            await slow.nap("nap", 60)
        with times_out(0.1):
            await slow.nap.options(timeout_s=0.1)("nap", 60)
        assert await slow.nap.options(timeout_s=None)("nap", 0.6) == "nap"
        slow.sleep.options(timeout_s=None)("sleep", 1.0)
        with times_out():
            await slow.begun
        with times_out():
            await asyncparl.set_attribute(slow, "begun", [])


async def test_it_is_that_of_everybody_who_calls_the_actor() -> None:
    limited: Any = Slow.options(call_timeout_s=0.1, name="limited")
    async with asyncparl.connect(), limited() as slow, Slow() as other:
        await slow.pid.options(timeout_s=None)()
        itself = await slow.itself.options(timeout_s=None)()
        named = await asyncparl.get_actor("limited")
        for proxy in (slow, itself, named):
            assert "within 0.1 s" in await other.limits_of(proxy)
            with times_out(0.1):
                await proxy.nap("nap", 60)
        async with Slow() as third:
            assert "within 0.1 s" in await third.limits_of("limited")
        assert await other.limits_of(other) == ""


# --- bad values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "5", True, [1]])
async def test_a_limit_that_makes_no_sense_is_one_clear_error_and_nothing_is_called(slow: Any, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^timeout_s must be "):
        slow.sleep.options(timeout_s=value)
    with pytest.raises((TypeError, ValueError), match=r"^call_timeout_s must be "):
        Slow.options(call_timeout_s=value)
    assert await slow.begun == []


async def test_an_unknown_option_of_a_call_is_an_error(slow: Any) -> None:
    with pytest.raises(TypeError, match="timeout"):
        slow.sleep.options(timeout=5)
    with pytest.raises(TypeError, match="timeout_s"):
        slow.sleep.options()
