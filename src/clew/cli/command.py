"""How a command is declared: one decorator names its heading in the help and its examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import typer
from typer.core import TyperGroup

from clew.cli.errors import USAGE

Heading: TypeAlias = Literal["Begin", "Read", "Branch and go back", "Change", "Audit and export", "Maintain", "Other"]
"""The headings of ``clew --help``, in its order."""

Function = TypeVar("Function", bound=Callable[..., None])


class Commands(typer.Typer):
    """Commands that are called by name: those of ``clew`` itself, or those of a group such as ``clew memory``."""

    def declare(
        self, *examples: str, heading: Heading = "Other", name: str | None = None
    ) -> Callable[[Function], Function]:
        """Add a command. Its name is the function's unless ``name`` is given, and its docstring is its help."""
        # \b makes Typer keep the lines that follow as they are.
        epilog = "\n".join(("\b", "Examples:", *(f"  {example}" for example in examples)))
        return self.command(name, epilog=epilog, rich_help_panel=heading)


class _HelpUnderHeadings(TyperGroup):
    """Lists commands under their headings. Typer does that only with rich, which is too slow to import for help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each heading with its commands in two columns; the columns are the same under all headings."""
        commands = {name: self.get_command(ctx, name) for name in sorted(self.list_commands(ctx))}
        shown = {name: command for name, command in commands.items() if command is not None and not command.hidden}
        widest = max(map(len, shown), default=0)
        room = formatter.width - widest - 4  # without the indent and the space between the columns
        for heading in get_args(Heading):
            rows = [
                (name.ljust(widest), command.get_short_help_str(room))
                for name, command in shown.items()
                if getattr(command, "rich_help_panel", None) == heading
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


app = Commands(
    name="clew",
    cls=_HelpUnderHeadings,
    add_completion=False,  # `clew completion` writes scripts that complete more
    rich_markup_mode=None,  # importing rich for the help would use up the time that start-up may take
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Begin with `clew demo`, or with `clew import FILE`. `clew COMMAND --help` shows examples.",
)

command = app.declare
"""Declares a command of ``clew`` itself."""


def group(name: str, *, heading: Heading, help_: str, epilog: str) -> Commands:
    """A group of commands below ``clew``; its name alone shows its help, with the exit code for wrong usage."""
    commands = Commands(name=name, invoke_without_command=True, rich_markup_mode=None, help=help_, epilog=epilog)

    @commands.callback()
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())
            raise typer.Exit(USAGE)

    app.add_typer(commands, help=help_, rich_help_panel=heading)
    return commands
