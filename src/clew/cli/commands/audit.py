"""The command that lists what happened: audit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli.app import command
from clew.cli.candidates import scope_names, thread_ids
from clew.cli.errors import WrongUsage
from clew.cli.options import (
    AGO,
    NO_EVENTS,
    AllOption,
    AsJson,
    LimitOption,
    SaidSinceOption,
    SaidUntilOption,
    check_order,
    list_limit,
    open_store,
    parse_said,
    parse_time,
)
from clew.cli.output import (
    catch_up,
    minute_text,
    one_line,
    shortened,
    time_text,
    write_json_lines,
)
from clew.cli.output import console as new_console
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from clew.conversations import Conversations
    from clew.service.audit_trail import AuditEntry

WIDE = 110
"""Columns of a terminal from which on times have seconds and ids are whole."""

SHORT_ID = 8
"""Characters of an id on a narrower terminal."""

SHORT_ACTOR = 12
"""Characters of an actor on a narrower terminal."""

_FORKED = re.compile(f"^(forked '[^']{{{SHORT_ID}}})[^']*")
"""The start of a sentence that names the parent of a fork; the group has the short form of its id."""


@command(
    "clew audit",
    "clew audit --actor user:42 --since 7d",
    "clew audit --on-behalf-of user:42",
    "clew audit --since 2026-01-01 --until 2026-02-01",
    "clew audit --type message-redacted",
    heading="Audit and export",
)
def audit(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="THREAD", help="Only events of this thread.", autocompletion=thread_ids),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option("--scope", metavar="SCOPE", help="Only events of this memory scope.", autocompletion=scope_names),
    ] = None,
    actor: Annotated[str | None, typer.Option("--actor", metavar="A", help="Only what this actor did.")] = None,
    behalf: Annotated[
        str | None, typer.Option("--on-behalf-of", metavar="A", help="Only what was done for this actor.")
    ] = None,
    type_: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Only events of this type, such as message-redacted.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help=f"From then on: {AGO}.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before then, as for --since.")] = None,
    said_since: SaidSinceOption = None,
    said_until: SaidUntilOption = None,
    limit: LimitOption = None,
    all_: AllOption = False,
    as_json: AsJson = False,
) -> None:
    """List who did what, when and why."""
    from clew.domain.errors import ScopeError

    start, end = parse_time(since, "--since"), parse_time(until, "--until")
    check_order(start, end)
    said_start, said_end = parse_said(said_since, said_until)
    most = list_limit(limit, all_=all_, as_json=as_json)
    with open_store(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        catch_up(conversations, "audit")
        if type_ is not None:
            _check_type(conversations, type_)
        if scope is not None and not any(conversations.audit(scope=scope, limit=1)):
            raise ScopeError(f"There is no memory scope {scope!r}. `clew memory list` shows the scopes.")

        def entries(number: int | None) -> Iterator[AuditEntry]:
            """All entries, or this number of the newest; both in their order."""
            listed = conversations.audit(
                thread=id_,
                scope=scope,
                actor=actor,
                on_behalf_of=behalf,
                type=type_,
                since=start,
                until=end,
                said_since=said_start,
                said_until=said_end,
                newest_first=number is not None,
                limit=number,
            )
            return listed if number is None else reversed(list(listed))

        if as_json:
            write_json_lines(map(json_shapes.audit_entry, entries(most)))
        else:  # one more than the limit shows whether there are others
            _print_entries(entries(None if most is None else most + 1), most, new_console())


def _check_type(conversations: Conversations, type_: str) -> None:
    """Raise WrongUsage for a type that this Clew does not know and that no event has, such as one of a newer Clew."""
    from difflib import get_close_matches

    from clew.domain.events import EVENT_TYPES

    if type_ in EVENT_TYPES or any(conversations.audit(type=type_, limit=1)):
        return
    names = get_close_matches(type_, EVENT_TYPES)
    advice = f"Did you mean {', '.join(names)}?" if names else f"The types are {', '.join(sorted(EVENT_TYPES))}"
    raise WrongUsage(f"--type {type_!r} is not a type of event. {advice}")


def _print_entries(entries: Iterable[AuditEntry], most: int | None, console: Console) -> None:
    """Print the last ``most`` entries, or without a limit each entry as it comes."""
    more = False
    if most is not None:
        listed = list(entries)
        more = len(listed) > most
        entries = listed[1:] if more else listed
    printed = False
    for entry in entries:
        printed = True
        line = _entry_line(entry, wide=console.width >= WIDE, whole=not console.is_terminal)
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)
    if not printed:
        console.print(NO_EVENTS)
    if more:
        console.print(f"These are the newest {most:,}. `--limit N` shows more, `--all` shows every one.")


def _entry_line(entry: AuditEntry, *, wide: bool, whole: bool) -> Text:
    """When, who, where, and then what and why, which a narrow terminal may cut; --json has everything.

    With ``whole``, for a pipe, a long actor is not cut.
    """
    from rich.text import Text

    place = one_line(entry.thread_id or entry.scope or "")
    run, what = one_line(entry.run_id or ""), one_line(entry.what)
    actor = "—" if entry.actor is None else one_line(entry.actor)
    if not wide:
        run, what = run[:SHORT_ID], _FORKED.sub(r"\1", what)
        actor = actor if whole else f"{shortened(actor, SHORT_ACTOR):<{SHORT_ACTOR}}"
        place = place[:SHORT_ID] if entry.thread_id is not None else place
    return Text.assemble(
        (time_text(entry.time) if wide else minute_text(entry.time), "dim"),
        (f"  {actor:<10}", "bold"),
        (f"  {place:<{SHORT_ID}} {f'v{entry.version}':<5}", "dim"),
        f" {what}",
        ("" if entry.on_behalf_of is None else f", for {one_line(entry.on_behalf_of)}", "dim"),
        ("" if entry.said_at is None else f", said {minute_text(entry.said_at)}", "dim"),
        ("" if entry.why is None else f": {one_line(entry.why)}", "italic"),
        (f" [run {run}]" if run else "", "dim"),
    )
