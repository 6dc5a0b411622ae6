"""The command that counts what happened, and what it cost: stats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clew.cli.app import command
from clew.cli.errors import WrongUsage
from clew.cli.options import NO_EVENTS, AsJson, check_order, open_store, parse_time, thread_argument
from clew.cli.output import catch_up, dollars_text, one_line, plural, print_lines, size_text, write_json_lines
from clew.cli.output import console as new_console
from clew.cli.rendering import json_shapes

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from clew.conversations import Conversations
    from clew.domain.models.prices import Prices
    from clew.service.cost_queries import Costs
    from clew.service.usage_queries import UsageCounts

BIGGEST = 5
"""Threads below the totals."""

DAYS = 14
"""Days below the totals; the newest."""

BAR = 32
"""Columns of the longest bar."""

LIST = "genai-prices"
"""As the value of ``--prices``: the list prices of that package."""


@command(
    "clew stats",
    "clew stats --by day --since 30d",
    "clew stats --cost --by agent",
    "clew stats --cost --by label --label team --since 30d --json",
    "clew stats 3f2a --json",
    heading="Audit and export",
)
def stats(
    context: typer.Context,
    thread: Annotated[
        str | None, thread_argument("A thread's id, or a unique prefix of it; by default all threads.")
    ] = None,
    by: Annotated[
        Literal["thread", "day", "run", "agent", "actor", "model", "label"] | None,
        typer.Option("--by", help="Count by thread, day, run, agent, actor for whom it acts, model, or --label."),
    ] = None,
    label: Annotated[str | None, typer.Option("--label", metavar="NAME", help="The label for --by label.")] = None,
    cost: Annotated[bool, typer.Option("--cost", help="Show what the models used and cost.")] = False,
    prices: Annotated[
        str | None,
        typer.Option(
            "--prices",
            metavar="LIST",
            help=f"Price all calls again, each at its own time: by {LIST}, or by a JSON file with your own prices.",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="DAY", help="From a day on (UTC), such as 2026-01-31 or 7d.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="DAY", help="Up to and including a day (UTC), as for --since.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count threads, messages, events, bytes, tokens and calls, and what models cost."""
    first, last = _day(since, "--since"), _day(until, "--until")
    check_order(first, last)
    if (by == "label") != (label is not None):
        raise WrongUsage("--by label needs --label NAME, and --label needs --by label.")
    listed = None if prices is None else _prices(prices)
    with open_store(context) as conversations:
        id_ = None if thread is None else conversations.find(thread)
        catch_up(conversations, "usage")
        if cost or listed is not None or by in {"run", "agent", "actor", "model", "label"}:
            found = conversations.costs(
                by=by or "total", label=label, thread=id_, since=first, until=last, prices=listed
            )
            _print_costs(found, by, label, as_json=as_json)
            return
        usage = conversations.usage(thread=id_, since=first, until=last, by=_plain(by))
        if as_json:
            write_json_lines(map(json_shapes.usage, usage))
        elif not usage:
            new_console().print(NO_EVENTS)
        elif by == "day":
            print_lines(_day_lines(usage))
        elif by == "thread":
            new_console().print(_thread_table(usage))
        else:
            _print_total(conversations, usage[0], id_, first, last)


def _print_costs(found: Sequence[Costs], by: str | None, label: str | None, *, as_json: bool) -> None:
    if as_json:
        write_json_lines(json_shapes.costs(each, by) for each in found)
    elif not any(each.calls for each in found):
        new_console().print("No model was called.")
    else:
        new_console().print(_cost_table(found, label or by))


def _print_total(
    conversations: Conversations, total: UsageCounts, id_: str | None, first: date | None, last: date | None
) -> None:
    console = new_console()
    console.print(*_total_lines(total), sep="\n")
    if id_ is None and total.threads > 1:
        by_thread = conversations.usage(since=first, until=last, by="thread")
        console.print("\nBiggest threads", _thread_table(by_thread[:BIGGEST]), sep="\n")
    days = conversations.usage(thread=id_, since=first, until=last, by="day")
    if days:
        console.print("\nMessages by day" + (f", the last {DAYS} of {len(days):,}" if len(days) > DAYS else ""))
        print_lines(_day_lines(days[-DAYS:]))


def _plain(by: str | None) -> Literal["total", "thread", "day"]:
    return "thread" if by == "thread" else "day" if by == "day" else "total"


def _prices(named: str) -> Prices:
    """The price list that the option names. Raises WrongUsage."""
    from clew.domain.errors import InvalidContentError
    from clew.domain.models.prices import PriceTable
    from clew.infrastructure.genai_price_list import GenaiPrices

    if named == LIST:
        return GenaiPrices(required=True)
    try:
        return PriceTable.from_json(json.loads(Path(named).read_text(encoding="utf-8"), parse_float=Decimal))
    except (OSError, ValueError, InvalidContentError) as error:
        raise WrongUsage(f"--prices {named!r}: {error} Give {LIST}, or a JSON file with prices.") from None


def _cost_table(found: Sequence[Costs], heading: str | None) -> Table:
    from rich.text import Text

    from clew.cli.rendering.threads import plain_table

    table = plain_table()
    if heading is not None:
        table.add_column("For" if heading == "actor" else heading.capitalize(), overflow="fold")
    for name in ("Calls", "Tokens in", "cached", "out", "reasoning", "Cost"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        numbers = (each.calls, each.input_tokens, each.cached_tokens, each.output_tokens, each.reasoning_tokens)
        of = [] if heading is None else [Text("—" if each.of is None else one_line(str(each.of)), style="bold")]
        table.add_row(*of, *(f"{number:,}" if number else "" for number in numbers), _cost_text(each))
    return table


def _cost_text(costs: Costs) -> str:
    """What calls cost, and how many of them have no price."""
    if costs.cost is None:
        return "unknown"
    unpriced = f" + {plural(costs.unpriced_calls, 'call')} without a price" if costs.unpriced_calls else ""
    return f"{dollars_text(costs.cost)}{unpriced}"


def _day(text: str | None, option: str) -> date | None:
    time = parse_time(text, option)
    return None if time is None else time.astimezone(UTC).date()


def _total_lines(total: UsageCounts) -> Iterator[str]:
    forks = f" ({plural(total.forks, 'fork')})" if total.forks else ""
    yield f"Threads   {total.threads:,}{forks}"
    yield f"Messages  {total.messages:,}"
    yield f"Events    {total.events:,}"
    yield f"Bytes     {size_text(total.bytes)}"
    if total.input_tokens or total.output_tokens:
        yield f"Tokens    {total.input_tokens:,} in, {total.output_tokens:,} out"
    if total.model_calls or total.tool_calls or total.failed_calls:
        failed = f", {total.failed_calls:,} failed" if total.failed_calls else ""
        yield f"Calls     {total.model_calls:,} to models, {total.tool_calls:,} to tools{failed}"


def _thread_table(threads: Sequence[UsageCounts]) -> Table:
    from rich.text import Text

    from clew.cli.rendering.threads import plain_table

    table = plain_table()
    table.add_column("Thread", overflow="fold")
    calls = any(each.model_calls or each.tool_calls for each in threads)
    for heading in ("Messages", "Events", "Bytes", "Tokens", *(("Calls",) if calls else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in threads:
        numbers = [each.input_tokens + each.output_tokens, *([each.model_calls + each.tool_calls] if calls else [])]
        table.add_row(
            Text(one_line(each.thread_id or ""), style="bold"),
            f"{each.messages:,}",
            f"{each.events:,}",
            size_text(each.bytes),
            *(f"{number:,}" if number else "" for number in numbers),
        )
    return table


def _day_lines(days: Sequence[UsageCounts]) -> Iterator[Text]:
    from rich.text import Text

    highest = max((day.messages for day in days), default=0)
    for day in days:
        bar = (_bar(day.messages, highest), "cyan")
        yield Text.assemble(f"{day.day}  ", bar, f"  {plural(day.messages, 'message')}")


def _bar(number: int, highest: int) -> str:
    """A bar in eighths of a column, padded; anything above zero is visible."""
    eighths = 0 if not number else max(1, round(number * BAR * 8 / highest))
    columns, rest = divmod(eighths, 8)
    return ("█" * columns + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(BAR)
