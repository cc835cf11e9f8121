"""What `async with` blocks of ours have in common: background tasks, and no exception groups."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import trio


@contextlib.asynccontextmanager
async def background_tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery for the tasks behind a block, cancelled where the block ends.

    No outer cancellation reaches these tasks before: they are needed to end things in good order. What the block raises
    leaves it as it is, in no group.
    """
    error: BaseException | None = None
    async with trio.open_nursery() as nursery:
        # Caught inside the nursery and raised outside, so that it is not wrapped.
        try:
            tasks = await nursery.start(_hold_tasks)
            try:
                yield tasks
            finally:
                tasks.cancel_scope.cancel()
        except BaseException as caught:
            error = caught
    if error is not None:
        raise error


async def _hold_tasks(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await trio.sleep_forever()
