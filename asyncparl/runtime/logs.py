"""The logs of a node's actors: one file each, of bounded size, kept for a while after the actor has ended."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path

import trio

from asyncparl.protocol.node_messages import LogInfo
from asyncparl.transport.sockets import make_own_folder

MAX_LOG_BYTES = 16 << 20
"""Of one actor. When it is reached, the older half is dropped."""
MAX_ENDED_LOGS = 500
_CHUNK_LINES = 200


@dataclass(slots=True, eq=False)
class _Log:
    actor_id: str
    name: str
    path: Path
    grown: trio.Event
    public_name: str
    is_running: bool = True


class LogStore:
    """Writes and reads them. A full disk costs lines of the log, nothing else."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._logs: dict[str, _Log] = {}

    def open(self, actor_id: str, name: str, public_name: str = "") -> None:
        """Start the log of an actor. `public_name`: by which `get_actor` finds it.

        Raises:
            OSError: the file cannot be made.
        """
        path = self._directory / f"{actor_id}.log"
        self._make(path)
        self._logs[actor_id] = _Log(actor_id, name, path, trio.Event(), public_name)
        self._forget_oldest()

    def append(self, actor_id: str, lines: list[str]) -> None:
        """Add lines."""
        log = self._logs.get(actor_id)
        if log is None or not lines:
            return
        try:
            if not log.path.exists():
                self._make(log.path)
            with log.path.open("r+b") as file:  # not kept open: a node may have very many actors
                file.seek(0, io.SEEK_END)
                file.write("".join(f"{line}\n" for line in lines).encode())
                if file.tell() > MAX_LOG_BYTES:
                    _drop_older_half(file)
        except OSError:
            pass
        _wake(log)

    def end(self, actor_id: str) -> None:
        """The actor has ended; nothing will be added."""
        if (log := self._logs.get(actor_id)) is not None:
            log.is_running = False
            _wake(log)

    def has(self, actor_id: str) -> bool:
        """Whether there is a log of this actor."""
        return actor_id in self._logs

    def infos(self) -> list[LogInfo]:
        """All logs, oldest first."""
        return [
            LogInfo(log.actor_id, log.name, _size(log.path), log.is_running, log.public_name)
            for log in self._logs.values()
        ]

    async def read(self, actor_id: str, num_lines: int, *, follow: bool) -> AsyncGenerator[list[str], None]:
        """The last lines, then, to `follow`, what is added until the actor has ended.

        Raises:
            KeyError: there is no such log.
        """
        log = self._logs[actor_id]
        with log.path.open("rb") as file:
            lines = file.read().decode(errors="replace").splitlines()[-num_lines:] if num_lines else []
            for start in range(0, len(lines), _CHUNK_LINES):
                yield lines[start : start + _CHUNK_LINES]
            file.seek(0, io.SEEK_END)
            while follow:
                grown, is_over = log.grown, not log.is_running
                if _size(log.path) < file.tell():  # the older half was dropped
                    file.seek(0, io.SEEK_END)
                for added in _complete_lines(file):
                    yield added
                if is_over:
                    return
                await grown.wait()

    def _make(self, path: Path) -> None:
        make_own_folder(str(self._directory))  # something may have cleaned up around us
        path.touch()

    def _forget_oldest(self) -> None:
        ended = [log for log in self._logs.values() if not log.is_running]
        for log in ended[: max(0, len(ended) - MAX_ENDED_LOGS)]:
            log.path.unlink(missing_ok=True)
            del self._logs[log.actor_id]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # somebody has removed it


def _complete_lines(file: io.BufferedReader) -> Iterator[list[str]]:
    while lines := file.readlines(1 << 16):
        yield [line.decode(errors="replace").rstrip("\n") for line in lines]


def _drop_older_half(file: io.BufferedRandom) -> None:
    file.seek(-MAX_LOG_BYTES // 2, io.SEEK_END)
    file.readline()
    rest = file.read()
    file.seek(0)
    file.truncate()
    file.write(rest)


def _wake(log: _Log) -> None:
    log.grown.set()
    log.grown = trio.Event()
