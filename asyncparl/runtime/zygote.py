"""The zygote: the process that all workers of a node are forked from.

It has imported what workers need (numpy, and torch and gymnasium where the driver uses them), so a worker starts in the
time of a fork. To be safe to fork it has one thread, no event loop and no NNG socket. It runs no code of the
user's but what it is told to preload.

It is the parent of the workers, so it alone kills and reaps them: no worker is ever signalled after it was reaped. When
its socket to the node closes (the node died) it kills every worker and ends, even if it was stopped: the kernel lets it
go on then. When it dies itself, the kernel kills the workers (PDEATHSIG).

What a worker has started ends with it: its process group is killed, and so are those who left that for a session of
their own (browsers, game servers), which the zygote inherits, and knows by a variable of their environment. It does not
know those that were given an environment of their own, nor forks that left the group and never called exec. The
resource trackers of multiprocessing get a moment first: they remove shared memory and semaphores.

Messages are packets on a Unix socket, msgpack structs of this file; a `Fork` carries three descriptors: standard
output, standard error, and the worker's own socket to the node. Where there is no fork, workers are started as fresh
interpreters, with the same messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from asyncparl.machine import allow_many_files, explain, restore_text
from asyncparl.runtime.node_folder import sweep
from asyncparl.runtime.signals import ignore_dump_signal

MAX_PACKET_BYTES = 1 << 17
NUM_FORK_FDS = 3

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_MARK = "ASYNCPARL_PROCESS"
"""The variable that says from which worker a process descends."""
_STRAYS_LIMIT_S = 1.0
_TRACKERS_LIMIT_S = 2.0
_TRACKERS_LOOK_S = 0.2

_NODE_ENDS_WITHIN_S = 2.0
"""The kernel closes the files of a killed process one after the other: our socket perhaps before the lock."""


class ZygoteSetup(msgspec.Struct, frozen=True):
    """What all workers of this zygote have in common. On the command line of the zygote, as JSON."""

    control_fd: int
    sys_path: list[str]
    preload: list[str]
    start_method: str
    folder: str = ""
    """Of the node, which may be killed before it can remove it."""


class WorkerSetup(msgspec.Struct, frozen=True):
    """What a worker needs to know of its driver's program, in paths of this machine."""

    directory: str
    """Where its socket file goes."""
    sys_path: list[str]
    argv: list[str]
    main_path: str | None
    """The driver's script, imported in a worker when it needs a class of `__main__`."""
    main_module: str | None
    cwd: str
    """Empty: that of the node."""


class Fork(msgspec.Struct, tag=True, frozen=True):
    """Node to zygote: start a worker."""

    actor_id: str
    name: str
    num_threads: int
    setup: WorkerSetup
    environ: dict[str, str | None]
    """Variables that the worker shall see; None: unset."""


class Kill(msgspec.Struct, tag=True, frozen=True):
    """Node to zygote: signal a worker's process group; SIGKILL: the worker, whose group is ended when it has ended.

    Ignored if it has ended.
    """

    actor_id: str
    signal: int


class Leave(msgspec.Struct, tag=True, frozen=True):
    """Node to zygote: it is not needed any more. The node lives, and removes its folder itself."""


class Forked(msgspec.Struct, tag=True, frozen=True):
    """Zygote to node: the worker exists."""

    actor_id: str
    pid: int
    mark: str
    """See `mark_of`."""


class ForkFailed(msgspec.Struct, tag=True, frozen=True):
    """Zygote to node: the worker could not be started."""

    actor_id: str
    reason: str


class Exited(msgspec.Struct, tag=True, frozen=True):
    """Zygote to node: the worker has ended, and its process group with it, as far as it can be ended."""

    actor_id: str
    exit_code: int | None
    signal: int | None


ToZygote = Fork | Kill | Leave
FromZygote = Forked | ForkFailed | Exited

encode = msgspec.msgpack.Encoder().encode
decode_to_zygote = msgspec.msgpack.Decoder(ToZygote).decode
decode_from_zygote = msgspec.msgpack.Decoder(FromZygote).decode


class _Worker(NamedTuple):
    actor_id: str
    mark: str
    """In its environment, and in that of its descendants."""


class _Ending(NamedTuple):
    """A worker that has ended, while its trackers remove what it has left in /dev/shm."""

    report: Exited
    trackers: set[int]
    give_up_at: float


class _Zygote:
    def __init__(self, setup: ZygoteSetup) -> None:
        self._setup = setup
        self.was_told_to_leave = False
        go_on_without_parent()
        _inherit_orphans()
        self._control = socket.socket(fileno=setup.control_fd)
        self._workers: dict[int, _Worker] = {}
        self._endings: list[_Ending] = []
        self._num_started = 0
        self._child_signal, wakeup = os.pipe()
        for fd in (self._child_signal, wakeup):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        self._wakeup = wakeup
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Ctrl-C is the driver's business; the node tells us what to do.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ignore_dump_signal()

    def serve(self) -> None:
        """Until the node is gone. Returns only in the zygote itself, never in a worker."""
        poll = select.poll()  # unlike `select` it takes descriptors of any number
        for fd in (self._control.fileno(), self._child_signal):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(1000 * _TRACKERS_LOOK_S if self._endings else None)}
            if self._child_signal in ready:
                os.read(self._child_signal, 4096)
                self._reap()
            self._look_after_trackers()
            if self._control.fileno() in ready and not self._handle_packet():
                break
        self._kill_all()

    def _handle_packet(self) -> bool:
        try:
            packet, fds, _, _ = socket.recv_fds(self._control, MAX_PACKET_BYTES, NUM_FORK_FDS)
        except ConnectionError:
            return False
        if not packet:
            return False
        message = decode_to_zygote(packet)
        if isinstance(message, Leave):
            self.was_told_to_leave = True
            return False
        if isinstance(message, Fork):
            try:
                self._start(message, fds)
            finally:
                for fd in fds:
                    os.close(fd)
        else:
            for pid, worker in self._workers.items():
                if worker.actor_id == message.actor_id:
                    _signal_worker(pid, message.signal)
        return True

    def _start(self, fork: Fork, fds: list[int]) -> None:
        self._num_started += 1
        worker = _Worker(fork.actor_id, f"{os.getpid()}.{self._num_started}")
        fork = msgspec.structs.replace(fork, environ={**fork.environ, _MARK: worker.mark})
        try:
            if len(fds) < NUM_FORK_FDS:  # the kernel has dropped what we have no room for
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            pid = self._fork(fork, fds) if self._setup.start_method == "fork" else self._spawn(fork, fds)
        except OSError as error:
            why = explain(error, "the process that starts workers")
            self._tell(ForkFailed(fork.actor_id, f"a worker process cannot be started: {why}"))
            return
        self._workers[pid] = worker
        self._tell(Forked(fork.actor_id, pid, worker.mark))

    def _fork(self, fork: Fork, fds: list[int]) -> int:
        zygote_pid = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        self._become_worker(fork, fds, zygote_pid)

    def _become_worker(self, fork: Fork, fds: list[int], zygote_pid: int) -> NoReturn:
        """In the child: leave everything of the zygote behind."""
        exit_code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            die_with_parent(zygote_pid)
            for fd in (self._child_signal, self._wakeup):
                os.close(fd)
            self._control.close()
            _place_standard_fds(fds)
            from asyncparl.runtime.worker import run_worker

            exit_code = run_worker(fork, control_fd=fds[2])
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(exit_code)

    def _spawn(self, fork: Fork, fds: list[int]) -> int:
        command = [sys.executable, "-P", "-c", "from asyncparl.runtime.worker import main; main()", str(fds[2])]
        command.append(str(os.getpid()))
        arguments = msgspec.json.encode(fork).decode()
        process = subprocess.Popen(
            [*command, arguments],
            stdin=subprocess.DEVNULL,
            stdout=fds[0],
            stderr=fds[1],
            pass_fds=[fds[2]],
            start_new_session=True,
        )
        # We reap it by pid; Popen must not try to, nor warn that it was not waited for.
        process.returncode = 0
        return process.pid

    def _reap(self) -> None:
        while (ended := _ended_child()) is not None:
            worker = self._workers.pop(ended.si_pid, None)
            if worker is not None:  # otherwise an orphan, in whose group there may be others whose worker lives
                exited = ended.si_code == os.CLD_EXITED
                report = Exited(worker.actor_id, *((ended.si_status, None) if exited else (None, ended.si_status)))
                # While the zombie holds its pid, the process group of that number can only be its own.
                trackers = _end_group(ended.si_pid, _children() - self._workers.keys())
                self._endings.append(_Ending(report, trackers, time.monotonic() + _TRACKERS_LIMIT_S))
            os.waitpid(ended.si_pid, 0)
            for ending in self._endings:
                ending.trackers.discard(ended.si_pid)
            self._end_strays()
            self._look_after_trackers()
        self._end_strays()  # also those whose parents were strays

    def _look_after_trackers(self) -> None:
        """Report the workers of whose processes nothing is left. Trackers that do not end are made to."""
        for ending in self._endings:
            if ending.trackers and time.monotonic() > ending.give_up_at:
                for pid in filter(_is_tracker, ending.trackers):
                    _kill(pid)
                ending.trackers.clear()
            if not ending.trackers:
                self._tell(ending.report)
        self._endings = [ending for ending in self._endings if ending.trackers]

    def _end_strays(self) -> bool:
        """Kill what descends from workers that have ended; whether there was any."""
        living = {worker.mark for worker in self._workers.values()}
        spared = self._workers.keys() | {tracker for ending in self._endings for tracker in ending.trackers}
        strays = [pid for pid in _children() - spared if mark_of(pid) not in (None, *living)]
        for pid in strays:
            _kill(pid)
        return bool(strays)

    def _tell(self, message: FromZygote) -> None:
        try:
            self._control.send(encode(message))
        except ConnectionError:
            pass  # the node is gone; the next receive says so too, and ends us

    def _kill_all(self) -> None:
        for pid in self._workers:
            _signal_worker(pid, signal.SIGKILL)
        give_up_at = time.monotonic() + _STRAYS_LIMIT_S
        while time.monotonic() < give_up_at or self._endings:
            self._reap()
            self._look_after_trackers()
            if not self._workers and not self._endings and not self._end_strays():
                break
            time.sleep(0.002)


def _ended_child() -> os.waitid_result | None:
    """Whoever has ended and was not reaped."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None


def _children() -> set[int]:
    """Of this process, which has one thread; empty where the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            return set(map(int, children.read().split()))
    except OSError:
        return set()


def mark_of(pid: int) -> str | None:
    """From which worker it descends; None if it does not say."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as variables:
            marks = [each for each in variables.read().split(b"\0") if each.startswith(f"{_MARK}=".encode())]
    except OSError:
        return None
    return marks[0].decode().partition("=")[2] if marks else None


def _inherit_orphans() -> None:
    """Let the kernel make this process the parent of descendants whose parents have ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _signal_worker(pid: int, number: int) -> None:
    """SIGKILL: only the worker, and the rest of its process group once it has ended; else the whole group at once."""
    if number == signal.SIGKILL:
        _kill(pid)
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # so young that it has no group of its own yet
            os.killpg(pid, number)


def _end_group(group: int, orphans: set[int]) -> set[int]:
    """Kill what a worker that has ended leaves in its process group, but the trackers that tidy up after it: those."""
    if not any(_group_of(pid) == group for pid in orphans - {group}):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
        return set()
    give_up_at = time.monotonic() + _STRAYS_LIMIT_S
    while time.monotonic() < give_up_at:
        members = _members(group)
        trackers = {pid for pid in members if _is_tracker(pid)}
        if members == trackers:
            return trackers
        for pid in members - trackers:
            _kill(pid)
        time.sleep(0.002)
    os.killpg(group, signal.SIGKILL)  # a fork bomb, or who waits for a broken disk
    return set()


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _is_tracker(pid: int) -> bool:
    """Whether it is a resource tracker, of multiprocessing or of joblib. It ends by itself, without its worker."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            return b"resource_tracker import main" in words.read()
    except OSError:
        return False


def _members(group: int) -> set[int]:
    """The processes of a group that have not ended."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            state, _, its_group = stat.read().rpartition(b")")[2].split()[:3]
            if int(its_group) == group and state not in (b"Z", b"X"):
                found.add(int(name))
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel end this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # it died before the kernel knew
            os._exit(1)


def go_on_without_parent() -> None:
    """Let the kernel wake this process when its parent ends, should it be stopped (SIGSTOP): it has to end too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


def _place_standard_fds(fds: list[int]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    os.close(fds[0])
    os.close(fds[1])


def _preload(names: list[str]) -> None:
    # Everything that a worker uses, so that the pages are shared and no time is lost after the fork.
    for name in ["asyncparl.runtime.worker", "asyncparl.transport.endpoints", *names]:
        try:
            importlib.import_module(name)
        except Exception as error:
            # The worker that needs it will say so too, with its own traceback.
            sys.stderr.write(f"asyncparl: {name} cannot be preloaded: {type(error).__name__}: {error}\n")


def main() -> None:
    """Run a zygote; its `ZygoteSetup` is the first argument."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever our node's program has blocked: workers inherit it
    setup = msgspec.json.decode(sys.argv[1], type=ZygoteSetup)
    allow_many_files()  # as a node may, but that of a private cluster starts us first
    sys.path[:] = [restore_text(entry) for entry in setup.sys_path]
    zygote = _Zygote(setup)
    if setup.start_method == "fork":
        _preload(setup.preload)
        if len(os.listdir("/proc/self/task")) > 1:
            sys.stderr.write("asyncparl: a preloaded module started a thread; forked workers may hang\n")
        gc.collect()
        # A collection in a worker would write to every page that it shares with us.
        gc.freeze()
    zygote.serve()
    if setup.folder and not zygote.was_told_to_leave:
        sweep(Path(setup.folder), within_s=_NODE_ENDS_WITHIN_S)
