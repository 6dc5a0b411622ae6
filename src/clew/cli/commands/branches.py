"""Commands that branch, name versions and go back: checkpoint, fork, rewind and edit."""

from __future__ import annotations

import sys
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clew.cli.command import command
from clew.cli.options import (
    ActorOption,
    AsJson,
    AtOption,
    MessageArgument,
    ThreadArgument,
    ToOption,
    message_version,
    open_store,
    parse_moment,
    version_of,
)
from clew.cli.output import one_line, plural, write_json

if TYPE_CHECKING:
    from clew.domain.history import History
    from clew.service.thread_queries import ThreadSummary

TitleOption = Annotated[str | None, typer.Option("--title", metavar="T", help="The new thread's title.")]


@command(
    'clew checkpoint 3f2a "before refund"',
    'clew checkpoint 3f2a "before refund" --at message:4',
    heading="Branch and go back",
)
def checkpoint(
    context: typer.Context,
    thread: ThreadArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Any words except a version, a message or a time.")],
    at: AtOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Name a version of a thread, for --at and --to."""
    with open_store(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        version = found.checkpoint(name, at=version_of(found, parse_moment(at)), actor=actor)
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.checkpoint(found.id, name, version))
    else:
        typer.echo(checkpoint_text(found.id, name, version))


@command(
    "clew fork 3f2a --at message:4",
    'clew fork 3f2a --at "before refund" --title "What if"',
    heading="Branch and go back",
)
def fork(
    context: typer.Context,
    thread: ThreadArgument,
    at: AtOption = None,
    title: TitleOption = None,
    local: Annotated[
        bool, typer.Option("--local", help="Store the fork's history in Clew, even if a service stores the original's.")
    ] = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Start a thread from a version of another one. They share the past: nothing is copied."""
    with open_store(context) as conversations:
        found, when = conversations.thread(conversations.find(thread)), parse_moment(at)
        kind: Literal["local"] | None = "local" if local else None
        forked = found.fork(at=when.at, at_message=when.at_message, title=title, kind=kind, actor=actor)
        summary = forked.summary()
    _write_fork(summary, as_json=as_json)


@command('clew rewind 3f2a --to "before refund"', "clew rewind 3f2a --to message:2", heading="Branch and go back")
def rewind(
    context: typer.Context,
    thread: ThreadArgument,
    to: ToOption,
    abandon_run: Annotated[
        bool, typer.Option("--abandon-run", help="End the run in progress first; otherwise it prevents the rewind.")
    ] = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Take a thread back to an earlier version. Nothing is deleted."""
    with open_store(context) as conversations:
        found, when = conversations.thread(conversations.find(thread)), parse_moment(to, "--to")
        target = found.history(at=when.at, at_message=when.at_message)
        version = found.rewind(to=target.version, abandon_run=abandon_run, actor=actor)
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.rewound(target, version))
    else:
        typer.echo(rewind_text(target, version))


@command(
    'clew edit 3f2a message:3 "Where is my refund?"',
    "clew edit 3f2a message:3 - < question.txt",
    heading="Branch and go back",
)
def edit(
    context: typer.Context,
    thread: ThreadArgument,
    message: MessageArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The new text; - reads it from standard input.")],
    title: TitleOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Fork a thread before a message and replace that message. The thread itself does not change."""
    with open_store(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        version = message_version(context, found, message)
        new_text = _read_stdin() if text == "-" else text
        summary = found.edit(version, new_text, title=title, actor=actor).summary()
    _write_fork(summary, as_json=as_json)


def checkpoint_text(id_: str, name: str, version: int) -> str:
    """What ``clew checkpoint`` prints."""
    return f"Version {version} of {one_line(id_)} is now the checkpoint {one_line(name)!r}."


def rewind_text(target: History, version: int) -> str:
    """What ``clew rewind`` prints."""
    id_, messages = one_line(target.thread_id), plural(len(target), "message")
    return (
        f"{id_} is back at version {target.version} with {messages}. Nothing was deleted.\n"
        f"To undo it: clew rewind {quote(id_)} --to {version - 1}"
    )


def fork_text(summary: ThreadSummary) -> str:
    """What ``clew fork`` prints."""
    parent, id_ = one_line(summary.parent_id or ""), one_line(summary.id)
    return f"Forked {parent} at version {summary.forked_at}: the new thread is {id_}."


def _write_fork(summary: ThreadSummary, *, as_json: bool) -> None:
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.thread(summary))
    else:
        typer.echo(fork_text(summary))


def _read_stdin() -> str:
    """Standard input without its last line end. Raises InvalidContentError."""
    from clew.domain.errors import InvalidContentError

    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidContentError(f"stdin: byte {error.start} is not UTF-8. Give the text in UTF-8.") from None
    return text.removesuffix("\n").removesuffix("\r")
