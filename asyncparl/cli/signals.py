"""SIGTERM for commands that do what nothing can cancel, such as importing torch or filming."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


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
