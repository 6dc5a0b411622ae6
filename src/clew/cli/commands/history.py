"""Commands that read one thread: show and log, which can follow it live."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli import INTERRUPTED
from clew.cli.candidates import thread_ids
from clew.cli.command import command
from clew.cli.errors import WrongUsage
from clew.cli.options import AsJson, AtOption, Moment, ThreadArgument, open_store, parse_moment
from clew.cli.output import console as new_console
from clew.cli.output import write_json

if TYPE_CHECKING:
    from rich.console import Console

    from clew.conversations import Conversations
    from clew.domain.events import Event
    from clew.domain.history import History
    from clew.domain.runs.summaries import RunSummary
    from clew.sync.subscription import Subscription

PATIENCE = 0.5
"""Seconds between checks whether anybody still reads the output."""


@command(
    "clew show 3f2a",
    "clew show 3f2a --at message:4",
    'clew show 3f2a --at "before refund"',
    "clew show 3f2a --at 2026-01-31T12:00:00Z --json",
    heading="Read",
)
def show(context: typer.Context, thread: ThreadArgument, at: AtOption = None, as_json: AsJson = False) -> None:
    """Show a thread's messages and runs, now or as they were."""
    with open_store(context) as conversations:
        id_, when = conversations.find(thread), parse_moment(at)
        if as_json:
            from clew.cli.rendering import json_shapes

            history = conversations.thread(id_).history(at=when.at, at_message=when.at_message)
            write_json(json_shapes.history(history, runs_of(conversations, history)))
        else:
            print_thread(conversations, id_, when, new_console())


@command(
    "clew log 3f2a",
    "clew log 3f2a --json | jq -c '[.version, .type, .actor]'",
    "clew log 3f2a -f",
    "clew log -f",
    heading="Read",
)
def log(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="THREAD",
            help="A thread's id, or a unique prefix of it; optional with --follow.",
            autocompletion=thread_ids,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep listing new events, of a thread or of all, until Ctrl-C.")
    ] = False,
    after: Annotated[
        int, typer.Option("--after", metavar="VERSION", min=0, help="Only events after this version.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """List a thread's events, or follow them live. A fork's include those that it inherited."""
    if thread is None and not follow:
        raise WrongUsage(context, "Missing argument 'THREAD': only --follow works without it")
    with open_store(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        if follow or id_ is None:
            follow_events(conversations, id_, after, as_json=as_json)
        elif as_json:
            from clew.cli.rendering import json_shapes

            for event in conversations.thread(id_).events(after=after):
                write_json(json_shapes.event(event))
        else:
            print_events(conversations, id_, new_console(), after)


def print_thread(conversations: Conversations, id_: str, when: Moment, console: Console) -> None:
    """Print what ``clew show`` shows."""
    from clew.cli.rendering.messages import conversation

    thread = conversations.thread(id_)
    history, summary = thread.history(at=when.at, at_message=when.at_message), thread.summary()
    runs = runs_of(conversations, history)
    for line in conversation(history, summary.title, summary.version, console, runs):
        console.print(line, soft_wrap=True)


def print_events(conversations: Conversations, id_: str, console: Console, after: int = 0) -> None:
    """Print what ``clew log`` shows. If an event cannot be read, print those before it and raise the error."""
    from clew.cli.rendering.events import OFF_PATH, event_table, lookup, off_path
    from clew.domain.errors import ClewError

    events: list[Event] = []
    failure = None
    try:
        for event in conversations.thread(id_).events(after=after):
            events.append(event)  # noqa: PERF402  # those before the error are printed
    except ClewError as error:
        if not events:
            raise
        failure = error
    undone = off_path(events)
    console.print(event_table(events, id_, console, lookup(conversations.thread), undone))
    if undone:
        console.print(f"{OFF_PATH} taken back by a rewind", style="dim")
    if failure is not None:
        raise failure


def runs_of(conversations: Conversations, history: History) -> list[RunSummary]:
    """The runs on the path of a history."""
    from clew.domain.runs.summaries import run_summaries

    events = list(conversations.thread(history.thread_id).events(at=history.version or None))
    return run_summaries(events, after_cuts=_after_cuts(conversations, events))


def _after_cuts(conversations: Conversations, events: Iterable[Event]) -> Iterator[Event]:
    """The first event after each fork's cut, in its parent, if it can be read."""
    from clew.domain.errors import ClewError
    from clew.domain.events import ThreadForked

    for event in events:
        if isinstance(event.data, ThreadForked):
            cut = event.data.parent_version
            with suppress(ClewError):
                yield from conversations.thread(event.data.parent_id).events(after=cut, at=cut + 1)


def follow_events(conversations: Conversations, id_: str | None, after: int, *, as_json: bool) -> None:
    """Write the events of a thread, or of all, and then new ones as they are appended.

    Ends when the store is closed, by Ctrl-C (SystemExit without a message, as ``tail -f``), or with BrokenPipeError
    when nobody reads the output any more.
    """
    write = _write_event_json if as_json else _event_printer(conversations, of_store=id_ is None)
    try:
        source = conversations if id_ is None else conversations.thread(id_)
        with source.subscribe(after=after) as events:
            for event in _while_read(events):
                write(event)
                sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _while_read(events: Subscription) -> Iterator[Event]:
    """The events, until the output has no reader: a pipe reports that only to a write."""
    while True:
        event = events.wait(PATIENCE)
        if event is not None:
            yield event
        elif _reader_left():
            raise BrokenPipeError


def _reader_left() -> bool:
    try:
        output = sys.stdout.fileno()
        mode = os.fstat(output).st_mode
    except (OSError, ValueError):  # the output is not a file
        return False
    if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        return False
    poll = select.poll()
    poll.register(output, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _write_event_json(event: Event) -> None:
    from clew.cli.rendering import json_shapes

    write_json(json_shapes.event(event))


def _event_printer(conversations: Conversations, *, of_store: bool) -> Callable[[Event], None]:
    """Prints an event on one line, cut at the width of a terminal."""
    from clew.cli.rendering.events import event_line, lookup

    console, look = new_console(), lookup(conversations.thread)

    def print_event(event: Event) -> None:
        line = event_line(event, look, of_store=of_store)
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)

    return print_event
