"""An `async with` block for programs without `async`: an event loop in a thread of its own holds it open.

Ctrl-C may come between any two steps of the main thread. What must not be left half done holds it back, waits can be
ended by it at any moment, and a block whose `with` never came to be, or could not be left, ends when Python drops it.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # see `_close_all`
import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

import trio

from asyncparl.runtime.call import call_in_loop, check_thread
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.interrupts import Latch, Uninterrupted
from asyncparl.speaking import say

T = TypeVar("T")
R = TypeVar("R")

_EXIT_LIMIT_S = 30.0
"""Closing is bounded, but for code of the user's that never returns."""


class HeldBlock(Generic[T]):
    """Open from its making until `close()`, the end of `with`, or the end of the main thread.

    One that was not told to `_keep` also ends when nobody holds it any more.
    """

    def __init__(self, block: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        """Raises what entering the block raises."""
        self._is_entered = False
        self._holder = _Holder(block, type(self).__name__)
        self._if_dropped = weakref.finalize(self, self._holder.begin_to_close)
        self._if_dropped.atexit = False
        has_started = False
        try:
            with Uninterrupted():
                self._holder.start()
                has_started = True
            self._holder.is_opened.wait()
            self._holder.raise_error()
        except BaseException:
            if not has_started:
                self._holder.forget()
            self.close()
            raise

    def close(self) -> None:
        """End the block. A second time does nothing. Ctrl-C interrupts the wait, and the closing goes on."""
        check_thread("close()", "`async with`")
        with Uninterrupted():
            _kept.discard(self)
            self._if_dropped.detach()
            self._holder.begin_to_close()
        self._holder.wait_closed()
        self._holder.raise_error()

    def __enter__(self) -> Self:
        self._is_entered = True
        _kept.discard(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} is of this process only: it cannot be sent")

    @property
    def _held(self) -> T:
        """What the block gave."""
        return self._holder.held

    @property
    def _is_open(self) -> bool:
        return not self._holder.is_ended.is_set

    def _keep(self) -> None:
        """Stay open without being held by anybody, unless a `with` has it."""
        if not self._is_entered:
            _kept.add(self)

    def _ask(self, name: str, function: Callable[[], Awaitable[R]]) -> R:
        """Run something in the loop and wait for it. What ends the wait, such as Ctrl-C, cancels it."""
        scope = trio.CancelScope()

        async def in_scope() -> R:
            with scope:
                return await function()
            raise trio.ClosedResourceError(f"{name} was cancelled")

        loop = self._holder.loop
        assert loop is not None
        try:
            return call_in_loop(loop, name, in_scope).result()
        except BaseException:
            loop.run_soon(scope.cancel)
            raise


class _Holder(Generic[T]):
    """The thread with the event loop. It knows nothing of the object that users hold: that one may be dropped."""

    held: T

    def __init__(self, block: Callable[[], AbstractAsyncContextManager[T]], name: str) -> None:
        self._block = block
        self._name = name
        self.loop: EventLoop | None = None
        self.is_opened, self.is_ended = Latch(), Latch()
        self.while_open = contextlib.ExitStack()
        """What is undone before the block ends."""
        self._is_closing = False
        self._error: BaseException | None = None
        """What has ended the loop, for whoever asks next."""
        # A daemon, for code of the user's runs in it too, in the `async` methods of exposed objects.
        self._thread = threading.Thread(target=self._run, name="asyncparl-loop", daemon=True)

    def start(self) -> None:
        _open.append(self)
        self._thread.start()

    def begin_to_close(self) -> None:
        """In any thread, and in a finalizer."""
        self.while_open.close()  # first: nobody is to find what is about to end
        self._is_closing = True
        if self.loop is not None:
            self.loop.run_soon(self._scope.cancel)

    def wait_closed(self) -> None:
        self.is_ended.wait()
        with contextlib.suppress(RuntimeError):  # it was never started, or an earlier Ctrl-C has left that half done
            self._thread.join()

    def end_with_process(self) -> None:
        if not self.is_ended.wait(_EXIT_LIMIT_S):
            say(f"asyncparl: {getattr(self, 'held', self._name)!r} does not end within {_EXIT_LIMIT_S:g} s\n")

    def forget(self) -> None:
        """The thread has ended, or is that of the process which this one was forked from."""
        with contextlib.suppress(ValueError):  # a second time
            _open.remove(self)
        self.is_opened.set()
        self.is_ended.set()

    def raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    # --- in the thread of the event loop --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            trio.run(self._hold_open)
        except BaseException as error:
            self._error = error
        self.forget()

    async def _hold_open(self) -> None:
        with trio.CancelScope() as self._scope:
            self.loop = EventLoop()
            if self._is_closing:  # interrupted before there was a loop that could be told
                return
            async with self._block() as self.held:
                self.is_opened.set()
                await trio.sleep_forever()


_open: list[_Holder[Any]] = []
_kept: set[HeldBlock[Any]] = set()


def _close_all() -> None:
    """Where the main thread ends and has left blocks open, as in a notebook."""
    holders = _open[::-1]
    for holder in holders:
        holder.begin_to_close()
    for holder in holders:
        holder.end_with_process()


# `atexit` would be too late: closing takes threads, and then no more can be started (Python 3.12), nor is one waited
# for. `concurrent.futures` registers here too. It waits for its threads, which may wait for a call of ours: as it is
# imported above, it has its turn after us.
getattr(threading, "_register_atexit", atexit.register)(_close_all)


def _forked() -> None:
    for holder in _open.copy():
        holder.forget()


os.register_at_fork(after_in_child=_forked)
