"""An `async with` block for programs without `async`: an event loop in a thread of its own holds it open."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # see `_close_all`
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

import trio

from asyncparl.runtime.call import call_in_loop, check_thread
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.speaking import say

T = TypeVar("T")
R = TypeVar("R")

_EXIT_LIMIT_S = 30.0
"""Closing is bounded, but for code of the user's that never returns."""


class HeldBlock(Generic[T]):
    """Open from its making until `close()`, the end of `with`, or the end of the main thread."""

    def __init__(self, block: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        """Raises what entering the block raises."""
        self._block = block
        self._loop: EventLoop | None = None
        self._is_opened = threading.Event()
        self._is_closing = False
        self._error: BaseException | None = None
        """What has ended the loop, for whoever asks next."""
        self._while_open = contextlib.ExitStack()
        """What is undone before the block ends."""
        # A daemon, for code of the user's runs in it too, in the `async` methods of exposed objects.
        self._thread = threading.Thread(target=self._run, name="asyncparl-loop", daemon=True)
        try:
            self._thread.start()
            self._is_opened.wait()
            self._raise_error()
        except BaseException:
            self.close()
            raise
        _open.append(self)

    def close(self) -> None:
        """End the block. A second time does nothing. Ctrl-C interrupts the wait, and the closing goes on."""
        check_thread("close()", "`async with`")
        self._begin_to_close()
        with contextlib.suppress(RuntimeError):  # Ctrl-C came before the thread was there: if it comes, it ends at once
            self._thread.join()
        self._raise_error()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} is of this process only: it cannot be sent")

    @property
    def _is_open(self) -> bool:
        return self._thread.is_alive()

    def _ask(self, name: str, function: Callable[[], Awaitable[R]]) -> R:
        """Run something in the loop and wait for it. What ends the wait, such as Ctrl-C, cancels it."""
        assert self._loop is not None
        scope = trio.CancelScope()

        async def in_scope() -> R:
            with scope:
                return await function()
            raise trio.ClosedResourceError(f"{name} was cancelled")

        try:
            return call_in_loop(self._loop, name, in_scope).result()
        except BaseException:
            self._loop.run_soon(scope.cancel)
            raise

    def _begin_to_close(self) -> None:
        self._while_open.close()  # first: nobody is to find what is about to end
        with contextlib.suppress(ValueError):  # closed already
            _open.remove(self)
        self._is_closing = True
        if self._loop is not None:
            self._loop.run_soon(self._scope.cancel)

    def _end_with_process(self) -> None:
        self._thread.join(_EXIT_LIMIT_S)
        if self._thread.is_alive():
            say(f"asyncparl: {self!r} does not end within {_EXIT_LIMIT_S:g} s\n")

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    # --- in the thread of the event loop --------------------------------------------------------------------

    def _opened(self) -> None:
        """The block has been entered, in this task."""

    def _run(self) -> None:
        try:
            trio.run(self._hold_open)
        except BaseException as error:
            self._error = error
        self._is_opened.set()

    async def _hold_open(self) -> None:
        with trio.CancelScope() as self._scope:
            self._loop = EventLoop()
            if self._is_closing:  # interrupted before there was a loop that could be told
                return
            async with self._block() as self._held:
                self._opened()
                self._is_opened.set()
                await trio.sleep_forever()


_open: list[HeldBlock[Any]] = []


def _close_all() -> None:
    """Where the main thread ends and has left blocks open, as in a notebook."""
    blocks = _open[::-1]
    for block in blocks:
        block._begin_to_close()
    for block in blocks:
        block._end_with_process()


# `atexit` would be too late: closing takes threads, and then no more can be started (Python 3.12), nor is one waited
# for. `concurrent.futures` registers here too. It waits for its threads, which may wait for a call of ours: as it is
# imported above, it has its turn after us.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
os.register_at_fork(after_in_child=_open.clear)
