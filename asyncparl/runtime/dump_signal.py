"""The signal by which a process is asked what it does: `kill -USR1 PID`. It answers on standard error, and goes on.

Our own processes listen from their start, a program while it is connected, if nobody there handles that signal
himself. The answer comes from the main thread, between two steps of its Python code. In a worker, where that runs
methods, it comes from the event loop instead if one of them hangs in native code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import trio

from asyncparl.runtime.dump import describe_process
from asyncparl.runtime.signals import chosen_signal

_MAIN_LIMIT_S = 0.2


def tell(name: str) -> None:
    """Say on standard error what this process does."""
    text = ("\n".join(describe_process(name)) + "\n").encode(errors="backslashreplace")
    # Not by `sys.stderr`: the signal may have come while somebody writes to that.
    try:
        fd = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # a program without one, or with one of its own
        fd = 2
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(fd, text) :]


def tell_when_asked(name: str) -> None:
    """From now on. For processes of our own, in their main thread."""
    if (number := chosen_signal()) is not None:
        signal.signal(number, lambda _number, _frame: tell(name))


@contextlib.contextmanager
def telling_when_asked(name: str) -> Iterator[None]:
    """While the block runs, for a program. Not where it handles the signal itself, nor outside of its main thread.

    Raises:
        ValueError: as `chosen_signal`.
    """
    number = chosen_signal()
    if number is None or not _is_main_thread():
        yield
        return
    _put_back(number)
    if _is_handled(number):
        yield
        return
    handler = _Handler(name)
    handler.before = signal.signal(number, handler)
    try:
        yield
    finally:
        handler.has_ended = True
        if _is_main_thread():
            _put_back(number)


class _Handler:
    """Of a program, while its block runs. Only the main thread can take it away, and the block may end in another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.before: Any = signal.SIG_DFL
        self.has_ended = False

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.has_ended:
            _put_back(number)
            os.kill(os.getpid(), number)
        else:
            tell(self._name)


def _put_back(number: int) -> None:
    """What was there before a handler of ours whose block has ended."""
    handler = signal.getsignal(number)
    if isinstance(handler, _Handler) and handler.has_ended:
        signal.signal(number, handler.before)


class WorkerTeller:
    """Of a worker, whose main thread runs methods and may hang in one, while its event loop is in another thread."""

    def __init__(self, name: str) -> None:
        """In the main thread, before there is a loop."""
        self._name = name
        self._is_taken = False
        """The main thread has heard the bell, and answers."""
        self._num_answered = 0
        """How often the loop did so instead."""
        self._number = chosen_signal()
        self._bell, bell_rope = os.pipe()
        for fd in (self._bell, bell_rope):
            os.set_blocking(fd, False)
        if self._number is None:
            return
        signal.signal(self._number, self._handle)
        # Written to at once, whatever the main thread does. A method that runs Trio itself has its own meanwhile.
        signal.set_wakeup_fd(bell_rope, warn_on_full_buffer=False)
        warnings.filterwarnings("ignore", "It looks like Trio's signal handling code might have collided")

    async def run(self) -> None:
        """In the event loop: answer for a main thread that does not."""
        while True:
            await trio.lowlevel.wait_readable(self._bell)
            if self._number is None or bytes([self._number]) not in os.read(self._bell, 64):
                continue
            await trio.sleep(_MAIN_LIMIT_S)
            # The actor's code may have taken the signal for itself.
            if not self._is_taken and signal.getsignal(self._number) == self._handle:
                self._num_answered += 1
                tell(self._name)
            self._is_taken = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._num_answered:  # it has hung until now
            self._num_answered -= 1
        else:
            self._is_taken = True
            tell(self._name)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_handled(number: int) -> bool:
    """Whether somebody wants the signal himself: also in C, as `faulthandler` does."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return True
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(("SigCgt:", "SigIgn:")) and int(line.split()[1], 16) >> (number - 1) & 1:
                return True
    return False
