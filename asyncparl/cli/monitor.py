"""`asyncparl monitor` and `asyncparl top`: watching a cluster, in a browser and on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
import trio

from asyncparl.cli.addresses import DEFAULT_PORT, AddressType
from asyncparl.errors import AsyncparlError

if TYPE_CHECKING:
    from asyncparl.monitor.server import Bind
    from asyncparl.monitor.watch import Watch

_JOIN_WITHIN_S = 10.0
_BETWEEN_LOOKS_S = 1.0
_NEEDED = frozenset({"starlette", "hypercorn", "jinja2", "prometheus_client", "plotly", "rich"})


class BindType(click.ParamType[Any]):
    """Where a monitor is served."""

    name = "[host:]port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        with needs_monitor():
            from asyncparl.monitor.server import Bind
        if isinstance(value, Bind):
            return value
        try:
            return Bind.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@contextlib.contextmanager
def needs_monitor() -> Any:
    """Says which package is missing, and how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED:
            raise
        raise click.ClickException(
            f"the monitor needs {package}, which is not installed: pip install 'asyncparl[monitor]'"
        ) from error


monitor_option = click.option(
    "--monitor",
    "bind",
    type=BindType(),
    is_flag=False,
    flag_value="true",
    help="Serve a web monitor, for this machine only unless a host such as 0.0.0.0 is given; at 8011 if nothing is.  "
    "[default: none]",
)
"""Of commands that start something to look at."""


def _checked(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        BindType().convert(value, param, ctx)
    return value


monitor_text_option = click.option(
    "--monitor",
    "monitor",
    callback=_checked,
    is_flag=False,
    flag_value="true",
    metavar="[HOST:]PORT",
    help="Show the run in a browser, on this machine only unless a host such as 0.0.0.0 is given; at 8011 if nothing "
    "is.  [default: not at all]",
)
"""The same as text, for `asyncparl.connect`."""


async def serve_monitor(master: Any, bind: Bind, *, stop: trio.Event) -> None:
    """Serve a monitor of the master at this address, until `stop`."""
    await _serve(master, None, bind, stop=stop)


@click.command()
@click.option(
    "--master", type=AddressType(), default=f"localhost:{DEFAULT_PORT}", show_default=True, help="Which cluster."
)
@click.option("--secret-file", help="Its secret.  [default: from the state folder of this user]")
@click.option("--listen", "bind", type=BindType(), default="true", help="Where to serve it.  [default: 127.0.0.1:8011]")
@click.option("--token", "asks_token", is_flag=True, help="Ask for a token on this machine too: others may use it.")
def monitor(master: Any, secret_file: str | None, bind: Bind, asks_token: bool) -> None:
    """Show a cluster in a browser: nodes, actors, logs, training runs, and what happens.

    It only looks. Beyond this machine (--listen 0.0.0.0:8011) it asks for a token, which is shown at the first start.
    """
    from dataclasses import replace

    from asyncparl.cli.services import run_service

    if asks_token:
        bind = replace(bind, asks_token=True)
    run_service(partial(_serve, master, secret_file, bind))


async def _serve(master: Any, secret_file: str | None, bind: Bind, *, stop: trio.Event) -> None:
    from asyncparl.monitor.server import open_monitor

    async with open_monitor(str(master), _credentials(master, secret_file), bind, say=_say):
        await stop.wait()


@click.command()
@click.option(
    "--master", type=AddressType(), default=f"localhost:{DEFAULT_PORT}", show_default=True, help="Which cluster."
)
@click.option("--secret-file", help="Its secret.  [default: from the state folder of this user]")
@click.option("--once", is_flag=True, help="Print it once, and all of it; so it is without a terminal.")
def top(master: Any, secret_file: str | None, once: bool) -> None:
    """What the actors of a cluster do, live. Ctrl-C ends it."""
    with needs_monitor():
        import_module("asyncparl.monitor.top")
    show = _print_once if once or not sys.stdout.isatty() else _show_live
    with contextlib.suppress(KeyboardInterrupt):
        _run(partial(_top, master, secret_file, show))


async def _top(master: Any, secret_file: str | None, show: Callable[[Watch], Awaitable[None]]) -> None:
    from asyncparl.monitor.cluster_source import open_source
    from asyncparl.monitor.watch import Watch

    credentials = _credentials(master, secret_file)
    async with open_source(str(master), credentials, name="top", join_within_s=_JOIN_WITHIN_S) as source:
        await source.wait_joined()
        watch = Watch(source)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            with watch.watching():
                await show(watch)
            nursery.cancel_scope.cancel()


async def _print_once(watch: Watch) -> None:
    """After the second look: rates need two."""
    from asyncparl.monitor.top import plain_lines

    await watch.look(no_older_than_s=0.5)
    await trio.sleep(_BETWEEN_LOOKS_S)
    await watch.look(no_older_than_s=0.0)
    for line in plain_lines(watch.observer):
        click.echo(line)


async def _show_live(watch: Watch) -> None:
    from rich.console import Console
    from rich.live import Live

    from asyncparl.monitor.top import screen

    console = Console()
    # Drawn by us alone: rich's own refreshing would be a thread.
    with Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
        number = -1
        while True:
            number = (await watch.wait_newer(number)).number
            live.update(screen(watch.observer, width=console.width, height=console.height), refresh=True)


def _credentials(master: Any, secret_file: str | None) -> Any:
    from asyncparl.runtime.state import find_secret
    from asyncparl.transport import Credentials

    return Credentials("driver", find_secret("driver", master.port, secret_file=secret_file))


def _run(function: Callable[[], Awaitable[None]]) -> None:
    """One clear line for what goes wrong."""
    try:
        trio.run(function)
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is None:
            raise KeyboardInterrupt from group
        raise
    except AsyncparlError as error:
        raise click.ClickException(str(error)) from error


def _say(line: str) -> None:
    click.echo(line, err=True)
