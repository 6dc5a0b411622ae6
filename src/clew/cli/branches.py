"""Commands that branch, name versions and go back: checkpoint, fork, rewind and edit."""

from __future__ import annotations

import sys
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clew.cli.options import (
    ActorOption,
    AsJson,
    AtOption,
    MessageArgument,
    ThreadArgument,
    ToOption,
    message_version,
    moment,
    opened,
    place,
)
from clew.cli.output import one_line, write_json

if TYPE_CHECKING:
    from clew.domain.history import History
    from clew.service.thread_queries import ThreadSummary

TitleOption = Annotated[str | None, typer.Option("--title", metavar="T", help="The new thread's title.")]


def checkpoint(
    context: typer.Context,
    thread: ThreadArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A word or more: no version, message or time.")],
    at: AtOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Name a version of a thread, for --at and --to."""
    with opened(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        version = found.checkpoint(name, at=place(found, moment(at)), actor=actor)
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.checkpoint(found.id, name, version))
    else:
        typer.echo(checkpoint_text(found.id, name, version))


def fork(
    context: typer.Context,
    thread: ThreadArgument,
    at: AtOption = None,
    title: TitleOption = None,
    local: Annotated[
        bool, typer.Option("--local", help="Let Clew hold its history, also where a service holds the other's.")
    ] = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Begin a thread at a version of another. Its past is shared: nothing is copied."""
    with opened(context) as conversations:
        found, when = conversations.thread(conversations.find(thread)), moment(at)
        kind: Literal["local"] | None = "local" if local else None
        forked = found.fork(at=when.at, at_message=when.at_message, title=title, kind=kind, actor=actor)
        summary = forked.summary()
    _say_forked(summary, as_json=as_json)


def rewind(
    context: typer.Context,
    thread: ThreadArgument,
    to: ToOption,
    abandon_run: Annotated[
        bool, typer.Option("--abandon-run", help="End the run that is under way, which else stands in the way.")
    ] = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Let a thread go on from an earlier version. Nothing is deleted."""
    with opened(context) as conversations:
        found, when = conversations.thread(conversations.find(thread)), moment(to, "--to")
        there = found.history(at=when.at, at_message=when.at_message)
        version = found.rewind(to=there.version, abandon_run=abandon_run, actor=actor)
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.rewound(there, version))
    else:
        typer.echo(rewind_text(there, version))


def edit(
    context: typer.Context,
    thread: ThreadArgument,
    message: MessageArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is said instead; - reads it from stdin.")],
    title: TitleOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Fork a thread before a message, and say something else there. The thread itself stands as it is."""
    with opened(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        version = message_version(context, found, message)
        said = _read() if text == "-" else text
        summary = found.edit(version, said, title=title, actor=actor).summary()
    _say_forked(summary, as_json=as_json)


def checkpoint_text(id_: str, name: str, version: int) -> str:
    """What ``clew checkpoint`` says to people."""
    return f"Version {version} of {one_line(id_)} is now the checkpoint {one_line(name)!r}."


def rewind_text(there: History, version: int) -> str:
    """What ``clew rewind`` says to people."""
    id_, count = one_line(there.thread_id), len(there)
    left = f"its {count} message" + ("" if count == 1 else "s")
    back = f"{id_} is back at version {there.version} and {left}. Nothing was deleted."
    return f"{back}\nTo undo it: clew rewind {quote(id_)} --to {version - 1}"


def fork_text(summary: ThreadSummary) -> str:
    """What ``clew fork`` says to people."""
    parent, id_ = one_line(summary.parent_id or ""), one_line(summary.id)
    return f"Forked {parent} at version {summary.forked_at}: the new thread is {id_}."


def _say_forked(summary: ThreadSummary, *, as_json: bool) -> None:
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.thread(summary))
    else:
        typer.echo(fork_text(summary))


def _read() -> str:
    """What stdin says, without the line end that the last line has. Raises InvalidContentError."""
    from clew.domain.errors import InvalidContentError

    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidContentError(f"stdin: byte {error.start} is no UTF-8. Give the text in UTF-8.") from None
    return text.removesuffix("\n").removesuffix("\r")
