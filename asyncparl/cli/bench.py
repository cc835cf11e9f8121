"""`asyncparl bench`: measure this machine."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import click

from asyncparl.bench.parts import PARTS
from asyncparl.cli.signals import INTERRUPTED, TERMINATED, Terminated, sigterm_raised

_NEEDED = ("numpy", "torch", "ale_py", "gymnasium")


def _epilog() -> str:
    return "\b\nROWS\n" + "\n".join(f"  {name:12} {part.title}" for name, part in PARTS.items())


@click.command(epilog=_epilog())
@click.argument("rows", nargs=-1, metavar="[ROW]...", type=click.Choice(list(PARTS)))
@click.option(
    "--peers/--no-peers",
    default=True,
    help="Whether Ray, PARL's way, RLlib and Sample Factory do the same. They are installed when first needed, into "
    "~/.cache/asyncparl/peers, 3 GB; one that cannot be is left out.  [default: peers]",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the tables to this folder, after each row, as bench.md and bench.json, or named after the rows that "
    "are given.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=5, help="Samples of each figure.  [default: 5]")
def bench(rows: Sequence[str], *, peers: bool, save: Path | None, repeats: int) -> NoReturn:
    """Measure ROWS, by default all, beside what this machine could do at best and beside what others do.

    All of it takes a quarter of an hour on two cores that do nothing else, and the installation some minutes once. Exit
    status: 0, 1 if something of asyncparl could not be measured, 130 after Ctrl-C, 143 after SIGTERM; what was measured
    by then is shown and saved.
    """
    from asyncparl.bench.running import Benchmark

    if missing := [package for package in _NEEDED if importlib.util.find_spec(package) is None]:
        raise click.ClickException(f"this needs {missing[0]}, which is not installed: pip install 'asyncparl[bench]'")
    name = "-".join(dict.fromkeys(rows)) or "bench"
    benchmark = Benchmark(
        list(dict.fromkeys(rows)) or list(PARTS),
        with_peers=peers,
        repeats=repeats,
        save_as=save / name if save else None,
        how=shlex.join(["asyncparl", *sys.argv[1:]]),
        say=click.echo,
    )
    status = _run(benchmark.run)
    click.echo("\n" + benchmark.text())
    sys.exit(status or min(1, benchmark.num_failed))


def _run(run: Callable[[], None]) -> int:
    """The exit status that follows from how it ended."""
    try:
        with sigterm_raised():
            run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    return 0
