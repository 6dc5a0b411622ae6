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
from clew.cli.errors import WrongUsage
from clew.cli.options import AsJson, AtOption, Moment, ThreadArgument, moment, opened
from clew.cli.output import write_json

if TYPE_CHECKING:
    from rich.console import Console

    from clew.conversations import Conversations
    from clew.domain.events import Event
    from clew.domain.history import History
    from clew.domain.runs.summaries import RunSummary
    from clew.service.subscription import Subscription


def show(context: typer.Context, thread: ThreadArgument, at: AtOption = None, as_json: AsJson = False) -> None:
    """Show a thread's messages and runs, now or as they were."""
    with opened(context) as conversations:
        id_, when = conversations.find(thread), moment(at)
        if as_json:
            from clew.cli import json_shapes

            found = conversations.thread(id_).history(at=when.at, at_message=when.at_message)
            write_json(json_shapes.history(found, runs(conversations, found)))
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
            follow_events(conversations, id_, after, as_json=as_json)
        elif as_json:
            from clew.cli import json_shapes

            for event in conversations.thread(id_).events(after=after):
                write_json(json_shapes.event(event))
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
    from clew.cli.event_rendering import lookup
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

    events = list(conversations.thread(history.thread_id).events(at=history.version or None))
    return run_summaries(events, after_cuts=_after_cuts(conversations, events))


def _after_cuts(conversations: Conversations, events: Iterable[Event]) -> Iterator[Event]:
    """The events right after the cuts of forks, in the parents, as far as they can be read."""
    from clew.domain.errors import ClewError
    from clew.domain.events import ThreadForked

    for event in events:
        if isinstance(event.data, ThreadForked):
            cut = event.data.parent_version
            with suppress(ClewError):
                yield from conversations.thread(event.data.parent_id).events(after=cut, at=cut + 1)


PATIENCE = 0.5
"""Seconds after which it is looked whether anybody still reads the output."""


def follow_events(conversations: Conversations, id_: str | None, after: int, *, as_json: bool) -> None:
    """Write the events of a thread, or of all of them, those that are there and then those that come.

    It ends when the store is closed, with Ctrl-C (SystemExit, as quiet as ``tail -f``), or with BrokenPipeError when
    nobody reads the output any more.
    """
    write = _json if as_json else _line(conversations, of_store=id_ is None)
    try:
        followed = conversations if id_ is None else conversations.thread(id_)
        with followed.subscribe(after=after) as events:
            for event in _while_read(events):
                write(event)
                sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _while_read(events: Subscription) -> Iterator[Event]:
    """The events, as long as the output has a reader: a pipe does not say by itself that it has none."""
    while True:
        event = events.wait(PATIENCE)
        if event is not None:
            yield event
        elif _nobody_reads():
            raise BrokenPipeError


def _nobody_reads() -> bool:
    try:
        output = sys.stdout.fileno()
        mode = os.fstat(output).st_mode
    except (OSError, ValueError):  # an output without a file behind it
        return False
    if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        return False
    poll = select.poll()
    poll.register(output, 0)
    return any(happened & (select.POLLERR | select.POLLHUP) for _, happened in poll.poll(0))


def _json(event: Event) -> None:
    from clew.cli import json_shapes

    write_json(json_shapes.event(event))


def _line(conversations: Conversations, *, of_store: bool) -> Callable[[Event], None]:
    """Writes an event on a line of its own, cut to the width of the terminal if there is one."""
    from clew.cli import rendering
    from clew.cli.event_rendering import lookup

    console, look = rendering.console(), lookup(conversations.thread)

    def write(event: Event) -> None:
        line = rendering.event_line(event, look, of_store=of_store)
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)

    return write
