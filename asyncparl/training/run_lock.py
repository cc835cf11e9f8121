"""A run folder has one owner at a time: who holds the lock of the system on a file in it, and not longer than he lives.

That file, `.lock`, says whose it is. Its owner removes it at the end. One that is left, by a process that was killed,
is nobody's: it is in nobody's way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import weakref
from pathlib import Path
from typing import TextIO

from asyncparl.training.errors import RunFolderError

LOCK_FILE = ".lock"
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})


class RunLock:
    """Held until it is released, or its process has ended, however that may be.

    Args:
        folder: of the run.

    Raises:
        RunFolderError: somebody else has it; the error says who.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / LOCK_FILE
        self.problem: str | None = None
        """Why there is no lock, where the file system has none. The run has its folder all the same."""
        self._folder_as_it_was = folder.stat()
        self._file = self._open()
        _held.add(self)
        try:
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
            self._file.flush()
        except BaseException:
            self.release()
            raise

    def _open(self) -> TextIO:
        while True:
            file = self._path.open("a+")
            try:
                self._lock(file)
                if self.problem is not None or self._is_at_its_path(file):
                    return file
            except BaseException:
                file.close()
                raise
            file.close()  # its last owner has removed it before we had the lock

    def _lock(self, file: TextIO) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read() or "another process"
            raise RunFolderError(
                f"the run in {self._folder} is in use by {owner}: stop it first, or copy the folder"
            ) from None
        except OSError as error:
            self.problem = (
                f"{self._folder} is in a file system without locks ({error.strerror}): "
                "no other process that writes to it would be noticed"
            )

    def _is_at_its_path(self, file: TextIO) -> bool:
        return _is_there(self._path, os.fstat(file.fileno()))

    def is_in_place(self) -> bool:
        """Whether the folder is still there, and not another one of that name."""
        return _is_there(self._folder, self._folder_as_it_was)

    def release(self) -> None:
        """Let others have the folder. May be called twice."""
        if self._file.closed:
            return
        with self._file, contextlib.suppress(OSError):
            if self.problem is None and self._is_at_its_path(self._file):
                self._path.unlink()  # also for a fork that Python does not know of, which has it open still

    def leave_to_parent(self) -> None:
        """In a fork: the lock is not ours, and must not live as long as we."""
        self._file.close()


def _is_there(path: Path, as_it_was: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), as_it_was)
    except OSError as error:
        return error.errno not in _GONE  # whoever writes will be told what it is


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for lock in list(_held):
        lock.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)
