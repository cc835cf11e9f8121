"""The process of an actor in PARL's way: waits for a class, makes an object of it, and answers calls one by one."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import cloudpickle
import numpy as np  # noqa: F401  (the class needs it: a process that waits has loaded what it can)
import zmq


def main() -> None:
    """Until the caller, who holds the other end of the standard input, is gone."""
    threading.Thread(target=_end_with_caller, daemon=True).start()
    socket = zmq.Context().socket(zmq.REP)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    subject: Any = None
    while True:
        method, payload = socket.recv_multipart()
        if method == b"init":
            subject = cloudpickle.loads(payload)()
            socket.send(b"")
        else:
            arguments = cloudpickle.loads(payload)
            socket.send(cloudpickle.dumps(getattr(subject, method.decode())(*arguments)))


def _end_with_caller() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
