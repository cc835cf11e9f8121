"""How SIGINT and SIGTERM reach a command: in Trio, and where it does what nothing can cancel, such as filming."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import trio

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
"""The exit statuses that shells have for SIGINT and SIGTERM."""


class Terminated(BaseException):
    """What KeyboardInterrupt is for SIGINT: SIGTERM came. Not an `Exception`, for it is no error to be handled."""


@contextmanager
def sigterm_raised() -> Iterator[None]:
    """SIGTERM raises `Terminated` in the main thread, so that what is under way cleans up. Not in Trio."""

    def terminate(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def first_signal() -> signal.Signals:
    """SIGINT or SIGTERM, when the first of them comes. The next one finds the handlers that were there before."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        return signal.Signals(await anext(signals))
