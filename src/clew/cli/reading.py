"""Commands that read: threads, show and log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from clew.cli.options import AsJson, AtOption, ThreadArgument
from clew.cli.stores import Moment, moment, opened
from clew.cli.text import write_json

if TYPE_CHECKING:
    from rich.console import Console

    from clew.conversations import Conversations
    from clew.service.reading import ThreadSummary

FIRST_EVENTS = 8
"""Events at the beginning of a thread among which its first words are looked for."""


def threads(context: typer.Context, as_json: AsJson = False) -> None:
    """List the threads, forks under their parents."""
    with opened(context) as conversations:
        if as_json:
            from clew.cli import shapes

            for summary in conversations.threads():
                write_json(shapes.thread(summary))
        else:
            from clew.cli import rendering

            print_threads(conversations, rendering.console())


def show(context: typer.Context, thread: ThreadArgument, at: AtOption = None, as_json: AsJson = False) -> None:
    """Show a thread's messages, now or as they were."""
    with opened(context) as conversations:
        id_, when = conversations.find(thread), moment(at)
        if as_json:
            from clew.cli import shapes

            found = conversations.thread(id_).history(at=when.at, at_message=when.at_message)
            write_json(shapes.history(found))
        else:
            from clew.cli import rendering

            print_thread(conversations, id_, when, rendering.console())


def log(context: typer.Context, thread: ThreadArgument, as_json: AsJson = False) -> None:
    """List a thread's events. A fork's come with those that it inherited."""
    with opened(context) as conversations:
        id_ = conversations.find(thread)
        if as_json:
            from clew.cli import shapes

            for event in conversations.thread(id_).events():
                write_json(shapes.event(event))
        else:
            from clew.cli import rendering

            print_events(conversations, id_, rendering.console())


def print_threads(conversations: Conversations, console: Console) -> None:
    """Write what ``clew threads`` shows to people."""
    from clew.cli import rendering

    found = [(summary, _beginning(conversations, summary)) for summary in conversations.threads()]
    if found:
        console.print(rendering.thread_table(found, console))
    else:
        console.print("There are no threads. `clew import FILE` brings some in.")


def print_thread(conversations: Conversations, id_: str, when: Moment, console: Console) -> None:
    """Write what ``clew show`` shows to people."""
    from clew.cli import rendering

    found = conversations.thread(id_)
    history, summary = found.history(at=when.at, at_message=when.at_message), found.summary()
    for line in rendering.conversation(history, summary.title, summary.version, console):
        console.print(line, soft_wrap=True)


def print_events(conversations: Conversations, id_: str, console: Console) -> None:
    """Write what ``clew log`` shows to people."""
    from clew.cli import rendering

    console.print(rendering.event_table(conversations.thread(id_).events(), id_, console))


def _beginning(conversations: Conversations, summary: ThreadSummary) -> str | None:
    """How a thread without a title begins: what the first user says. None for a deleted thread."""
    from clew.cli.rendering import beginning
    from clew.domain.events import MessageAppended

    if summary.title is not None or summary.status == "deleted":
        return None
    begun = conversations.thread(summary.thread_id).events(at=min(FIRST_EVENTS, summary.version))
    messages = [event.data.message for event in begun if isinstance(event.data, MessageAppended)]
    users = [message for message in messages if message.role == "user"]
    return next((beginning(message) for message in users or messages), None)
