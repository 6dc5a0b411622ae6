"""Commands that read one thread: show and log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.completion import thread_ids
from clew.cli.failures import WrongUsage
from clew.cli.options import AsJson, AtOption, ThreadArgument
from clew.cli.stores import Moment, moment, opened
from clew.cli.text import write_json

if TYPE_CHECKING:
    from rich.console import Console

    from clew.conversations import Conversations
    from clew.domain.events import Event
    from clew.domain.history import History
    from clew.domain.runs.summaries import RunSummary


def show(context: typer.Context, thread: ThreadArgument, at: AtOption = None, as_json: AsJson = False) -> None:
    """Show a thread's messages and runs, now or as they were."""
    with opened(context) as conversations:
        id_, when = conversations.find(thread), moment(at)
        if as_json:
            from clew.cli import shapes

            found = conversations.thread(id_).history(at=when.at, at_message=when.at_message)
            write_json(shapes.history(found, runs(conversations, found)))
        else:
            from clew.cli import rendering

            print_thread(conversations, id_, when, rendering.console())


def log(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="THREAD",
            help="A thread's id, or the beginning of it; with --follow not needed.",
            autocompletion=thread_ids,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, of a thread or of all, until Ctrl-C.")
    ] = False,
    after: Annotated[
        int, typer.Option("--after", metavar="VERSION", min=0, help="Only what comes after this version.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """List a thread's events, or follow them live. A fork's come with those that it inherited."""
    if thread is None and not follow:
        raise WrongUsage(context, "Missing argument 'THREAD': only --follow goes without it")
    with opened(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        if follow or id_ is None:
            from clew.cli.following import follow as follow_live

            follow_live(conversations, id_, after, as_json=as_json)
        elif as_json:
            from clew.cli import shapes

            for event in conversations.thread(id_).events(after=after):
                write_json(shapes.event(event))
        else:
            from clew.cli import rendering

            print_events(conversations, id_, rendering.console(), after)


def print_thread(conversations: Conversations, id_: str, when: Moment, console: Console) -> None:
    """Write what ``clew show`` shows to people."""
    from clew.cli import rendering

    found = conversations.thread(id_)
    history, summary = found.history(at=when.at, at_message=when.at_message), found.summary()
    ran = runs(conversations, history)
    for line in rendering.conversation(history, summary.title, summary.version, console, ran):
        console.print(line, soft_wrap=True)


def print_events(conversations: Conversations, id_: str, console: Console, after: int = 0) -> None:
    """Write what ``clew log`` shows to people; of a thread that cannot be read to its end, what comes before."""
    from clew.cli import rendering
    from clew.cli.named_events import lookup
    from clew.domain.errors import ClewError

    events: list[Event] = []
    error = None
    try:
        for event in conversations.thread(id_).events(after=after):
            events.append(event)  # noqa: PERF402 - those before the error are kept
    except ClewError as found:
        if not events:
            raise
        error = found
    console.print(rendering.event_table(events, id_, console, lookup(conversations.thread)))
    if error is not None:
        raise error


def runs(conversations: Conversations, history: History) -> list[RunSummary]:
    """The runs on the path at the version of a history."""
    from clew.domain.runs.summaries import run_summaries

    return run_summaries(conversations.thread(history.thread_id).events(at=history.version or None))
