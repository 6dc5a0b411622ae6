"""Commands that bring conversations in and out: import and export."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from clew.cli.candidates import thread_ids
from clew.cli.errors import FAILED, WrongUsage
from clew.cli.options import ActorOption, AsJson, opened
from clew.cli.output import one_line, safe, utf_8_output, write_json

if TYPE_CHECKING:
    from clew.conversations import Conversations
    from clew.domain.formats.conversation_import import Failure, ImportReport, Item
    from clew.domain.formats.event_import import EventsReport


def import_(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Files, or directories of them; - is standard input.")
    ],
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Import OpenAI chat conversations, or threads that Clew exported.

    What is there already is skipped, so importing again adds nothing. What `clew export --format clew` wrote is told by
    its first line.
    """
    events = event_files(files)
    if events:
        import_events(context, events, as_json=as_json)
    else:
        _import_conversations(context, files, actor, as_json=as_json)


def export(
    context: typer.Context,
    threads: Annotated[
        list[str] | None,
        typer.Argument(metavar="THREAD", help="Threads; by default all but forks.", autocompletion=thread_ids),
    ] = None,
    format_: Annotated[
        Literal["openai", "clew", "markdown"],
        typer.Option("--format", help="openai: as imported; clew: every event as it is stored; markdown: to read."),
    ] = "openai",
    forks: Annotated[bool, typer.Option("--forks", help="Forks, too; with clew they always are.")] = False,
    definitions: Annotated[
        bool, typer.Option("--definitions", help="With clew: instructions and tool schemas of agents, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write threads as JSON lines, event by event, or as Markdown."""
    if format_ == "markdown" and as_json:
        raise WrongUsage(context, "Markdown is no JSON: leave out --json, or choose another --format")
    if definitions and format_ != "clew":
        raise WrongUsage(context, "Only --format clew holds definitions: leave out --definitions, or choose that")
    with opened(context) as conversations:
        ids = [conversations.find(name) for name in threads or ()] or None
        if format_ == "clew":
            export_events(conversations, ids, definitions=definitions, as_json=as_json)
        elif format_ == "markdown":
            export_markdown(conversations, ids, forks=forks)
        else:
            for conversation in conversations.export(ids, forks=forks):
                write_json(conversation)


def _import_conversations(context: typer.Context, files: Sequence[Path], actor: str | None, *, as_json: bool) -> None:
    items, anything = _beginning(files)  # what holds nothing must not leave an empty database behind
    if anything:
        with opened(context, create=True) as conversations, _watched(items, files, as_json=as_json) as watched:
            report = conversations.import_items(watched, actor=actor)
    else:
        from clew.domain.formats.conversation_import import Failure, ImportReport

        report = ImportReport(0, 0, 0, 0, [item for item in items if isinstance(item, Failure)])
    if as_json:
        from clew.cli import json_shapes

        write_json(json_shapes.report(report))
    else:
        from clew.cli import rendering

        rendering.console().print(report_text(report))
        for failure in report.failed:
            place = failure.file if failure.line is None else f"{failure.file}:{failure.line}"
            typer.echo(f"clew: {one_line(f'{place}: {failure.error}')}", err=True)
    if report.failed:
        raise typer.Exit(FAILED)


def report_text(report: ImportReport) -> str:
    """What ``clew import`` says to people, but for the failures."""
    lines = ["Nothing new was imported."]
    if report.threads:
        into = f"{counted(report.messages, 'message')} into {counted(report.threads, 'thread')}"
        lines = [f"Imported {into}: {counted(report.events, 'event')}."]
    if report.skipped:
        lines.append(f"Skipped {counted(report.skipped, 'conversation')}: there already, and equal.")
    return "\n".join(lines)


def _beginning(files: Sequence[Path]) -> tuple[Iterator[Item | Failure], bool]:
    """What there is to import, read up to the first conversation, and whether there is one at all.

    Raises ImportFormatError.
    """
    from clew.domain.errors import ImportFormatError, InvalidContentError
    from clew.domain.formats.conversation_import import Failure, failure, read_conversation
    from clew.infrastructure.conversation_files import read_conversations

    items = read_conversations(files)
    failed: list[Item | Failure] = []
    for item in items:
        if isinstance(item, Failure):
            failed.append(item)
            continue
        try:
            read_conversation(item.value)
        except (ImportFormatError, InvalidContentError) as error:
            failed.append(failure(item, error))
        else:
            return chain(failed, (item,), items), True
    return iter(failed), False


@contextmanager
def _watched(
    items: Iterator[Item | Failure], files: Sequence[Path], *, as_json: bool
) -> Iterator[Iterator[Item | Failure]]:
    """The same, with a bar that shows how many of the lines are read, on a terminal only."""
    if as_json or not sys.stderr.isatty():
        yield items
        return

    from rich.progress import Progress

    from clew.cli import rendering
    from clew.infrastructure.conversation_files import find_files

    lines = {str(file): _lines(file) for file in find_files(files)}
    with Progress(console=rendering.console(stderr=True), transient=True) as progress:
        task = progress.add_task("Importing", total=sum(lines.values()))

        def watched() -> Iterator[Item | Failure]:
            before, current = 0, None
            for item in items:
                if current is not None and item.file != current:
                    before += lines.get(current, 0)
                current = item.file
                progress.update(task, completed=before + (item.line or 0))
                yield item

        yield watched()


def _lines(file: Path) -> int:
    with file.open("rb") as opened_file:
        return 1 + sum(block.count(b"\n") for block in iter(lambda: opened_file.read(1 << 20), b""))


STDIN = "-"
FIRST_BYTES = 1_000
"""Bytes within which the first line of a file in Clew's own JSONL ends."""

EVENTS_A_STEP = 500
"""Events after which a bar moves."""


def event_files(files: Sequence[Path]) -> list[Path]:
    """The files that the arguments name if they are in Clew's own JSONL, none if they are of conversations.

    Raises ImportFormatError for both at once, and for standard input without events.
    """
    from clew.domain.errors import ImportFormatError
    from clew.infrastructure.conversation_files import find_files
    from clew.infrastructure.event_files import EventFile, is_event_file

    stdin = [file for file in files if str(file) == STDIN]
    if stdin and not _is_piped():
        raise ImportFormatError("Standard input is not in Clew's own JSONL. Conversations are imported from files.")
    found = find_files(file for file in files if str(file) != STDIN)
    events = [file for file in found if is_event_file(file)]
    for file in events:
        try:
            EventFile.open(file).close()  # one of a newer format is refused before a database is made
        except ImportFormatError as error:
            raise ImportFormatError(f"{one_line(str(file))}: {error}") from error
    if not events and not stdin:
        return []
    for file in found:
        if file not in events:
            raise ImportFormatError(
                f"{one_line(str(file))} is not in Clew's own JSONL, and others are. Import them one after the other."
            )
    return stdin[:1] + events


def import_events(context: typer.Context, files: Sequence[Path], *, as_json: bool) -> None:
    """Import files in Clew's own JSONL, one after the other, and say what was done."""
    reports: list[tuple[str, EventsReport]] = []
    with opened(context, create=True) as conversations, _bar(files, as_json=as_json) as show:
        for file in files:
            with _source(file) as source:
                report = conversations.import_events(source, progress=partial(show, source))
            reports.append(("stdin" if str(file) == STDIN else str(file), report))
    from clew.cli import json_shapes

    found = json_shapes.events_report(reports)
    if as_json:
        write_json(found)
    else:
        typer.echo(_text(reports))
        for failure in found["failed"]:
            said = one_line("{file}:{line}: {error}".format(**failure))
            typer.echo(f"clew: {said}", err=True)
    if found["failed"]:
        raise typer.Exit(FAILED)


def export_events(
    conversations: Conversations, thread_ids: Iterable[str] | None, *, definitions: bool, as_json: bool
) -> None:
    """Write threads in Clew's own JSONL, with a count on a terminal that is not written to."""
    utf_8_output()
    sys.stdout.flush()
    lines = conversations.export_events(thread_ids, definitions=definitions)
    if not as_json and sys.stderr.isatty() and not sys.stdout.isatty():
        lines = _counted(lines)
    write = sys.stdout.buffer.write
    for line in lines:
        write(line)
    sys.stdout.buffer.flush()


def export_markdown(conversations: Conversations, thread_ids: Iterable[str] | None, *, forks: bool) -> None:
    """Write threads as Markdown, one after the other."""
    if thread_ids is None:
        thread_ids = (
            summary.id
            for summary in conversations.threads()
            if summary.status != "deleted" and (forks or summary.parent_id is None)
        )
    utf_8_output()
    for number, thread_id in enumerate(thread_ids):
        sys.stdout.write(("\n" if number else "") + safe(conversations.thread(thread_id).markdown()))


def counted(number: int, word: str) -> str:
    """So many of something, in words."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def _text(reports: Sequence[tuple[str, EventsReport]]) -> str:
    """What is said to people, but for what was not imported."""
    threads = sum(report.threads for _, report in reports)
    events = sum(report.events for _, report in reports)
    skipped = sum(report.skipped for _, report in reports)
    definitions = sum(report.definitions for _, report in reports)
    lines = []
    if events:
        lines = [f"Imported {counted(events, 'event')} into {counted(threads, 'thread')}, verified."]
    if definitions:
        lines.append(f"Imported {counted(definitions, 'definition')} of agents.")
    if not lines:
        lines = ["Nothing new was imported."]
    if skipped:
        lines.append(f"Skipped {counted(skipped, 'event')}: there already, and equal.")
    return "\n".join(lines)


def _is_piped() -> bool:
    """Whether what comes on standard input is in Clew's own JSONL; nothing is taken from it."""
    from clew.domain.formats.clew_jsonl import is_header

    source = sys.stdin.buffer
    return isinstance(source, io.BufferedReader) and is_header(source.peek(FIRST_BYTES).partition(b"\n")[0])


@contextmanager
def _source(file: Path) -> Iterator[BinaryIO]:
    if str(file) == STDIN:
        yield sys.stdin.buffer
    else:
        with file.open("rb") as source:
            yield source


@contextmanager
def _bar(files: Sequence[Path], *, as_json: bool) -> Iterator[Callable[[BinaryIO, EventsReport], None]]:
    """Shows how much of the files is read, on a terminal only."""
    if as_json or not sys.stderr.isatty() or any(str(file) == STDIN for file in files):
        yield lambda *_: None
        return

    from rich.progress import Progress

    from clew.cli import rendering

    with Progress(console=rendering.console(stderr=True), transient=True) as progress:
        tasks = {str(file): progress.add_task("Importing", total=file.stat().st_size, visible=False) for file in files}

        def show(source: BinaryIO, _: EventsReport) -> None:
            progress.update(tasks[source.name], completed=source.tell(), visible=True)

        yield show


def _counted(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The same, and how many there were is shown. There is no end to be seen: it is not known how many will come."""
    from rich.progress import Progress, TextColumn

    from clew.cli import rendering

    with Progress(
        TextColumn("Exported {task.completed:,} lines"), console=rendering.console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("", total=None)
        for number, line in enumerate(lines, start=1):
            if number % EVENTS_A_STEP == 0:
                progress.update(task, completed=number)
            yield line
