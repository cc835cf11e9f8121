"""The command `asyncparl`. Its commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

from typing import NoReturn

import click

import asyncparl
from asyncparl.cli.bench import bench
from asyncparl.cli.cluster import actors, logs, status, stop
from asyncparl.cli.evaluate import evaluate
from asyncparl.cli.groups import CommandGroup
from asyncparl.cli.monitor import monitor, top
from asyncparl.cli.plot import plot
from asyncparl.cli.running import run_command
from asyncparl.cli.services import start
from asyncparl.cli.train import train


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(asyncparl.__version__, message="%(version)s")
def commands() -> None:
    """Distributed reinforcement learning as plain async Python.

    \b
    asyncparl train impala --env pong      train, in a new folder in runs/
    asyncparl train impala --resume RUN    go on with the run in the folder RUN
    asyncparl evaluate RUN                 play with what it has learned
    asyncparl plot RUN...                  draw the curves of runs
    asyncparl COMMAND --help               all options of a command
    """


for command in (start, status, actors, logs, top, monitor, stop, train, evaluate, plot, bench):
    commands.add_command(command)


def main() -> NoReturn:
    """Run the command line of this process."""
    run_command(commands, "asyncparl")
