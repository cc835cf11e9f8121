"""What `async with` blocks of ours have in common: background tasks, and no exception groups."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import trio


@contextlib.asynccontextmanager
async def background_tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery for the tasks behind a block, cancelled where the block ends.

    No outer cancellation reaches these tasks before: they are needed to end things in good order. What the block raises
    leaves it as it is, in no group; so does Ctrl-C that has hit one of the tasks, and with it ended all of them.
    """
    error: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            # Caught inside the nursery and raised outside, so that it is not wrapped.
            try:
                # Shielded: in a scope that is cancelled already, `start` would wait for these tasks for ever.
                with trio.CancelScope(shield=True):
                    tasks = await nursery.start(_hold_tasks)
                try:
                    yield tasks
                finally:
                    tasks.cancel_scope.cancel()
            except BaseException as caught:
                error = caught
    except BaseExceptionGroup as group:
        interrupts, others = group.split(KeyboardInterrupt)
        if interrupts is None or others is not None:
            raise
        error = _first_of(interrupts)
    if error is not None:
        raise error


def _first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _hold_tasks(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await trio.sleep_forever()
