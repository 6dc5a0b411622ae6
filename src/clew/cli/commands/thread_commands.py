"""Commands that change a thread: fork, checkpoint, rewind, edit, label, end, delete and redact."""

from __future__ import annotations

import sys
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clew.cli.app import command
from clew.cli.errors import PENDING, WrongUsage
from clew.cli.options import (
    TIME,
    ActorOption,
    AsJson,
    AtOption,
    MessageArgument,
    ReasonOption,
    ThreadArgument,
    YesOption,
    confirm,
    message_version,
    must_confirm,
    open_store,
    open_thread,
    parse_label,
    parse_moment,
    version_of,
    version_option,
)
from clew.cli.output import json_text, one_line, plural, write_result
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from clew.domain.events import Event
    from clew.domain.history import History
    from clew.service.redactions import Purged, Redaction
    from clew.service.thread_queries import ThreadSummary
    from clew.sync.threads import Thread

TitleOption = Annotated[str | None, typer.Option("--title", metavar="T", help="The new thread's title.")]


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
    with open_thread(context, thread) as opened:
        when = parse_moment(at)
        kind: Literal["local"] | None = "local" if local else None
        new = opened.fork(at=when.at, at_message=when.at_message, title=title, kind=kind, actor=actor).summary()
    write_result(json_shapes.thread(new), fork_text(new), as_json=as_json)


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
    with open_thread(context, thread) as opened:
        version = opened.checkpoint(name, at=version_of(opened, parse_moment(at)), actor=actor)
    shape = json_shapes.checkpoint(opened.id, name, version)
    write_result(shape, checkpoint_text(opened.id, name, version), as_json=as_json)


@command('clew rewind 3f2a --to "before refund"', "clew rewind 3f2a --to message:2", heading="Branch and go back")
def rewind(
    context: typer.Context,
    thread: ThreadArgument,
    to: Annotated[str, version_option("--to", f"A version, message:N, {TIME}, or a checkpoint's name.")],
    abandon_run: Annotated[
        bool, typer.Option("--abandon-run", help="End the run in progress first; otherwise it prevents the rewind.")
    ] = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Take a thread back to an earlier version. Nothing is deleted."""
    with open_thread(context, thread) as opened:
        when = parse_moment(to, "--to")
        target = opened.history(at=when.at, at_message=when.at_message)
        version = opened.rewind(to=target.version, abandon_run=abandon_run, actor=actor)
    write_result(json_shapes.rewind(target, version), rewind_text(target, version), as_json=as_json)


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
    with open_thread(context, thread) as opened:
        version = message_version(opened, message)
        new_text = _read_stdin() if text == "-" else text
        if not new_text:
            raise WrongUsage("TEXT is empty. Give the new text of the message")
        new = opened.edit(version, new_text, title=title, actor=actor).summary()
    write_result(json_shapes.thread(new), fork_text(new), as_json=as_json)


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
    values = dict(parse_label(each) for each in labels)
    with open_thread(context, thread) as opened:
        opened.label(values, actor=actor)
        summary = opened.summary()
    listed = ", ".join(f"{name}={json_text(value)}" for name, value in summary.labels.items())
    text = f"Labels of {summary.id}: {listed}" if listed else f"{summary.id} has no labels."
    write_result(json_shapes.labels(summary), one_line(text), as_json=as_json)


@command('clew end 3f2a --reason "The refund was paid"', heading="Change")
def end(
    context: typer.Context,
    thread: ThreadArgument,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Close a conversation. You can still read, label, fork and redact it."""
    with open_thread(context, thread) as opened:
        opened.end(reason=reason, actor=actor)
        summary = opened.summary()
    text = f"Ended {one_line(summary.id)}. `clew fork` continues it in a new thread."
    write_result(json_shapes.thread(summary), text, as_json=as_json)


@command('clew delete 3f2a --reason "A test"', heading="Change")
def delete(
    context: typer.Context,
    thread: ThreadArgument,
    reason: ReasonOption = None,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Hide a thread from its readers. Its forks stay, and `clew log` still lists its events."""
    with open_thread(context, thread) as opened:
        opened.delete(reason=reason, actor=actor)
        summary = opened.summary()
    text = f"Deleted {one_line(summary.id)}. Its forks stay, and `clew log` still lists its events."
    write_result(json_shapes.thread(summary), text, as_json=as_json)


@command('clew redact 3f2a message:2 --reason "A card number"', "clew redact 3f2a 3 --yes", heading="Change")
def redact(
    context: typer.Context,
    thread: ThreadArgument,
    message: MessageArgument,
    reason: ReasonOption = None,
    yes: YesOption = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until no other program keeps the content in the files.")
    ] = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Destroy the content of a message or record, or the texts of another event, here and in every fork.

    This cannot be undone; the chain verifies.
    """
    from clew.domain.events import APPENDED_TYPES, holds_text

    ask = must_confirm(context, yes=yes)
    with open_store(context) as conversations:
        opened = conversations.thread(conversations.find(thread))
        version = message_version(opened, message)
        event = next(opened.events(after=version - 1, at=version))
        if ask and not event.redacted and (event.type in APPENDED_TYPES or holds_text(event)):
            confirm(f"Destroy version {version} of {one_line(event.thread_id)} for ever? {_content_start(event)}")
        if wait and event.redacted:  # it may be pending
            redaction = _earlier_redaction(conversations.thread(event.thread_id), event.version)
        else:
            redaction = opened.redact(version, reason=reason, actor=actor)
        if redaction.pending:
            redaction = redaction._replace(pending=not conversations.erase(timeout=None if wait else 0))
    write_result(json_shapes.redaction(event, redaction), redact_text(event, redaction), as_json=as_json)
    if redaction.pending:
        raise typer.Exit(PENDING)


@command('clew purge 3f2a --reason "Asked to be forgotten"', "clew purge 3f2a --yes --forks", heading="Change")
def purge(
    context: typer.Context,
    thread: ThreadArgument,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="R", help="Why, for the audit trail. It stays for ever: no personal data."),
    ] = None,
    yes: YesOption = False,
    forks: Annotated[
        bool, typer.Option("--forks", help="Purge a thread with forks: they lose what they have inherited from it.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until no other program keeps the content in the files.")
    ] = False,
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Destroy every text of a thread, and delete it. This cannot be undone; stubs of its events stay, and verify."""
    from clew.domain.errors import NotRedactableError

    ask = must_confirm(context, yes=yes)
    with open_store(context) as conversations:
        opened = conversations.thread(conversations.find(thread))
        if ask:
            confirm(f"Destroy the content of {one_line(opened.id)}, {plural(opened.version, 'event')}, for ever?")
        try:
            purged = opened.purge(reason=reason, forks=forks, actor=actor)
        except NotRedactableError:
            if not wait:
                raise
            purged = _earlier_purge(opened)
        if purged.pending:
            purged = purged._replace(pending=not conversations.erase(timeout=None if wait else 0))
    write_result(json_shapes.purge(opened.id, purged), purge_text(opened.id, purged), as_json=as_json)
    if purged.pending:
        raise typer.Exit(PENDING)


def _earlier_redaction(thread: Thread, version: int) -> Redaction:
    """The redaction of an event that is already redacted, which may be pending."""
    from clew.domain.events import MessageRedacted
    from clew.service.redactions import Redaction

    found = thread.events(after=version, types={"message-redacted", "thread-purged"})
    by = next(each for each in found if not isinstance(each.data, MessageRedacted) or each.data.version == version)
    return Redaction(by.version, pending=True)


def _earlier_purge(thread: Thread) -> Purged:
    """The purge of a thread that is already purged, which may be pending."""
    from clew.domain.events import ThreadPurged
    from clew.service.redactions import Purged

    (newest,) = thread.events(after=thread.version - 1)
    return Purged(newest.version, newest.data.rows if isinstance(newest.data, ThreadPurged) else 0, pending=True)


def fork_text(new: ThreadSummary) -> str:
    """The output of ``clew fork``."""
    parent, id_ = one_line(new.parent_id or ""), one_line(new.id)
    return f"Forked {parent} at version {new.forked_at}: the new thread is {id_}."


def checkpoint_text(id_: str, name: str, version: int) -> str:
    """The output of ``clew checkpoint``."""
    return f"Version {version} of {one_line(id_)} is now the checkpoint {one_line(name)!r}."


def rewind_text(target: History, version: int) -> str:
    """The output of ``clew rewind``."""
    id_, messages = one_line(target.thread_id), plural(len(target), "message")
    return (
        f"{id_} is back at version {target.version} with {messages}. Nothing was deleted.\n"
        f"To undo it: clew rewind {quote(id_)} --to {version - 1}"
    )


def redact_text(event: Event, redaction: Redaction) -> str:
    """The output of ``clew redact``."""
    errors = f", and {plural(len(redaction.errors), 'error')} that may quote it" if redaction.errors else ""
    text = f"Redacted version {event.version} of {one_line(event.thread_id)}, here and in every fork{errors}."
    return text + _PENDING * redaction.pending


def purge_text(id_: str, purged: Purged) -> str:
    """The output of ``clew purge``."""
    text = f"Destroyed the content of {plural(purged.events, 'event')} of {one_line(id_)}. Its events remain as stubs."
    if purged.children:
        text += f" So do those of {plural(len(purged.children), 'thread')} of its agents."
    return text + _PENDING * purged.pending


_PENDING = "\nPending: another program still keeps the content in the files. `--wait` waits; `clew doctor` checks."


def _content_start(event: Event) -> str:
    """The start of a message or a record on one line. An event of a newer Clew may be unreadable."""
    from clew.cli.rendering.events import what_happened
    from clew.domain.events import Opaque

    return "Its content cannot be read." if isinstance(event.data, Opaque) else what_happened(event)


def _read_stdin() -> str:
    """Standard input without its last line end. Raises InvalidContentError."""
    from clew.domain.errors import InvalidContentError

    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidContentError(f"stdin: byte {error.start} is not UTF-8. Give the text in UTF-8.") from None
    return text.removesuffix("\n").removesuffix("\r")
