"""A zygote as its node sees it: a process that is told to fork workers, and tells how they end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from typing import NamedTuple, Self

import trio

from asyncparl.errors import ResourceError
from asyncparl.machine import is_stopped
from asyncparl.runtime import zygote
from asyncparl.runtime.state import without_secrets
from asyncparl.runtime.zygote_start import StartedZygote, start_zygote

SLOW_S = 10.0
"""What takes a process longer than this is worth a word. Importing torch on a busy machine takes less."""


class ZygoteKind(NamedTuple):
    """Workers of the same kind are forked from the same zygote."""

    start_method: str
    preload: tuple[str, ...]
    sys_path: tuple[str, ...]
    """Where the preloaded modules are found."""


class ZygoteClient:
    """A zygote as the node sees it."""

    def __init__(self, kind: ZygoteKind, started: StartedZygote) -> None:
        self._process, self._std_socket = started
        self._preload = kind.preload
        self._heard_at: float | None = None
        self._sending = trio.Lock()
        self._socket = trio.socket.from_stdlib_socket(self._std_socket)

    @classmethod
    def start(cls, kind: ZygoteKind, folder: str) -> Self:
        """A new one. `folder`: that of the node, which the zygote removes if the node was killed."""
        return cls(kind, start_zygote({**kind._asdict(), "folder": folder}, without_secrets(os.environ)))

    async def send(self, message: zygote.ToZygote, fds: tuple[int, ...] = ()) -> None:
        """Tell the zygote something.

        Raises:
            ResourceError: it has died, or the message is too long for it.
        """
        packet = zygote.encode(message)
        if len(packet) > zygote.MAX_PACKET_BYTES:
            raise ResourceError(f"the program's sys.path and arguments are too long ({len(packet):,} bytes)")
        async with self._sending:
            while True:
                try:
                    socket.send_fds(self._std_socket, [packet], fds)
                    return
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._std_socket)
                except OSError as error:
                    raise ResourceError(f"the process that starts workers has died ({error.strerror})") from None

    async def receive(self) -> zygote.FromZygote | None:
        """What it says next; None when it has died."""
        try:
            packet = await self._socket.recv(zygote.MAX_PACKET_BYTES)
        except (ConnectionError, trio.ClosedResourceError):
            return None
        self._heard_at = trio.current_time()
        return zygote.decode_from_zygote(packet) if packet else None

    @property
    def may_import(self) -> bool:
        """Whether it may not serve yet, because it imports what is to be preloaded: it has no workers."""
        return self._heard_at is None

    def why_silent(self, since: float) -> str:
        """Why a worker is not there that was asked for at `since`, for people; empty if that is soon."""
        who = f"the process that starts workers (pid {self._process.pid})"
        if is_stopped(self._process.pid):
            return f"{who} is stopped (SIGSTOP)"
        silent_since = since if self._heard_at is None else max(since, self._heard_at)
        if trio.current_time() - silent_since < SLOW_S:
            return ""
        if self._preload and self.may_import:
            return f"{who} has not answered yet; it imports {', '.join(self._preload)} first"
        return f"{who} does not answer"

    def kill(self) -> None:
        """End it at once; the kernel ends its workers."""
        self._process.kill()

    def wake(self) -> None:
        """Let it go on if it was stopped (SIGSTOP): without it no worker can be ended."""
        self._process.send_signal(signal.SIGCONT)

    def hang_up(self) -> None:
        """Let it end, and with it the workers that it has. `reap` it."""
        # It may have died, or not listen: that our end is closed says nearly the same.
        with contextlib.suppress(OSError):
            self._std_socket.send(zygote.encode(zygote.Leave()))
        self._socket.close()
        self.wake()

    async def reap(self) -> None:
        """Wait until it has ended, however long it takes."""
        await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

    def close(self) -> None:
        """End it, and with it every worker that is left."""
        self.hang_up()
        if self.may_import:  # perhaps for long, before it sees that we left
            self._process.kill()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
