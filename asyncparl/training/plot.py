"""A picture of the curves of several runs. Needs matplotlib, the extra `plot`; works without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from asyncparl.training.curves import Group
from asyncparl.training.errors import ConfigError

Band = Literal["minmax", "std", "none"]
BANDS: tuple[Band, ...] = get_args(Band)
SUFFIXES = (".png", ".svg", ".pdf")
_AXIS_NAMES = {"agent_steps": "agent steps", "elapsed_s": "hours"}


def check_plot(path: Path) -> None:
    """Find out before the work begins whether a picture can be drawn there.

    Raises:
        ConfigError: the name ends with no known suffix, or the extra is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"a plot is a file whose name ends with {', '.join(SUFFIXES)}, not {path.name!r}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("a plot needs matplotlib, which is not installed: pip install 'asyncparl[plot]'") from error


def draw(groups: Sequence[Group], path: Path, *, x: str, y: str, band: Band = "minmax", title: str = "") -> None:
    """A line for the mean of each group, and a band around it for the spread of its runs.

    Args:
        groups: what is drawn, in the order of the legend.
        path: .png, .svg or .pdf; it is replaced.
        x, y: names of the columns. Seconds are drawn as hours.
        band: "minmax": from the lowest run to the highest; "std": one deviation to each side; "none".
        title: above the picture.

    Raises:
        ConfigError: see `check_plot`.
        OSError: the file cannot be written.
    """
    check_plot(path)
    # Not pyplot, which would look for a display and keep what it has drawn.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for group in groups:
        across = group.x / 3600 if x == "elapsed_s" else group.x
        runs = "run" if group.num_runs == 1 else "runs"
        (line,) = axes.plot(across, group.mean, label=f"{group.label} ({group.num_runs} {runs})")
        if group.num_runs > 1 and band != "none":
            low, high = (group.lowest, group.highest) if band == "minmax" else (
                group.mean - group.deviation, group.mean + group.deviation,
            )  # fmt: skip
            axes.fill_between(across, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel(_AXIS_NAMES.get(x, x))
    axes.set_ylabel(y.replace("_", " "))
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
