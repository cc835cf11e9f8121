"""A driver's program as a node knows it: where its workers find the code, the script, and their working folder."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path

import trio

from asyncparl.errors import ProtocolError
from asyncparl.machine import escape_text
from asyncparl.protocol.node_messages import Job, PutCode
from asyncparl.runtime.code.store import CodeStore, Incoming
from asyncparl.runtime.zygote import WorkerSetup
from asyncparl.runtime.zygote_client import ZygoteKind
from asyncparl.transport.sockets import make_own_folder


class OpenedJob:
    """The program of one driver link. `close` when the link is lost and the workers have ended."""

    def __init__(self, job: Job, store: CodeStore | None, directory: str) -> None:
        self._job = job
        self._store = store
        self._directory = directory
        self._incoming: Incoming | None = None
        self._making_folder = trio.Lock()
        self._folder: Path | None = None
        """The working folder of workers whose driver runs on another machine."""

    @property
    def needs_code(self) -> bool:
        """Whether the driver has to send its package."""
        return bool(self._job.code) and not self._files().has(self._job.code)

    async def put(self, piece: PutCode) -> None:
        """Take the next piece of the package.

        Raises:
            ProtocolError: it is not the package that was announced, or one that must not be unpacked.
            OSError: there is no room for it.
        """
        if piece.digest != self._job.code:
            raise ProtocolError("code that was not announced")
        if self._incoming is None:
            self._incoming = self._files().begin(piece.digest, piece.size)
        incoming = self._incoming
        incoming.write(piece.data)
        if piece.is_last:
            self._incoming = None
            await trio.to_thread.run_sync(incoming.commit)

    def kind(self, own_preload: tuple[str, ...]) -> ZygoteKind:
        """Which zygote its workers are forked from; `own_preload` is what this node has warmed up."""
        job = self._job
        if not job.code:
            return ZygoteKind(job.start_method, tuple(job.preload), tuple(job.sys_path))
        preload = own_preload if set(job.preload) <= set(own_preload) else tuple(job.preload)
        return ZygoteKind(job.start_method, preload, tuple(own_sys_path()))

    async def setup(self) -> WorkerSetup:
        """What a worker is told.

        Raises:
            OSError: its working folder cannot be made.
        """
        job = self._job
        if not job.code:
            return WorkerSetup(self._directory, job.sys_path, job.argv, job.main_path, job.main_module, job.cwd)
        store = self._files()
        async with self._making_folder:
            if self._folder is None or not self._folder.is_dir():
                self._folder = await trio.to_thread.run_sync(self._make_folder)
        main_path = escape_text(f"{store.path(job.code)}/") + job.main_path if job.main_path else None
        sys_path = [*map(escape_text, store.roots(job.code)), *own_sys_path()]
        cwd = escape_text(str(self._folder))
        return WorkerSetup(self._directory, sys_path, job.argv, main_path, job.main_module, cwd)

    def _make_folder(self) -> Path:
        folder = Path(self._directory) / f"job-{os.urandom(4).hex()}"
        make_own_folder(self._directory)  # something may have cleaned up around us
        folder.mkdir()
        self._files().link_files(self._job.code, folder)
        return folder

    @property
    def job(self) -> Job:
        """As the driver described it."""
        return self._job

    @property
    def code(self) -> str:
        """The digest of its package, empty if it has none."""
        return self._job.code

    async def close(self) -> None:
        """Give up what was not received to its end; remove the working folder."""
        if self._incoming is not None:
            self._incoming.abort()
        if self._folder is not None:
            await trio.to_thread.run_sync(partial(shutil.rmtree, self._folder, ignore_errors=True))

    def _files(self) -> CodeStore:
        if self._store is None:
            raise ProtocolError("this node takes no code: it belongs to a program on the same machine")
        return self._store


def own_sys_path() -> list[str]:
    """That of this node, escaped: what its workers get beside the code of their program."""
    return [escape_text(entry) for entry in sys.path if entry]
