"""Commands that read: threads, show and log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from clew.cli.options import AsJson, AtOption, ThreadArgument
from clew.cli.stores import Moment, Store, moment, opened, thread_id
from clew.cli.text import write_json

if TYPE_CHECKING:
    from rich.console import Console

    from clew.service.reading import ThreadSummary

FIRST_EVENTS = 8
"""Events at the beginning of a thread among which its first words are looked for."""


def threads(context: typer.Context, as_json: AsJson = False) -> None:
    """List the threads, forks under their parents."""
    with opened(context) as store:
        if as_json:
            from clew.cli import shapes

            for summary in store.conversations.threads():
                write_json(shapes.thread(summary))
        else:
            from clew.cli import rendering

            print_threads(store, rendering.console())


def show(context: typer.Context, thread: ThreadArgument, at: AtOption = None, as_json: AsJson = False) -> None:
    """Show a thread's messages, now or as they were."""
    with opened(context) as store:
        id_, when = thread_id(store.core, thread), moment(at)
        if as_json:
            from clew.cli import shapes

            found = store.conversations.thread(id_).history(at=when.at, at_message=when.at_message)
            write_json(shapes.history(found))
        else:
            from clew.cli import rendering

            print_thread(store, id_, when, rendering.console())


def log(context: typer.Context, thread: ThreadArgument, as_json: AsJson = False) -> None:
    """List a thread's events. A fork's come with those that it inherited."""
    with opened(context) as store:
        id_ = thread_id(store.core, thread)
        if as_json:
            from clew.cli import shapes

            for event in store.conversations.thread(id_).events():
                write_json(shapes.event(event))
        else:
            from clew.cli import rendering

            print_events(store, id_, rendering.console())


def print_threads(store: Store, console: Console) -> None:
    """Write what ``clew threads`` shows to people."""
    from clew.cli import rendering

    found = [(summary, _beginning(store, summary)) for summary in store.conversations.threads()]
    if found:
        console.print(rendering.thread_table(found, console))
    else:
        console.print("There are no threads. `clew import FILE` brings some in.")


def print_thread(store: Store, id_: str, when: Moment, console: Console) -> None:
    """Write what ``clew show`` shows to people."""
    from clew.cli import rendering

    found = store.conversations.thread(id_)
    history, summary = found.history(at=when.at, at_message=when.at_message), found.summary()
    for line in rendering.conversation(history, summary.title, summary.version, console):
        console.print(line, soft_wrap=True)


def print_events(store: Store, id_: str, console: Console) -> None:
    """Write what ``clew log`` shows to people."""
    from clew.cli import rendering

    console.print(rendering.event_table(store.conversations.thread(id_).events(), id_, console))


def _beginning(store: Store, summary: ThreadSummary) -> str | None:
    """How a thread without a title begins: what the first user says. None for a deleted thread."""
    from clew.cli.rendering import beginning
    from clew.domain.events import MessageAppended

    if summary.title is not None or summary.status == "deleted":
        return None
    stream = store.core.stream(summary.thread_id)
    messages = [
        event.data.message
        for event in store.core.log.lineage(stream, upto=FIRST_EVENTS)
        if isinstance(event.data, MessageAppended)
    ]
    users = [message for message in messages if message.role == "user"]
    return next((beginning(message) for message in users or messages), None)
