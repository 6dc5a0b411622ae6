"""Commands that read the history of one thread: show, records, log, replay and diff."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clew.cli import INTERRUPTED
from clew.cli.app import command
from clew.cli.candidates import record_keys, record_types
from clew.cli.errors import WrongUsage
from clew.cli.options import (
    NO_EVENTS,
    AsJson,
    AtOption,
    Moment,
    ThreadArgument,
    list_limit,
    open_store,
    open_thread,
    parse_moment,
    thread_argument,
    version_of,
    version_option,
)
from clew.cli.output import console as new_console
from clew.cli.output import print_lines, use_utf_8, write_json, write_json_lines
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from clew.conversations import Conversations
    from clew.domain.events import Event
    from clew.domain.history import History, Step
    from clew.domain.records import ThreadRecord
    from clew.domain.runs.summaries import RunSummary
    from clew.sync.subscription import Subscription
    from clew.sync.threads import Thread

LONGEST_LINE = 10_000
"""Columns of a line of a table that is written whole."""

CHECK_INTERVAL = 0.5
"""Seconds between checks whether the output still has a reader."""


@command(
    "clew show 3f2a",
    "clew show 3f2a --at message:4",
    'clew show 3f2a --at "before refund"',
    "clew show 3f2a --at 2026-01-31T12:00:00Z --json",
    heading="Read",
)
def show(context: typer.Context, thread: ThreadArgument, at: AtOption = None, as_json: AsJson = False) -> None:
    """Show a thread's messages, records and runs, now or as they were."""
    with open_store(context) as conversations:
        id_, when = conversations.find(thread), parse_moment(at)
        if as_json:
            history = conversations.thread(id_).history(at=when.at, at_message=when.at_message)
            runs, records = runs_of(conversations, history), records_of(conversations, history)
            write_json(json_shapes.history(history, runs, records))
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
        str | None, thread_argument("A thread's id, or a unique prefix of it; optional with --follow.")
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
        raise WrongUsage("Missing argument 'THREAD': only --follow works without it")
    with open_store(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        if follow or id_ is None:
            follow_events(conversations, id_, after, as_json=as_json)
        elif as_json:
            write_json_lines(map(json_shapes.event, conversations.thread(id_).events(after=after)))
        else:
            console = new_console()
            print_events(conversations, id_, console, after, whole=_is_whole(console))


@command(
    "clew records 3f2a",
    "clew records 3f2a --type step --key main --last 1",
    'clew records 3f2a --at "before refund"',
    "clew records 3f2a --type step --json | jq -c .data",
    heading="Read",
)
def records(
    context: typer.Context,
    thread: ThreadArgument,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Only records of this type; give it again for another one.",
            autocompletion=record_types,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Only records with this key.", autocompletion=record_keys),
    ] = None,
    last: Annotated[int | None, typer.Option("--last", "-n", metavar="N", min=1, help="Only the newest N.")] = None,
    at: AtOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Every one, even with --last; the default with --json.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the records of a thread: what applications store next to its messages. Oldest first."""
    most = list_limit(last, all_=all_, as_json=as_json)
    with open_thread(context, thread) as opened:
        when = version_of(opened, parse_moment(at))
        if as_json:
            write_json_lines(map(json_shapes.listed_record, opened.records(*types or (), key=key, last=most, at=when)))
            return
        # One more than the limit shows whether there are others.
        listed = opened.records(*types or (), key=key, last=None if most is None else most + 1, at=when)
    console = new_console()
    if not listed:
        console.print("No matching records.")
        return

    from clew.cli.rendering.records import record_table

    whole = _is_whole(console)
    _print_table(record_table(listed if most is None else listed[-most:], console, whole=whole), console, whole=whole)
    if most is not None and len(listed) > most:
        console.print(f"These are the newest {most:,}. `--last N` shows more, `--all` shows every one.")


@command("clew replay 3f2a", 'clew replay 3f2a --at "before refund"', "clew replay 3f2a --json", heading="Read")
def replay(context: typer.Context, thread: ThreadArgument, at: AtOption = None, as_json: AsJson = False) -> None:
    """Step through a thread, forward and back. Keys: → ← and ? for all of them; q quits."""
    with open_thread(context, thread) as opened:
        when = parse_moment(at)
        step = opened.step(at=when.at, at_message=when.at_message)
        if as_json:
            write_json_lines(map(json_shapes.step, steps(opened, step)))
            return

        from clew.cli import stepper, terminal

        if terminal.supports_full_screen():
            with terminal.full_screen() as screen:
                stepper.run(opened, step, screen)
        else:
            from clew.cli.rendering.events import event_finder

            find = event_finder(lambda _: opened)
            print_lines(line for each in steps(opened, step) for line in stepper.step_lines(each, opened.id, find))


@command(
    "clew diff 3f2a 9c01",
    'clew diff 3f2a --at "before refund"',
    "clew diff 3f2a 9c01 --format markdown > diff.md",
    heading="Read",
)
def diff(
    context: typer.Context,
    thread: ThreadArgument,
    other: Annotated[
        str | None, thread_argument("The other thread; by default another version of the same.", metavar="OTHER")
    ] = None,
    at: AtOption = None,
    other_at: Annotated[
        str | None, version_option("--other-at", "The version of the other side, as for --at.", metavar="Y")
    ] = None,
    format_: Annotated[
        Literal["terminal", "markdown"],
        typer.Option("--format", metavar="F", help="terminal, or markdown for a document."),
    ] = "terminal",
    everything: Annotated[
        bool, typer.Option("--all", help="Show unchanged messages too, and long values whole.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two threads, or two versions of one."""
    if other is None and at is None and other_at is None:
        raise WrongUsage("There is nothing to compare with: give another thread, --at or --other-at")
    when, other_when = parse_moment(at), parse_moment(other_at, "--other-at")
    with open_store(context) as conversations:
        result = conversations.diff(
            conversations.find(thread),
            None if other is None else conversations.find(other),
            at=when.at,
            other_at=other_when.at,
            at_message=when.at_message,
            other_at_message=other_when.at_message,
        )
    if as_json:
        write_json(json_shapes.diff(result, everything=everything))
    elif format_ == "markdown":
        from clew.cli.rendering.diff_markdown import diff_document

        use_utf_8()
        for line in diff_document(result, everything=everything):
            typer.echo(line)
    else:
        from clew.cli.rendering.diff_terminal import diff_lines

        print_lines(diff_lines(result, new_console(), everything=everything))


def print_thread(conversations: Conversations, id_: str, when: Moment, console: Console) -> None:
    """Print the output of ``clew show``."""
    from clew.cli.rendering.conversation import conversation_lines

    thread = conversations.thread(id_)
    history, summary = thread.history(at=when.at, at_message=when.at_message), thread.summary()
    runs, records = runs_of(conversations, history), records_of(conversations, history)
    for line in conversation_lines(history, summary.title, summary.version, console, runs, records):
        console.print(line, soft_wrap=True)


def print_events(
    conversations: Conversations, id_: str, console: Console, after: int = 0, *, whole: bool = False
) -> None:
    """Print the output of ``clew log``; with ``whole`` the lines have any length.

    If an event cannot be read, print those before it and raise the error.
    """
    from clew.cli.rendering.events import OFF_PATH, event_finder, event_table, off_path
    from clew.domain.errors import ClewError

    events: list[Event] = []
    failure = None
    try:
        events.extend(conversations.thread(id_).events(after=after))  # those before an error are kept
    except ClewError as error:
        if not events:
            raise
        failure = error
    if not events:
        console.print(NO_EVENTS)
        return
    rewound = off_path(events)
    table = event_table(events, id_, console, event_finder(conversations.thread), rewound, whole=whole)
    _print_table(table, console, whole=whole)
    if rewound:
        console.print(f"{OFF_PATH} taken back by a rewind", style="dim")
    if failure is not None:
        raise failure


def _is_whole(console: Console) -> bool:
    """Whether lines have any length: for a pipe or a file without a width."""
    return not console.is_terminal and "COLUMNS" not in os.environ


def _print_table(table: Table, console: Console, *, whole: bool) -> None:
    from rich.measure import Measurement

    if whole:
        options = console.options.update(max_width=LONGEST_LINE)
        console.width = max(console.width, Measurement.get(console, options, table).maximum)
    console.print(table)


def runs_of(conversations: Conversations, history: History) -> list[RunSummary]:
    """The runs on the path of a history."""
    from clew.domain.runs.summaries import run_summaries

    events = list(conversations.thread(history.thread_id).events(at=history.version or None))
    return run_summaries(events, after_cuts=_after_cuts(conversations, events))


def records_of(conversations: Conversations, history: History) -> list[ThreadRecord]:
    """The records on the path of a history."""
    return conversations.thread(history.thread_id).records(at=history.version or None)


def _after_cuts(conversations: Conversations, events: Iterable[Event]) -> Iterator[Event]:
    """The first event after each fork's cut, in its parent, if it can be read."""
    from clew.domain.errors import ClewError
    from clew.domain.events import ThreadForked

    for event in events:
        if isinstance(event.data, ThreadForked):
            cut = event.data.parent_version
            with suppress(ClewError):
                yield from conversations.thread(event.data.parent_id).events(after=cut, at=cut + 1)


def steps(thread: Thread, last: Step) -> Iterator[Step]:
    """Every step up to ``last``, in order, in one pass. Each contains only the message that it appended."""
    from clew.domain.decider_state import Control, advance
    from clew.domain.history import Step, as_message

    control = Control()
    for event in thread.events(at=last.version):
        control, message = advance(control, event), as_message(event)
        yield Step(event, control, last.head, () if message is None else (message,))


def follow_events(conversations: Conversations, id_: str | None, after: int, *, as_json: bool) -> None:
    """Write the events of a thread, or of all, and then new ones as they are appended.

    Ends when the store is closed, by Ctrl-C (SystemExit without a message, as ``tail -f``), or with BrokenPipeError
    when the reader of the output has left.
    """
    write = _write_event if as_json else _event_printer(conversations, of_store=id_ is None)
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
        event = events.wait(CHECK_INTERVAL)
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


def _write_event(event: Event) -> None:
    write_json(json_shapes.event(event))


def _event_printer(conversations: Conversations, *, of_store: bool) -> Callable[[Event], None]:
    """A function that prints an event on one line, cut at the width of a terminal."""
    from clew.cli.rendering.events import event_finder, event_line

    console, find = new_console(), event_finder(conversations.thread)

    def print_event(event: Event) -> None:
        line = event_line(event, find, of_store=of_store)
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)

    return print_event
