"""The folder of a node, for its socket files and logs. It goes with the node, also if that is killed: see `sweep`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from asyncparl.machine import folder_for_sockets

FOLDER_PREFIX = "asyncparl-node-"
LOCK = "lock"


@contextlib.contextmanager
def node_folder() -> Iterator[str]:
    """A new one. Short, because the path of a socket file must be; only we may enter it."""
    for folder in Path(folder_for_sockets()).glob(f"{FOLDER_PREFIX}*"):
        sweep(folder)
    directory, lock = _new_folder()
    try:
        with lock:
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def sweep(folder: Path, within_s: float = 0.0) -> None:
    """Remove it if its node was killed: nobody holds its lock. Its zygotes do so when it has gone, or the next node.

    Args:
        within_s: how long to wait until it has gone. 0: it may be there for good.
    """
    until = time.monotonic() + within_s
    with contextlib.suppress(OSError):  # it has gone, or is somebody else's
        while not _sweep_now(folder) and time.monotonic() < until:
            time.sleep(0.01)
    if within_s and not (folder / LOCK).exists():  # it was removed once, and made again
        shutil.rmtree(folder, ignore_errors=True)


def _sweep_now(folder: Path) -> bool:
    """Whether its node had gone."""
    with open(folder / LOCK) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True


def _new_folder() -> tuple[str, TextIO]:
    """An empty folder, and its lock, which we hold."""
    while True:
        directory = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=folder_for_sockets())
        lock = open(f"{directory}/{LOCK}", "w")  # noqa: SIM115 - kept by the caller
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(lock.name):
            return directory, lock
        lock.close()  # another node that was starting has swept it before we had the lock
