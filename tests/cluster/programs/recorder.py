"""Somebody between a program and a node: passes everything on, and keeps what the program says.

    python recorder.py OWN-PORT HOST PORT FOLDER

One file for each connection. They are complete when the connection has ended.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from pathlib import Path

own_port, host, port, folder = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])


def serve(client: socket.socket, path: Path) -> None:
    with client, socket.create_connection((host, port)) as server:
        threading.Thread(target=copy, args=[server, client], daemon=True).start()
        with path.open("wb", buffering=0) as record, contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                record.write(data)
                server.sendall(data)


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)


listening = socket.create_server(("::", own_port), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
number = 0
while True:
    client, _ = listening.accept()
    threading.Thread(target=serve, args=[client, folder / f"connection-{number}"], daemon=True).start()
    number += 1
