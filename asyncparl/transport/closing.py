"""How a channel's connection ends while NNG owns it: gently, and on a thread of its own.

Calling `nng_close` at once would be simpler, but has three faults. It waits for NNG's threads, which on a busy machine
takes long. It discards messages that those threads were about to write. And where NNG is still setting the connection
up, or taking it down, NNG 1.11 loses the file descriptor now and then.

So the connection is given `LINGER_S` to write what is queued; then it is shut down, from outside of NNG; and when NNG
has noticed and released the descriptor, or does not for too long, the NNG socket is closed.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Protocol

LINGER_S = 0.02
HALF_CLOSED_S = 0.2  # for the peer to read what is under way, and to close its side in turn
RELEASE_S = 0.1

_FIRST_POLL_S = 0.001
_LAST_POLL_S = 0.02


class Connection:
    """A connection that NNG owns, known by the number of its descriptor.

    The number may be used again for something else once NNG has closed it, so that it counts only together with what
    it stood for.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._fd = connection.fileno()
        self._identity = self._look(self._fd)

    @staticmethod
    def _look(fd: int) -> tuple[int, int] | None:
        try:
            status = os.fstat(fd)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def is_released(self) -> bool:
        """Whether NNG has closed it."""
        return self._look(self._fd) != self._identity

    def close(self) -> None:
        """In a forked child: the descriptor that it has got of it."""
        if not self.is_released():
            os.close(self._fd)

    def shut_down(self, how: int) -> None:
        """As `socket.shutdown`, if NNG has not closed it."""
        try:
            fd = os.dup(self._fd)
        except OSError:
            return
        if self._look(fd) != self._identity:
            os.close(fd)
            return
        with socket.socket(fileno=fd) as connection:
            try:
                connection.shutdown(how)
            except OSError:
                pass  # it has ended already


class Closable(Protocol):
    """The NNG socket that has the connection."""

    def discard(self) -> None:
        """Throw away what has arrived: with a full queue NNG does not look at the connection any more."""

    def close(self) -> None:
        """Waits for NNG's threads."""


class _Ending:
    """A connection on its way out, and the steps that are left."""

    def __init__(self, connection: Connection, owner: Closable, linger_s: float) -> None:
        self._connection = connection
        self._owner = owner
        now = time.monotonic()
        self._steps = [
            (now + linger_s, lambda: connection.shut_down(socket.SHUT_WR)),
            (now + linger_s + HALF_CLOSED_S, lambda: connection.shut_down(socket.SHUT_RDWR)),
            (now + linger_s + HALF_CLOSED_S + RELEASE_S, lambda: None),
        ]

    def advance(self) -> bool:
        """Take the steps that are due. Returns whether this was the last."""
        if not self._connection.is_released():
            while self._steps and self._steps[0][0] <= time.monotonic():
                self._steps.pop(0)[1]()
            if self._steps:
                self._owner.discard()
                return False
        self._owner.close()
        return True


class Closer:
    """Ends connections, on a thread that lives as long as there are some. The process waits for it before it exits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: list[_Ending] = []
        self._is_running = False
        self._woken = threading.Event()

    def end(self, connection: Connection, owner: Closable, *, linger: bool) -> None:
        """End the connection, then close its owner, which must not be used any more. Does not wait.

        Args:
            connection: which one.
            owner: the NNG socket that has it.
            linger: whether it may still have something to write.
        """
        ending = _Ending(connection, owner, LINGER_S if linger else 0.0)
        with self._lock:
            self._new.append(ending)
            is_running, self._is_running = self._is_running, True
        self._woken.set()
        if not is_running:
            threading.Thread(target=self._run, name="asyncparl closer").start()

    def _run(self) -> None:
        endings: list[_Ending] = []
        poll_s = _FIRST_POLL_S
        while True:
            with self._lock:
                if self._new:
                    poll_s = _FIRST_POLL_S
                endings += self._new
                self._new.clear()
                self._woken.clear()
                if not endings:
                    self._is_running = False
                    return
            endings = [ending for ending in endings if not ending.advance()]
            if endings:
                self._woken.wait(poll_s)
                poll_s = min(2 * poll_s, _LAST_POLL_S)
