"""Fuzz one target for as long as one likes: `python -m tests.fuzz frames --seconds 600`.

It needs `pip install -c constraints.txt -e '.[fuzz]'`. An input that fails is kept in the working directory, as
`crash-...`; `python -m tests.fuzz frames --again crash-...` runs it once more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import atheris

# Before anything imports what is to be watched. Branches are its guide; it compares what it can, byte by byte.
with atheris.instrument_imports(include=["asyncparl.protocol", "asyncparl.transport"]):
    from tests.fuzz.targets import TARGETS, correct_inputs

NUM_SEEDS = 300


def main() -> None:
    """Ends the process: with code 0 if nothing was found."""
    options = _options()
    target = TARGETS[options.target]
    if options.again:
        target(options.again.read_bytes())
        return
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(correct_inputs(options.target, NUM_SEEDS)):
            (Path(folder) / str(number)).write_bytes(data)
        limits = [
            f"-max_total_time={options.seconds}",
            f"-runs={options.runs}",
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-keep_seed=1",
        ]
        atheris.Setup([sys.argv[0], folder, "-max_len=4096", *limits], target)
        atheris.Fuzz()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=0, help="for how long (0: without end)")
    parser.add_argument("--runs", type=int, default=-1, help="stop after so many inputs (-1: never)")
    parser.add_argument("--again", type=Path, help="an input that has failed")
    return parser.parse_args()


main()
