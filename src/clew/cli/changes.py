"""Commands that change what is true of a thread: label, end, delete and redact."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from clew.cli.errors import WrongUsage
from clew.cli.options import (
    ActorOption,
    AsJson,
    MessageArgument,
    ReasonOption,
    ThreadArgument,
    YesOption,
    ask,
    message_version,
    must_ask,
    opened,
)
from clew.cli.output import json_text, one_line, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from clew.domain.events import Event
    from clew.domain.json_values import Json
    from clew.service.thread_queries import ThreadSummary
    from clew.sync.threads import Thread


def label(
    context: typer.Context,
    thread: ThreadArgument,
    labels: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE", help="A label: JSON, else text. NAME= removes it.")
    ],
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Set labels of a thread, or remove them."""
    given = dict(named_label(context, each) for each in labels)
    with opened(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        found.label(given, actor=actor)
        summary = found.summary()
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.labelled(summary))
    elif summary.labels:
        said = ", ".join(f"{name}={json_text(value)}" for name, value in summary.labels.items())
        typer.echo(one_line(f"Labels of {summary.id}: {said}"))
    else:
        typer.echo(f"{one_line(summary.id)} has no labels.")


def end(
    context: typer.Context,
    thread: ThreadArgument,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Close a conversation. It can still be read, labelled, forked and redacted."""
    summary = _changed(context, thread, lambda found: found.end(reason=reason, actor=actor))
    _say(summary, "Ended", "`clew fork` goes on from it.", as_json=as_json)


def delete(
    context: typer.Context,
    thread: ThreadArgument,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Take a thread away from its readers. Its forks go on, and its events remain for `clew log`."""
    summary = _changed(context, thread, lambda found: found.delete(reason=reason, actor=actor))
    _say(summary, "Deleted", "Its forks go on, and `clew log` still lists its events.", as_json=as_json)


def redact(
    context: typer.Context,
    thread: ThreadArgument,
    message: MessageArgument,
    reason: ReasonOption = None,
    yes: YesOption = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Destroy what a message says, here and in every fork. It cannot be undone; the chain still verifies."""
    from clew.domain.events import Shredded

    asking = must_ask(context, yes=yes)
    with opened(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        version = message_version(context, found, message)
        event = next(found.events(after=version - 1, at=version))
        if asking and event.type == "message-appended" and not isinstance(event.data, Shredded):
            ask(f"Redact version {version} of {one_line(event.thread_id)} for ever? {_beginning(event)}")
        recorded = found.redact(version, reason=reason, actor=actor)
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.redacted(event, recorded))
    else:
        typer.echo(redact_text(event))


def redact_text(event: Event) -> str:
    """What ``clew redact`` says to people."""
    return f"Redacted version {event.version} of {one_line(event.thread_id)}, here and in every fork."


def _changed(context: typer.Context, thread: str, change: Callable[[Thread], None]) -> ThreadSummary:
    """Change a thread; returns what a list says of it then."""
    with opened(context) as conversations:
        found = conversations.thread(conversations.find(thread))
        change(found)
        return found.summary()


def _say(summary: ThreadSummary, done: str, remark: str, *, as_json: bool) -> None:
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.thread(summary))
    else:
        typer.echo(f"{done} {one_line(summary.id)}. {remark}")


def _beginning(event: Event) -> str:
    """How a message begins, on one line; of one that a newer Clew wrote, that it cannot be read."""
    from clew.cli import rendering
    from clew.domain.events import MessageAppended

    if not isinstance(event.data, MessageAppended):
        return "What it says cannot be read."
    message = event.data.message
    return f"{message.role}: {rendering.beginning(message)}"


def named_label(context: typer.Context, text: str) -> tuple[str, Json]:
    """A name, and the JSON value that was meant; None is for a label to be removed."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise WrongUsage(context, f"{text!r} is no label. Write NAME=VALUE, or NAME= to remove it")
    if not value:
        return name, None
    try:
        return name, json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return name, value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
