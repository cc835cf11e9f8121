"""`async with asyncparl.connect() as cluster`: joins a cluster, or starts a private one and joins that."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

import msgspec
import trio

from asyncparl.errors import ResourceError
from asyncparl.machine import allow_many_files
from asyncparl.protocol.cluster_view import ClusterView
from asyncparl.protocol.deadlines import check_timeout
from asyncparl.protocol.figures import MAX_REPORT_BYTES
from asyncparl.protocol.link import DEFAULT_MAX_VALUE_BYTES
from asyncparl.protocol.owned import LARGE_BYTES
from asyncparl.protocol.resources import parse_bytes
from asyncparl.runtime.addresses import parse_host_and_port
from asyncparl.runtime.dump_signal import telling_when_asked
from asyncparl.runtime.long_waits import warn_of_long_waits
from asyncparl.runtime.main_module import stop_if_loading
from asyncparl.runtime.private import PrivateCluster
from asyncparl.runtime.program import Program
from asyncparl.runtime.session import Session, open_session, program_name
from asyncparl.runtime.signals import chosen_signal
from asyncparl.runtime.state import find_secret
from asyncparl.transport import Credentials, check_process


class Cluster:
    """What `connect()` gives: the cluster that this block is connected to."""

    def __init__(self, session: Session, address: str | None, monitor_url: str = "") -> None:
        self._session = session
        self._address = address
        self.monitor_url = monitor_url
        """Where the monitor of this block is; empty if there is none."""

    @property
    def num_actors(self) -> int:
        """Actors of this program that have not ended."""
        return self._session.num_actors

    async def describe(self) -> ClusterView:
        """The nodes of the cluster, what they have and what is in use, and all of its actors.

        Raises:
            ResourceError: the master has been away for too long.
        """
        return await self._session.describe()

    def report(self, /, **values: object) -> None:
        """Show figures of this program in monitors: numbers and texts by name, such as `mean_return=20.5`. At once.

        The last report is kept, as long as the program runs and a while longer; numbers become curves, over
        `agent_steps` if there are such. From any thread.

        Raises:
            ValueError: that is more than 16 KiB.
            TypeError: something has no place in JSON.
        """
        report = msgspec.json.encode(values, enc_hook=float)
        if len(report) > MAX_REPORT_BYTES:
            raise ValueError(f"a report of {len(report):,} bytes; the limit is {MAX_REPORT_BYTES:,}")
        self._session.loop.check_here("report(...)")
        self._session.loop.run(self._session.report, report)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} is of this process only: it cannot be sent")

    def __repr__(self) -> str:
        where = f"cluster at {self._address}" if self._address else "private cluster"
        return f"<asyncparl {where}, {self.num_actors} actors>"


@contextlib.asynccontextmanager
async def connect(  # noqa: PLR0913 - its options
    address: str | None = None,
    *,
    secret_file: str | None = None,
    cpus: float | None = None,
    files: Sequence[str] = (),
    encrypt: bool = False,
    max_value_bytes: int | str | None = DEFAULT_MAX_VALUE_BYTES,
    preload: Sequence[str] | None = None,
    start_method: str | None = None,
    monitor: bool | str = False,
    warn_after_s: float | None = None,
) -> AsyncIterator[Cluster]:
    """Join the cluster whose master is at `address`; without one, start a private cluster on this machine.

    What was started here ends where the block ends: the actors, and the processes of a private cluster.

    Args:
        address: "host:port" of a master.
        secret_file: the cluster's secret for drivers. By default `$ASYNCPARL_DRIVER_SECRET` (the text),
            `$ASYNCPARL_SECRET_FILE`, or what the master has put into this user's state folder.
        cpus: of a private cluster: actors wait while that many CPUs are in use. By default none waits.
        files: patterns, relative to the working directory, of files that actors on other machines need
            ("configs/*.yaml"); code is sent without being named.
        encrypt: calls and data between machines too, not only what controls the cluster. Costs throughput.
        max_value_bytes: the largest argument, result or item, as a number or as "8GiB"; what is larger raises
            `MessageTooLarge`. None: no limit but memory, of which both ends need as much while it travels.
        preload: modules that worker processes have imported before they start. By default numpy, torch and
            gymnasium, as far as this program has imported them itself.
        start_method: "fork" (default on Linux: 20 ms an actor) or "spawn" (a fresh interpreter each).
        monitor: True, "port" or "host:port": serve a web monitor of the cluster while the block runs, and say where.
        warn_after_s: log a warning, once, of each call that somebody waits for for longer than this.

    Errors: what the block raises leaves it unchanged, never inside an exception group.

    Cancellation: actors get a second to end, then they are killed. Nothing is left behind.

    Raises:
        AuthenticationError: there is no secret, or it is not the cluster's.
        ResourceError: the cluster cannot be started, or reached; or this process is a fork of one that has used one.
        ValueError: an argument that makes no sense.
    """
    check_can_connect()
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError("asyncparl needs Trio: run the program with trio.run(main), not with asyncio")
    _check_types(address, secret_file, cpus, start_method, preload=preload, files=files)
    open_monitor = _monitor_opener(monitor)
    chosen_signal()
    warn_after_s = check_timeout("warn_after_s", warn_after_s)
    allow_many_files()
    limit = _checked_limit(max_value_bytes)
    program = Program(preload=preload, start_method=start_method, files=files, encrypt=encrypt, max_value_bytes=limit)
    if address is not None:
        if cpus is not None:
            raise ValueError("cpus is for private clusters; a node of this cluster has its own --cpus")
        master = parse_host_and_port(address)
        credentials = Credentials("driver", find_secret("driver", master.port, secret_file=secret_file))
        async with (
            _telling_when_asked(),
            open_session(program, str(master), credentials, encrypt=encrypt) as session,
            open_monitor(str(master), credentials) as url,
        ):
            _watch_waits(session, warn_after_s)
            yield Cluster(session, address, url)
        return
    private = PrivateCluster.start(program.local_job(), cpus=cpus, keeps_logs=bool(monitor))
    try:
        private_address = await private.wait_ready()
        async with (
            _telling_when_asked(),
            open_session(program, private_address, None, encrypt=False) as session,
            open_monitor(private_address, None) as url,
        ):
            _watch_waits(session, warn_after_s)
            yield Cluster(session, None, url)
    finally:
        with trio.CancelScope(shield=True):
            await private.stop()


@contextlib.asynccontextmanager
async def _telling_when_asked() -> AsyncIterator[None]:
    with telling_when_asked(program_name()):
        yield


def _watch_waits(session: Session, warn_after_s: float | None) -> None:
    if warn_after_s is not None:
        session.start_soon(warn_of_long_waits, warn_after_s)


def check_can_connect() -> None:
    """What comes first, with `async` or without: a script that an actor imports stops here, and a fork is refused.

    Raises:
        ResourceError: this process is a fork of one that has used a cluster.
    """
    stop_if_loading()
    check_process()


def _checked_limit(max_value_bytes: int | str | None) -> int | None:
    """Raises ValueError, TypeError."""
    if max_value_bytes is None:
        return None
    limit = parse_bytes(max_value_bytes)
    if limit < LARGE_BYTES:
        raise ValueError(f"max_value_bytes={max_value_bytes!r}: it must be {LARGE_BYTES:,} or more")
    return limit


def _monitor_opener(monitor: bool | str) -> Callable[[str, Credentials | None], AbstractAsyncContextManager[str]]:
    """What serves the monitor of a master, or nothing.

    Raises:
        ValueError: the address makes no sense.
        ResourceError: a package is missing.
    """
    if not monitor:
        return lambda _master, _credentials: contextlib.nullcontext("")
    try:
        from asyncparl.monitor.server import Bind, open_monitor
    except ModuleNotFoundError as error:
        raise ResourceError(
            f"the monitor needs {error.name}, which is not installed: pip install 'asyncparl[monitor]'"
        ) from error
    bind = Bind.parse(monitor)
    return lambda master, credentials: open_monitor(master, credentials, bind)


def _check_types(address: object, secret_file: object, cpus: object, start_method: object, **lists: object) -> None:
    """What type checkers would have said.

    Raises:
        TypeError, ValueError: names the argument.
    """
    if address is not None and not isinstance(address, str):
        raise TypeError(f"address must be text such as 'host:8010', not {address!r}")
    if secret_file is not None and not isinstance(secret_file, (str, os.PathLike)):
        raise TypeError(f"secret_file must be the path of a file, not {secret_file!r}")
    if cpus is not None and (isinstance(cpus, bool) or not isinstance(cpus, (int, float))):
        raise TypeError(f"cpus must be a number, not {cpus!r}")
    for name, value in lists.items():
        if isinstance(value, str):
            raise TypeError(f"{name} must be a list, not one text: {name}=[{value!r}]")
        is_list = value is None or (isinstance(value, Sequence) and all(isinstance(part, str) for part in value))
        if not is_list:
            raise TypeError(f"{name} must be a list of texts, not {value!r}")
    if start_method not in (None, "fork", "spawn"):
        raise ValueError(f"start_method must be 'fork' or 'spawn', not {start_method!r}")
