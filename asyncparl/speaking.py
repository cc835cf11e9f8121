"""What the runtime prints, so that a reader who stands still holds up nobody.

A terminal after Ctrl-S, `less`, a pipe to a program that hangs: what is written there may wait for ever, and an event
loop has more to do. So a thread writes to terminals, pipes and sockets. Other streams (files, those of notebooks and
tests) never wait, and are written to at once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import stat
import sys
import threading
from collections import deque
from typing import TextIO

MAX_WAITING_CHARS = 1 << 20
"""Of one stream; what comes then is dropped, and counted."""
_PIECE_CHARS = 1024
"""A pipe that can be written to has room for 4096 bytes."""
_LOOK_EVERY_MS = 200
_EXIT_LIMIT_S = 10.0
"""At the exit of the program: how long a reader may take nothing at all."""


def say(text: str, *, is_error: bool = True) -> None:
    """Print whole lines, soon, to whatever is standard error, or standard output, now. Never waits, never raises."""
    stream = sys.stderr if is_error else sys.stdout
    if stream is None:
        return  # a program without it
    if _may_stand_still(stream):
        (_errors if is_error else _outputs).add(stream, text)
    else:
        _write(stream, text)


class ErrorStream:
    """Standard error for those who want a stream."""

    def write(self, text: str) -> None:
        """See `say`."""
        say(text)

    def flush(self) -> None:
        """Nothing to do."""


def all_is_said() -> bool:
    """Whether everything was printed."""
    return _outputs.is_idle and _errors.is_idle


def finish(limit_s: float = _EXIT_LIMIT_S) -> None:
    """Wait until everything was printed, as long as it goes on; Ctrl-C ends that. At the exit of the process."""
    with contextlib.suppress(KeyboardInterrupt):
        for writer in (_outputs, _errors):
            writer.finish(limit_s)


class _Writer:
    """Writes to one stream, in a thread that ends when there is nothing left."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._waiting: deque[tuple[TextIO, str]] = deque()
        self._num_chars = 0
        self._num_dropped = 0
        self._num_written = 0
        self.is_idle = True
        """There is no thread."""

    def add(self, stream: TextIO, text: str) -> None:
        with self._news:
            if self._num_chars > MAX_WAITING_CHARS:
                self._num_dropped += text.count("\n")
                return
            if self._num_dropped:
                text = f"asyncparl: {self._num_dropped} lines were dropped: nobody read what came before\n{text}"
                self._num_dropped = 0
            self._waiting.append((stream, text))
            self._num_chars += len(text)
            if self.is_idle:
                threading.Thread(target=self._work, name="asyncparl-output", daemon=True).start()
                self.is_idle = False

    def finish(self, limit_s: float) -> None:
        with self._news:
            while not self.is_idle:
                num_before = self._num_written
                if not self._news.wait(limit_s) and self._num_written == num_before:
                    return

    def _work(self) -> None:
        while True:
            with self._news:
                if not self._waiting:
                    self.is_idle = True
                    self._news.notify_all()
                    return
                stream, text = self._waiting.popleft()
            for start in range(0, len(text), _PIECE_CHARS):
                piece = text[start : start + _PIECE_CHARS]
                _wait_writable(stream)
                _write(stream, piece)
                with self._news:
                    self._num_chars -= len(piece)
                    self._num_written += 1
                    self._news.notify_all()


def _may_stand_still(stream: TextIO) -> bool:
    try:
        fd = stream.fileno()
        mode = os.fstat(fd).st_mode
    except (OSError, ValueError, AttributeError):
        return False  # nothing of the system's, or closed
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(fd))


def _wait_writable(stream: TextIO) -> None:
    while True:
        try:
            look = select.poll()
            look.register(stream.fileno(), select.POLLOUT)
        except (OSError, ValueError):
            return  # closed: writing says so
        if look.poll(_LOOK_EVERY_MS):
            return


def _write(stream: TextIO, text: str) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        # What this terminal cannot show must not end the program.
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        pass  # closed, or nobody reads it any more


def _forget() -> None:
    """In a fork, which has none of the threads."""
    global _outputs, _errors
    _outputs, _errors = _Writer(), _Writer()


_outputs, _errors = _Writer(), _Writer()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(finish)
