"""Calls as their maker sees them: awaitable by several tasks, iterable if they stream, cancellable."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from typing import Any, Generic, TypeVar

import trio

from asyncparl.errors import CallCancelled
from asyncparl.protocol.frames import Frame
from asyncparl.protocol.messages import Raised, Returned
from asyncparl.protocol.values import NOTHING, Encoded, decode_value
from asyncparl.runtime.exceptions import rebuild_exception
from asyncparl.runtime.link import Link

T = TypeVar("T")

STREAM_CREDIT = 2
"""Items of a stream that may be on their way or waiting here: one in use, one in reserve."""

Decoder = Callable[[memoryview, Sequence[memoryview]], Any]
"""Turns what a frame carries into a value."""

Rebuilder = Callable[[Frame], BaseException]
"""Turns a `Raised` frame into an exception."""

_UNSET: Any = object()


class _Pending:
    """What is known of a call. The link holds on to it; the `Call` of the user is only a handle."""

    __slots__ = (
        "answer",
        "call_id",
        "decode",
        "error",
        "items",
        "link",
        "name",
        "orphaned",
        "rebuild",
        "streams",
        "value",
        "waiters",
        "watchers",
    )

    def __init__(self, name: str, decode: Decoder = decode_value, rebuild: Rebuilder = rebuild_exception) -> None:
        self.name = name
        self.decode = decode
        self.rebuild = rebuild
        self.link: Link | None = None
        self.call_id = 0
        self.answer: Frame | None = None
        self.value: Any = _UNSET
        self.error: BaseException | None = None
        self.items: deque[Frame] = deque()
        self.streams = False
        self.orphaned = False
        """Nobody holds the `Call` any more."""
        self.waiters: list[trio.lowlevel.Task] = []
        self.watchers: list[_Watcher] = []

    # --- told by the link -----------------------------------------------------------------------------------

    def answer_arrived(self, frame: Frame) -> None:
        self.answer = frame
        if isinstance(frame.message, Returned):
            self.streams = frame.message.streamed
        self._settled()

    def item_arrived(self, frame: Frame) -> None:
        self.streams = True
        if self.orphaned:
            self.cancel()
            return
        self.items.append(frame)
        self._wake()
        self._tell_watchers()

    def call_lost(self, error: BaseException) -> None:
        self.error = error
        self._settled()

    # --- asked by the user's tasks --------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        return self.answer is not None or self.error is not None or self.value is not _UNSET

    def result(self) -> Any:
        """The value, or the exception raised. Decoded on first use, by the task that wants it."""
        if self.error is None and self.value is _UNSET:
            self._decode()
        if self.error is not None:
            raise self.error
        return self.value

    def cancel(self) -> None:
        """Give up, if there is still something to give up."""
        if not self.is_settled:
            if self.link is not None:
                self.link.cancel(self.call_id)
            self.items.clear()
            self.call_lost(CallCancelled(f"{self.name} was cancelled"))

    async def wait(self) -> None:
        """Until an answer or an item is there that was not there before."""
        task = trio.lowlevel.current_task()
        self.waiters.append(task)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self.waiters.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _decode(self) -> None:
        assert self.answer is not None
        frame, self.answer = self.answer, None
        try:
            if isinstance(frame.message, Returned):
                self.value = self.decode(frame.payload, frame.buffers)
            elif isinstance(frame.message, Raised):
                self.error = self.rebuild(frame)
            else:
                self.error = CallCancelled(f"{self.name} was cancelled")
        except Exception as error:
            self.error = error

    def _settled(self) -> None:
        self._wake()
        self._tell_watchers()

    def _tell_watchers(self) -> None:
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher()

    def _wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for task in waiters:
            trio.lowlevel.reschedule(task)


class Call(Generic[T]):
    """A call that has been made. It runs whether or not anybody awaits it.

    `await call` gives its result or raises its exception; several tasks may do so, several times. If the remote
    method is a generator, iterate instead: `async for item in call`. At most `STREAM_CREDIT` items are made ahead.

    Cancellation: cancelling the only task that awaits a call cancels the call. Dropping a stream (leaving the loop,
    letting go of the call) ends the remote generator. A call cancelled before it started never starts; a running
    method without `async` is left to finish and its result is dropped.
    """

    __slots__ = ("__weakref__", "_pending")

    def __init__(self, pending: _Pending) -> None:
        self._pending = pending

    def __await__(self) -> Generator[Any, None, T]:
        return self._result().__await__()

    def __aiter__(self) -> Call[T]:
        return self

    async def __anext__(self) -> T:
        pending = self._pending
        while True:
            if pending.items:
                await trio.lowlevel.checkpoint()
                if not pending.items:
                    continue  # another task took it meanwhile
                return self._take_item()
            if pending.is_settled:
                await trio.lowlevel.checkpoint()
                pending.result()
                if not pending.streams:
                    raise TypeError(f"{pending.name} does not stream: await it instead of iterating over it")
                raise StopAsyncIteration
            await pending.wait()

    def done(self) -> bool:
        """Whether the call has ended: `await` will not wait."""
        return self._pending.is_settled

    def cancel(self) -> None:
        """Give up on the call; awaiting it raises `CallCancelled`. No effect on one that has ended."""
        self._pending.cancel()

    async def aclose(self) -> None:
        """Cancel the call; with `contextlib.aclosing` a stream ends where its block ends."""
        self.cancel()
        await trio.lowlevel.checkpoint()

    async def _result(self) -> T:
        pending = self._pending
        if pending.is_settled:
            await trio.lowlevel.checkpoint()
        while not pending.is_settled:
            if pending.items:
                pending.cancel()
                raise TypeError(f"{pending.name} streams: use `async for` instead of awaiting it")
            try:
                await pending.wait()
            except trio.Cancelled:
                if not pending.waiters and not any(watcher.is_watching() for watcher in pending.watchers):
                    pending.cancel()
                raise
        if pending.streams and pending.error is None:
            raise TypeError(f"{pending.name} streams: use `async for` instead of awaiting it")
        return pending.result()  # type: ignore[no-any-return]

    def _take_item(self) -> T:
        pending = self._pending
        frame = pending.items.popleft()
        if pending.link is not None and not pending.is_settled:
            pending.link.grant(pending.call_id, 1)
        return pending.decode(frame.payload, frame.buffers)  # type: ignore[no-any-return]

    def __del__(self) -> None:
        # May run in any thread and at any moment: only note the wish, in the one way that is safe there.
        pending = self._pending
        pending.orphaned = True
        if pending.streams and not pending.is_settled and pending.link is not None:
            pending.link.run_soon(pending.cancel)

    def __repr__(self) -> str:
        pending = self._pending
        if not pending.is_settled:
            state = "pending"
        elif pending.error is not None or (pending.answer and isinstance(pending.answer.message, Raised)):
            state = "failed"
        else:
            state = "done"
        return f"<asyncparl.Call {pending.name} {state}>"


def make_call(
    link: Link,
    name: str,
    kind: int,
    target: str,
    value: Encoded = NOTHING,
    *,
    credit: int = 0,
    decode: Decoder = decode_value,
    rebuild: Rebuilder = rebuild_exception,
) -> Call[Any]:
    """Make a call over a link. What goes wrong with it is raised where the call is awaited."""
    pending = _Pending(name, decode, rebuild)
    try:
        pending.call_id = link.call(pending, kind, target, value, credit=credit)
        pending.link = link
    except Exception as error:
        pending.error = error
    return Call(pending)


def failed_call(name: str, error: BaseException) -> Call[Any]:
    """A call that could not even be made."""
    pending = _Pending(name)
    pending.error = error
    return Call(pending)


async def gather(calls: Iterable[Call[T]]) -> list[T]:
    """The results of all calls, in order.

    The first call to fail cancels the rest, and its exception is raised as it is. So does cancelling `gather`.
    """
    calls = _checked(calls)
    try:
        async for call in as_completed(calls):
            await call
        return [call._pending.result() for call in calls]
    except BaseException:
        for call in calls:
            call.cancel()
        raise


def _checked(calls: Iterable[Call[T]]) -> list[Call[T]]:
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


class _AsCompleted(Generic[T]):
    def __init__(self, calls: Iterable[Call[T]]) -> None:
        self._done: deque[Call[T]] = deque()
        self._something = trio.Event()
        self._num_left = 0
        for call in _checked(calls):
            self._num_left += 1
            if call.done() or call._pending.items:
                self._done.append(call)
            else:
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

    def __init__(self, iteration: _AsCompleted[Any], call: Call[Any]) -> None:
        self._iteration = weakref.ref(iteration)
        self._call = call

    def __call__(self) -> None:
        if (iteration := self._iteration()) is not None:
            iteration._ended(self._call)

    def is_watching(self) -> bool:
        """Whether anybody still iterates."""
        return self._iteration() is not None
