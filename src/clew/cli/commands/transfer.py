"""Commands that bring conversations into a store and out of it: import and export."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from clew.cli.candidates import thread_ids
from clew.cli.command import command
from clew.cli.errors import FAILED, WrongUsage
from clew.cli.options import ActorOption, AsJson, open_store
from clew.cli.output import console as new_console
from clew.cli.output import one_line, plural, safe, use_utf_8, write_json

if TYPE_CHECKING:
    from clew.conversations import Conversations
    from clew.domain.formats.conversation_import import ImportFailure, ImportReport, Item
    from clew.domain.formats.event_import import EventsReport

STDIN = "-"

FIRST_BYTES = 1_000
"""Bytes that hold the first line of a file in Clew's own JSONL."""

COUNT_EVERY = 500
"""Lines after which the count of exported lines is updated."""


@command(
    "clew import chats.jsonl",
    "clew import exports/ more.json --json",
    "clew import copy.jsonl",
    heading="Begin",
    name="import",
)
def import_(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Files, or directories of them; - is standard input.")
    ],
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Import OpenAI chat conversations, or threads that Clew exported.

    It skips what it has imported before, so it is safe to repeat. It recognises files of `clew export --format clew` by
    their first line.
    """
    events = _event_files(files)
    if events:
        _import_events(context, events, as_json=as_json)
    else:
        _import_conversations(context, files, actor, as_json=as_json)


@command(
    "clew export > chats.jsonl",
    "clew export 3f2a 9c01 --forks",
    "clew export --format clew > copy.jsonl",
    "clew export 3f2a --format markdown > thread.md",
    heading="Audit and export",
)
def export(
    context: typer.Context,
    threads: Annotated[
        list[str] | None,
        typer.Argument(metavar="THREAD", help="Threads; by default all except forks.", autocompletion=thread_ids),
    ] = None,
    format_: Annotated[
        Literal["openai", "clew", "markdown"],
        typer.Option("--format", help="openai: as imported; clew: every event as stored; markdown: to read."),
    ] = "openai",
    forks: Annotated[bool, typer.Option("--forks", help="Include forks; --format clew always does.")] = False,
    definitions: Annotated[
        bool, typer.Option("--definitions", help="With clew: include agents' instructions and tool schemas.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write threads as JSON lines, event by event, or as Markdown."""
    if format_ == "markdown" and as_json:
        raise WrongUsage(context, "Markdown is not JSON: omit --json, or choose another --format")
    if definitions and format_ != "clew":
        raise WrongUsage(context, "--definitions needs --format clew")
    with open_store(context) as conversations:
        ids = [conversations.find(name) for name in threads or ()] or None
        if format_ == "clew":
            _export_events(conversations, ids, definitions=definitions, as_json=as_json)
        elif format_ == "markdown":
            _export_markdown(conversations, ids, forks=forks)
        else:
            for conversation in conversations.export(ids, forks=forks):
                write_json(conversation)


def import_text(report: ImportReport) -> str:
    """What ``clew import`` prints, except the failures."""
    lines = ["Nothing new was imported."]
    if report.threads:
        into = f"{plural(report.messages, 'message')} into {plural(report.threads, 'thread')}"
        lines = [f"Imported {into}: {plural(report.events, 'event')}."]
    if report.skipped:
        lines.append(f"Skipped {plural(report.skipped, 'conversation')} that {_was(report.skipped)} imported before.")
    return "\n".join(lines)


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def _import_conversations(context: typer.Context, files: Sequence[Path], actor: str | None, *, as_json: bool) -> None:
    items, has_any = _read_first(files)  # files without a conversation must not leave an empty database behind
    if has_any:
        with open_store(context, create=True) as conversations, _with_progress(items, files, as_json=as_json) as read:
            report = conversations.import_items(read, actor=actor)
    else:
        from clew.domain.formats.conversation_import import ImportFailure, ImportReport

        report = ImportReport(0, 0, 0, 0, [item for item in items if isinstance(item, ImportFailure)])
    if as_json:
        from clew.cli.rendering import json_shapes

        write_json(json_shapes.report(report))
    else:
        new_console().print(import_text(report))
        for failure in report.failed:
            place = failure.file if failure.line is None else f"{failure.file}:{failure.line}"
            typer.echo(f"clew: {one_line(f'{place}: {failure.error}')}", err=True)
    if report.failed:
        raise typer.Exit(FAILED)


def _read_first(files: Sequence[Path]) -> tuple[Iterator[Item | ImportFailure], bool]:
    """The items to import, read up to the first conversation, and whether there is one. Raises ImportFormatError."""
    from clew.domain.errors import ImportFormatError, InvalidContentError
    from clew.domain.formats.conversation_import import ImportFailure, failure, read_conversation
    from clew.infrastructure.conversation_files import read_conversations

    items = read_conversations(files)
    failed: list[Item | ImportFailure] = []
    for item in items:
        if isinstance(item, ImportFailure):
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
def _with_progress(
    items: Iterator[Item | ImportFailure], files: Sequence[Path], *, as_json: bool
) -> Iterator[Iterator[Item | ImportFailure]]:
    """The same items; on a terminal a bar shows how many of the lines are read."""
    if as_json or not sys.stderr.isatty():
        yield items
        return

    from rich.progress import Progress

    from clew.infrastructure.conversation_files import find_files

    lines = {str(file): _lines(file) for file in find_files(files)}
    with Progress(console=new_console(stderr=True), transient=True) as progress:
        task = progress.add_task("Importing", total=sum(lines.values()))

        def watched() -> Iterator[Item | ImportFailure]:
            before, current = 0, None
            for item in items:
                if current is not None and item.file != current:
                    before += lines.get(current, 0)
                current = item.file
                progress.update(task, completed=before + (item.line or 0))
                yield item

        yield watched()


def _lines(file: Path) -> int:
    with file.open("rb") as opened:
        return 1 + sum(block.count(b"\n") for block in iter(lambda: opened.read(1 << 20), b""))


def _event_files(files: Sequence[Path]) -> list[Path]:
    """The files in Clew's own JSONL; none if the files hold conversations.

    Raises ImportFormatError for a mixture, and for standard input without events.
    """
    from clew.domain.errors import ImportFormatError
    from clew.infrastructure.conversation_files import find_files
    from clew.infrastructure.event_files import EventFile, is_event_file

    stdin = [file for file in files if str(file) == STDIN]
    if stdin and not _stdin_has_events():
        raise ImportFormatError("Standard input is not in Clew's own JSONL. Import conversations from files.")
    found = find_files(file for file in files if str(file) != STDIN)
    events = [file for file in found if is_event_file(file)]
    for file in events:
        try:
            EventFile.open(file).close()  # refuses a newer format before a database is made
        except ImportFormatError as error:
            raise ImportFormatError(f"{one_line(str(file))}: {error}") from error
    if not events and not stdin:
        return []
    for file in found:
        if file not in events:
            raise ImportFormatError(
                f"{one_line(str(file))} is not in Clew's own JSONL, and other files are. Import them separately."
            )
    return stdin[:1] + events


def _import_events(context: typer.Context, files: Sequence[Path], *, as_json: bool) -> None:
    reports: list[tuple[str, EventsReport]] = []
    with open_store(context, create=True) as conversations, _file_bar(files, as_json=as_json) as show:
        for file in files:
            with nullcontext(sys.stdin.buffer) if str(file) == STDIN else file.open("rb") as source:
                report = conversations.import_events(source, progress=lambda _, source=source: show(source))  # type: ignore[misc]  # bound for the loop
            reports.append(("stdin" if str(file) == STDIN else str(file), report))
    from clew.cli.rendering import json_shapes

    shape = json_shapes.events_report(reports)
    if as_json:
        write_json(shape)
    else:
        typer.echo(_events_text(shape))
        for failure in shape["failed"]:
            typer.echo(f"clew: {one_line('{file}:{line}: {error}'.format(**failure))}", err=True)
    if shape["failed"]:
        raise typer.Exit(FAILED)


def _events_text(report: dict[str, int]) -> str:
    """What an import of events prints, except the failures."""
    lines = []
    if report["events"]:
        lines.append(
            f"Imported {plural(report['events'], 'event')} into {plural(report['threads'], 'thread')}, verified."
        )
    if report["definitions"]:
        lines.append(f"Imported {plural(report['definitions'], 'definition')} of agents.")
    if not lines:
        lines.append("Nothing new was imported.")
    if report["skipped"]:
        lines.append(f"Skipped {plural(report['skipped'], 'event')} that {_was(report['skipped'])} imported before.")
    return "\n".join(lines)


def _stdin_has_events() -> bool:
    """Whether standard input is in Clew's own JSONL. Nothing is consumed."""
    from clew.domain.formats.clew_jsonl import is_header

    source = sys.stdin.buffer
    return isinstance(source, io.BufferedReader) and is_header(source.peek(FIRST_BYTES).partition(b"\n")[0])


@contextmanager
def _file_bar(files: Sequence[Path], *, as_json: bool) -> Iterator[Callable[[BinaryIO], None]]:
    """On a terminal, a bar for each file shows how much of it is read."""
    if as_json or not sys.stderr.isatty() or any(str(file) == STDIN for file in files):
        yield lambda _: None
        return

    from rich.progress import Progress

    with Progress(console=new_console(stderr=True), transient=True) as progress:
        tasks = {str(file): progress.add_task("Importing", total=file.stat().st_size, visible=False) for file in files}
        yield lambda source: progress.update(tasks[source.name], completed=source.tell(), visible=True)


def _export_events(
    conversations: Conversations, ids: Iterable[str] | None, *, definitions: bool, as_json: bool
) -> None:
    """Write threads in Clew's own JSONL. While stdout goes to a file, a terminal on stderr shows a count."""
    use_utf_8()
    sys.stdout.flush()
    lines = conversations.export_events(ids, definitions=definitions)
    if not as_json and sys.stderr.isatty() and not sys.stdout.isatty():
        lines = _counted(lines)
    write = sys.stdout.buffer.write
    for line in lines:
        write(line)
    sys.stdout.buffer.flush()


def _counted(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The same lines, counted on the terminal. The total is not known beforehand."""
    from rich.progress import Progress, TextColumn

    with Progress(
        TextColumn("Exported {task.completed:,} lines"), console=new_console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("", total=None)
        for number, line in enumerate(lines, start=1):
            if number % COUNT_EVERY == 0:
                progress.update(task, completed=number)
            yield line


def _export_markdown(conversations: Conversations, ids: Iterable[str] | None, *, forks: bool) -> None:
    if ids is None:
        ids = (
            summary.id
            for summary in conversations.threads()
            if summary.status != "deleted" and (forks or summary.parent_id is None)
        )
    use_utf_8()
    for number, id_ in enumerate(ids):
        sys.stdout.write(("\n" if number else "") + safe(conversations.thread(id_).markdown()))
