"""Draw the learning curve of a run folder: return over agent steps and over minutes.

python benchmarks/plot_run.py runs/impala-pong-... benchmarks/results/pong.png
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def main(run: Path, picture: Path) -> None:
    with (run / "progress.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["mean_return"] not in ("", "nan")]
    config = json.loads((run / "config.json").read_text())
    minutes = [float(row["elapsed_s"]) / 60 for row in rows]
    steps = [float(row["agent_steps"]) / 1e6 for row in rows]
    returns = [float(row["mean_return"]) for row in rows]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, x, label in zip(axes, (minutes, steps), ("minutes", "million agent steps"), strict=True):
        axis.plot(x, returns)
        axis.axhline(0, color="grey", linewidth=0.5)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("mean return of the last 100 episodes")
    figure.suptitle(f"IMPALA on {config['env']}, seed {config['seed']}, {config['num_actors']} actors")
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
