"""Whatever happens to a process, and whenever: every call settles, the others go on, and nothing is left.

The rows of the table are `FAULTS`, its columns the tests: all faults of a column happen at once, in one cluster.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import psutil
import pytest
import trio
import trio.lowlevel

import asyncparl
from asyncparl.errors import CallFate
from asyncparl.runtime.executor import Executor

LIMIT_S = 20.0
"""Far above what anything here takes, and far below for ever."""
NUM_WAITING = 1000
SPARE_BYTES = 32 << 20


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def be_stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def segfault() -> None:
    ctypes.string_at(0)


def leave() -> None:
    sys.exit(3)


def leave_at_once() -> None:
    os._exit(4)


def exhaust_memory() -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, limits[1]))
    try:
        blocks = []
        while True:
            blocks.append(bytearray(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


class Fault(NamedTuple):
    inflict: Callable[[], None]
    exit_code: int | None = None
    signal: int | None = None
    raises: type[Exception] | None = None

    @property
    def is_deadly(self) -> bool:
        return self.exit_code is not None or self.signal is not None


FAULTS = {
    "kill -9": Fault(be_killed, signal=signal.SIGKILL),
    "stop and continue": Fault(be_stopped),
    "segfault": Fault(segfault, signal=signal.SIGSEGV),
    "sys.exit": Fault(leave, exit_code=3),
    "os._exit": Fault(leave_at_once, exit_code=4),
    "abort": Fault(os.abort, signal=signal.SIGABRT),
    "out of memory": Fault(exhaust_memory, raises=MemoryError),
}


class OnArrival:
    """A value that inflicts a fault on whoever receives it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return inflict, (self.name,)


def inflict(name: str) -> str:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    FAULTS[name].inflict()
    return "went on"


@asyncparl.remote_class(max_concurrency=4)
class Victim:
    def __init__(self, fault: str = "", *, arrived: str = "") -> None:
        if fault:
            inflict(fault)

    def echo(self, value: Any) -> Any:
        return value

    def inflict(self, name: str, gate: Path | None = None) -> str:
        while gate is not None and not gate.exists():
            time.sleep(0.005)
        return inflict(name)

    async def inflict_async(self, name: str) -> str:
        await trio.lowlevel.checkpoint()
        return inflict(name)

    def inflict_in_stream(self, name: str, gate: Path) -> Iterator[str]:
        yield "first"
        yield self.inflict(name, gate)

    async def inflict_in_async_stream(self, name: str, gate: Path) -> AsyncIterator[str]:
        yield "first"
        while not gate.exists():
            await trio.sleep(0.005)
        yield inflict(name)

    def inflict_at_signal(self, name: str, heard: Path) -> int:
        def at_signal(_: int, frame: FrameType | None) -> None:
            if frame is None or frame.f_code is not Executor.run.__code__:  # it has not done with this call yet
                threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                return
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # once
            heard.touch()
            inflict(name)

        signal.signal(signal.SIGUSR1, at_signal)
        return os.getpid()

    def inflict_at_exit(self, name: str) -> None:
        atexit.register(inflict, name)

    def count(self) -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1

    async def rest(self) -> None:
        await trio.sleep_forever()


async def for_every_fault(check: Callable[[str, Fault], Awaitable[None]]) -> None:
    """Check all faults at once, each in an actor of its own; another actor must not notice."""
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect() as cluster, trio.open_nursery() as nursery:
            other = Victim()
            stream, resting = other.count(), other.rest()
            assert await anext(stream) == 0
            stopped = trio.Event()
            nursery.start_soon(_continue_what_stops, other, stopped)
            async with trio.open_nursery() as checks:
                for name, fault in FAULTS.items():
                    checks.start_soon(_check_one, check, name, fault)
            assert stopped.is_set()
            nursery.cancel_scope.cancel()
            assert await anext(stream) == 1
            assert not resting.done()
            await asyncparl.close(Victim())  # a new one can still be made
            while cluster.num_actors > 1:
                await trio.sleep(0.01)


async def _check_one(check: Callable[[str, Fault], Awaitable[None]], name: str, fault: Fault) -> None:
    try:
        await check(name, fault)
    except Exception as error:
        error.add_note(f"the fault: {name}")
        raise


async def _continue_what_stops(other: asyncparl.Proxy, stopped: trio.Event) -> None:
    """Continue processes that have stopped, once it was seen that nobody else has."""
    while True:
        for process in _stopped_processes():
            assert await other.echo("meanwhile") == "meanwhile"
            process.send_signal(signal.SIGCONT)
            stopped.set()
        await trio.sleep(0.01)


def _stopped_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                found.append(process)
    return found


async def settles(call: Awaitable[Any], fault: Fault, result: Any = "went on") -> CallFate | None:
    """The call ends as the fault says; what became of it, if the actor died."""
    if fault.is_deadly:
        with pytest.raises(asyncparl.ActorDied) as caught:
            await call
        assert (caught.value.exit_code, caught.value.signal) == (fault.exit_code, fault.signal)
        return caught.value.fate
    if fault.raises is not None:
        with pytest.raises(fault.raises):
            await call
    else:
        assert await call == result
    return None


async def test_a_fault_before_the_constructor_fails_every_call() -> None:
    async def check(name: str, fault: Fault) -> None:
        if fault.raises is not None:
            fault = fault._replace(raises=asyncparl.SerializationError)  # the arguments could not be read
        victim = Victim(arrived=OnArrival(name))
        for call in [victim.echo("went on") for _ in range(3)]:
            await settles(call, fault)
        await settles(victim.echo("went on"), fault)
        await asyncparl.close(victim)

    await for_every_fault(check)


async def test_a_fault_in_the_constructor_fails_every_call() -> None:
    async def check(name: str, fault: Fault) -> None:
        victim = Victim(name)
        for call in [victim.echo("went on") for _ in range(3)]:
            await settles(call, fault)
        await settles(victim.echo("went on"), fault)
        await asyncparl.close(victim)

    await for_every_fault(check)


@pytest.mark.parametrize("method", ["inflict", "inflict_async"])
async def test_a_fault_in_a_method_fails_its_call_and_those_that_the_actor_cannot_answer(method: str) -> None:
    async def check(name: str, fault: Fault) -> None:
        victim = Victim()
        resting, call = victim.rest(), getattr(victim, method)(name)
        assert await settles(call, fault) in (CallFate.MAY_HAVE_RUN, None)
        if fault.is_deadly:
            assert await settles(resting, fault) is CallFate.MAY_HAVE_RUN
            assert await settles(victim.echo(1), fault) is CallFate.NEVER_STARTED
        else:
            assert await victim.echo(1) == 1
            assert not resting.done()
        await asyncparl.kill(victim)

    await for_every_fault(check)


@pytest.mark.parametrize("method", ["inflict_in_stream", "inflict_in_async_stream"])
async def test_a_fault_in_a_stream_ends_it_after_the_items_that_came_before(method: str, tmp_path: Path) -> None:
    async def check(name: str, fault: Fault) -> None:
        victim = Victim()
        stream = getattr(victim, method)(name, tmp_path / name)
        assert await anext(stream) == "first"
        (tmp_path / name).touch()
        await settles(anext(stream), fault)
        if not fault.is_deadly:
            assert await victim.echo(1) == 1
        await asyncparl.close(victim)

    await for_every_fault(check)


async def test_a_fault_settles_every_one_of_a_thousand_calls_that_wait(tmp_path: Path) -> None:
    async def check(name: str, fault: Fault) -> None:
        victim = Victim()
        call = victim.inflict(name, gate=tmp_path / name)
        waiting = [victim.echo(number) for number in range(NUM_WAITING)]
        async with Victim() as witness:  # by now the first of them have arrived
            await witness.echo(None)
        (tmp_path / name).touch()
        await settles(call, fault)
        for number, call in enumerate(waiting):
            await settles(call, fault._replace(raises=None), number)
        await asyncparl.close(victim)

    await for_every_fault(check)


async def test_a_fault_of_an_idle_actor_is_known_before_the_next_call(tmp_path: Path) -> None:
    async def check(name: str, fault: Fault) -> None:
        if fault.raises is not None:
            fault = Fault(fault.inflict, exit_code=1)  # raised outside of any call, as in any program
        victim = Victim()
        heard = tmp_path / name
        pid = await victim.inflict_at_signal(name, heard)
        while not heard.exists():
            with contextlib.suppress(ProcessLookupError):  # it has died of it meanwhile
                os.kill(pid, signal.SIGUSR1)  # again, for Python hears it late if it was just about to wait
            await trio.sleep(0.05)
        while fault.is_deadly and "dead" not in repr(victim):
            await trio.sleep(0.01)
        assert await settles(victim.echo("went on"), fault) in (CallFate.NEVER_STARTED, None)
        await asyncparl.close(victim)

    await for_every_fault(check)


async def test_a_fault_while_an_actor_is_being_closed_does_not_keep_it_open(tmp_path: Path) -> None:
    async def check(name: str, fault: Fault) -> None:
        victim = Victim()
        call = victim.inflict(name, gate=tmp_path / name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asyncparl.close, victim)
            async with Victim() as witness:  # by now the close has arrived
                await witness.echo(None)
            (tmp_path / name).touch()
        await settles(call, fault)
        with pytest.raises(asyncparl.ActorDied):
            await victim.echo(1)

    await for_every_fault(check)


async def test_a_fault_in_the_last_moment_of_an_actor_does_not_keep_it_open() -> None:
    async def check(name: str, fault: Fault) -> None:
        victim = Victim()
        await victim.inflict_at_exit(name)
        await asyncparl.close(victim)
        with pytest.raises(asyncparl.ActorDied):
            await victim.echo(1)

    await for_every_fault(check)
