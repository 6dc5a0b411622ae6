"""The command that compares histories: diff."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from clew.cli.candidates import checkpoint_names, thread_ids
from clew.cli.command import command
from clew.cli.errors import WrongUsage
from clew.cli.options import AsJson, AtOption, ThreadArgument, open_store, parse_moment
from clew.cli.output import console as new_console
from clew.cli.output import use_utf_8, write_json


@command(
    "clew diff 3f2a 9c01",
    'clew diff 3f2a --at "before refund"',
    "clew diff 3f2a 9c01 --format markdown > diff.md",
    heading="Read",
)
def diff(
    context: typer.Context,
    thread: ThreadArgument,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="OTHER", help="The other thread; by default another version of the same.", autocompletion=thread_ids
        ),
    ] = None,
    at: AtOption = None,
    other_at: Annotated[
        str | None,
        typer.Option(
            "--other-at",
            metavar="Y",
            help="The version of the other side, as for --at.",
            autocompletion=checkpoint_names,
        ),
    ] = None,
    format_: Annotated[
        Literal["terminal", "markdown"],
        typer.Option("--format", metavar="F", help="terminal, or markdown for a document."),
    ] = "terminal",
    everything: Annotated[
        bool, typer.Option("--all", help="Show unchanged messages too, and long values whole.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two threads, or two versions of one."""
    if other is None and at is None and other_at is None:
        raise WrongUsage(context, "There is nothing to compare with: give another thread, --at or --other-at")
    ours, theirs = parse_moment(at), parse_moment(other_at, "--other-at")
    with open_store(context) as conversations:
        found = conversations.diff(
            conversations.find(thread),
            None if other is None else conversations.find(other),
            at=ours.at,
            other_at=theirs.at,
            at_message=ours.at_message,
            other_at_message=theirs.at_message,
        )
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.diff(found, everything=everything))
    elif format_ == "markdown":
        from clew.cli.rendering.diff_markdown import diff_document

        use_utf_8()
        for line in diff_document(found, everything=everything):
            typer.echo(line)
    else:
        from clew.cli.rendering.diff_terminal import diff_lines

        console = new_console()
        for text in diff_lines(found, console, everything=everything):
            console.print(text, soft_wrap=True)
