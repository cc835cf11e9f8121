"""Relays: where a driver cannot dial a node, both dial the master's port, and a process of its own joins the two.

The master only pairs the sockets, by their route, and passes them on; the bytes do not slow it down. The process
outlives the master, because what it carries does too. The bytes are those of a second, end-to-end handshake and of what
follows it: a relay can neither read nor change what was encrypted.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

import trio

from asyncparl.runtime.dump_signal import tell_when_asked
from asyncparl.runtime.state import without_secrets
from asyncparl.transport import Visitor
from asyncparl.transport.sockets import stream_of, tune

RELAY_ROUTE = "relay/"
PAIRING_LIMIT_S = 10.0
MAX_UNPAIRED = 1000
_CHUNK_BYTES = 256 * 1024
_RUN = "from asyncparl.runtime.relay import main; main()"


@dataclass(slots=True, eq=False)
class _Pairing:
    expires: float
    may_stall: bool
    first: socket.socket | None = None


class Relays:
    """The master's side: routes that were promised, and the process that joins those who came."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._pairings: dict[str, _Pairing] = {}
        self._control: socket.socket | None = None

    def open(self, *, may_stall: bool) -> str:
        """A new route; two parties may dial it within `PAIRING_LIMIT_S`. `may_stall`: as of `dial`."""
        self._drop_late()
        while len(self._pairings) >= MAX_UNPAIRED:
            self._drop(next(iter(self._pairings)))
        route = RELAY_ROUTE + os.urandom(16).hex()
        self._pairings[route] = _Pairing(trio.current_time() + PAIRING_LIMIT_S, may_stall)
        return route

    def arrived(self, visitor: Visitor) -> None:
        """Somebody dialed a route.

        Raises:
            OSError: it has gone already.
        """
        self._drop_late()
        pairing = self._pairings.get(visitor.route)
        if pairing is None:
            visitor.refuse("this relay route is not open (any more)")
            return
        connection, _ = visitor.hand_over()
        if not pairing.may_stall:
            tune(connection)  # a machine that vanishes is noticed
        if pairing.first is None:
            pairing.first = connection
            return
        del self._pairings[visitor.route]
        with pairing.first, connection:
            self._join(pairing.first, connection)

    def close(self) -> None:
        """Take nobody any more. What has been joined goes on; the process ends with the last of it."""
        for route in list(self._pairings):
            self._drop(route)
        if self._control is not None:
            self._control.close()

    def _join(self, one: socket.socket, other: socket.socket) -> None:
        for _ in range(2):
            control = self._control or self._start()
            try:
                socket.send_fds(control, [b"join"], [one.fileno(), other.fileno()])
            except OSError:  # somebody has killed it: start another one
                control.close()
                self._control = None
            else:
                return

    def _start(self) -> socket.socket:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _RUN, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=without_secrets(os.environ),
            )
        # It forks, and this part of it ends at once.
        self._nursery.start_soon(_reap, process)
        return self._control

    def _drop_late(self) -> None:
        now = trio.current_time()
        for route in [route for route, pairing in self._pairings.items() if pairing.expires <= now]:
            self._drop(route)

    def _drop(self, route: str) -> None:
        if (first := self._pairings.pop(route).first) is not None:
            first.close()


async def _reap(process: subprocess.Popen[bytes]) -> None:
    await trio.to_thread.run_sync(process.wait)


# --- the relay process --------------------------------------------------------------------------------------


async def _serve(control: socket.socket) -> None:
    control.setblocking(False)
    async with trio.open_nursery() as nursery:
        while True:
            await trio.lowlevel.wait_readable(control)
            packet, fds, _, _ = socket.recv_fds(control, 16, 2)
            if not packet:
                return  # the master has gone; those who are joined here need not know
            streams = [stream_of(socket.socket(fileno=fd)) for fd in fds]
            if len(streams) == 2:
                nursery.start_soon(_relay, streams[0], streams[1])
            else:  # too many files are open here: the kernel dropped some
                for stream in streams:
                    stream.socket.close()


async def _relay(one: trio.SocketStream, other: trio.SocketStream) -> None:
    """Copy both ways until either side ends."""
    async with one, other, trio.open_nursery() as nursery:
        nursery.start_soon(_copy, one, other)
        nursery.start_soon(_copy, other, one)


async def _copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
    try:
        while data := await source.receive_some(_CHUNK_BYTES):
            await target.send_all(data)
        await target.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        # One broken direction ends both: the other one waits for what will not come.
        for stream in (source, target):
            stream.socket.close()


def main() -> None:
    """Run the relay of a master, as nobody's child: it belongs to the connections that it joins, and ends with them."""
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tell_when_asked("the relay of a master")
    trio.run(_serve, socket.socket(fileno=int(sys.argv[1])))
