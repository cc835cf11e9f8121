"""A zygote as its node sees it: a process that is told to fork workers, and tells how they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import NamedTuple

import msgspec
import trio

from asyncparl.errors import ResourceError
from asyncparl.runtime import zygote
from asyncparl.runtime.state import without_secrets

_RUN_ZYGOTE = "from asyncparl.runtime.zygote import main; main()"


class ZygoteKind(NamedTuple):
    """Workers of the same kind are forked from the same zygote."""

    start_method: str
    preload: tuple[str, ...]
    sys_path: tuple[str, ...]
    """Where the preloaded modules are found."""


class ZygoteClient:
    """A zygote as the node sees it."""

    def __init__(self, kind: ZygoteKind, folder: str = "") -> None:
        """`folder`: that of the node, which the zygote removes if the node was killed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The zygote must have one thread, so numerical libraries may not start theirs when they are imported.
        environ = {**without_secrets(os.environ), **dict.fromkeys(zygote.THREAD_VARIABLES, "1")}
        setup = zygote.ZygoteSetup(theirs.fileno(), list(kind.sys_path), list(kind.preload), kind.start_method, folder)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _RUN_ZYGOTE, msgspec.json.encode(setup).decode()],
            stdin=subprocess.DEVNULL,
            # Our own standard output tells our address; what a preloaded module prints must not get there.
            stdout=sys.stderr.fileno(),
            pass_fds=[theirs.fileno()],
            env=environ,
        )
        theirs.close()
        ours.setblocking(False)
        self._sending = trio.Lock()
        self._std_socket = ours
        self._socket = trio.socket.from_stdlib_socket(ours)

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
        return zygote.decode_from_zygote(packet) if packet else None

    def kill(self) -> None:
        """End it at once; the kernel ends its workers."""
        self._process.kill()

    def wake(self) -> None:
        """Let it go on if it was stopped (SIGSTOP): without it no worker can be ended."""
        self._process.send_signal(signal.SIGCONT)

    def hang_up(self) -> None:
        """Let it end, as it has no workers. `reap` it."""
        self._socket.close()
        self.wake()

    async def reap(self) -> None:
        """Wait until it has ended, however long it takes."""
        await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)

    def close(self) -> None:
        """End it, and with it every worker that is left."""
        self.hang_up()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
