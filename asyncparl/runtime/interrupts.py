"""Ctrl-C in the main thread may end a wait at once, but must not leave a change half done that others rely on."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import trio

_SIGINT = int(signal.SIGINT)
# Those of `signal` itself turn numbers into enums and back, which takes ten times as long.
_in_c = sys.modules.get("_signal", signal)
_set_handler: Callable[[int, Any], Any] = _in_c.signal
_handler_of: Callable[[int], Any] = _in_c.getsignal


class Uninterrupted:
    """A block in which no KeyboardInterrupt is raised; one that comes meanwhile is raised at its end.

    Only Python's own handler is held back: Trio has one for its tasks, and who installs another knows what it does.
    """

    __slots__ = ("_is_on", "_was_interrupted")

    def __enter__(self) -> None:
        self._was_interrupted = False
        self._is_on = (
            _handler_of(_SIGINT) is signal.default_int_handler and threading.current_thread() is threading.main_thread()
        )
        if self._is_on:
            _set_handler(_SIGINT, self._note)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._is_on:
            _set_handler(_SIGINT, signal.default_int_handler)
            if self._was_interrupted:
                raise KeyboardInterrupt

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._was_interrupted = True


class Latch:
    """Closed once and for all by one thread; others wait for that.

    An interrupt may end the wait at any moment. It leaves an event of `threading`, or a `join()`, half done: of those
    the next wait may return too early, or never.
    """

    def __init__(self) -> None:
        self._gates: list[threading.Lock] = []
        self.is_set = False

    def set(self) -> None:
        """Let everybody go on. A second time does nothing."""
        if self.is_set:
            return
        self.is_set = True
        for gate in self._gates:
            gate.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Until it is set; False: not in time."""
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)  # first: either it is opened, or we see that this is not necessary
        return self.is_set or gate.acquire(timeout=timeout_s)


@trio.lowlevel.enable_ki_protection
def interrupt_program() -> None:
    """Let a KeyboardInterrupt that was caught in an event loop go on, to whom Ctrl-C concerns.

    If the loop runs in the main thread, Trio gives it to its main task, as this function is protected from it.
    """
    interrupt_main()


def interrupt_main() -> None:
    """Have KeyboardInterrupt raised in the main thread, whatever it waits for. In any other thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, _SIGINT)
