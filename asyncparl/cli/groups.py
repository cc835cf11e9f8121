"""Commands that have commands."""

from __future__ import annotations

from typing import Any

import click

_ANY_LENGTH = 1000


class CommandGroup(click.Group):
    """Explains each of its commands in a whole sentence, and names them all where there is no such command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Click would cut what does not fit into one line."""
        rows = [(name, self.commands[name].get_short_help_str(_ANY_LENGTH)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without any argument it is the help; Click would have us call that an error."""
        if not args:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        """See `click.Group`."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args[0].startswith("-"):
                raise
            known = ", ".join(self.list_commands(ctx))
            raise click.UsageError(f"{error.format_message()} There are {known}.", ctx) from error
