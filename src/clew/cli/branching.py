"""The command that branches: fork."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.options import AsJson, AtOption, ThreadArgument
from clew.cli.stores import moment, opened
from clew.cli.text import one_line, write_json

if TYPE_CHECKING:
    from clew.service.reading import ThreadSummary


def fork(
    context: typer.Context,
    thread: ThreadArgument,
    at: AtOption = None,
    title: Annotated[str | None, typer.Option("--title", metavar="T", help="The new thread's title.")] = None,
    as_json: AsJson = False,
) -> None:
    """Begin a thread at a version of another. Its past is shared: nothing is copied."""
    with opened(context) as conversations:
        found, when = conversations.thread(conversations.find(thread)), moment(at)
        summary = found.fork(at=when.at, at_message=when.at_message, title=title).summary()
    if as_json:
        from clew.cli import shapes

        write_json(shapes.thread(summary))
    else:
        from clew.cli import rendering

        rendering.console().print(fork_text(summary))


def fork_text(summary: ThreadSummary) -> str:
    """What ``clew fork`` says to people."""
    parent, id_ = one_line(summary.parent_id or ""), one_line(summary.thread_id)
    return f"Forked {parent} at version {summary.forked_at}: the new thread is {id_}."
