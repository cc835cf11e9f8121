"""`asyncparl plot`: the curves of several runs in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from asyncparl.cli.train import fail_by_missing_package
from asyncparl.errors import AsyncparlError
from asyncparl.training.errors import ConfigError

if TYPE_CHECKING:
    from asyncparl.training.curves import Curve

_X = {"steps": "agent_steps", "time": "elapsed_s"}
_FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=_FOLDER, metavar="RUN...")
@click.option(
    "-o",
    "--output",
    type=_FOLDER,
    default=Path("plot.png"),
    metavar="FILE",
    help="A .png, .svg or .pdf, which is replaced.  [default: plot.png]",
)
@click.option(
    "--x",
    "across",
    type=click.Choice([*_X]),
    default="steps",
    help="Over agent steps or over wall-clock time.  [default: steps]",
)
@click.option(
    "--y",
    "column",
    default="mean_return",
    metavar="COLUMN",
    help="Of progress.csv or evaluations.csv, such as steps_per_s or median_return.  [default: mean_return]",
)
@click.option(
    "--group-by",
    multiple=True,
    metavar="SETTING",
    default=("env", "algorithm"),
    help="Runs with the same value are one line; of config.json. May be repeated.  [default: env, algorithm]",
)
@click.option("--separate", is_flag=True, help="A line for every run, named after its folder.  [default: groups]")
@click.option(
    "--band",
    type=click.Choice(["minmax", "std", "none"]),
    default="minmax",
    help="Around the mean of a group: from lowest to highest, or one deviation.  [default: minmax]",
)
@click.option(
    "--smooth",
    type=click.IntRange(min=1),
    default=1,
    metavar="ROWS",
    help="Moving mean over so many rows of a run.  [default: 1]",
)
@click.option(
    "--label", "labels", multiple=True, help="Of a line, in the order of the legend.  [default: its settings]"
)
@click.option("--title", default="", help="Above the picture.  [default: none]")  # fmt: skip
def plot(  # noqa: PLR0913 - one for each option
    runs: Sequence[Path], output: Path, across: str, column: str, group_by: Sequence[str], separate: bool, band: str,
    smooth: int, labels: Sequence[str], title: str,
) -> None:  # fmt: skip
    """Draw the curves of the runs in the folders RUN.

    Runs that differ in their seeds alone are one line, their mean, with a band that shows how far they spread. RUN may
    also be a folder of runs.
    """
    try:
        from asyncparl.training.curves import combine, group_curves
        from asyncparl.training.plot import check_plot, draw

        check_plot(output)
        curves = _read_curves(runs, x=_X[across], y=column)
        groups = [(curve.path.name, [curve]) for curve in curves] if separate else group_curves(curves, group_by)
        names = _labels(labels, [label for label, _ in groups])
        combined = [combine(name, members, smooth=smooth) for name, (_, members) in zip(names, groups, strict=True)]
        draw(combined, output, x=_X[across], y=column, band=band, title=title)  # type: ignore[arg-type]
    except ModuleNotFoundError as error:
        fail_by_missing_package(error)
    except OSError as error:
        raise click.ClickException(f"plot {output} cannot be written: {error.strerror or error}") from error
    except AsyncparlError as error:
        raise click.ClickException(str(error)) from error
    for group in combined:
        click.echo(
            f"{group.label}: {group.num_runs} run{'s' * (group.num_runs > 1)}, mean {group.mean[-1]:.6g} at the end"
        )
    click.echo(f"plot: {output}")


def _read_curves(paths: Sequence[Path], *, x: str, y: str) -> list[Curve]:
    """Of a folder of runs those that have a curve; the others are left out, which is said."""
    from asyncparl.training.curves import NothingYet, read_curve

    curves = []
    for path in _run_folders(paths):
        try:
            curves.append(read_curve(path, x=x, y=y))
        except NothingYet as error:
            if path in paths:
                raise
            click.echo(f"left out: {error}", err=True)
    if not curves:
        raise ConfigError("there is nothing to draw")
    return curves


def _run_folders(paths: Sequence[Path]) -> list[Path]:
    """Those that were named, and the runs in folders of runs; each once."""
    from asyncparl.training.run_files import CONFIG_FILE

    found: dict[Path, None] = {}
    for path in paths:
        inner = sorted(each.parent for each in path.glob(f"*/{CONFIG_FILE}"))
        is_folder_of_runs = inner and not (path / CONFIG_FILE).exists()
        found |= dict.fromkeys(inner if is_folder_of_runs else [path])
    return list(found)


def _labels(given: Sequence[str], own: Sequence[str]) -> Sequence[str]:
    if given and len(given) != len(own):
        raise ConfigError(f"--label was given {len(given)} times, and there are {len(own)} lines: {'; '.join(own)}")
    return given or own
