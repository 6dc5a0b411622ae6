"""Commands that bring conversations in and out: import and export."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clew.cli import event_transfer
from clew.cli.completion import thread_ids
from clew.cli.event_transfer import counted
from clew.cli.failures import FAILED, WrongUsage
from clew.cli.options import ActorOption, AsJson
from clew.cli.stores import opened
from clew.cli.text import one_line, write_json

if TYPE_CHECKING:
    from clew.domain.formats.conversation_import import Failure, ImportReport, Item


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
    events = event_transfer.event_files(files)
    if events:
        event_transfer.import_events(context, events, as_json=as_json)
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
            event_transfer.export_events(conversations, ids, definitions=definitions, as_json=as_json)
        elif format_ == "markdown":
            event_transfer.export_markdown(conversations, ids, forks=forks)
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
        from clew.cli import shapes

        write_json(shapes.report(report))
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
