"""A worker process as its node holds it: the ends of its pipes and of its socket, what is known of it, why it ended."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import trio

from asyncparl.errors import ResourceError
from asyncparl.machine import is_stopped
from asyncparl.protocol.membership import Member
from asyncparl.protocol.node_messages import ActorExited, ActorOutput
from asyncparl.runtime import zygote
from asyncparl.runtime.output import OutputReader
from asyncparl.runtime.stopping import TERMINATED
from asyncparl.runtime.worker_figures import ask_one
from asyncparl.runtime.worker_pass import CANNOT_START, WorkerPass, encode_pass
from asyncparl.runtime.zygote_client import SLOW_S, ZygoteClient, ZygoteKind
from asyncparl.runtime.zygote_start import THREAD_VARIABLES
from asyncparl.transport import Admission
from asyncparl.transport.sockets import make_own_folder

_ZYGOTE_LIMIT_S = 5.0
_LAST_LOOK_S = 0.1
"""How long a worker that is to be killed may take to say what it does."""
_LONG_S = 1.0


class WorkerSpec(NamedTuple):
    """A worker to be started."""

    actor_id: str
    name: str
    owner: int
    """Which of the node's drivers it belongs to."""
    kind: ZygoteKind
    setup: zygote.WorkerSetup
    num_cpus: float
    environ: dict[str, str | None]
    worker_pass: WorkerPass
    is_detached: bool = False
    """It does not end with its owner."""
    memory_bytes: int = 0
    """How much memory it may have of its own; 0: no limit."""
    num_restarts: int = 0


@dataclass(slots=True, eq=False)
class Worker:
    """What the node holds of a worker process, also before it is there."""

    spec: WorkerSpec
    member: Member
    zygote: ZygoteClient
    control: socket.socket
    """Its address comes from here, and connections that were handed over go there."""
    output: OutputReader
    on_exit: Callable[[ActorExited], None]
    forked: trio.Event = field(default_factory=trio.Event)
    exited: trio.Event = field(default_factory=trio.Event)
    reported: trio.Event = field(default_factory=trio.Event)
    began_at: float = field(default_factory=trio.current_time)
    pid: int = 0
    mark: str = ""
    """What its descendants have in their environment, see `zygote.mark_of`."""
    was_signalled: bool = False
    """By us."""
    was_killed: bool = False
    """By us, or it would have been if it had a process."""
    was_asked: bool = False
    is_final: bool = False
    """Both as of `ActorExited`."""
    is_listening: bool = False
    failure: str = ""
    exit_code: int | None = None
    signal: int | None = None
    running: str = ""
    running_s: float = 0.0
    """Both as of `ActorExited`."""

    async def fork(self, fds: tuple[int, ...]) -> None:
        """Have its zygote start it, with these descriptors.

        Raises:
            ResourceError: as `ZygoteClient.send`.
        """
        await self.zygote.send(_fork_message(self.spec), fds)

    async def read_address(self) -> str:
        """What it says first: where it listens. Empty if it ended before."""
        while True:
            try:
                packet = self._receive()
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_readable(self.control)
                except trio.ClosedResourceError:
                    return ""
            except OSError:
                return ""
            else:
                return self._heard_first(packet)

    def hear_last_word(self) -> None:
        """It has ended: if it has said that it cannot start, and nobody has read that yet, that is why."""
        if not self.is_listening:
            with contextlib.suppress(OSError):
                self._heard_first(self._receive())

    def _receive(self) -> bytes:
        try:
            return self.control.recv(zygote.MAX_PACKET_BYTES)
        except ConnectionResetError:  # it ended before it had read all that we said; what it said is still there
            return self.control.recv(zygote.MAX_PACKET_BYTES)

    def _heard_first(self, packet: bytes) -> str:
        if packet.startswith(CANNOT_START):
            self.failure = self.failure or f"it cannot start: {packet[len(CANNOT_START) :].decode()}"
            return ""
        self.is_listening = bool(packet)
        return packet.decode()

    def why_starting(self) -> str:
        """What keeps it from listening, for people; empty if that takes no longer than it may."""
        if not self.forked.is_set():
            return self.zygote.why_silent(self.began_at)
        if is_stopped(self.pid):
            return f"its process (pid {self.pid}) is stopped (SIGSTOP)"
        is_late = trio.current_time() - self.began_at > SLOW_S
        return f"its process (pid {self.pid}) does not listen yet" if is_late else ""

    async def look(self) -> None:
        """It is about to be told to end: if a method of it has run for long, its report tells."""
        if self.is_listening and not self.was_signalled:
            figures = await ask_one(self.control, _LAST_LOOK_S)
            if figures is not None and figures.running_s > _LONG_S:
                self.running, self.running_s = figures.running, figures.running_s

    def hand_over(self, connection: socket.socket, admission: Admission) -> bool:
        """Give it a connection that the node has let in; False if it does not take any."""
        try:
            socket.send_fds(self.control, [msgspec.msgpack.encode(admission)], [connection.fileno()])
        except OSError:
            return False  # it has ended, or has not looked for so long that its queue is full
        return True

    async def send_signal(self, number: int) -> None:
        """Have its zygote signal it."""
        self.was_signalled = True
        if number == signal.SIGKILL:
            self.zygote.wake()
        with trio.move_on_after(_ZYGOTE_LIMIT_S) as patience:
            try:
                await self.zygote.send(zygote.Kill(self.spec.actor_id, number))
            except ResourceError:
                pass  # the zygote has died, and its workers are being ended
        if patience.cancelled_caught:
            self.zygote.kill()  # it hears nothing: a module that it preloads hangs

    def kill_group(self) -> None:
        """SIGKILL without the help of its zygote, which has died."""
        if self.pid and not self.exited.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """It has ended: release what is left of it. Its output is read elsewhere to the end."""
        trio.lowlevel.notify_closing(self.control)
        self.control.close()
        with contextlib.suppress(OSError):  # it never listened
            os.unlink(f"{self.spec.setup.directory}/{self.spec.actor_id}")

    @property
    def reason(self) -> str:
        """Why it ended, or did not start, for people."""
        if failure := self.member.failure or self.failure:
            return failure
        if not self.exited.is_set():
            return "it took too long"
        if self.signal == signal.SIGKILL and not self.was_signalled:
            return "killed by SIGKILL; asyncparl did not do it"
        if self.signal is not None:
            return f"killed by {_signal_name(self.signal)}"
        if self.exit_code == TERMINATED:
            return "ended by SIGTERM" if self.was_signalled else "ended by SIGTERM; asyncparl did not send it"
        return f"its process exited with code {self.exit_code}"

    def report(self) -> ActorExited:
        """How it ended."""
        return ActorExited(
            self.spec.actor_id,
            self.reason,
            self.exit_code,
            self.signal,
            self.output.tail(),
            self.spec.num_restarts,
            self.is_final,
            self.was_asked,
            self.running,
            self.running_s,
        )


def open_worker(
    spec: WorkerSpec,
    member: Member,
    client: ZygoteClient,
    on_output: Callable[[ActorOutput], None],
    on_exit: Callable[[ActorExited], None],
) -> tuple[Worker, tuple[int, ...]]:
    """A worker that is not forked yet, and the descriptors of its own ends, which the caller closes.

    Raises:
        OSError: too many files are open, or there is no folder for its socket file.
        ValueError: its pass is too long.
    """
    packet = encode_pass(spec.worker_pass)
    if len(packet) > zygote.MAX_PACKET_BYTES:
        raise ValueError(f"the program's sys.path and arguments are too long ({len(packet):,} bytes)")
    make_own_folder(spec.setup.directory)  # something may have cleaned up around us
    (out_read, out_write), (err_read, err_write), (ours, theirs) = _open_ends()
    output = OutputReader(out_read, err_read, spec.actor_id, on_output)
    control = socket.socket(fileno=ours)
    control.setblocking(False)
    control.send(packet)  # the first packet: there is room for it
    return Worker(spec, member, client, control, output, on_exit), (out_write, err_write, theirs)


def _open_ends() -> list[tuple[int, int]]:
    """Two pipes and a pair of sockets: all of them, or none."""
    opened: list[tuple[int, int]] = []
    try:
        opened.append(os.pipe())
        opened.append(os.pipe())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.append((ours.detach(), theirs.detach()))
    except OSError:
        for fd in (fd for pair in opened for fd in pair):
            os.close(fd)
        raise
    return opened


def _fork_message(spec: WorkerSpec) -> zygote.Fork:
    num_threads = max(1, math.floor(spec.num_cpus)) if math.isfinite(spec.num_cpus) else 1
    threads = {name: os.environ.get(name, str(num_threads)) for name in THREAD_VARIABLES}
    return zygote.Fork(spec.actor_id, spec.name, num_threads, spec.setup, {**threads, **spec.environ})


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
