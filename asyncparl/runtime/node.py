"""The node: one process per machine that starts workers, watches them and reports how they end.

It runs no user code and reads no pickle. Its drivers call it over links like any actor, with the requests of
`protocol/control.py`. The node of a private cluster belongs to one driver: it ends when its standard input closes,
which is when the driver ends, however that happens.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial

import msgspec
import trio

from asyncparl.errors import ProtocolError, ResourceError
from asyncparl.protocol.control import (
    ActorExited,
    ActorOutput,
    ActorStarted,
    NodeEvent,
    ShutDown,
    StartActor,
    StopActor,
    WatchNode,
    decode_request,
    encode_control,
)
from asyncparl.protocol.link import CallArrived, LinkCore
from asyncparl.protocol.membership import Member, Membership
from asyncparl.protocol.messages import CallKind
from asyncparl.runtime import zygote
from asyncparl.runtime.exceptions import pack_exception
from asyncparl.runtime.link import MAX_MESSAGE_BYTES, Link
from asyncparl.runtime.output import OutputReader
from asyncparl.transport import listen
from asyncparl.transport.base import Channel

_RUN_ZYGOTE = "from asyncparl.runtime.zygote import main; main()"

_MAX_EVENTS = 10_000
"""Output that a driver has not taken yet. Beyond it lines are dropped, and counted; deaths never are."""


class NodeSetup(msgspec.Struct, frozen=True):
    """What the driver of a private cluster tells its node, as one line of JSON on standard input."""

    directory: str
    sys_path: list[str]
    argv: list[str]
    main_path: str | None
    main_module: str | None
    preload: list[str]
    start_method: str


class ZygoteClient:
    """The zygote as the node sees it."""

    def __init__(self, setup: NodeSetup) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The zygote must have one thread, so numerical libraries may not start theirs when they are imported.
        environ = {**os.environ, **dict.fromkeys(zygote.THREAD_VARIABLES, "1")}
        description = zygote.ZygoteSetup(
            control_fd=theirs.fileno(),
            environ={name: os.environ.get(name) for name in zygote.THREAD_VARIABLES},
            **msgspec.structs.asdict(setup),
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUN_ZYGOTE, msgspec.json.encode(description).decode()],
            stdin=subprocess.DEVNULL,
            # Our own standard output tells the driver our address; what a preloaded module prints must not get there.
            stdout=sys.stderr.fileno(),
            pass_fds=[theirs.fileno()],
            env=environ,
        )
        theirs.close()
        ours.setblocking(False)
        self._sending = trio.Lock()
        self._std_socket = ours
        self._socket = trio.socket.from_stdlib_socket(ours)

    async def send(self, message: zygote.ToZygote, fds: tuple[int, ...] = ()) -> None:
        """Tell the zygote something.

        Raises:
            ResourceError: it has died.
        """
        packet = zygote.encode(message)
        async with self._sending:
            while True:
                try:
                    socket.send_fds(self._std_socket, [packet], fds)
                    return
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._std_socket)
                except OSError as error:
                    raise ResourceError(f"the process that starts workers has died ({error.strerror})") from None

    async def receive(self) -> zygote.FromZygote | None:
        """What it says next; None when it has died."""
        try:
            packet = await self._socket.recv(zygote.MAX_PACKET_BYTES)
        except ConnectionError:
            return None
        return zygote.decode_from_zygote(packet) if packet else None

    def close(self) -> None:
        """End it, and with it every worker that is left."""
        self._socket.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(slots=True, eq=False)
class _Worker:
    """What the node holds of a worker process."""

    member: Member
    driver: _Driver
    output: OutputReader
    forked: trio.Event = field(default_factory=trio.Event)
    exited: trio.Event = field(default_factory=trio.Event)
    reported: trio.Event = field(default_factory=trio.Event)
    pid: int = 0
    failure: str = ""
    exit_code: int | None = None
    signal: int | None = None


@dataclass(slots=True, eq=False)
class _Driver:
    """One connected driver and the events that it has not taken yet."""

    number: int
    link: Link
    watch_id: int | None = None
    events: list[NodeEvent] = field(default_factory=list)
    num_dropped: int = 0

    def tell(self, event: NodeEvent) -> None:
        if isinstance(event, ActorOutput) and len(self.events) >= _MAX_EVENTS:
            self.num_dropped += len(event.lines)
            return
        if isinstance(event, ActorOutput) and self.num_dropped:
            event = msgspec.structs.replace(event, num_dropped=event.num_dropped + self.num_dropped)
            self.num_dropped = 0
        self.events.append(event)
        self.send_events()

    def send_events(self) -> None:
        if self.watch_id is None:
            return
        num_sent = 0
        while num_sent < len(self.events) and self.link.has_credit(self.watch_id):
            self.link.send_item(self.watch_id, encode_control(self.events[num_sent]))
            num_sent += 1
        del self.events[:num_sent]


class Node:
    """Membership is decided in the pure core; this class acts on the decisions."""

    def __init__(self, setup: NodeSetup, nursery: trio.Nursery) -> None:
        self._directory = setup.directory
        self._zygote = ZygoteClient(setup)
        self._nursery = nursery
        self._membership = Membership()
        self._workers: dict[str, _Worker] = {}
        self._drivers: dict[Link, _Driver] = {}
        self._num_drivers = 0
        self._deadlines_changed = trio.Event()
        self.shut_down = trio.Event()
        """Set once the driver has asked for it and nothing is left."""

    async def serve(self) -> None:
        """Accept drivers until cancelled."""
        self._nursery.start_soon(self._follow_zygote)
        self._nursery.start_soon(self._kill_overdue)
        listener = listen(f"ipc://{self._directory}/node", max_message_bytes=MAX_MESSAGE_BYTES)
        sys.stdout.write(listener.address + "\n")
        sys.stdout.flush()
        try:
            while True:
                self._nursery.start_soon(self._serve_driver, await listener.accept())
        finally:
            listener.close()

    def close(self) -> None:
        """End every process that is left."""
        self._zygote.close()

    # --- drivers --------------------------------------------------------------------------------------------

    async def _serve_driver(self, channel: Channel) -> None:
        link = Link(LinkCore(name="node", pid=os.getpid()), self)
        self._num_drivers += 1
        driver = self._drivers[link] = _Driver(self._num_drivers, link)
        link.attach(channel)
        await link.run()
        link.lose(lambda _: ResourceError("the driver is gone"))
        del self._drivers[link]
        await self._stop_all(driver, grace_s=0.5)

    def call_arrived(self, link: Link, arrived: CallArrived) -> None:
        """A driver asks for something."""
        driver = self._drivers[link]
        if arrived.call.kind != CallKind.CONTROL:
            raise ProtocolError("a node serves control requests only")
        request = decode_request(arrived.frame.payload)
        call_id = arrived.call.call_id
        match request:
            case WatchNode():
                driver.watch_id = call_id
                driver.send_events()
            case StartActor():
                self._nursery.start_soon(self._answer_start, driver, call_id, request)
            case StopActor():
                self._nursery.start_soon(self._answer_stop, driver, call_id, request)
            case ShutDown():
                self._nursery.start_soon(self._answer_shut_down, driver, call_id, request)

    def cancel_arrived(self, link: Link, call_id: int) -> None:
        """Requests are short and run to their end; a watch just ends."""
        driver = self._drivers[link]
        if driver.watch_id == call_id:
            driver.watch_id = None
            link.answer_cancelled(call_id)

    def grant_arrived(self, link: Link, call_id: int) -> None:
        """The driver takes more events."""
        self._drivers[link].send_events()

    async def _answer_start(self, driver: _Driver, call_id: int, request: StartActor) -> None:
        try:
            answer = await self._start(driver, request)
        except Exception as error:
            driver.link.answer_raised(call_id, *pack_exception(error, note="raised in the node"))
        else:
            driver.link.answer_returned(call_id, encode_control(answer))

    async def _answer_stop(self, driver: _Driver, call_id: int, request: StopActor) -> None:
        await self._stop(request.actor_id, request.grace_s)
        driver.link.answer_returned(call_id)

    async def _answer_shut_down(self, driver: _Driver, call_id: int, request: ShutDown) -> None:
        await self._stop_all(driver, request.grace_s)
        driver.link.answer_returned(call_id)
        self.shut_down.set()

    # --- workers --------------------------------------------------------------------------------------------

    async def _start(self, driver: _Driver, request: StartActor) -> ActorStarted:
        now = trio.current_time()
        (out_read, out_write), (err_read, err_write), (ready_read, ready_write) = _open_pipes(3)
        member = self._membership.start(request.actor_id, request.name, driver.number, now=now)
        self._deadlines_changed.set()
        output = OutputReader(out_read, err_read, request.actor_id, driver.tell)
        worker = self._workers[request.actor_id] = _Worker(member, driver, output)
        self._nursery.start_soon(self._follow_worker, worker)
        num_threads = max(1, math.floor(request.num_cpus))
        try:
            fork = zygote.Fork(request.actor_id, request.name, num_threads)
            await self._zygote.send(fork, (out_write, err_write, ready_write))
        except ResourceError as error:
            self._ended(worker, failure=str(error))
        finally:
            for fd in (out_write, err_write, ready_write):
                os.close(fd)
        address = bytearray()
        with trio.move_on_after(self._membership.start_limit_s):
            async with trio.lowlevel.FdStream(ready_read) as ready:
                async for chunk in ready:
                    address += chunk
            await worker.forked.wait()
            if not address:
                await worker.exited.wait()
        if not address or not worker.pid:
            raise ResourceError(f"{request.name} did not start: {self._reason(worker)}")
        self._membership.ready(request.actor_id)
        return ActorStarted(address.decode(), worker.pid)

    async def _follow_worker(self, worker: _Worker) -> None:
        """Forward its output, and report its end after the last line."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.output.run)
            await worker.exited.wait()
            # A grandchild may still hold the pipes open; whatever was written is there already.
            nursery.cancel_scope.deadline = trio.current_time() + 0.5
        report = ActorExited(
            worker.member.actor_id, self._reason(worker), worker.exit_code, worker.signal, worker.output.tail()
        )
        del self._workers[worker.member.actor_id]
        worker.reported.set()
        if worker.driver.link in self._drivers:
            worker.driver.tell(report)

    async def _follow_zygote(self) -> None:
        while (message := await self._zygote.receive()) is not None:
            worker = self._workers.get(message.actor_id)
            if worker is None:
                continue
            match message:
                case zygote.Forked(_, pid):
                    worker.pid = pid
                    worker.forked.set()
                case zygote.ForkFailed(_, reason):
                    self._ended(worker, failure=reason)
                case zygote.Exited(_, exit_code, signal_number):
                    worker.exit_code, worker.signal = exit_code, signal_number
                    self._ended(worker)
        # The kernel kills its workers; make sure of it, then say so.
        for worker in list(self._workers.values()):
            if worker.pid and not worker.exited.is_set():
                _kill_group(worker.pid)
            self._ended(worker, failure="the process that starts workers has died")

    def _ended(self, worker: _Worker, failure: str = "") -> None:
        worker.failure = worker.failure or failure
        self._membership.exited(worker.member.actor_id)
        worker.forked.set()
        worker.exited.set()

    async def _stop(self, actor_id: str, grace_s: float) -> None:
        worker = self._workers.get(actor_id)
        if worker is None:
            return
        if self._membership.stop(actor_id, grace_s=grace_s, now=trio.current_time()):
            self._deadlines_changed.set()
            if grace_s > 0:
                await self._signal(actor_id, signal.SIGTERM)
        await worker.reported.wait()

    async def _stop_all(self, driver: _Driver, grace_s: float) -> None:
        async with trio.open_nursery() as nursery:
            for member in self._membership.owned_by(driver.number):
                nursery.start_soon(self._stop, member.actor_id, grace_s)

    async def _kill_overdue(self) -> None:
        while True:
            wait_s = self._membership.next_deadline() - trio.current_time()
            with trio.move_on_after(max(0.0, wait_s)):
                await self._deadlines_changed.wait()
            self._deadlines_changed = trio.Event()
            overdue = self._membership.overdue(now=trio.current_time())
            for member in overdue:
                await self._signal(member.actor_id, signal.SIGKILL)
            if overdue:
                await trio.sleep(0.05)  # until the zygote reports them, they stay overdue

    async def _signal(self, actor_id: str, number: int) -> None:
        try:
            await self._zygote.send(zygote.Kill(actor_id, number))
        except ResourceError:
            pass  # then the workers are being ended by `_follow_zygote`

    @staticmethod
    def _reason(worker: _Worker) -> str:
        if reason := worker.member.failure or worker.failure:
            return reason
        if not worker.exited.is_set():
            return "it took too long"
        if worker.signal is not None:
            return f"killed by {signal.Signals(worker.signal).name}"
        return f"its process exited with code {worker.exit_code}"


def _open_pipes(number: int) -> list[tuple[int, int]]:
    """All of them, or none."""
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(number):
            pipes.append(os.pipe())  # noqa: PERF401  # what was opened must be known if the next one fails
    except OSError:
        for fd in (fd for pipe in pipes for fd in pipe):
            os.close(fd)
        raise
    return pipes


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


async def _run(setup: NodeSetup) -> None:
    async with trio.open_nursery() as nursery:
        node = Node(setup, nursery)
        try:
            nursery.start_soon(node.serve)
            nursery.start_soon(_until_eof, nursery.cancel_scope)
            await node.shut_down.wait()
            # The driver closes our standard input once it has the answer.
            await trio.sleep(2)
        finally:
            nursery.cancel_scope.cancel()  # first, so that nobody still waits for what is closed
            node.close()


async def _until_eof(scope: trio.CancelScope) -> None:
    """The driver is gone when our standard input ends; so are we."""
    async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
        async for _ in stdin:
            pass
    scope.cancel()


def main() -> None:
    """Run the node of a private cluster."""
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=NodeSetup)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        trio.run(partial(_run, setup))
    finally:
        shutil.rmtree(setup.directory, ignore_errors=True)
