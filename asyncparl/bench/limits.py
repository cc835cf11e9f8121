"""What would be possible: bare sockets and bare copies, measured beside what is built on them."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

import numpy as np
import pynng
import trio

MESSAGE = b"x" * 64
UNDER_WAY = 100
BLOCKING_NNG = "blocking NNG round trip"
TRIO_SOCKETS = "plain Trio on Unix sockets, round trip"
PIPELINED_NNG = f"blocking NNG, {UNDER_WAY} round trips under way"
_QUIT = b"quit"
_START_S = 30


@contextmanager
def spawned(target: Callable[[str], None], address: str) -> Iterator[BaseProcess]:
    """A process that has inherited nothing; it is waited for, and ended if it does not end by itself."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=(address,))
    process.start()
    try:
        yield process
        process.join(_START_S)
    finally:
        process.kill()
        process.join()


class BlockingNng:
    """Two processes, one socket, blocking calls: no event loop, no encoding, no threads of ours."""

    def __init__(self, connection: pynng.Pair1) -> None:
        self._socket = connection

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[BlockingNng]:
        """With the process at the other end."""
        with tempfile.TemporaryDirectory() as folder:
            url = f"ipc://{folder}/echo"
            with spawned(_nng_echo, url), pynng.Pair1(recv_timeout=1000 * _START_S) as connection:
                _retry(lambda: connection.dial(url, block=True), pynng.ConnectionRefused)
                yield cls(connection)
                connection.send(_QUIT)

    def round_trips(self, num: int) -> float:
        """Seconds that each takes, one after the other."""
        started = time.perf_counter()
        for _ in range(num):
            self._socket.send(MESSAGE)
            self._socket.recv()
        return (time.perf_counter() - started) / num

    def pipelined(self, num: int) -> float:
        """A second, with some under way all the time."""
        started = time.perf_counter()
        for _ in range(UNDER_WAY):
            self._socket.send(MESSAGE)
        for _ in range(num - UNDER_WAY):
            self._socket.recv()
            self._socket.send(MESSAGE)
        for _ in range(UNDER_WAY):
            self._socket.recv()
        return num / (time.perf_counter() - started)


class BareSocket:
    """A process that sends messages of any size as fast as one NNG socket takes them, when it is asked to."""

    def __init__(self, connection: pynng.Pair0) -> None:
        self._socket = connection

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[BareSocket]:
        """With the process at the other end."""
        with tempfile.TemporaryDirectory() as folder:
            url = f"ipc://{folder}/source"
            how = {"recv_timeout": 1000 * _START_S, "send_timeout": 1000 * _START_S, "recv_buffer_size": 4}
            with pynng.Pair0(listen=url, **how) as connection, spawned(_send_what_is_asked, url):
                yield cls(connection)
                connection.send(_QUIT)

    def seconds_a_message(self, num_bytes: int, num: int) -> float:
        """One way."""
        self._socket.send(f"{num_bytes} {num}".encode())
        self._socket.recv_msg()  # it has begun
        started = time.perf_counter()
        for _ in range(num):
            self._socket.recv_msg()
        return (time.perf_counter() - started) / num


class TrioSockets:
    """Two processes, each with an event loop that does nothing else."""

    def __init__(self, connection: trio.socket.SocketType) -> None:
        self._socket = connection

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[TrioSockets]:
        """With the process at the other end. To be entered outside of Trio, and used within."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/echo"
            with spawned(_trio_echo, path), socket.socket(socket.AF_UNIX) as connection:
                _retry(lambda: connection.connect(path), OSError)
                connection.setblocking(False)
                yield cls(trio.socket.from_stdlib_socket(connection))

    async def round_trips(self, num: int) -> float:
        """Seconds that each takes, one after the other."""
        started = time.perf_counter()
        for _ in range(num):
            await self._socket.send(MESSAGE)
            await self._socket.recv(65536)
        return (time.perf_counter() - started) / num


def seconds_to_copy(num_bytes: int, num: int) -> float:
    """A `memcpy`."""
    source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    started = time.perf_counter()
    for _ in range(num):
        np.copyto(target, source)
    return (time.perf_counter() - started) / num


def seconds_to_fork() -> float:
    """Until a fork of this process, which must have one thread, has written a byte to a pipe."""
    started = time.perf_counter()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"x")
        os._exit(0)
    os.read(reader, 1)
    seconds = time.perf_counter() - started
    os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)
    return seconds


def _nng_echo(url: str) -> None:
    with pynng.Pair1(listen=url) as connection:
        while (message := connection.recv()) != _QUIT:
            connection.send(message)


def _send_what_is_asked(url: str) -> None:
    with pynng.Pair0(dial=url, send_buffer_size=4) as connection:
        while (message := connection.recv()) != _QUIT:
            num_bytes, num = map(int, message.split())
            data = bytes(num_bytes)
            for _ in range(1 + num):
                connection.send(data)


def _trio_echo(path: str) -> None:
    async def serve() -> None:
        with trio.socket.socket(socket.AF_UNIX) as listener:
            await listener.bind(path)
            listener.listen(1)
            connection, _ = await listener.accept()
            with connection:
                while message := await connection.recv(65536):
                    await connection.send(message)

    trio.run(serve)


def _retry(connect: Callable[[], object], refused: type[Exception]) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            connect()
        except refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
