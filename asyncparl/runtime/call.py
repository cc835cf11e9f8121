"""Calls as their maker sees them: awaitable by several tasks, iterable if they stream, cancellable.

A `Call` may be used in any thread, its `await` and `async for` in the event loop of its link only, its `result()` and
`for` everywhere else. `pending.py` says how threads and tasks meet.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, Generic, NoReturn, TypeVar

import trio

from asyncparl.protocol.messages import Raised
from asyncparl.protocol.values import NOTHING, Encoded
from asyncparl.runtime.activity import WaitingCall
from asyncparl.runtime.event_loop import EventLoop, runs_trio
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.interrupts import Uninterrupted, interrupt_main
from asyncparl.runtime.link import Link, LinkLost
from asyncparl.runtime.pending import AS_PICKLES, Pending, Reading, deadline_after

T = TypeVar("T")

STREAM_CREDIT = 2
"""Items of a stream that may be on their way or waiting here: one in use, one in reserve."""


class Call(Generic[T]):
    """A call that has been made. It runs whether or not anybody waits for it.

    `await call` gives its result or raises its exception; several tasks may do so, several times. If the remote
    method is a generator, iterate instead: `async for item in call`. At most `STREAM_CREDIT` items are made ahead.

    Threads without an event loop write `call.result()` and `for item in call`. They and tasks may wait at once.

    Cancellation: cancelling the only task that awaits a call cancels the call. Dropping a stream (leaving the loop,
    letting go of the call) ends the remote generator. A call cancelled before it started never starts; a running
    method without `async` is left to finish and its result is dropped.
    """

    __slots__ = ("__weakref__", "_pending")

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def __await__(self) -> Generator[Any, None, T]:
        return self._result().__await__()

    def result(self, timeout: float | None = None) -> T:
        """What `await` gives, for threads without an event loop. Ctrl-C interrupts the wait.

        Args:
            timeout: how many seconds to wait at most. The call goes on after that; `cancel` ends it.

        Raises:
            TimeoutError: it has not ended in time.
            TypeError, ValueError: `timeout` is no number.
            RuntimeError: this is the thread of an event loop, or the one in which the call has to run.
        """
        check_thread("result()", "`await call`")
        pending = self._pending
        deadline = deadline_after(timeout)
        while not pending.is_settled:
            if pending.items:
                pending.cancel()
                raise _it_streams(pending, "for", "asking for its result")
            pending.wait_in_thread(deadline)
        if pending.streams and pending.error is None:
            raise _it_streams(pending, "for", "asking for its result")
        return pending.result()  # type: ignore[no-any-return]

    def __aiter__(self) -> Call[T]:
        return self

    async def __anext__(self) -> T:
        pending = self._pending
        pending.check_loop()
        while True:
            has_ended = pending.is_settled  # first: the last item comes before the end
            if pending.items:
                await trio.lowlevel.checkpoint()
                if (frame := pending.take_item()) is not None:
                    return pending.read("an item of", frame)  # type: ignore[no-any-return]
            elif has_ended:
                await trio.lowlevel.checkpoint()
                _check_end(pending, "await it")
                raise StopAsyncIteration
            else:
                pending.is_iterated = True
                try:
                    await pending.wait()
                except trio.Cancelled:
                    del self  # what Trio has raised lives on for a while, and this frame with it: not so the call
                    raise

    def __iter__(self) -> Call[T]:
        check_thread("for", "`async for`, or `await` it first if it does not stream")
        return self

    def __next__(self) -> T:
        check_thread("for", "`async for`, or `await` it first if it does not stream")
        pending = self._pending
        while True:
            has_ended = pending.is_settled  # first: the last item comes before the end
            if (frame := pending.take_item()) is not None:
                return pending.read("an item of", frame)  # type: ignore[no-any-return]
            if has_ended:
                _check_end(pending, "ask for its result()")
                raise StopIteration
            pending.wait_in_thread(None)

    def done(self) -> bool:
        """Whether the call has ended: `await` and `result()` will not wait."""
        return self._pending.is_settled

    def cancel(self) -> None:
        """Give up on the call; awaiting it raises `CallCancelled`. No effect on one that has ended."""
        self._pending.cancel()

    def describe(self) -> WaitingCall:
        """For people who ask what goes on."""
        return self._pending.describe()

    def needs_thread(self, executor: Executor | None) -> None:
        """It is answered by that thread of this very process, which therefore must not wait for it."""
        self._pending.answerer = executor

    async def aclose(self) -> None:
        """Cancel the call; with `contextlib.aclosing` a stream ends where its block ends."""
        self.cancel()
        await trio.lowlevel.checkpoint()

    async def _result(self) -> T:
        pending = self._pending
        pending.check_loop()
        if pending.is_settled:
            await trio.lowlevel.checkpoint()
        while not pending.is_settled:
            if pending.items:
                pending.cancel()
                raise _it_streams(pending, "async for", "awaiting it")
            try:
                await pending.wait()
            except trio.Cancelled:
                others = pending.waiters or pending.gates
                if not others and not any(watcher.is_watching() for watcher in pending.watchers):
                    pending.cancel()
                raise
        return self._settled_result()

    def _settled_result(self) -> T:
        pending = self._pending
        if pending.streams and pending.error is None:
            raise _it_streams(pending, "async for", "awaiting it")
        return pending.result()  # type: ignore[no-any-return]

    def __del__(self) -> None:
        # May run in any thread and at any moment: only note the wish, in the one way that is safe there.
        try:
            pending = self._pending
        except AttributeError:  # Ctrl-C came in the constructor
            return
        pending.orphaned = True
        if (pending.streams or pending.is_iterated) and not pending.is_settled and pending.loop is not None:
            try:
                with Uninterrupted():
                    pending.loop.run_soon(pending.cancel)
            except KeyboardInterrupt:  # which would be lost here
                pending.loop.run_soon(interrupt_main)

    def __reduce__(self) -> NoReturn:
        name = self._pending.name
        raise TypeError(f"{name} is a call, not what it gives: await it first (without `async`: ask for its result())")

    def __repr__(self) -> str:
        pending = self._pending
        answer = pending.answer
        if not pending.is_settled:
            state = "pending"
        elif pending.error is not None or (answer is not None and isinstance(answer.message, Raised)):
            state = "failed"
        else:
            state = "done"
        return f"<asyncparl.Call {pending.name} {state}>"


def check_thread(word: str, instead: str) -> None:
    """Raise RuntimeError in the thread of an event loop, which must not wait."""
    if runs_trio():
        raise RuntimeError(f"`{word}` would stop the event loop of this thread: write {instead}")


def _it_streams(pending: Pending, word: str, instead_of: str) -> TypeError:
    return TypeError(f"{pending.name} streams: use `{word}` instead of {instead_of}")


def _check_end(pending: Pending, instead: str) -> None:
    """After the last item: whether that was all."""
    try:
        pending.result()
    except (StopIteration, StopAsyncIteration) as error:  # would end the loop as if that had been all
        raise RuntimeError(f"{pending.name} raised {type(error).__name__}") from error
    if not pending.streams:
        raise TypeError(f"{pending.name} does not stream: {instead} instead of iterating over it")


def make_call(
    link: Link,
    name: str,
    kind: int,
    target: str,
    value: Encoded = NOTHING,
    *,
    credit: int = 0,
    object_id: int = 0,
    timeout_s: float | None = None,
    reading: Reading = AS_PICKLES,
) -> Call[Any]:
    """Make a call over a link. What goes wrong with it is raised where the call is awaited.

    Raises:
        LinkLost: nobody would ever settle it.
    """
    pending = Pending(name, link.loop, reading)
    pending.link = link
    deadline = None if timeout_s is None else pending.limit_to(timeout_s, link.loop)
    try:
        pending.call_id = link.call(pending, kind, target, value, credit=credit, object_id=object_id, deadline=deadline)
    except LinkLost:
        raise
    except Exception as error:
        pending.error = error
    if deadline is not None:
        pending.watch_limit()
    return Call(pending)


def deferred_call(
    loop: EventLoop,
    name: str,
    kind: int,
    target: str,
    value: Encoded,
    *,
    credit: int,
    object_id: int,
    timeout_s: float | None,
) -> tuple[Call[Any], Callable[[Link], None]]:
    """A call that is made later, and what makes it, in the event loop, once there is a link."""
    pending = Pending(name, loop)
    deadline = None if timeout_s is None else pending.limit_to(timeout_s, loop)

    def send(link: Link) -> None:
        if pending.is_settled:
            return  # cancelled meanwhile
        try:
            pending.call_id = link.call(
                pending, kind, target, value, credit=credit, object_id=object_id, deadline=deadline
            )
            pending.link = link  # last: from now on other threads cancel it there
        except Exception as error:
            pending.call_lost(error)

    pending.watch_limit()
    return Call(pending), send


def lose_call(call: Call[Any], error: BaseException) -> None:
    """Settle a call that could not be made after all. In the event loop, as long as there is one."""
    if not call.done():
        call._pending.call_lost(error)


def failed_call(name: str, error: BaseException) -> Call[Any]:
    """A call that could not even be made."""
    pending = Pending(name, None)
    pending.error = error
    return Call(pending)


def call_in_loop(loop: EventLoop, name: str, function: Callable[[], Awaitable[T]]) -> Call[T]:
    """Run something in an event loop, for a thread outside of it: a call that goes nowhere."""
    pending = Pending(name, loop)
    ended = loop.why_over(name)

    async def run() -> None:
        try:
            pending.returned(await function())
        except Exception as error:
            pending.call_lost(error)
        finally:
            if not pending.is_settled:
                pending.call_lost(ended)

    def start() -> None:
        try:
            trio.lowlevel.spawn_system_task(run)
        except RuntimeError:  # too late in its life
            pending.call_lost(ended)

    if not loop.run_soon(start):
        pending.call_lost(ended)
    return Call(pending)


async def gather(calls: Iterable[Call[T]]) -> list[T]:
    """The results of all calls, in order.

    The first call to fail cancels the rest, and its exception is raised as it is. So does cancelling `gather`.
    """
    calls = checked_calls(calls)
    try:
        if (failed := await _All(calls).first_failed()) is not None:
            await failed
        return [call._settled_result() for call in calls]
    except BaseException:
        for call in calls:
            call.cancel()
        raise


def checked_calls(calls: Iterable[Call[T]]) -> list[Call[T]]:
    """A list of them.

    Raises:
        TypeError: they are something else.
    """
    if isinstance(calls, Call):
        raise TypeError(f"expected a list of calls, got only one: [{calls!r}] would be a list")
    calls = list(calls)
    for call in calls:
        if not isinstance(call, Call):
            raise TypeError(f"expected calls such as actor.method(...), got {call!r}")
    return calls


def as_completed(calls: Iterable[Call[T]]) -> AsyncIterator[Call[T]]:
    """Iterate over the calls as they end, whether well or not: `async for call in as_completed(calls): await call`.

    Leaving the loop early cancels nothing.
    """
    return _AsCompleted(calls)


class _All(Generic[T]):
    """Waits for many calls at once: its task is woken when all of them have ended well, or the first one has not."""

    def __init__(self, calls: Sequence[Call[T]]) -> None:
        self._over = trio.Event()
        self._num_left = 0
        self._failed: Call[T] | None = None
        for call in calls:
            if call.done() or call._pending.items:
                self._note(call)
            else:
                call._pending.check_loop()
                call._pending.watchers.append(_Watcher(self, call))
                self._num_left += 1

    async def first_failed(self) -> Call[T] | None:
        """The first call that has failed; None: all have ended, and none has."""
        if not self._num_left or self._failed is not None:
            await trio.lowlevel.checkpoint()
        else:
            await self._over.wait()
        return self._failed

    def _ended(self, call: Call[T]) -> None:
        self._num_left -= 1
        self._note(call)
        if not self._num_left or self._failed is not None:
            self._over.set()

    def _note(self, call: Call[T]) -> None:
        if self._failed is None and call._pending.has_failed:
            self._failed = call


class _AsCompleted(Generic[T]):
    def __init__(self, calls: Iterable[Call[T]]) -> None:
        self._done: deque[Call[T]] = deque()
        self._something = trio.Event()
        self._num_left = 0
        for call in checked_calls(calls):
            self._num_left += 1
            if call.done() or call._pending.items:
                self._done.append(call)
            else:
                call._pending.check_loop()
                call._pending.watchers.append(_Watcher(self, call))

    def __aiter__(self) -> _AsCompleted[T]:
        return self

    async def __anext__(self) -> Call[T]:
        if not self._num_left:
            raise StopAsyncIteration
        if self._done:
            await trio.lowlevel.checkpoint()
        while not self._done:
            self._something = trio.Event()
            await self._something.wait()
        self._num_left -= 1
        return self._done.popleft()

    def _ended(self, call: Call[T]) -> None:
        self._done.append(call)
        self._something.set()


class _Watcher:
    """Tells an iteration that a call has ended; one that was left early hears of nothing, and keeps nobody waiting."""

    __slots__ = ("_call", "_iteration")

    def __init__(self, iteration: _All[Any] | _AsCompleted[Any], call: Call[Any]) -> None:
        self._iteration = weakref.ref(iteration)
        self._call = call

    def __call__(self) -> None:
        if (iteration := self._iteration()) is not None:
            iteration._ended(self._call)

    def is_watching(self) -> bool:
        """Whether anybody still iterates."""
        return self._iteration() is not None
