"""Commands that import conversations into a store and export them: import and export."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clew.cli.app import command
from clew.cli.candidates import thread_ids
from clew.cli.errors import FAILED, WrongUsage
from clew.cli.options import ActorOption, AsJson, open_store
from clew.cli.output import console as new_console
from clew.cli.output import (
    one_line,
    plural,
    progress_bar,
    safe,
    use_utf_8,
    write_json_lines,
    write_result,
)
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from clew.conversations import Conversations
    from clew.domain.formats.conversation_import import ImportFailure, ImportReport, Item
    from clew.domain.formats.event_import import EventsReport

STDIN = "-"

FIRST_BYTES = 1_000
"""Bytes that hold the first line of a file in Clew's own JSONL."""

FAILURES = 10
"""Most failures that are written for people: in a file of another kind, every line is one."""

COUNT_INTERVAL = 500
"""Lines after which the count of exported lines is updated."""


@command(
    "clew import chats.jsonl",
    "clew import chatgpt-export.zip",
    "clew import exports/ more.json --json",
    "clew import copy.jsonl",
    heading="Begin",
    name="import",
)
def import_(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Files, or directories of them; - is standard input, only for files of `clew export --format clew`.",
        ),
    ],
    actor: ActorOption = None,
    as_json: AsJson = False,
) -> None:
    """Import conversations of ChatGPT, Claude, agents and OpenAI chats, or threads that Clew exported.

    It reads the data exports of ChatGPT and Claude (the zip, its folder, or conversations.json), sessions of the OpenAI
    Agents SDK (the SQLite file of SQLiteSession, or a JSON list of items) and of Agent Framework, threads of OpenAI's
    Assistants, chats of Semantic Kernel, traces of LangSmith and Langfuse, and OpenAI chat messages as JSON or JSON
    lines. Their content decides about the format. Edits and repeated answers become forks, and what is not a message
    becomes a record.

    It skips what it has imported before, so it is safe to repeat. It recognises files of `clew export --format clew` by
    their first line.
    """
    if "" in files:
        raise WrongUsage("FILE '' is empty. Give a file or a directory (. for this one)")
    paths = list(map(Path, files))
    event_files = _event_files(paths)
    if event_files:
        _import_events(context, event_files, as_json=as_json)
    else:
        _import_conversations(context, paths, actor, as_json=as_json)


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
    children: Annotated[
        bool, typer.Option("--children", help="With clew: include the threads on which calls ran agents.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write threads as OpenAI JSON lines, as Clew's own events, or as Markdown."""
    if format_ == "markdown" and as_json:
        raise WrongUsage("Markdown is not JSON: omit --json, or choose another --format")
    if definitions and format_ != "clew":
        raise WrongUsage("--definitions needs --format clew")
    if children and format_ != "clew":
        raise WrongUsage("--children needs --format clew")
    with open_store(context) as conversations:
        ids = [conversations.find(name) for name in threads or ()] or None
        if format_ == "clew":
            _export_events(conversations, ids, definitions=definitions, children=children, as_json=as_json)
        elif format_ == "markdown":
            _export_markdown(conversations, ids, forks=forks)
        else:
            write_json_lines(conversations.export(ids, forks=forks))


def import_text(report: ImportReport) -> str:
    """The output of ``clew import``, except the failures."""
    lines = ["Nothing new was imported."]
    if report.threads:
        messages = f"{plural(report.messages, 'message')} into {plural(report.threads, 'thread')}"
        lines = [f"Imported {messages}: {plural(report.events, 'event')}."]
    if report.records:
        kinds = ", ".join(f"{number:,} {safe(type_)}" for type_, number in sorted(report.records.items()))
        lines.append(f"Kept as records, because they are not messages: {kinds}.")
    return "\n".join([*lines, *_skipped_line(report.skipped, "conversation")])


def _skipped_line(number: int, word: str) -> Iterator[str]:
    if number:
        yield f"Skipped {plural(number, word)} that {'was' if number == 1 else 'were'} imported before."


def _import_conversations(context: typer.Context, files: Sequence[Path], actor: str | None, *, as_json: bool) -> None:
    items, has_any = _read_first(files)  # files without a conversation must not leave an empty database behind
    if has_any:
        with open_store(context, create=True) as conversations, progress_bar("Importing", hidden=as_json) as progress:
            if sys.stderr.isatty() and not as_json:
                items = _with_progress(items, files, progress)
            report = conversations.import_items(items, actor=actor)
    else:
        from clew.domain.formats.conversation_import import ImportFailure, ImportReport

        report = ImportReport(0, 0, 0, 0, [item for item in items if isinstance(item, ImportFailure)])
    shape = json_shapes.import_report(report)
    write_result(shape, import_text(report), as_json=as_json)
    if not as_json:
        _print_failures(shape["failed"])
    if report.failed:
        raise typer.Exit(FAILED)


def _print_failures(failures: Sequence[dict[str, Any]]) -> None:
    """Write the first failures to stderr, one on a line, and the number of the others."""
    for failure in failures[:FAILURES]:
        place = failure["file"] if failure["line"] is None else f"{failure['file']}:{failure['line']}"
        line = one_line(f"{place}: {failure['error']}")
        typer.echo(f"clew: {line}", err=True)
    if len(failures) > FAILURES:
        typer.echo(f"clew: and {len(failures) - FAILURES:,} more. `--json` lists all.", err=True)


def _read_first(files: Sequence[Path]) -> tuple[Iterator[Item | ImportFailure], bool]:
    """The items to import, read up to the first conversation, and whether there is one. Raises ImportFormatError."""
    from clew.domain.errors import ImportFormatError, InvalidContentError
    from clew.domain.formats.conversation_import import ImportFailure, failure, read_conversation
    from clew.domain.formats.sources import read_transcript
    from clew.infrastructure.conversation_files import read_conversations

    items = read_conversations(files)
    failed: list[Item | ImportFailure] = []
    for item in items:
        if isinstance(item, ImportFailure):
            failed.append(item)
            continue
        try:
            if read_transcript(item) is None:
                read_conversation(item.value)
        except (ImportFormatError, InvalidContentError) as error:
            failed.append(failure(item, error))
        else:
            return chain(failed, (item,), items), True
    return iter(failed), False


def _with_progress(
    items: Iterator[Item | ImportFailure], files: Sequence[Path], progress: Callable[[int, int], None]
) -> Iterator[Item | ImportFailure]:
    """The same items; reports how many lines of the files are read."""
    from clew.infrastructure.conversation_files import find_files

    lines = {str(file): _count_lines(file) for file in find_files(files)}
    total = sum(lines.values())
    finished, current = 0, None
    for item in items:
        if current is not None and item.file != current:
            finished += lines.get(current, 0)
        current = item.file
        progress(finished + (item.line or 0), total)
        yield item


def _count_lines(file: Path) -> int:
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
    named = find_files(file for file in files if str(file) != STDIN)
    event_files = [file for file in named if is_event_file(file)]
    for file in event_files:
        try:
            EventFile.open(file).close()  # refuses a newer format before a database is made
        except ImportFormatError as error:
            raise ImportFormatError(f"{one_line(str(file))}: {error}") from error
    if not event_files and not stdin:
        return []
    for file in named:
        if file not in event_files:
            raise ImportFormatError(
                f"{one_line(str(file))} is not in Clew's own JSONL, and other files are. Import them separately."
            )
    return stdin[:1] + event_files


def _stdin_has_events() -> bool:
    """Whether standard input is in Clew's own JSONL. Nothing is consumed."""
    from clew.domain.formats.clew_jsonl import is_header

    source = sys.stdin.buffer
    return isinstance(source, io.BufferedReader) and is_header(source.peek(FIRST_BYTES).partition(b"\n")[0])


def _import_events(context: typer.Context, files: Sequence[Path], *, as_json: bool) -> None:
    reports: list[tuple[str, EventsReport]] = []
    with open_store(context, create=True) as conversations:
        for file in files:
            name = "stdin" if str(file) == STDIN else str(file)
            reports.append((name, _import_event_file(conversations, file, as_json=as_json)))
    shape = json_shapes.events_report(reports)
    write_result(shape, _events_text(shape), as_json=as_json)
    if not as_json:
        _print_failures(shape["failed"])
    if shape["failed"]:
        raise typer.Exit(FAILED)


def _import_event_file(conversations: Conversations, file: Path, *, as_json: bool) -> EventsReport:
    """Import one file. On a terminal, a bar shows how much of it is read; the size of standard input is unknown."""
    if str(file) == STDIN:
        return conversations.import_events(sys.stdin.buffer)
    size = file.stat().st_size
    with file.open("rb") as source, progress_bar("Importing", hidden=as_json) as progress:
        return conversations.import_events(source, progress=lambda _: progress(source.tell(), size))


def _events_text(report: dict[str, int]) -> str:
    """The output of an import of events, except the failures."""
    lines = []
    if report["events"]:
        lines.append(
            f"Imported {plural(report['events'], 'event')} into {plural(report['threads'], 'thread')}, verified."
        )
    if report["definitions"]:
        lines.append(f"Imported {plural(report['definitions'], 'definition')} of agents.")
    lines = lines or ["Nothing new was imported."]
    return "\n".join([*lines, *_skipped_line(report["skipped"], "event")])


def _export_events(
    conversations: Conversations, ids: Iterable[str] | None, *, definitions: bool, children: bool, as_json: bool
) -> None:
    """Write threads in Clew's own JSONL. If only stderr is a terminal, it shows a count."""
    use_utf_8()
    sys.stdout.flush()
    visible = not as_json and sys.stderr.isatty() and not sys.stdout.isatty()
    with new_console(stderr=True).status("Exported 0 lines") if visible else nullcontext() as status:
        lines = conversations.export_events(ids, definitions=definitions, children=children)
        for number, line in enumerate(lines, start=1):
            if status is not None and number % COUNT_INTERVAL == 0:
                status.update(f"Exported {number:,} lines")
            sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


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
