"""What ``clew memory`` shows to people: scopes in a table, facts on a line or two, and where a fact came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from clew.cli.output import counted, joined, one_line, shortened, shown_time
from clew.cli.rendering import ROOMY

if TYPE_CHECKING:
    from rich.console import Console

    from clew.domain.memory.facts import Fact, FactStatus, Use, Why
    from clew.service.memory.scope_queries import ScopeSummary

STATUS_STYLES: dict[FactStatus, str] = {"live": "", "superseded": "dim strike", "retracted": "dim strike"}

STATUS_WORDS: dict[FactStatus, str] = {"live": "", "superseded": "replaced", "retracted": "taken back"}

BEGINNING = 300
"""Characters of the message that a fact was learned from, at the most."""


def scope_table(console: Console, scopes: Sequence[ScopeSummary]) -> Table:
    """A line for each scope; a narrow terminal leaves its room to their names."""
    roomy = console.width >= ROOMY
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column("Scope", overflow="fold", ratio=1, min_width=12)
    table.add_column("Holds", no_wrap=True)
    table.add_column("Facts", justify="right", no_wrap=True)
    if roomy:
        table.add_column("Ver", justify="right", no_wrap=True)
        table.add_column("Updated", no_wrap=True)
    for each in scopes:
        table.add_row(
            Text(one_line(each.name), style="bold"),
            each.holds,
            f"{each.facts:,}" if each.holds == "facts" else "",
            *((str(each.version), shown_time(each.updated_at)[:16]) if roomy else ()),
        )
    return table


def heading(name: str, number: int, at: str | None) -> Text:
    """The line above the facts of a scope."""
    then = "" if at is None else f" · at {one_line(at)}"
    return Text.assemble((one_line(name), "bold"), (f"{then} · {counted(number, 'fact') or 'no facts'}", "dim"))


def fact(found: Fact, *, score: float | None = None) -> Text:
    """A fact: its id and what it says; below it what it is about, when it holds, and where it comes from."""
    beside = joined(
        STATUS_WORDS[found.status],
        "" if score is None else f"score {score:.2f}",
        "" if found.key is None else f"key {one_line(found.key)}",
        one_line(found.kind or ""),
        f"from {shown_time(found.valid_from)}"
        + ("" if found.valid_to is None else f" to {shown_time(found.valid_to)}"),
        _origin(found),
        "" if found.actor is None else f"by {one_line(found.actor)}",
    )
    return Text.assemble(
        (one_line(found.id), "bold"),
        "  ",
        (one_line(found.text), STATUS_STYLES[found.status]),
        (f"\n    {beside}", "dim"),
    )


def why(told: Why, uses: Sequence[Use]) -> Iterator[Text]:
    """Where a fact came from, as a tree: the message, the fact that it was promoted from, and the calls given it."""
    yield from _why(told)
    yield Text(f"└ given to {counted(len(uses), 'model call') or 'no model call'}")
    for use in uses:
        run = "" if use.run_id is None else f" (run {one_line(use.run_id)})"
        yield Text.assemble("   ", (one_line(use.thread_id), "bold"), f" version {use.version}{run}")


def _why(told: Why, indent: str = "") -> Iterator[Text]:
    found = told.fact
    by = "" if found.actor is None else f" by {one_line(found.actor)}"
    yield Text.assemble(
        indent,
        (one_line(found.id), "bold"),
        "  ",
        (one_line(found.text), STATUS_STYLES[found.status]),
    )
    ended = f", {STATUS_WORDS[found.status]} since" if found.status != "live" else ""
    place = f"version {found.version} of {one_line(found.scope)}"
    yield Text(f"{indent}├ {place}: remembered {shown_time(found.recorded_at)}{by}{ended}", style="dim")
    if found.replaces is not None:
        yield Text(f"{indent}├ instead of {one_line(found.replaces)}", style="dim")
    if told.thread_id is not None:
        yield Text.assemble(
            f"{indent}├ learned in thread ",
            (one_line(told.thread_id), "bold"),
            f" at version {told.version}: ",
            _message(told),
        )
    elif told.promoted_from is None:
        yield Text(f"{indent}├ not learned in a thread")
    if told.promoted_from is not None:
        yield Text(f"{indent}├ promoted from {one_line(told.promoted_from.fact.scope)}:")
        yield from _why(told.promoted_from, f"{indent}│  ")


def _message(told: Why) -> Text:
    if told.redacted:
        return Text("[redacted]", style="dim italic")
    if told.message is None:
        return Text("[no message is there]", style="dim italic")
    said = shortened(one_line(told.message.text), BEGINNING)
    return Text(f"{told.message.role}: “{said}”" if said else f"{told.message.role}: [no text]")


def _origin(found: Fact) -> str:
    if found.promoted is not None:
        return f"promoted from {one_line(found.promoted.scope)}"
    return "" if found.learned is None else f"learned in {one_line(found.learned.thread)} v{found.learned.version}"
