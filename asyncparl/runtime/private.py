"""A private cluster as its program holds it: the process of `private_process.py`, and the folder of its sockets."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any

import msgspec
import trio

from asyncparl.errors import ResourceError
from asyncparl.machine import explain, folder_for_sockets
from asyncparl.protocol.node_messages import Job
from asyncparl.protocol.numbers import check_digits
from asyncparl.protocol.resources import Capacity, check_capacity
from asyncparl.runtime import zygote_start
from asyncparl.runtime.state import without_secrets
from asyncparl.transport.forks import guard

_START_LIMIT_S = 30.0
_STOP_LIMIT_S = 10.0


class PrivateSetup(msgspec.Struct, frozen=True):
    """What the program tells its cluster, as one line of JSON on standard input."""

    directory: str
    cpus: float | None
    job: Job
    keeps_logs: bool = False


class PrivateCluster:
    """The process of a private cluster, and the folder of its sockets, as the program holds them."""

    def __init__(self, process: subprocess.Popen[bytes], directory: str) -> None:
        self._process = process
        self._directory = directory

    @classmethod
    def start(cls, job: Job, *, cpus: float | None, keeps_logs: bool = False) -> PrivateCluster:
        """Start it; `wait_ready` says whether it came up.

        Raises:
            ResourceError: there is no room for its folder, or no process to be had.
            ValueError: `cpus` is no number of CPUs.
        """
        if cpus is not None:
            check_digits("cpus", cpus)
            if not 0 < cpus < math.inf:
                raise ValueError(f"cpus must be more than 0, not {cpus}")
            check_capacity(Capacity(cpus))
        directory = ""
        try:
            directory = tempfile.mkdtemp(
                prefix="asyncparl-", dir=folder_for_sockets()
            )  # mode 0700: the sockets are ours alone
            return cls(_start_process(PrivateSetup(directory, cpus, job, keeps_logs)), directory)
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise ResourceError(f"a cluster cannot be started on this machine: {explain(error)}") from error

    async def wait_ready(self) -> str:
        """The address of its master.

        Raises:
            ResourceError: it ended or took too long.
        """
        assert self._process.stdout is not None
        line = b""
        async with trio.lowlevel.FdStream(os.dup(self._process.stdout.fileno())) as stdout:
            with trio.move_on_after(_START_LIMIT_S):
                async for chunk in stdout:
                    line += chunk
                    if line.endswith(b"\n"):
                        return line.decode().strip()
                await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        raise ResourceError(
            f"the node process did not start within {_START_LIMIT_S:g} s"
            if self._process.poll() is None
            else f"the node process ended with code {self._process.returncode}; its error is on standard error"
        )

    async def stop(self) -> None:
        """End it: it ends by itself when its standard input closes, and is killed if it does not."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has died before it read what we wrote
                self._process.stdin.close()
            self._process.send_signal(signal.SIGCONT)  # should it be stopped
            with trio.move_on_after(_STOP_LIMIT_S):
                await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        finally:
            # Also on a second Ctrl-C. The workers end with the zygote, and the zygote with the node.
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            shutil.rmtree(self._directory, ignore_errors=True)


def _start_process(setup: PrivateSetup) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-P", zygote_start.__file__, setup.directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Without one of its own, its number could be that of anything.
        stderr=subprocess.DEVNULL if sys.__stderr__ is None else None,
        # Ctrl-C at a terminal reaches its whole process group; the cluster is ended by us, in order.
        start_new_session=True,
        env={**without_secrets(os.environ), "PYTHONPATH": _python_path()},
    )
    assert process.stdin is not None and process.stdout is not None
    pipes: Any = process.stdin, process.stdout
    for pipe in pipes:  # their ends say that this program has ended
        guard.close_in_child(pipe.raw)
    try:
        process.stdin.write(msgspec.json.encode(setup) + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # `wait_ready` says how it ended
    return process


def _python_path() -> str:
    """Where the process finds this very package, wherever the program found it."""
    spec = importlib.util.find_spec("asyncparl")
    assert spec is not None and spec.submodule_search_locations
    ours = os.path.dirname(os.path.abspath(spec.submodule_search_locations[0]))
    return os.pathsep.join(filter(None, [ours, os.environ.get("PYTHONPATH", "")]))
