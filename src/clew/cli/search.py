"""The command that finds messages: search."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.candidates import thread_ids
from clew.cli.options import AsJson, opened
from clew.cli.output import catch_up, one_line, safe, shown_time, write_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from clew.conversations import Conversations
    from clew.service.message_search import Hit

NAMED = 3
"""Forks that a hit names to people."""


def search(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS…", help="All of these words; '\"a phrase\"', 'beginning*', '-without'."),
    ],
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="THREAD", help="Only what this thread has.", autocompletion=thread_ids),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="The newest N, and no more.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Find messages by their words, newest first.

    Tool calls and results are searched, too.
    """
    with opened(context) as conversations:
        within = None if thread is None else conversations.find(thread)
        catch_up(conversations, "search")
        found = conversations.search(" ".join(words), thread=within, limit=limit)
        if as_json:
            from clew.cli import json_shapes

            for hit in found:
                write_json(json_shapes.hit(hit))
        else:
            from clew.cli import rendering

            print_hits(conversations, found, rendering.console())
            if len(found) == limit:
                typer.echo(f"\nThese are the newest {limit:,}. `--limit N` shows more, if there are.")


def print_hits(conversations: Conversations, found: Sequence[Hit], console: Console) -> None:
    """Write what ``clew search`` shows to people: the messages by thread, that with the newest first."""
    from rich.text import Text

    if not found:
        console.print("No message has that.")
    threads: dict[str, list[Hit]] = {}
    for hit in found:
        threads.setdefault(hit.thread_id, []).append(hit)
    for number, (id_, hits) in enumerate(threads.items()):
        if number:
            console.print()
        title = conversations.thread(id_).summary().title
        heading = Text.assemble((one_line(id_), "bold"), "" if title is None else f"  {one_line(title)}")
        heading.truncate(console.width, overflow="ellipsis")
        console.print(heading, soft_wrap=True)
        for hit in hits:
            for line in _lines(hit):
                console.print(line)


def _lines(hit: Hit) -> Iterator[RenderableType]:
    from rich.text import Text

    from clew.cli.rendering import ROLE_STYLES

    yield Text.assemble(
        (f"{hit.number:>3} ", "dim"),
        (hit.role, f"bold {ROLE_STYLES[hit.role]}"),
        "" if hit.author is None else f" {one_line(hit.author)}",
        (f"  version {hit.version} · {shown_time(hit.time)}", "dim"),
    )
    yield _indented(*((_spaced(part.text), "bold black on yellow" if part.found else "") for part in hit.snippet))
    if hit.fork_count:
        named = ", ".join(one_line(fork) for fork in hit.forks[:NAMED])
        more = f" and {hit.fork_count - NAMED:,} more" if hit.fork_count > NAMED else ""
        yield _indented((f"also in {named}{more}", "dim"))
    yield _indented((f"clew show {shlex.quote(one_line(hit.thread_id))} --at {hit.version}", "dim"))


def _indented(*parts: tuple[str, str]) -> RenderableType:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text.assemble(*parts, overflow="fold"), (0, 0, 0, 4), expand=False)


def _spaced(text: str) -> str:
    """Text on one line, with the spaces at its ends."""
    return safe(re.sub(r"\s+", " ", text))
