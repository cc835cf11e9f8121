"""How each of our programs runs its command: what is wrong is said in one line, whatever it is."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

import click

from asyncparl.machine import open_standard_streams
from asyncparl.runtime.dump_signal import telling_when_asked


def run_command(command: click.Command, name: str | None = None) -> NoReturn:
    """Run it with the arguments of this process. The exit status is 2 if they are wrong.

    From now on the process says what it does when it is asked: what comes next may import for seconds.
    """
    open_standard_streams()
    output = None
    if isinstance(sys.stdout, io.TextIOWrapper):
        output = sys.stdout = _Output(
            sys.stdout.buffer, sys.stdout.encoding, sys.stdout.errors, line_buffering=sys.stdout.line_buffering
        )
    try:
        with _telling_when_asked():
            sys.exit(command.main(prog_name=name, standalone_mode=False))
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except (OSError, BaseExceptionGroup):
        if output is None or output.fault is None:
            raise
        # Python's own flush at exit must not fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if output.fault.errno != errno.EPIPE:  # that nobody reads it any more needs no words; so does click
            click.echo(f"error: standard output: {output.fault.strerror}", err=True)
        sys.exit(1)


@contextlib.contextmanager
def _telling_when_asked() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(telling_when_asked(" ".join([os.path.basename(sys.argv[0]), *sys.argv[1:2]])))
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        yield


class _Output(io.TextIOWrapper):
    """Standard output that remembers what went wrong with it: the error itself does not say where it happened."""

    fault: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self.fault = error
            raise

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self.fault = error
            raise
