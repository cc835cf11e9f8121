"""One part of the benchmark, in this process: `python -m asyncparl.bench.measure calls --output rows.json`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from asyncparl.bench.parts import PARTS
from asyncparl.bench.report import Row


def main() -> None:
    """The module of the part measures; every row is written as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    path: Path = arguments.output

    def emit(row: Row) -> None:
        with path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")

    PARTS[arguments.part].measure(arguments.repeats, emit)


if __name__ == "__main__":
    main()
