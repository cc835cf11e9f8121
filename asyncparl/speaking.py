"""What the runtime prints, so that a reader who stands still holds up nobody.

A terminal after Ctrl-S, `less`, a pipe to a program that hangs: what is written there may wait for ever, and an event
loop has more to do. So threads write to terminals, pipes and sockets. Other streams (files, and those that notebooks
and tests put in their place) are written to at once.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import select
import stat
import sys
import threading
from collections import deque
from typing import TextIO

MAX_WAITING_CHARS = 1 << 20
"""Of one stream; what comes then is dropped, and counted."""
EXIT_LIMIT_S = 10.0
"""At the exit of the program: how long a reader may take nothing at all."""
_PIECE_CHARS = 1024
"""A pipe that can be written to has room for 4096 bytes."""
_LOOK_EVERY_MS = 200


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


def finish(limit_s: float | None = None) -> None:
    """Wait until everything was printed, as long as it goes on; Ctrl-C ends that. At the exit of the process.

    Args:
        limit_s: how long a reader may take nothing; None: `EXIT_LIMIT_S`.
    """
    limit_s = EXIT_LIMIT_S if limit_s is None else limit_s
    with contextlib.suppress(KeyboardInterrupt):
        if not _errors.finish(limit_s):
            limit_s = 0.0
        _outputs.finish(limit_s)


class _Writer:
    """Writes to one stream, in a thread that ends when there is nothing left."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._waiting: deque[tuple[TextIO, str]] = deque()
        self._num_chars = 0
        self._num_dropped = 0
        self._dropped_of: TextIO | None = None
        self._num_written = 0
        self.is_idle = True
        """There is no thread."""

    def add(self, stream: TextIO, text: str) -> None:
        with self._news:
            if self._num_dropped or self._num_chars > MAX_WAITING_CHARS:
                self._num_dropped += text.count("\n")
                self._dropped_of = stream
                return
            self._waiting.append((stream, text))
            self._num_chars += len(text)
            if self.is_idle:
                self.is_idle = False
                try:
                    threading.Thread(target=self._work, name="asyncparl-output", daemon=True).start()
                except RuntimeError:  # there are too many, or the interpreter ends
                    self.is_idle = True
                    self._waiting.clear()
                    self._num_chars = 0

    def finish(self, limit_s: float) -> bool:
        """Whether everything was printed."""
        with self._news:
            while not self.is_idle:
                num_before = self._num_written
                if not self._news.wait(limit_s) and self._num_written == num_before:
                    return False
        return True

    def _work(self) -> None:
        while (news := self._next()) is not None:
            stream, text = news
            for piece in _pieces(text):
                _wait_writable(stream)
                _write(stream, piece)
                with self._news:
                    self._num_written += 1
                    self._news.notify_all()
            with self._news:
                self._num_chars = max(0, self._num_chars - len(text))

    def _next(self) -> tuple[TextIO, str] | None:
        with self._news:
            if self._waiting:
                return self._waiting.popleft()
            if self._num_dropped and self._dropped_of is not None:
                text = f"asyncparl: {self._num_dropped} lines were dropped: nobody read what came before\n"
                self._num_dropped = 0
                return self._dropped_of, text
            self.is_idle = True
            self._news.notify_all()
            return None


def _pieces(text: str) -> list[str]:
    """Whole lines, where they are not too long."""
    pieces, start = [], 0
    while start < len(text):
        end = text.rfind("\n", start, start + _PIECE_CHARS) + 1 or start + _PIECE_CHARS
        pieces.append(text[start:end])
        start = end
    return pieces


def _may_stand_still(stream: TextIO) -> bool:
    if not isinstance(stream, io.TextIOWrapper):
        return False
    try:
        fd = stream.fileno()
        mode = os.fstat(fd).st_mode
    except Exception:
        return False  # nothing of the system's, or closed
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(fd))


def _wait_writable(stream: TextIO) -> None:
    try:
        look = select.poll()
        look.register(stream.fileno(), select.POLLOUT)
        while not look.poll(_LOOK_EVERY_MS) and not stream.closed:
            pass
    except Exception:
        return  # writing says what is wrong


def _write(stream: TextIO, text: str) -> None:
    # Closed, or full, or nobody reads it any more: nobody is to hear of that here.
    with contextlib.suppress(Exception):
        encoding = stream.encoding or "utf-8"
        # What this terminal cannot show must not end the program.
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()


def _forget() -> None:
    """In a fork, which has none of the threads."""
    global _outputs, _errors
    _outputs, _errors = _Writer(), _Writer()


_outputs, _errors = _Writer(), _Writer()
os.register_at_fork(after_in_child=_forget)
atexit.register(finish)
