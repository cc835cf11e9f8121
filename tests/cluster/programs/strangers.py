"""Holds connections to an address that no program of ours would make. Says how many, and goes on until its input ends.

python strangers.py HOST PORT
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading

NUM_SCANNED, NUM_HELD, NUM_SLOW = 300, 300, 20
FRAME_BYTES = 1 << 30
NNG_HEADER = b"\x00SP\x00\x00\x10\x00\x00"
OUR_MAGIC = b"\x00aparl\x00\x02"

GREETINGS = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    bytes(range(256)) * 16,
    NNG_HEADER + struct.pack("!Q", FRAME_BYTES) + bytes(1 << 16),
    OUR_MAGIC + b"\xff" * 4096,
    OUR_MAGIC + struct.pack("!QB16sHH", FRAME_BYTES, 0, bytes(16), 4, 0) + b"node" + bytes(32),
]

address = (sys.argv[1], int(sys.argv[2]))
held: list[socket.socket] = []
over = threading.Event()


def drip(connection: socket.socket) -> None:
    """A byte now and then."""
    with contextlib.suppress(OSError):
        for byte in OUR_MAGIC + struct.pack("!QB", FRAME_BYTES, 0) + bytes(1000):
            connection.sendall(bytes([byte]))
            if over.wait(0.2):
                return


for _ in range(NUM_SCANNED):
    socket.create_connection(address).close()
for greeting in GREETINGS * 5:
    held.append(socket.create_connection(address))
    with contextlib.suppress(OSError):  # hung up on before the end
        held[-1].sendall(greeting)
held += [socket.create_connection(address) for _ in range(NUM_HELD)]
for _ in range(NUM_SLOW):
    held.append(socket.create_connection(address))
    threading.Thread(target=drip, args=[held[-1]], daemon=True).start()
print(f"holds {len(held)} connections", flush=True)
sys.stdin.read()
over.set()
