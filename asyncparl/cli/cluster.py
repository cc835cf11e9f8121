"""`asyncparl status`, `actors`, `logs` and `stop`: looking at a cluster, and ending it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import trio

from asyncparl.cli.addresses import DEFAULT_PORT, AddressType
from asyncparl.errors import AsyncparlError, ResourceError

if TYPE_CHECKING:
    from asyncparl.monitor.picture import ActorRow
    from asyncparl.protocol.cluster_view import ActorSummary, ClusterView, NodeSummary, WaitingSummary
    from asyncparl.protocol.figures import NodeFigures
    from asyncparl.protocol.node_messages import LogInfo
    from asyncparl.runtime.admin import Admin, NodeLogs

_MASTER = click.option(
    "--master",
    type=AddressType(),
    default=f"localhost:{DEFAULT_PORT}",
    show_default=True,
    help="Which cluster.",
)
_SECRET = click.option("--secret-file", help="Its secret.  [default: from the state folder of this user]")
_JOIN_WITHIN_S = 1.0
_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")


@click.command()
@_MASTER
@_SECRET
@_JSON
def status(master: Any, secret_file: str | None, as_json: bool) -> None:
    """The nodes of a cluster, and what is in use. Fails if no master answers: a health check."""
    admin = _admin(master, "driver", secret_file)
    described = _run(admin.describe)
    if as_json:
        _print_json(described)
        return
    view: ClusterView = described.view
    counts = f"{_count(view.nodes, 'node')}, {_count(view.drivers, 'program')}, {_count(view.actors, 'actor')}"
    click.echo(f"cluster {described.cluster_id} at {master}: {counts}")
    if view.nodes:
        _print_table(["NODE", "STATE", "CPUS", "GPUS", "MEMORY", "ACTORS", "LABELS"], map(_node_row, view.nodes))
    for waiting in view.waiting:
        click.echo(f"{waiting.name} waits for {waiting.waiting_s:.0f} s: {waiting.reason}")


@click.command()
@_MASTER
@_SECRET
@_JSON
def actors(master: Any, secret_file: str | None, as_json: bool) -> None:
    """The actors of a cluster: where each runs, whose it is, what it does or waits for, how many calls wait for it."""
    from asyncparl.monitor.actors import ActorRows
    from asyncparl.monitor.totals import Totals

    view, nodes = _run(partial(_look, master, secret_file))
    rows = ActorRows(Totals()).update(view, nodes)
    placed: list[ActorSummary | WaitingSummary] = [*view.actors, *view.waiting]
    if as_json:
        _print_json([_with_figures(actor, rows[actor.actor_id]) for actor in placed])
    elif placed:
        head = ["ACTOR", "ID", "STATE", "NODE", "PID", "QUEUE", "CPUS", "PROGRAM", "DOING"]
        _print_table(head, [_actor_row(rows[actor.actor_id], actor.demand.cpus) for actor in placed])
    else:
        click.echo("no actors")


async def _look(master: Any, secret_file: str | None) -> tuple[ClusterView, dict[str, NodeFigures | str]]:
    """Who is there, and what the nodes tell of their actors, or why they do not."""
    from asyncparl.monitor.cluster_source import open_source
    from asyncparl.runtime.state import find_secret
    from asyncparl.transport import Credentials

    credentials = Credentials("driver", find_secret("driver", master.port, secret_file=secret_file))
    async with open_source(str(master), credentials, name="asyncparl actors", join_within_s=_JOIN_WITHIN_S) as source:
        await source.wait_joined()
        sight = await source.look(closely=True)
    if sight.view is None:
        raise ResourceError(sight.fault)
    return sight.view, sight.nodes


@click.command()
@click.argument("actor", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the actor ends.")
@click.option("-n", "--lines", "num_lines", type=click.IntRange(min=0), default=100, show_default=True)
@_MASTER
@_SECRET
def logs(actor: str | None, follow: bool, num_lines: int, master: Any, secret_file: str | None) -> None:
    """What ACTOR has written, also after it has ended; without ACTOR, which logs there are.

    ACTOR is its name, the one of `.options(name=...)` too, or its id.
    """
    admin = _admin(master, "driver", secret_file)
    _run(partial(_show_logs, admin, actor, num_lines, follow))


async def _show_logs(admin: Admin, actor: str | None, num_lines: int, follow: bool) -> None:
    async with admin.nodes() as nodes:
        found = [(node, info) for node in nodes for info in await node.infos()]
        if actor is None:
            rows = [
                [
                    _full_name(info),
                    info.actor_id,
                    "running" if info.is_running else "ended",
                    node.name,
                    f"{info.size_bytes:,}",
                ]
                for node, info in found
            ]
            _print_table(["ACTOR", "ID", "STATE", "NODE", "BYTES"], rows)
            return
        node, actor_id = _choose(found, actor)
        async for line in node.read(actor_id, num_lines, follow=follow):
            click.echo(line)


def _choose(found: Sequence[tuple[NodeLogs, Any]], actor: str) -> tuple[NodeLogs, str]:
    """The log that is meant: by id, or by one of its names if only one has it, or only one that is running."""
    matching = [(node, info) for node, info in found if actor in (info.actor_id, info.name, info.public_name)]
    running = [each for each in matching if each[1].is_running]
    chosen = running if len(running) == 1 else matching
    if not chosen:
        raise ResourceError(f"no actor {actor!r}; `asyncparl logs` lists them")
    if len(chosen) > 1:
        ids = ", ".join(info.actor_id for _, info in chosen)
        raise ResourceError(f"{len(chosen)} actors are called {actor!r}; use one of the ids {ids}")
    return chosen[0][0], chosen[0][1].actor_id


@click.command()
@_MASTER
@click.option("--secret-file", help="The cluster's node-secret.  [default: from the state folder of this user]")
def stop(master: Any, secret_file: str | None) -> None:
    """End a cluster: its actors, its nodes on all machines, and its master. No other cluster is touched."""
    admin = _admin(master, "node", secret_file)
    _run(admin.stop_cluster)
    click.echo(f"the cluster at {master} is stopping")


def _admin(master: Any, role: Any, secret_file: str | None) -> Admin:
    from asyncparl.runtime.admin import Admin

    try:
        return Admin(master, role, secret_file)
    except AsyncparlError as error:
        raise click.ClickException(str(error)) from error


def _run(function: Callable[[], Awaitable[Any]]) -> Any:
    """Run it in Trio. One clear line for what goes wrong."""
    try:
        return trio.run(function)
    except BaseExceptionGroup as group:
        known, rest = group.split(AsyncparlError)
        if rest is not None or known is None:
            raise
        raise click.ClickException(str(_first(known))) from group
    except AsyncparlError as error:
        raise click.ClickException(str(error)) from error


def _first(group: BaseException) -> BaseException:
    return _first(group.exceptions[0]) if isinstance(group, BaseExceptionGroup) else group


def _print_json(value: Any) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def _print_table(head: list[str], rows: Iterable[list[str]]) -> None:
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _node_row(node: NodeSummary) -> list[str]:
    total = "no limit" if node.total_cpus is None else f"{node.total_cpus:g}"
    return [
        node.name,
        node.state,
        f"{node.used_cpus:g}/{total}",
        f"{sum(node.used_gpus):g}/{len(node.used_gpus)}",
        f"{node.used_memory_bytes / (1 << 30):.1f}/{node.total_memory_bytes / (1 << 30):.1f} GiB",
        str(node.num_actors),
        ",".join(f"{name}={value}" for name, value in node.labels.items()) or "-",
    ]


def _actor_row(row: ActorRow, cpus: float) -> list[str]:
    return [
        _full_name(row),
        row.actor_id,
        row.state,
        row.node or "-",
        "-" if row.pid is None else str(row.pid),
        "-" if row.num_waiting is None else str(row.num_waiting),
        f"{cpus:g}",
        row.program,
        row.doing if row.doing_s is None else f"{row.doing} for {row.doing_s:.1f} s",
    ]


def _full_name(actor: ActorRow | LogInfo) -> str:
    """With the one that its maker gave it, by which `get_actor` finds it."""
    return f"{actor.name} ({actor.public_name})" if actor.public_name else actor.name


def _with_figures(actor: ActorSummary | WaitingSummary, row: ActorRow) -> dict[str, Any]:
    import msgspec

    figures = {name: getattr(row, name) for name in ("public_name", "pid", "num_waiting", "doing", "doing_s")}
    return {**msgspec.to_builtins(actor), **figures}
