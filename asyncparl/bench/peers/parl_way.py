"""Actors in the way of PARL 1 and 2, written plainly: REQ/REP over TCP, cloudpickle, one call under way per actor.

A call that waits (PARL's `wait=True`) is made by the thread of the caller, under a lock. One that is only started
(`wait=False`) is put into the queue of a thread that the actor has at the caller; PARL would block there until the call
before it is answered, this does not. Processes are started beforehand and kept idle, as PARL's workers do; PARL has
each of them import its framework when it is taken, which takes a second or more and is not done here.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

import cloudpickle
import zmq

from .workloads import BUSY_P50, CREATED, PIPELINED, Subject, System, main

NUM_IDLE = 4


class Job:
    """An idle process, which says at which port it waits for a class."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.parl_job"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.port = 0

    def wait(self) -> None:
        """Until it is there."""
        assert self._process.stdout is not None
        self.port = self.port or int(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Actor:
    """At the caller."""

    def __init__(self, context: zmq.Context[Any], job: Job) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._socket = context.socket(zmq.REQ)
        self._socket.connect(f"tcp://127.0.0.1:{job.port}")
        self._calls: queue.SimpleQueue[tuple[Future[Any], str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self._request(b"init", cloudpickle.dumps(Subject))

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return cloudpickle.loads(self._request(method.encode(), cloudpickle.dumps(arguments)))

    def start(self, method: str, arguments: tuple[Any, ...]) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, method, arguments))
        return future

    def end(self) -> None:
        self._calls.put(None)
        self._thread.join()
        self._socket.close(linger=0)
        self._job.end()

    def _request(self, *parts: bytes) -> bytes:
        with self._lock:
            self._socket.send_multipart(parts)
            return bytes(self._socket.recv())

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, method, arguments = item
            try:
                future.set_result(self.call(method, arguments))
            except Exception as error:
                future.set_exception(error)


class Parl(System):
    """Idle processes, and the actors that were made of some."""

    def __init__(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._idle: list[Job] = []
        self._actors: list[Actor] = []

    def __enter__(self) -> Self:
        self._fill(NUM_IDLE)
        return self

    def __exit__(self, *_: object) -> None:
        self.end(list(self._actors))
        for job in self._idle:
            job.end()
        self._context.term()

    def create(self, num: int, *, num_threads: int = 1) -> list[Any]:
        self._fill(num)
        actors = [Actor(self._context, self._idle.pop(0)) for _ in range(num)]
        self._actors += actors
        return actors

    def end(self, actors: Sequence[Any]) -> None:
        for actor in actors:
            actor.end()
            self._actors.remove(actor)
        self._fill(NUM_IDLE)

    def call(self, actor: Any, method: str, *arguments: Any) -> Any:
        return actor.call(method, arguments)

    def start(self, actor: Any, method: str, *arguments: Any) -> Any:
        return actor.start(method, arguments)

    def is_done(self, call: Any) -> bool:
        return bool(call.done())

    def wait(self, calls: Sequence[Any]) -> list[Any]:
        return [call.result() for call in calls]

    def note(self, row: str) -> str:
        return {
            PIPELINED: "one under way at a time",
            CREATED: "from an idle process, without torch",
            BUSY_P50: "waits for the lock",
        }.get(row, "")

    def _fill(self, num: int) -> None:
        while len(self._idle) < num:
            self._idle.append(Job())
        for job in self._idle:
            job.wait()


if __name__ == "__main__":
    main(Parl, __doc__)
