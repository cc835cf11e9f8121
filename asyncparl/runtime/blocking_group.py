"""Groups of actors without `async`: `with supervise() as group: sim = group.add(Simulator)`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial

import trio

from asyncparl.errors import ActorDied, NotConnectedError
from asyncparl.protocol.restarts import Strategy
from asyncparl.runtime import group as with_async
from asyncparl.runtime.call import call_in_loop, check_thread
from asyncparl.runtime.current import current_session
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.group import Group
from asyncparl.runtime.interrupts import Uninterrupted


@contextlib.contextmanager
def supervise(
    strategy: Strategy = "one_for_one", *, max_restarts: int = 3, restart_window_s: float | None = 60.0
) -> Iterator[Group]:
    """Supervise the actors that are added to the group. Arguments and errors as `asyncparl.supervise`.

    A thread cannot be cancelled. When the group has no restart left, its actors are killed, so whoever waits for one of
    them hears of it. What leaves the block is the last death, as `ActorDied`, at the latest where the block ends.

    Ctrl-C interrupts the wait for the end of the actors, which goes on.

    Raises:
        NotConnectedError: nothing is connected.
        RuntimeError: this is the thread of an event loop.
    """
    check_thread("with supervise()", "`async with asyncparl.supervise():`")
    block = with_async.supervise(strategy, max_restarts=max_restarts, restart_window_s=restart_window_s)
    held = _HeldGroup(current_session("supervise(...)").loop, block)
    try:
        yield held.open()
        held.close(by_force=False)
    except GeneratorExit:  # Ctrl-C came between the block and us, and Python drops us, perhaps in another thread
        held.begin_to_close(by_force=True)
        raise
    except BaseException as error:
        if not held.is_closing:
            held.close(by_force=True)
        if held.failure is not None and isinstance(error, ActorDied):
            raise held.failure from error
        raise
    if held.failure is not None:
        raise held.failure


class _Left(Exception):
    """Ends the block of a group whose other half, in a thread, was left by an exception."""


class _HeldGroup:
    """The block of a group, held open in an event loop, for a thread outside of that."""

    def __init__(self, loop: EventLoop, block: AbstractAsyncContextManager[Group]) -> None:
        self._loop = loop
        self._block = block
        self._group: Group | None = None
        self._error: Exception | None = None
        """Why there is no group."""
        self._opened = trio.Event()
        self._left = trio.Event()
        self._ended = trio.Event()
        self._is_held = False
        self._by_force = False
        self.is_closing = False
        """It ends, whether or not somebody waits for that."""

    @property
    def failure(self) -> BaseException | None:
        """What the group has failed with."""
        return None if self._group is None else self._group.failure

    def open(self) -> Group:
        """Enter it. Raises what that raises."""
        return call_in_loop(self._loop, "supervise(...)", self._open).result()

    def begin_to_close(self, *, by_force: bool) -> None:
        """Leave it soon. In any thread, and in a finalizer."""
        self._loop.run_soon(self._leave, by_force)

    def close(self, *, by_force: bool) -> None:
        """Leave it, and wait until its actors have ended. If it fails, the group knows how."""
        with Uninterrupted():
            self.is_closing = True
            end = call_in_loop(self._loop, "the end of supervise()", partial(self._close, by_force))
        with contextlib.suppress(NotConnectedError):  # that was closed meanwhile, and so were the actors
            end.result()

    # --- in the event loop ----------------------------------------------------------------------------------

    async def _open(self) -> Group:
        trio.lowlevel.spawn_system_task(self._hold)
        self._is_held = True
        await self._opened.wait()
        if self._error is not None:
            raise self._error
        assert self._group is not None
        return self._group

    async def _close(self, by_force: bool) -> None:
        self._leave(by_force)
        if self._is_held:  # Ctrl-C may have come before anybody was told to
            await self._ended.wait()

    def _leave(self, by_force: bool) -> None:
        self._by_force = by_force
        self._left.set()

    async def _hold(self) -> None:
        try:
            async with self._block as self._group:
                self._opened.set()
                await self._left.wait()
                if self._by_force:
                    raise _Left
        except (_Left, ActorDied):
            pass
        except Exception as error:
            self._error = error
        finally:
            self._opened.set()
            self._ended.set()
