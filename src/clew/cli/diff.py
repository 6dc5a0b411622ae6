"""The command that compares: diff."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from clew.cli.candidates import checkpoint_names, thread_ids
from clew.cli.errors import WrongUsage
from clew.cli.options import AsJson, AtOption, ThreadArgument, moment, opened
from clew.cli.output import utf_8_output, write_json


def diff(
    context: typer.Context,
    thread: ThreadArgument,
    other: Annotated[
        str | None,
        typer.Argument(metavar="OTHER", help="Another thread; without it, another version.", autocompletion=thread_ids),
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
        bool, typer.Option("--all", help="Show the messages that are the same, too, and long values whole.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two threads, or two versions of one."""
    if other is None and at is None and other_at is None:
        raise WrongUsage(context, "There is nothing to compare with: give another thread, --at or --other-at")
    ours, theirs = moment(at), moment(other_at, "--other-at")
    with opened(context) as conversations:
        found = conversations.diff(
            conversations.find(thread),
            None if other is None else conversations.find(other),
            at=ours.at,
            other_at=theirs.at,
            at_message=ours.at_message,
            other_at_message=theirs.at_message,
        )
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.diff(found, everything=everything))
    elif format_ == "markdown":
        from clew.cli.diff_markdown import diff_document

        utf_8_output()
        for line in diff_document(found, everything=everything):
            typer.echo(line)
    else:
        from clew.cli import rendering
        from clew.cli.diff_terminal import diff_lines

        console = rendering.console()
        for shown in diff_lines(found, console, everything=everything):
            console.print(shown, soft_wrap=True)
