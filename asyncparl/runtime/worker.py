"""A worker: the process of one actor. The event loop runs in a thread, the actor's own code in the main thread.

It ends when its owner closes it, when its code calls `sys.exit`, or when the node says so (SIGTERM, then SIGKILL).
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import NoReturn

import msgspec
import trio

from asyncparl.errors import CallCancelled
from asyncparl.protocol.link import CallArrived, LinkCore
from asyncparl.protocol.messages import CallKind
from asyncparl.runtime.accepting import visitors
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.host import ActorHost
from asyncparl.runtime.link import MAX_MESSAGE_BYTES, Link
from asyncparl.runtime.main_module import install_lazy_main
from asyncparl.runtime.zygote import MAX_PACKET_BYTES, Fork, die_with_parent
from asyncparl.transport import Admission, listen, open_admitted
from asyncparl.transport.base import Channel

TERMINATED = 128 + signal.SIGTERM

ServeLink = Callable[[Callable[[], Channel]], Awaitable[None]]


def run_worker(fork: Fork, *, control_fd: int) -> int:
    """Be the worker, in a process of its own; the exit code."""
    _settle_in(fork)
    executor = Executor()
    thread = threading.Thread(target=_run_loop, args=(fork, control_fd, executor), name="asyncparl-loop", daemon=True)
    thread.start()
    try:
        executor.run()
        return 0
    except SystemExit as stop:
        return _exit_code(stop)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()
        _flush_standard_streams()


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
    # An exception, so that `finally` and `with` of the actor's code get their chance.
    raise SystemExit(TERMINATED)


def _run_loop(fork: Fork, control_fd: int, executor: Executor) -> None:
    try:
        trio.run(_serve, fork, control_fd, executor)
    except BaseException:
        # Without its loop the actor can neither hear nor answer.
        traceback.print_exc()
        _flush_standard_streams()
        os._exit(1)


async def _serve(fork: Fork, control_fd: int, executor: Executor) -> None:
    control = socket.socket(fileno=control_fd)
    control.setblocking(False)
    listener = listen(f"ipc://{fork.setup.directory}/{fork.actor_id}", max_message_bytes=MAX_MESSAGE_BYTES)
    control.send(listener.address.encode())
    async with trio.open_nursery() as nursery:
        host = ActorHost(executor, nursery, f"raised in {fork.name} (pid {os.getpid()})")
        serve = partial(_serve_link, host, fork.name, executor)
        nursery.start_soon(_take_handed_over, control, serve, nursery)
        async for visitor in visitors(listener):  # callers on this machine dial our own socket file
            nursery.start_soon(serve, visitor.open)


async def _take_handed_over(control: socket.socket, serve: ServeLink, nursery: trio.Nursery) -> None:
    """Callers elsewhere dial our node; it shakes hands with them and passes their sockets on to us."""
    while True:
        await trio.lowlevel.wait_readable(control)
        packet, fds, _, _ = socket.recv_fds(control, MAX_PACKET_BYTES, 1)
        if not packet:
            return  # the node is gone; the kernel ends us with the zygote
        if fds:  # none: we have too many files open, and the kernel closed it
            admission = msgspec.msgpack.decode(packet, type=Admission)
            nursery.start_soon(serve, partial(open_admitted, socket.socket(fileno=fds[0]), admission))


async def _serve_link(host: ActorHost, name: str, executor: Executor, open_channel: Callable[[], Channel]) -> None:
    try:
        channel = open_channel()
    except OSError as error:
        sys.stderr.write(f"asyncparl: a caller cannot be served: {error}\n")
        return
    callee = _WorkerCallee(host)
    link = Link(LinkCore(name=name, pid=os.getpid()), callee)
    link.attach(channel)
    await link.run()
    link.lose(lambda _: CallCancelled("the link was lost"))
    host.link_lost(link)
    if callee.closing:
        # Our owner has every answer, or is gone; there is nobody left to work for.
        executor.stop()


class _WorkerCallee:
    """The host, and a note of whether the peer asked us to end."""

    def __init__(self, host: ActorHost) -> None:
        self._host = host
        self.cancel_arrived = host.cancel_arrived
        self.grant_arrived = host.grant_arrived
        self.closing = False

    def call_arrived(self, link: Link, arrived: CallArrived) -> None:
        self.closing = self.closing or arrived.call.kind == CallKind.CLOSE
        self._host.call_arrived(link, arrived)


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
        except (OSError, ValueError):
            pass  # the node is gone, or the actor's code closed it


def main() -> None:
    """A worker that was not forked: its descriptor and its description are on the command line."""
    control_fd, zygote_pid = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(zygote_pid)
    fork = msgspec.json.decode(sys.argv[3], type=Fork)
    os._exit(run_worker(fork, control_fd=control_fd))
