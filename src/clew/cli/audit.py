"""Commands that say what was done, and how much there is: audit and stats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clew.cli.candidates import scope_names, thread_ids
from clew.cli.errors import WrongUsage
from clew.cli.options import AllOption, AsJson, LimitOption, opened
from clew.cli.output import catch_up, one_line, shortened, shown_time, write_json
from clew.cli.threads import SHOWN

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from clew.service.audit_trail import AuditEntry
    from clew.service.usage_queries import Usage

BIGGEST = 5
"""Threads that are shown with the totals."""

DAYS = 14
"""Days that are shown with the totals; the newest."""

BAR = 32
"""Columns of the longest bar."""

LONGEST_WHO = 16
LONGEST_ID = 12

WIDE = 110
"""Columns from which on ids are shown whole."""


def audit(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="THREAD", help="Only what is recorded in it.", autocompletion=thread_ids),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            "--scope", metavar="SCOPE", help="Only what is recorded in this memory scope.", autocompletion=scope_names
        ),
    ] = None,
    actor: Annotated[str | None, typer.Option("--actor", metavar="A", help="Only what this actor did.")] = None,
    type_: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Only events of this type, such as message-redacted.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From a time on, such as 2026-01-31T12:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before a time.")] = None,
    limit: LimitOption = None,
    all_: AllOption = False,
    as_json: AsJson = False,
) -> None:
    """List who did what, when and why."""
    begin, end = _time(context, since, "--since"), _time(context, until, "--until")
    most = limit if as_json or all_ else limit or SHOWN
    with opened(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        catch_up(conversations, "audit")

        def entries(number: int | None) -> Iterator[AuditEntry]:
            found = conversations.audit(
                thread=id_,
                scope=scope,
                actor=actor,
                type=type_,
                since=begin,
                until=end,
                newest_first=number is not None,
                limit=number,
            )
            return found if number is None else reversed(list(found))

        if as_json:
            from clew.cli import json_shapes

            for entry in entries(most):
                write_json(json_shapes.audit_entry(entry))
        else:
            from clew.cli import rendering

            _print_entries(entries(None if all_ or most is None else most + 1), most, rendering.console())


def stats(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="THREAD", help="A thread's id, or the beginning of it; by default all.", autocompletion=thread_ids
        ),
    ] = None,
    by: Annotated[Literal["thread", "day"] | None, typer.Option("--by", help="Count by thread or by day.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="DAY", help="From a day on (UTC), such as 2026-01-31.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="DAY", help="Up to a day (UTC).")] = None,
    as_json: AsJson = False,
) -> None:
    """Count threads, messages, events, bytes, tokens and calls."""
    begin, end = _day(context, since, "--since"), _day(context, until, "--until")
    with opened(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        catch_up(conversations, "usage")
        found = conversations.usage(thread=id_, since=begin, until=end, by=by or "total")
        if as_json:
            from clew.cli import json_shapes

            for each in found:
                write_json(json_shapes.usage(each))
            return
        from clew.cli import rendering

        console = rendering.console()
        if by == "day":
            _print_days(found, console)
        elif by == "thread":
            console.print(_thread_table(found))
        else:
            _print_total(found[0], console)
            days = conversations.usage(thread=id_, since=begin, until=end, by="day")
            if id_ is None and found[0].threads > 1:
                biggest = conversations.usage(since=begin, until=end, by="thread")
                console.print("\nBiggest threads")
                console.print(_thread_table(biggest[:BIGGEST]))
            if days:
                console.print("\nMessages by day" + (f", the last {DAYS} of {len(days):,}" if len(days) > DAYS else ""))
                _print_days(days[-DAYS:], console)


def _print_entries(found: Iterable[AuditEntry], most: int | None, console: Console) -> None:
    """The entries, each on its lines as it comes; one too many shows that there are more."""
    entries = found if most is None else list(found)
    more = isinstance(entries, list) and most is not None and len(entries) > most
    shown = entries[1:] if more and isinstance(entries, list) else entries
    none = True
    for entry in shown:
        none = False
        console.print(_entry(entry, console))
    if none:
        console.print("Nothing was done that is asked for.")
    if more:
        console.print(f"These are the newest {most:,}. `--limit N` shows more of them, `--all` every one.")


def _entry(entry: AuditEntry, console: Console) -> Table:
    """When, who, what and why, and where; as many lines as it takes, so that nothing is left out."""
    from rich.table import Table
    from rich.text import Text

    id_ = one_line(entry.thread_id or entry.scope or "")
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(width=LONGEST_WHO if console.width >= WIDE else LONGEST_WHO * 2 // 3, overflow="fold")
    line.add_column(ratio=1, overflow="fold")
    line.add_column(no_wrap=True, justify="right")
    line.add_row(
        Text(shown_time(entry.time), style="dim"),
        Text(one_line(entry.actor) if entry.actor is not None else "—", style="bold"),
        Text.assemble(
            one_line(entry.what),
            ("" if entry.why is None else f": {one_line(entry.why)}", "italic"),
            ("" if entry.run_id is None else f" [run {one_line(entry.run_id)}]", "dim"),
        ),
        Text(f"{id_ if console.width >= WIDE else shortened(id_, LONGEST_ID)} v{entry.version}", style="dim"),
    )
    return line


def _print_total(found: Usage, console: Console) -> None:
    forks = f" ({found.forks:,} {'fork' if found.forks == 1 else 'forks'})" if found.forks else ""
    console.print(f"Threads   {found.threads:,}{forks}")
    console.print(f"Messages  {found.messages:,}")
    console.print(f"Events    {found.events:,}")
    console.print(f"Bytes     {_size(found.bytes)}")
    if found.input_tokens or found.output_tokens:
        console.print(f"Tokens    {found.input_tokens:,} in, {found.output_tokens:,} out")
    if found.model_calls or found.tool_calls or found.failed_calls:
        failed = f", {found.failed_calls:,} failed" if found.failed_calls else ""
        console.print(f"Calls     {found.model_calls:,} of models, {found.tool_calls:,} of tools{failed}")


def _thread_table(found: Sequence[Usage]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Thread", overflow="fold")
    called = any(each.model_calls or each.tool_calls for each in found)
    for heading in ("Messages", "Events", "Bytes", "Tokens", *(("Calls",) if called else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in found:
        tokens, calls = each.input_tokens + each.output_tokens, each.model_calls + each.tool_calls
        table.add_row(
            Text(one_line(each.thread_id or ""), style="bold"),
            f"{each.messages:,}",
            f"{each.events:,}",
            _size(each.bytes),
            f"{tokens:,}" if tokens else "",
            *((f"{calls:,}" if calls else "",) if called else ()),
        )
    return table


def _print_days(found: Sequence[Usage], console: Console) -> None:
    from rich.text import Text

    highest = max((each.messages for each in found), default=0)
    for each in found:
        console.print(
            Text.assemble(
                f"{each.day}  ",
                (_bar(each.messages, highest), "cyan"),
                f"  {each.messages:,} {'message' if each.messages == 1 else 'messages'}",
            )
        )


def _bar(number: int, highest: int) -> str:
    """A bar in eighths of a column, padded; what is not nothing shows."""
    eighths = 0 if not number else max(1, round(number * BAR * 8 / highest))
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(BAR)


def _size(number: int) -> str:
    """Bytes, as people read them; powers of 1,000."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1_000:  # noqa: PLR2004 - as the name of the unit says
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1_000
    return f"{size:,.1f} TB"


def _time(context: typer.Context, text: str | None, option: str) -> datetime | None:
    """A moment. Raises InvalidTimeError for one without an offset, WrongUsage for what is no time."""
    from clew.cli.options import moment

    if text is None:
        return None
    found = moment(text, option).at
    if not isinstance(found, datetime):
        raise WrongUsage(context, f"{option} {text!r} is no time. Write one such as 2026-01-31T12:00:00Z")
    return found


def _day(context: typer.Context, text: str | None, option: str) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise WrongUsage(context, f"{option} {text!r} is no day. Write one such as 2026-01-31") from None
