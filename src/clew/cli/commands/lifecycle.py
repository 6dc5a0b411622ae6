"""Commands that change a thread as a whole or destroy a message: label, end, delete and redact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.command import command
from clew.cli.options import (
    ActorOption,
    AsJson,
    MessageArgument,
    ReasonOption,
    ThreadArgument,
    YesOption,
    confirm,
    message_version,
    must_confirm,
    open_store,
    parse_label,
)
from clew.cli.output import json_text, one_line, write_json

if TYPE_CHECKING:
    from clew.domain.events import Event
    from clew.service.thread_queries import ThreadSummary


@command("clew label 3f2a topic=refund stars=5", "clew label 3f2a topic=", heading="Change")
def label(
    context: typer.Context,
    thread: ThreadArgument,
    labels: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE", help="A label; VALUE is JSON, or else text. NAME= removes the label."),
    ],
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Set or remove labels of a thread."""
    values = dict(parse_label(context, each) for each in labels)
    with open_store(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        found.label(values, actor=actor)
        summary = found.summary()
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.labelled(summary))
    elif summary.labels:
        listed = ", ".join(f"{name}={json_text(value)}" for name, value in summary.labels.items())
        typer.echo(one_line(f"Labels of {summary.id}: {listed}"))
    else:
        typer.echo(f"{one_line(summary.id)} has no labels.")


@command('clew end 3f2a --reason "The refund was paid"', heading="Change")
def end(
    context: typer.Context,
    thread: ThreadArgument,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Close a conversation. You can still read, label, fork and redact it."""
    with open_store(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        found.end(reason=reason, actor=actor)
        summary = found.summary()
    _write(summary, f"Ended {one_line(summary.id)}. `clew fork` continues it in a new thread.", as_json=as_json)


@command('clew delete 3f2a --reason "A test"', heading="Change")
def delete(
    context: typer.Context,
    thread: ThreadArgument,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Hide a thread from its readers. Its forks stay, and `clew log` still lists its events."""
    with open_store(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        found.delete(reason=reason, actor=actor)
        summary = found.summary()
    done = f"Deleted {one_line(summary.id)}. Its forks stay, and `clew log` still lists its events."
    _write(summary, done, as_json=as_json)


@command('clew redact 3f2a message:2 --reason "A card number"', "clew redact 3f2a 3 --yes", heading="Change")
def redact(
    context: typer.Context,
    thread: ThreadArgument,
    message: MessageArgument,
    reason: ReasonOption = None,
    yes: YesOption = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Destroy the content of a message, here and in every fork. This cannot be undone; the hashes still verify."""
    from clew.domain.events import Shredded

    ask = must_confirm(context, yes=yes)
    with open_store(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        version = message_version(context, found, message)
        event = next(found.events(after=version - 1, at=version))
        if ask and event.type == "message-appended" and not isinstance(event.data, Shredded):
            confirm(f"Destroy version {version} of {one_line(event.thread_id)} for ever? {_start_of(event)}")
        recorded = found.redact(version, reason=reason, actor=actor)
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.redacted(event, recorded))
    else:
        typer.echo(redact_text(event))


def redact_text(event: Event) -> str:
    """What ``clew redact`` prints."""
    return f"Redacted version {event.version} of {one_line(event.thread_id)}, here and in every fork."


def _write(summary: ThreadSummary, text: str, *, as_json: bool) -> None:
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.thread(summary))
    else:
        typer.echo(text)


def _start_of(event: Event) -> str:
    """How a message starts, on one line. An event that a newer Clew wrote may be unreadable."""
    from clew.cli.rendering.messages import beginning
    from clew.domain.events import MessageAppended

    if not isinstance(event.data, MessageAppended):
        return "Its content cannot be read."
    message = event.data.message
    return f"{message.role}: {beginning(message)}"
