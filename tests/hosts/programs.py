"""Small programs for hosts, to try what a network does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.hosts.network import Host

PORT = 5000
PATIENCE_S = 10.0  # for what has to happen
SILENCE_S = 0.3  # for what must not

# Without the site packages Python starts faster.
PYTHON = [sys.executable, "-I", "-S", "-c"]

# Answers on all addresses: "hello" to every connection, then what it is sent; and every datagram.
ECHO_SERVER = """
import socket, sys, threading

def echo(connection):
    connection.sendall(b"hello")
    while data := connection.recv(65536):
        connection.sendall(data)

def echo_datagrams(server):
    while True:
        server.sendto(*server.recvfrom(65536))

port = int(sys.argv[1])
datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
datagrams.bind(("::", port))
threading.Thread(target=echo_datagrams, args=[datagrams]).start()
server = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    threading.Thread(target=echo, args=[server.accept()[0]]).start()
"""

# Prints what each attempt to be greeted has led to; all are made at the same time.
DIAL = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def dial(address, port, timeout_s):
    try:
        with socket.create_connection((address, port), timeout_s) as connection:
            return connection.recv(100).decode()
    except OSError as error:
        return type(error).__name__

with ThreadPoolExecutor(100) as pool:
    print(json.dumps(list(pool.map(dial, *zip(*json.loads(sys.argv[1]))))))
"""

# Is connected; sends what it reads from its input, and prints the answer.
CONVERSE = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(connection.recv(100).decode(), flush=True)
connection.sendall(sys.stdin.read().encode())
print(connection.recv(100).decode(), end="")
"""

# Sends numbered datagrams, one each 2 ms, and prints how long each took to come back, until none comes any more.
PING = """
import socket, sys, threading, time
address, port, num, wait_s = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4])
udp = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
udp.connect((address, port))
udp.settimeout(wait_s)
sent_at = {}

def send():
    for number in range(num):
        sent_at[number] = time.monotonic()
        udp.send(str(number).encode())
        time.sleep(0.002)

threading.Thread(target=send).start()
try:
    for _ in range(num):
        number = int(udp.recv(100))
        print(time.monotonic() - sent_at[number])
except TimeoutError:
    pass
"""

# Prints the datagrams that come, until one says that it is the last.
RECEIVE = """
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", int(sys.argv[1])))
print("ready", flush=True)
while (data := udp.recv(100)) != b"last":
    print(data.decode())
"""

SEND = """
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for data in sys.argv[3:]:
    udp.sendto(data.encode(), (sys.argv[1], int(sys.argv[2])))
"""


def serve(host: Host) -> None:
    """Start an echo server, and wait until it serves."""
    start(host, ECHO_SERVER, PORT, line="ready")


def assert_reach(
    host: Host,
    *,
    greeted: Sequence[str] = (),
    silent: Sequence[str] = (),
    refused: Sequence[str] = (),
    port: int = PORT,
) -> None:
    """Dial all of these addresses, and check what comes of it."""
    expected = {
        **dict.fromkeys(greeted, "hello"),
        **dict.fromkeys(silent, "TimeoutError"),
        **dict.fromkeys(refused, "ConnectionRefusedError"),
    }
    attempts = [(address, port, SILENCE_S if address in silent else PATIENCE_S) for address in expected]
    results = json.loads(run(host, DIAL, json.dumps(attempts)))
    assert dict(zip(expected, results, strict=True)) == expected


def start_conversation(host: Host, address: str) -> subprocess.Popen[Any]:
    """A connection that is open when this returns; `communicate` sends and receives."""
    return start(host, CONVERSE, address, PORT, line="hello")


def ping(host: Host, address: str, *, num: int, wait_s: float = PATIENCE_S) -> list[float]:
    """The round trip times of the datagrams that came back; those that take `wait_s` count as lost."""
    return [float(line) for line in run(host, PING, address, PORT, num, wait_s).split()]


def start(host: Host, program: str, *arguments: object, line: str) -> subprocess.Popen[Any]:
    """Start a Python program, with pipes, and wait until it prints the line."""
    process = host.start(
        [*PYTHON, program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"{line}\n"
    return process


def run(host: Host, program: str, *arguments: object) -> str:
    """What a Python program prints that has to succeed."""
    done = host.run([*PYTHON, program, *map(str, arguments)], timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout
