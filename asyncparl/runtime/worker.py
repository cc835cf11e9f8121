"""A worker: the process of one actor. The event loop runs in a thread, the actor's own code in the main thread.

It ends when its owner closes it, when its code calls `sys.exit`, or when the node says so (SIGTERM, then SIGKILL).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import FrameType
from typing import NoReturn

import msgspec
import trio

from asyncparl.errors import ActorDied
from asyncparl.machine import explain, restore_text
from asyncparl.protocol.events import CallArrived
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.messages import CallKind
from asyncparl.runtime.accepting import visitors
from asyncparl.runtime.current import process_session
from asyncparl.runtime.dump_signal import WorkerTeller
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.figures import ASK_FIGURES
from asyncparl.runtime.host import ActorHost
from asyncparl.runtime.last_answers import LastAnswers
from asyncparl.runtime.link import MAX_MESSAGE_BYTES, Link
from asyncparl.runtime.main_module import install_lazy_main
from asyncparl.runtime.objects import Objects
from asyncparl.runtime.program import Program
from asyncparl.runtime.references import Reference
from asyncparl.runtime.session import Identity, Session
from asyncparl.runtime.stopping import (
    LAST_OUTPUT_LIMIT_S,
    OBJECT_LIMIT_S,
    TERMINATED,
    TERMINATED_WAIT_S,
    UNMADE_LIMIT_S,
)
from asyncparl.runtime.worker_pass import CANNOT_START, WorkerPass, decode_pass
from asyncparl.runtime.zygote import MAX_PACKET_BYTES, Fork, WorkerSetup, die_with_parent
from asyncparl.speaking import finish
from asyncparl.transport import Admission, Credentials, listen, open_admitted
from asyncparl.transport.base import Channel
from asyncparl.transport.forks import guard


def run_worker(fork: Fork, *, control_fd: int) -> int:
    """Be the worker, in a process of its own; the exit code."""
    fork = msgspec.structs.replace(fork, setup=_restored(fork.setup))
    # SIGTERM is an exception that may come at any moment, though only once: see `_terminate`.
    last_actors = _LastActors()
    try:
        exit_code = _work(fork, control_fd, last_actors)
    except SystemExit as stop:
        exit_code = _exit_code(stop)
    try:
        atexit._run_exitfuncs()
        signal.signal(signal.SIGTERM, _end_already)
    except SystemExit:
        pass
    _flush_standard_streams()
    last_actors.wait_made(TERMINATED_WAIT_S if exit_code == TERMINATED else UNMADE_LIMIT_S)
    finish(LAST_OUTPUT_LIMIT_S)
    return exit_code


def _work(fork: Fork, control_fd: int, last_actors: _LastActors) -> int:
    executor, last_answers = Executor(), LastAnswers()
    try:
        with _telling_why_not(control_fd):
            _settle_in(fork)
        serve = partial(_serve, fork, control_fd, executor, last_answers, last_actors, WorkerTeller(fork.name))
        threading.Thread(target=_run_loop, args=(serve,), name="asyncparl-loop", daemon=True).start()
        executor.run()
        exit_code = 0
    except SystemExit as stop:
        exit_code = _exit_code(stop)
    except BaseException:
        traceback.print_exc()
        exit_code = 1
    if exit_code != TERMINATED:  # whoever sends SIGTERM waits for no answer
        last_answers.wait_taken()
    return exit_code


@contextlib.contextmanager
def _telling_why_not(control_fd: int) -> Iterator[None]:
    """What the system refuses is told to the node, for the report of our death."""
    try:
        yield
    except OSError as error:
        os.write(control_fd, CANNOT_START + explain(error, "its process").encode(errors="backslashreplace"))
        raise


def _restored(setup: WorkerSetup) -> WorkerSetup:
    """With the program's texts as they were there: see `Job`."""
    return msgspec.structs.replace(
        setup,
        sys_path=[restore_text(entry) for entry in setup.sys_path],
        argv=[restore_text(argument) for argument in setup.argv],
        main_path=setup.main_path and restore_text(setup.main_path),
        main_module=setup.main_module and restore_text(setup.main_module),
        cwd=restore_text(setup.cwd),
    )


def _settle_in(fork: Fork) -> None:
    # What was registered before the fork belongs to the zygote.
    atexit._clear()
    for name, value in fork.environ.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    setup = fork.setup
    sys.argv[:] = setup.argv
    sys.path[:] = setup.sys_path
    if setup.cwd:
        os.chdir(setup.cwd)
    torch = sys.modules.get("torch")
    if torch is not None and fork.num_threads > 1:
        torch.set_num_threads(fork.num_threads)
    _draw_other_random_numbers()
    install_lazy_main(setup.main_path, setup.main_module)
    signal.signal(signal.SIGTERM, _terminate)
    # Ctrl-C is the driver's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # New objects: the inherited ones still believe to write to what the zygote wrote to.
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _draw_other_random_numbers() -> None:
    # Actors forked from one zygote would all draw the same. (Python's own `random` sees to itself.)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch_random := sys.modules.get("torch.random")) is not None:
        torch_random.seed()


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    # First: a second one must not interrupt what the first has begun.
    signal.signal(signal.SIGTERM, _end_already)
    # An exception, so that `finally` and `with` of the actor's code get their chance.
    raise SystemExit(TERMINATED)


def _end_already(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN: programs that the actor starts meanwhile would inherit that."""


def _run_loop(serve: Callable[[], Awaitable[None]]) -> None:
    try:
        trio.run(serve)
    except BaseException:
        # Without its loop the actor can neither hear nor answer.
        traceback.print_exc()
        _flush_standard_streams()
        os._exit(1)


async def _serve(
    fork: Fork,
    control_fd: int,
    executor: Executor,
    last_answers: LastAnswers,
    last_actors: _LastActors,
    teller: WorkerTeller,
) -> None:
    control = socket.socket(fileno=control_fd)
    control.setblocking(False)
    with _telling_why_not(control_fd):  # a full disk, say
        listener = listen(f"ipc://{fork.setup.directory}/{fork.actor_id}", max_message_bytes=MAX_MESSAGE_BYTES)
    control.send(listener.address.encode())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(teller.run)
        await trio.lowlevel.wait_readable(control)
        worker = _Worker(fork, decode_pass(control.recv(MAX_PACKET_BYTES)), executor, nursery, last_answers)
        last_actors.of(worker)
        nursery.start_soon(_take_handed_over, control, worker)
        with process_session(worker.session):
            async for visitor in visitors(listener):  # callers on this machine dial our own socket file
                nursery.start_soon(worker.serve, visitor.open)


async def _take_handed_over(control: socket.socket, worker: _Worker) -> None:
    """Callers elsewhere dial our node; it shakes hands with them and passes their sockets on to us.

    It also asks for our figures, with a packet that it gets back in front of them.
    """
    while True:
        await trio.lowlevel.wait_readable(control)
        packet, fds, _, _ = socket.recv_fds(control, MAX_PACKET_BYTES, 1)
        if not packet:
            return  # the node is gone; the kernel ends us with the zygote
        if packet.startswith(ASK_FIGURES):
            with contextlib.suppress(OSError):  # it has not read the last ones
                control.send(packet + msgspec.msgpack.encode(worker.figures()))
        elif fds:  # none: we have too many files open, and the kernel closed it
            admission = msgspec.msgpack.decode(packet, type=Admission)
            connection = socket.socket(fileno=fds[0])
            guard.close_in_child(connection)
            worker.nursery.start_soon(worker.serve, partial(open_admitted, connection, admission))


class _Worker:
    """What the links of this process share: the actor, and the session by which it uses others."""

    def __init__(
        self,
        fork: Fork,
        worker_pass: WorkerPass,
        executor: Executor,
        nursery: trio.Nursery,
        last_answers: LastAnswers,
    ) -> None:
        self.nursery = nursery
        self._fork = fork
        self._pass = worker_pass
        self._executor = executor
        self._last_answers = last_answers
        self._loop = EventLoop()
        self._objects = Objects(fork.actor_id, worker_pass.num_restarts)
        note = f"raised in {fork.name} (pid {os.getpid()})"
        host = ActorHost(executor, nursery, note, num_restarts=worker_pass.num_restarts)
        self._objects.serve_actor(host)
        nursery.start_soon(self._end_without_object, host)
        self.figures = host.figures
        self.own_session: Session | None = None
        """By which the actor's code has used others."""

    def session(self) -> Session | None:
        """By which the actor's code uses other actors; made when it is first wanted. From any thread."""
        if self.own_session is None and self._pass.master_address:
            self._loop.run(self._ensure_session)
        return self.own_session

    async def _end_without_object(self, host: ActorHost) -> None:
        """Callers would wait for ever."""
        while True:
            with trio.move_on_after(OBJECT_LIMIT_S):
                await host.begun.wait()
                return
            if not self._objects.is_receiving:
                break
        sys.stderr.write("asyncparl: whoever has started this actor is gone, and has not said what it is to be\n")
        self._executor.submit(_give_up)

    async def serve(self, open_channel: Callable[[], Channel]) -> None:
        """Serve one caller, until its link is lost."""
        try:
            channel = open_channel()
        except OSError as error:
            sys.stderr.write(f"asyncparl: a caller cannot be served: {explain(error)}\n")
            return
        callee = _Callee(self._objects)
        core = LinkCore(
            name=self._fork.name,
            pid=os.getpid(),
            process_id=self._fork.actor_id,
            max_value_bytes=self._pass.job.max_value_bytes,
        )
        link = Link(core, callee)
        with self._last_answers.of(link):
            link.attach(channel)
            await link.run()
        link.lose(lambda fate: ActorDied("the program that exposed the object", "its link was lost", fate=fate))
        self._objects.link_lost(link)
        if callee.closing:
            # Our owner has every answer, or is gone; there is nobody left to work for.
            self._executor.stop()

    def _ensure_session(self) -> None:
        if self.own_session is None:
            self.own_session = self._open_session()

    def _open_session(self) -> Session:
        fork, worker_pass = self._fork, self._pass
        call_timeout_s = worker_pass.call_timeout_s
        reference = Reference(fork.actor_id, 0, fork.name, worker_pass.class_path, call_timeout_s=call_timeout_s)
        session = Session(
            self.nursery,
            Program.of_worker(worker_pass.job, (fork.setup.main_path, fork.setup.main_module)),
            Identity(fork.actor_id, fork.name, worker_pass.program_id, reference),
            worker_pass.master_address,
            Credentials(worker_pass.key_id, worker_pass.key) if worker_pass.key_id else None,
            objects=self._objects,
            executor=self._executor,
            encrypt=worker_pass.job.encrypt,
        )
        session.start()
        return session


class _LastActors:
    """The detached actors that this one has made, and that are not made yet when its process is about to end."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None

    def of(self, worker: _Worker) -> None:
        """Whose code makes them."""
        self._worker = worker

    def wait_made(self, limit_s: float) -> None:
        """Until they live on without us. Not in the event loop."""
        session = None if self._worker is None else self._worker.own_session
        if session is None or not session.has_unmade:
            return
        done = threading.Event()

        async def wait() -> None:
            await session.let_detached_begin(limit_s)
            done.set()

        session.start_soon(wait, otherwise=done.set)
        done.wait(limit_s + 0.1)  # also if the loop hangs


class _Callee:
    """The objects of this process, and a note of whether this peer asked us to end."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.link_opened = objects.link_opened
        self.cancel_arrived = objects.cancel_arrived
        self.grant_arrived = objects.grant_arrived
        self.running = objects.running
        self.closing = False

    def call_arrived(self, link: Link, arrived: CallArrived) -> None:
        if arrived.call.kind == CallKind.CLOSE and arrived.call.object_id == 0:
            self.closing = True
        self._objects.call_arrived(link, arrived)


def _give_up() -> NoReturn:
    raise SystemExit(1)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    sys.stderr.write(f"{stop.code}\n")
    return 1


def _flush_standard_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # the node is gone, or the actor's code closed or replaced it


def main() -> None:
    """A worker that was not forked: its descriptor and its description are on the command line."""
    control_fd, zygote_pid = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(zygote_pid)
    fork = msgspec.json.decode(sys.argv[3], type=Fork)
    os._exit(run_worker(fork, control_fd=control_fd))
