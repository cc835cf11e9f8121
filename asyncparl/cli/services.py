"""`asyncparl-master`, `asyncparl-node` and `asyncparl start`: a cluster is these, on each machine one."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn, TextIO, cast

import click
import trio

from asyncparl.cli.addresses import DEFAULT_PORT, AddressType
from asyncparl.cli.monitor import monitor_option, serve_monitor
from asyncparl.cli.running import run_command
from asyncparl.errors import AsyncparlError
from asyncparl.speaking import ErrorStream

_JOIN_WITHIN_S = 15.0


class MemoryType(click.ParamType[int]):
    """Bytes, as 512MiB or 16GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from asyncparl.protocol.resources import parse_bytes

        try:
            return parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _labels(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    labels = dict(value.partition("=")[::2] for value in values)
    if not all(labels) or any("=" not in value for value in values):
        raise click.BadParameter("a label is NAME=VALUE")
    return labels


def _names(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


_NODE_OPTIONS = (
    click.option("--cpus", type=click.FloatRange(min=0), help="CPUs to offer.  [default: all that may be used]"),
    click.option("--gpus", type=click.IntRange(min=0), help="GPUs to offer.  [default: all that may be used]"),
    click.option("--memory", "memory_bytes", type=MemoryType(), help="Memory to offer, as 16GiB.  [default: all]"),
    click.option("--name", help="What the cluster calls it.  [default: the host name]"),
    click.option("--labels", multiple=True, callback=_labels, metavar="NAME=VALUE", help="What actors may ask for."),
    click.option(
        "--advertise",
        default="",
        metavar="HOST[:PORT]",
        help="Where other machines reach this one.  [default: the address by which it reaches the master]",
    ),
    click.option(
        "--preload",
        default="",
        callback=_names,
        metavar="MODULES",
        help="Modules to import once for all workers, as numpy,torch: the first actor starts faster.",
    ),
)


def _node_options(function: Any) -> Any:
    for option in reversed(_NODE_OPTIONS):
        function = option(function)
    return function


@click.command(name="asyncparl-master", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--listen",
    "address",
    type=AddressType(is_listening=True),
    default=f"[::]:{DEFAULT_PORT}",
    show_default=True,
    help="Where nodes and programs dial. Everything of a cluster works through this one port.",
)
@monitor_option
def master_command(address: Any, bind: Any) -> None:
    """The master of a cluster: who is in it, and which actor runs where.

    Its secrets are made at the first start, in the state folder of this user. SIGTERM ends it; running actors go on,
    and everybody finds the next master at the same address.
    """
    run_service(partial(_serve_master, address, bind))


async def _serve_master(address: Any, bind: Any, *, stop: trio.Event) -> None:
    from asyncparl.runtime.service import serve_master

    async with trio.open_nursery() as nursery:

        def master_is_ready(where: str, port: int) -> None:
            _say_master_is_ready(where, port)
            if bind is not None:
                nursery.start_soon(partial(serve_monitor, _from_here(where, port), bind, stop=trio.Event()))

        await serve_master(address, stop=stop, on_ready=master_is_ready, log=_log())
        nursery.cancel_scope.cancel()


def _from_here(listening_at: str, port: int) -> Any:
    """How a master is dialed from its own machine."""
    from asyncparl.transport.addresses import TcpAddress

    host = listening_at.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return TcpAddress("localhost" if host in ("::", "0.0.0.0") else host, port)


@click.command(name="asyncparl-node", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--master", type=AddressType(), required=True, help="The cluster to join.")
@click.option(
    "--listen",
    default="",
    metavar="HOST:PORT",
    help="Where programs dial; host:8100-8199 takes a free port of these.  [default: any, on all interfaces]",
)
@click.option("--secret-file", help="The cluster's node-secret.  [default: from the state folder of this user]")
@_node_options
def node_command(master: Any, **options: Any) -> None:
    """A node: offers what this machine has to the programs of a cluster.

    SIGTERM ends it in good order: its actors are ended, and the cluster is told.
    """
    from asyncparl.runtime.service import NodeOptions, serve_node

    run_service(
        partial(
            serve_node,
            master,
            NodeOptions(**options),
            join_within_s=_JOIN_WITHIN_S,
            on_ready=lambda name: click.echo(f"asyncparl node {name!r} has joined the cluster at {master}"),
            log=_log(),
        )
    )


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True, help="Of the master.")
@monitor_option
@_node_options
def start(port: int, bind: Any, **options: Any) -> None:
    """Start a master and a node on this machine. Other machines join with asyncparl-node.

    Runs until Ctrl-C or SIGTERM, or `asyncparl stop`, and then ends both.
    """
    from asyncparl.runtime.service import NodeOptions

    run_service(partial(_serve_both, port, NodeOptions(**options), bind))


async def _serve_both(port: int, options: Any, bind: Any, *, stop: trio.Event) -> None:
    from asyncparl.runtime.service import serve_master, serve_node
    from asyncparl.transport.addresses import TcpAddress

    ready, node_over = trio.Event(), trio.Event()

    def master_is_ready(address: str, port: int) -> None:
        _say_master_is_ready(address, port)
        if bind is not None:
            nursery.start_soon(partial(serve_monitor, TcpAddress("localhost", port), bind, stop=node_over))
        ready.set()

    async with trio.open_nursery() as nursery:

        async def run_master() -> None:
            await serve_master(TcpAddress("::", port), stop=node_over, on_ready=master_is_ready, log=_log())
            stop.set()

        nursery.start_soon(run_master)
        await ready.wait()
        await serve_node(
            TcpAddress("localhost", port),
            options,
            stop=stop,
            on_ready=lambda name: click.echo(f"asyncparl node {name!r} has joined it"),
            log=_log(),
        )
        node_over.set()


def _say_master_is_ready(address: str, port: int) -> None:
    from asyncparl.runtime.state import state_folder

    click.echo(
        f"asyncparl master is ready at {address.removeprefix('tcp://')}; secrets in {state_folder() / str(port)}"
    )


def _log() -> Any:
    """To standard error: for people on a terminal, as JSON elsewhere."""
    import structlog

    is_terminal = sys.stderr.isatty()
    return structlog.wrap_logger(
        # One write for each line, unlike a PrintLogger.
        structlog.WriteLogger(cast(TextIO, ErrorStream())),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if is_terminal else "iso", utc=not is_terminal),
            structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer(),
        ],
    )


def run_service(serve: Callable[..., Awaitable[None]]) -> None:
    """Run until it ends by itself or by SIGTERM, Ctrl-C or the end of its terminal; a second signal ends it at once.

    Raises:
        click.ClickException: it could not start, or not go on; the message says why.
    """
    from asyncparl.machine import allow_many_files

    allow_many_files()
    try:
        trio.run(_with_signals, serve)
    except BaseExceptionGroup as group:
        raise click.ClickException(_in_one_line(_first_error(group))) from group
    except (AsyncparlError, OSError, ValueError) as error:
        raise click.ClickException(_in_one_line(error)) from error


async def _with_signals(serve: Callable[..., Awaitable[None]]) -> None:
    stop = trio.Event()
    ends = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # its terminal goes away, and no nohup
        ends.append(signal.SIGHUP)
    with trio.open_signal_receiver(*ends) as signals:
        async with trio.open_nursery() as nursery:

            async def listen_to_signals() -> None:
                async for _ in signals:
                    if stop.is_set():
                        nursery.cancel_scope.cancel()
                    stop.set()

            nursery.start_soon(listen_to_signals)
            await serve(stop=stop)
            nursery.cancel_scope.cancel()


def _first_error(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    if not isinstance(group, (AsyncparlError, OSError, ValueError)):
        raise group
    return group


def _in_one_line(error: BaseException) -> str:
    """Without the number that the system has for it."""
    from asyncparl.machine import explain, out_of_files

    if not isinstance(error, OSError) or error.filename is None or out_of_files(error):
        return explain(error)
    hint = "; is a master running there already?" if error.errno == errno.EADDRINUSE else ""
    return f"{str(error.filename).removeprefix('tcp://')}: {error.strerror}{hint}"


def master_main() -> NoReturn:
    """The command `asyncparl-master`."""
    run_command(master_command)


def node_main() -> NoReturn:
    """The command `asyncparl-node`."""
    run_command(node_command)
