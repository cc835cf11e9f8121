"""Values that cannot travel, in either direction: the error says which, and the actor goes on. And those that can."""

from __future__ import annotations

import ctypes
import datetime
import decimal
import fractions
import os
import re
import socket
import sys
import threading
import types
import uuid
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
import pytest
import trio

import asyncparl
from asyncparl.protocol.values import decode_value, encode_value

LIMIT_S = 60.0
NUM_THREADS = 50
TOO_LARGE = (2 << 20) + 1
LARGE = 100 << 20


class CannotBeReduced:
    def __reduce__(self) -> tuple[Any, ...]:
        raise RuntimeError("it is not to be pickled")


class FailsAtFirst:
    num_failures: ClassVar[int] = 0

    def __reduce__(self) -> tuple[Any, ...]:
        if FailsAtFirst.num_failures < 2:  # there are two ways of pickling, and the second is tried too
            FailsAtFirst.num_failures += 1
            raise RuntimeError("not now")
        return FailsAtFirst, ()


class HasNoState:
    def __getstate__(self) -> object:
        raise KeyError("state")


class CannotBeRead:
    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()


class IsReadAtHomeOnly:
    """Where it was made it can be rebuilt."""

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse_elsewhere, (os.getpid(),)


class TakesNoState:
    def __init__(self) -> None:
        self.state = 1

    def __setstate__(self, state: object) -> None:
        raise KeyError("state")


def refuse() -> None:
    raise RuntimeError("it is not to be read")


def refuse_elsewhere(pid: int) -> None:
    if os.getpid() != pid:
        raise RuntimeError("it is not to be read here")


def nested_list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def a_frame() -> types.FrameType:
    return sys._getframe()


def a_socket() -> socket.socket:
    with socket.socket() as closed:
        return closed


UNSENDABLE: dict[str, Callable[[], Any]] = {
    "lock": threading.Lock,
    "thread": threading.current_thread,
    "generator": lambda: (number for number in range(3)),
    "socket": a_socket,
    "frame": a_frame,
    "pointer": lambda: ctypes.pointer(ctypes.c_int(1)),
    "weak reference": lambda: weakref.ref(CannotBeRead),
    "array of objects": lambda: np.array([threading.Lock()], object),
    "very deep list": lambda: nested_list(100_000),
    "cannot be reduced": CannotBeReduced,
    "has no state": HasNoState,
}
UNREADABLE: dict[str, Callable[[], Any]] = {
    "cannot be read": CannotBeRead,
    "is read at home only": IsReadAtHomeOnly,
    "takes no state": TakesNoState,
}

shared = [1, 2]
itself: list[Any] = [1]
itself.append(itself)
SENDABLE: dict[str, Any] = {
    "sets in a dict": {"a": {1, 2}, "b": {"c": frozenset({(3, "x")})}},
    "arrays in a list": [np.random.default_rng(seed).random((100, 300)) for seed in range(5)],
    "numbers": [0, -1, 2**63, -(2**200), 1 << 5000, 0.1, float("inf"), 1j, True, None],
    "texts": ["", "größe", "\udcff", "\0", "x" * 100_000],
    "bytes": [b"", bytes(100_000), bytearray(b"x")],
    "keys": {1: "a", "1": "b", (1, 2): "c", None: "d", b"x": "e", 1.5: "f"},
    "collections": [Counter("abc"), deque([1, 2], maxlen=2), OrderedDict(a=1), defaultdict(list, a=[1])],
    "library": [
        datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
        decimal.Decimal("0.1"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=1),
        PurePosixPath("a/b"),
        range(3),
        slice(1, 2),
        Ellipsis,
    ],
    "modules and functions": [os, os.path.join, len, int, refuse, dict[str, int]],
}


@asyncparl.remote_class(max_concurrency=2)
class Worker:
    def __init__(self, *values: Any, **named: Any) -> None:
        self.value: Any = None

    def take(self, *values: Any, **named: Any) -> str:
        return "taken"

    async def take_async(self, *values: Any, **named: Any) -> str:
        return "taken"

    def make(self, name: str) -> Any:
        return (UNSENDABLE | UNREADABLE)[name]()

    async def make_async(self, name: str) -> Any:
        return (UNSENDABLE | UNREADABLE)[name]()

    def stream(self, name: str) -> Iterator[Any]:
        yield "item"
        yield (UNSENDABLE | UNREADABLE)[name]()

    async def stream_async(self, name: str) -> AsyncIterator[Any]:
        yield "item"
        yield (UNSENDABLE | UNREADABLE)[name]()

    def echo(self, value: Any) -> Any:
        return value

    def zeros(self, num_bytes: int) -> Any:
        return np.zeros(num_bytes, np.uint8)

    def __getitem__(self, key: Any) -> Any:
        return key

    def return_call(self, other: Any) -> Any:
        return other.ok()

    def ok(self) -> str:
        return "ok"


async def fails(call: asyncparl.Call[Any], match: str = "") -> None:
    with trio.fail_after(LIMIT_S), pytest.raises(asyncparl.SerializationError, match=match):
        await call


@pytest.mark.parametrize("method", ["take", "take_async"])
async def test_an_argument_that_cannot_be_sent_fails_its_call_and_nothing_else(method: str) -> None:
    async with asyncparl.connect():
        worker = Worker()
        take = getattr(worker, method)
        for make in UNSENDABLE.values():
            await fails(take(make()), rf"^argument 1 of Worker#1.{method}: ")
            await fails(
                take("good", {"nested": [make()]}, "good"), rf"^argument 2 of Worker#1.{method}: a value of type "
            )
            await fails(take(named=make()), rf"^argument 'named' of Worker#1.{method}: ")
            assert await take("good") == "taken"
        for make in UNREADABLE.values():
            await fails(take(make()), rf"^the arguments of {method}: a received value cannot be rebuilt")
            assert await take("good") == "taken"


async def test_an_argument_of_a_constructor_that_cannot_travel_fails_every_call() -> None:
    async with asyncparl.connect() as cluster:
        for name, make in (UNSENDABLE | UNREADABLE).items():
            worker = Worker("good", named=make())
            for _ in range(2):
                await fails(
                    worker.ok(),
                    "the arguments of __init__" if name in UNREADABLE else r"argument 'named' of .*__init__",
                )
        with trio.fail_after(LIMIT_S):
            while cluster.num_actors:
                await trio.sleep(0.01)


async def test_an_attribute_that_cannot_travel_is_not_set() -> None:
    async with asyncparl.connect():
        worker = Worker()
        for make in (UNSENDABLE | UNREADABLE).values():
            with pytest.raises(asyncparl.SerializationError):
                await asyncparl.set_attribute(worker, "value", make())
        assert await worker.value is None


@pytest.mark.parametrize("method", ["make", "make_async"])
async def test_a_result_that_cannot_travel_fails_its_call_and_nothing_else(method: str) -> None:
    async with asyncparl.connect():
        worker = Worker()
        for name in UNSENDABLE | UNREADABLE:
            if (method, name) != ("make", "generator"):  # that streams
                await fails(getattr(worker, method)(name), rf"^the result of (Worker#1\.)?{method}: a .*value")
            assert await worker.ok() == "ok"


@pytest.mark.parametrize("method", ["stream", "stream_async"])
async def test_an_item_that_cannot_travel_ends_its_stream_and_nothing_else(method: str) -> None:
    async with asyncparl.connect():
        worker = Worker()
        for name in UNSENDABLE | UNREADABLE:
            stream = getattr(worker, method)(name)
            assert await anext(stream) == "item"
            with (
                trio.fail_after(LIMIT_S),
                pytest.raises(asyncparl.SerializationError, match=rf"^an item of (Worker#1\.)?{method}: a .*value"),
            ):
                await anext(stream)
            assert await worker.ok() == "ok"


async def test_the_error_says_what_was_wrong() -> None:
    async with asyncparl.connect():
        worker = Worker()
        for name, text in [
            ("lock", "cannot pickle '_thread.lock' object"),
            ("cannot be reduced", "RuntimeError: it is not to be pickled"),
            ("has no state", "KeyError: 'state'"),
        ]:
            for call in (worker.take(UNSENDABLE[name]()), worker.make(name)):
                await fails(call, text)
        for call in (worker.take(CannotBeRead()), worker.make("cannot be read")):
            await fails(call, "RuntimeError: it is not to be read")


async def test_the_error_says_which_argument_it_is() -> None:
    lock = threading.Lock()
    why = "a value of type lock cannot be pickled: TypeError: cannot pickle '_thread.lock' object"
    async with asyncparl.connect():
        worker = Worker()
        await fails(worker.take("good", lock), f"argument 2 of Worker#1.take: {why}")
        await fails(worker.take("good", rate=lock), f"argument 'rate' of Worker#1.take: {why}")
        await fails(worker.take([1, lock]), "argument 1 of Worker#1.take: a value of type list")
        await fails(worker[lock], f"argument 1 of Worker#1.__getitem__: {why}")
        with pytest.raises(asyncparl.SerializationError, match=re.escape(f"the value of Worker#1.rate: {why}")):
            await asyncparl.set_attribute(worker, "rate", lock)
        await fails(Worker("good", rate=lock).ok(), f"argument 'rate' of Worker#2.__init__: {why}")
        exposed = asyncparl.expose([])
        await fails(exposed.append(lock), f"argument 1 of list.append: {why}")
        assert await worker.ok() == "ok"


async def test_arguments_that_only_fail_together_are_named_by_their_call() -> None:
    async with asyncparl.connect():
        worker = Worker()
        await fails(worker.take(FailsAtFirst(), 1), "the arguments of Worker#1.take: a value of type tuple")
        assert await worker.ok() == "ok"


async def test_a_call_that_was_not_awaited_is_no_argument() -> None:
    async with asyncparl.connect():
        worker = Worker()
        await worker.ok()
        for mistake in (worker.ok(), worker.echo("x"), worker.stream("lock")):
            await fails(worker.take("good", mistake), "is a call, not what it gives: await it first")
        await fails(worker.take([worker.ok()]), "argument 1 of Worker#1.take: a value of type list")
        await fails(worker.take(mistake=worker.ok), "Worker#1.ok is a name of a remote object, not its value: await it")
        assert await worker.ok() == "ok"


async def test_an_actor_that_returns_a_call_instead_of_its_result_is_told_so() -> None:
    async with asyncparl.connect():
        worker = Worker()
        await fails(worker.return_call(Worker()), "await it first")
        assert await worker.ok() == "ok"


async def test_what_is_larger_than_the_limit_is_refused_at_the_sender_and_the_actor_goes_on() -> None:
    async with asyncparl.connect(max_value_bytes="2MiB"):
        worker = Worker()
        with trio.fail_after(LIMIT_S):
            for call in (worker.take(np.zeros(TOO_LARGE, np.uint8)), worker.zeros(TOO_LARGE)):
                with pytest.raises(asyncparl.MessageTooLarge, match=r"2,097,... bytes; the limit"):
                    await call
            with pytest.raises(asyncparl.MessageTooLarge):
                await Worker(np.zeros(TOO_LARGE, np.uint8)).ok()
            assert await worker.ok() == "ok"


async def test_large_values_arrive_whole() -> None:
    async with asyncparl.connect():
        worker = Worker()
        with trio.fail_after(LIMIT_S):
            for num_bytes in (1 << 20, (1 << 20) + 1, LARGE):
                array = np.arange(num_bytes // 8)
                again = await worker.echo(array)
                assert np.array_equal(again, array)
                again[0] = -1  # it is ours


async def test_values_arrive_as_they_were() -> None:
    async with asyncparl.connect():
        worker = Worker()
        for name, value in SENDABLE.items():
            again = await worker.echo(value)
            assert [type(part) for part in again] == [type(part) for part in value], name
            if name == "arrays in a list":
                assert all(np.array_equal(one, other) for one, other in zip(again, value, strict=True))
            else:
                assert again == value, name
        one, other = await worker.echo([shared, shared])
        assert one is other
        again = await worker.echo(itself)
        assert again[1] is again


async def test_a_function_that_has_no_name_travels_with_what_it_needs() -> None:
    async with asyncparl.connect():
        offset = 5
        again = await Worker().echo(lambda number: number + offset)
        assert again(1) == 6


def test_threads_encode_and_decode_at_the_same_time() -> None:
    start = threading.Barrier(NUM_THREADS)

    def work(seed: int) -> bool:
        value = {"array": np.full(10_000, seed), "set": {seed}, "path": Path(str(seed)), "call": lambda: seed}
        start.wait(timeout=LIMIT_S)
        for _ in range(20):
            encoded = encode_value(value)
            again = decode_value(encoded.payload, [memoryview(bytes(buffer)) for buffer in encoded.buffers])
            if not (again["array"] == seed).all() or again["set"] != {seed} or again["call"]() != seed:
                return False
        return True

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        assert all(pool.map(work, range(NUM_THREADS)))


async def test_50_threads_call_one_actor_at_the_same_time() -> None:
    async with asyncparl.connect():
        worker = Worker()
        results: dict[int, Any] = {}

        def call(number: int) -> None:
            value = {"array": np.full(1000, number), "set": {number}}
            results[number] = [worker.echo(value).result(LIMIT_S) for _ in range(5)]

        async with trio.open_nursery() as nursery:
            limiter = trio.CapacityLimiter(NUM_THREADS)
            for number in range(NUM_THREADS):
                nursery.start_soon(lambda number=number: trio.to_thread.run_sync(call, number, limiter=limiter))
        for number, values in results.items():
            assert len(values) == 5
            assert all((value["array"] == number).all() and value["set"] == {number} for value in values)
        assert len(results) == NUM_THREADS
