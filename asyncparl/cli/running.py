"""How each of our programs runs its command: what is wrong is said in one line, whatever it is."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

import click

from asyncparl.machine import open_standard_streams

_OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EIO)


def run_command(command: click.Command, name: str | None = None) -> NoReturn:
    """Run it with the arguments of this process. The exit status is 2 if they are wrong."""
    open_standard_streams()
    try:
        sys.exit(command.main(prog_name=name, standalone_mode=False))
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except (OSError, BaseExceptionGroup) as error:
        if (fault := _output_fault(error)) is None:
            raise
        # Python's own flush at exit must not fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if fault.errno != errno.EPIPE:  # that nobody reads it any more needs no words; so does click
            click.echo(f"error: standard output: {fault.strerror}", err=True)
        sys.exit(1)


def _output_fault(error: BaseException) -> OSError | None:
    """What kept us from printing, if it is that and nothing else."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    is_of_output = isinstance(error, OSError) and error.errno in _OF_OUTPUT and error.filename is None
    return error if is_of_output else None  # type: ignore[return-value]
