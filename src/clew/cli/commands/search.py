"""The command that finds messages: search."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.candidates import thread_ids
from clew.cli.command import command
from clew.cli.options import AsJson, open_store
from clew.cli.output import catch_up, one_line, safe, time_text, write_json
from clew.cli.output import console as new_console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from clew.conversations import Conversations
    from clew.service.message_search import Hit

NAMED_FORKS = 3
"""Forks that a hit names; the others are counted."""


@command(
    "clew search teapot refund",
    "clew search '\"green glaze\" teapot* -broken'",
    "clew search teapot --thread 3f2a",
    heading="Read",
)
def search(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS…", help="All of these words; '\"a phrase\"', 'prefix*', '-without'."),
    ],
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="THREAD", help="Only in this thread.", autocompletion=thread_ids),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Only the newest N.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Find messages by their words, newest first.

    Tool calls and results are searched, too.
    """
    with open_store(context) as conversations:
        within = None if thread is None else conversations.find(thread)
        catch_up(conversations, "search")
        hits = conversations.search(" ".join(words), thread=within, limit=limit)
        if as_json:
            from clew.cli.rendering import json_shapes

            for hit in hits:
                write_json(json_shapes.hit(hit))
        else:
            print_hits(conversations, hits, new_console())
            if len(hits) == limit:
                typer.echo(f"\nThese are the newest {limit:,}. There may be more: `--limit N`.")


def print_hits(conversations: Conversations, hits: Sequence[Hit], console: Console) -> None:
    """Print what ``clew search`` shows: the messages by thread, the thread with the newest hit first."""
    from rich.text import Text

    if not hits:
        console.print("No matching messages.")
    threads: dict[str, list[Hit]] = {}
    for hit in hits:
        threads.setdefault(hit.thread_id, []).append(hit)
    for number, (id_, found) in enumerate(threads.items()):
        if number:
            console.print()
        title = conversations.thread(id_).summary().title
        heading = Text.assemble((one_line(id_), "bold"), "" if title is None else f"  {one_line(title)}")
        heading.truncate(console.width, overflow="ellipsis")
        console.print(heading, soft_wrap=True)
        for hit in found:
            for line in _hit_lines(hit):
                console.print(line)


def _hit_lines(hit: Hit) -> Iterator[RenderableType]:
    from rich.text import Text

    from clew.cli.rendering.messages import ROLE_STYLES

    yield Text.assemble(
        (f"{hit.number:>3} ", "dim"),
        (hit.role, f"bold {ROLE_STYLES[hit.role]}"),
        "" if hit.author is None else f" {one_line(hit.author)}",
        (f"  version {hit.version} · {time_text(hit.time)}", "dim"),
    )
    yield _indented(*((_on_one_line(part.text), "bold black on yellow" if part.found else "") for part in hit.snippet))
    if hit.fork_count:
        forks = ", ".join(one_line(fork) for fork in hit.forks[:NAMED_FORKS])
        more = f" and {hit.fork_count - NAMED_FORKS:,} more" if hit.fork_count > NAMED_FORKS else ""
        yield _indented((f"also in {forks}{more}", "dim"))
    yield _indented((f"clew show {shlex.quote(one_line(hit.thread_id))} --at {hit.version}", "dim"))


def _indented(*parts: tuple[str, str]) -> RenderableType:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text.assemble(*parts, overflow="fold"), (0, 0, 0, 4), expand=False)


def _on_one_line(text: str) -> str:
    """Like one_line(), but keeps a space at either end."""
    return safe(re.sub(r"\s+", " ", text))
