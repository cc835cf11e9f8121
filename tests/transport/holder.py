"""Another process that is given connections, and echoes what it receives. Run as a script: `python holder.py FD`."""

from __future__ import annotations

import socket
import sys

import msgspec
import trio

from asyncparl.transport import Admission, open_admitted

MAX_PACKET_BYTES = 4096


async def _hold(fd: int) -> None:
    with socket.socket(fileno=fd) as control:
        while True:
            packet, fds, _, _ = socket.recv_fds(control, MAX_PACKET_BYTES, 1)
            if not packet:
                return
            admission = msgspec.msgpack.decode(packet, type=Admission)
            await _echo(socket.socket(fileno=fds[0]), admission)


async def _echo(connection: socket.socket, admission: Admission) -> None:
    with open_admitted(connection, admission) as channel:
        try:
            while True:
                await channel.send([await channel.receive()])
        except trio.BrokenResourceError:
            pass


if __name__ == "__main__":
    trio.run(_hold, int(sys.argv[1]))
