"""The driver's program as its workers must know it: where its code is, which script it is, what it has imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import trio

from asyncparl.errors import ResourceError
from asyncparl.machine import escape_text
from asyncparl.protocol.link import DEFAULT_MAX_VALUE_BYTES
from asyncparl.protocol.node_messages import Job
from asyncparl.runtime.code.pack import Package, check_files, pack
from asyncparl.runtime.code.roots import find_roots
from asyncparl.runtime.main_module import answer_to_alias, describe_main, names_for_actors

PRELOADABLE = ("numpy", "torch", "gymnasium")
START_METHOD = "fork" if sys.platform == "linux" else "spawn"


class Program:
    """This program."""

    def __init__(
        self,
        *,
        preload: Sequence[str] | None,
        start_method: str | None,
        files: Sequence[str] = (),
        encrypt: bool = False,
        max_value_bytes: int | None = DEFAULT_MAX_VALUE_BYTES,
        main: tuple[str | None, str | None] | None = None,
        job: Job | None = None,
    ) -> None:
        """`job`: in a worker, how its node knows the program, whose main script is `main` here.

        Raises:
            ResourceError: its working directory is gone.
        """
        if main is None:
            answer_to_alias()
        self._main_path, self._main_module = main or describe_main()
        self._job = job
        self._encrypt = encrypt
        self.max_value_bytes = max_value_bytes
        """The largest value that its processes send and take; None: there is no limit but memory."""
        if preload is None:
            preload = [name for name in PRELOADABLE if name in sys.modules]
        self._preload = list(preload)
        self._start_method = start_method or START_METHOD
        self._files = files
        self._cwd = _working_directory()
        check_files(files, self._cwd)  # now, not when the first actor starts elsewhere
        self._package: Package | None = None
        self._packing = trio.Lock()

    @classmethod
    def of_worker(cls, job: Job, main: tuple[str | None, str | None]) -> Program:
        """The program that an actor belongs to, for the actors that it starts."""
        return cls(
            preload=job.preload,
            start_method=job.start_method,
            encrypt=job.encrypt,
            max_value_bytes=job.max_value_bytes,
            main=main,
            job=job,
        )

    @property
    def main_names(self) -> frozenset[str] | None:
        """What other processes of the program find in `__main__`; None: all that is there in this one."""
        if self._main_path is None and self._main_module is None:
            return frozenset()  # a notebook, or `python -c`
        return names_for_actors() if self._job is None else None

    def local_job(self) -> Job:
        """For nodes that share our files."""
        if self._job is not None:
            return self._job
        return Job(
            sys_path=[escape_text(os.path.abspath(entry)) for entry in sys.path],
            argv=[escape_text(argument) for argument in sys.argv],
            main_path=self._main_path and escape_text(self._main_path),
            main_module=self._main_module and escape_text(self._main_module),
            preload=self._preload,
            start_method=self._start_method,
            cwd=escape_text(self._cwd),
            encrypt=self._encrypt,
            max_value_bytes=self.max_value_bytes,
        )

    async def shipped_job(self) -> tuple[Job, Package]:
        """For nodes elsewhere, and the package that they need. Packed once.

        Raises:
            ValueError: too much code, or files that are not there; the message names them.
        """
        async with self._packing:
            if self._package is None:
                self._package = await trio.to_thread.run_sync(self._pack)
        job = Job(
            sys_path=[],
            argv=[escape_text(argument) for argument in sys.argv],
            main_path=self._package.main and escape_text(self._package.main),
            main_module=self._main_module and escape_text(self._main_module),
            preload=self._preload,
            start_method=self._start_method,
            code=self._package.digest,
            encrypt=self._encrypt,
            max_value_bytes=self.max_value_bytes,
        )
        return job, self._package

    def _pack(self) -> Package:
        return pack(find_roots(self._main_path, sys.path, dict(sys.modules)), self._files)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ResourceError(
            "the working directory of this program does not exist any more: change to another"
        ) from None
