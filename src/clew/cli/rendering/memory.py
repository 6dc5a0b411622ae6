"""Memory scopes for people: scopes in a table, facts on two lines, and the origin of a fact as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from clew.cli.output import joined, minute_text, one_line, plural_if_any, shortened, time_text
from clew.cli.rendering.threads import ROOMY, plain_table

if TYPE_CHECKING:
    from rich.console import Console

    from clew.domain.memory.facts import Fact, FactOrigin, FactStatus, FactUse
    from clew.service.memory.scope_queries import ScopeSummary

STATUS_STYLES: dict[FactStatus, str] = {"live": "", "superseded": "dim strike", "retracted": "dim strike"}

STATUS_WORDS: dict[FactStatus, str] = {"live": "", "superseded": "replaced", "retracted": "retracted"}

BEGINNING = 300
"""Characters of the message that a fact was learned from."""


def scope_table(console: Console, scopes: Sequence[ScopeSummary]) -> Table:
    """A row for each scope; a narrow terminal shows fewer columns."""
    roomy = console.width >= ROOMY
    table = plain_table(expand=True)
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
            *((str(each.version), minute_text(each.updated_at)) if roomy else ()),
        )
    return table


def scope_heading(name: str, number: int, at: str | None) -> Text:
    """The line above the facts of a scope."""
    then = "" if at is None else f" · at {one_line(at)}"
    return Text.assemble((one_line(name), "bold"), (f"{then} · {plural_if_any(number, 'fact') or 'no facts'}", "dim"))


def fact_text(found: Fact, *, score: float | None = None) -> Text:
    """A fact: its id and text, and below them its key, its time and its origin."""
    details = joined(
        STATUS_WORDS[found.status],
        "" if score is None else f"score {score:.2f}",
        "" if found.key is None else f"key {one_line(found.key)}",
        one_line(found.kind or ""),
        f"from {time_text(found.valid_from)}" + ("" if found.valid_to is None else f" to {time_text(found.valid_to)}"),
        _origin(found),
        "" if found.actor is None else f"by {one_line(found.actor)}",
    )
    return Text.assemble(
        (one_line(found.id), "bold"),
        "  ",
        (one_line(found.text), STATUS_STYLES[found.status]),
        (f"\n    {details}", "dim"),
    )


def origin_lines(origin: FactOrigin, uses: Sequence[FactUse]) -> Iterator[Text]:
    """A fact's origin as a tree: its message, the fact that it was promoted from, and the calls that received it."""
    yield from _origin_lines(origin)
    yield Text(f"└ received by {plural_if_any(len(uses), 'model call') or 'no model call'}")
    for use in uses:
        run = "" if use.run_id is None else f" (run {one_line(use.run_id)})"
        yield Text.assemble("   ", (one_line(use.thread_id), "bold"), f" version {use.version}{run}")


def _origin_lines(origin: FactOrigin, indent: str = "") -> Iterator[Text]:
    found = origin.fact
    by = "" if found.actor is None else f" by {one_line(found.actor)}"
    yield Text.assemble(
        indent,
        (one_line(found.id), "bold"),
        "  ",
        (one_line(found.text), STATUS_STYLES[found.status]),
    )
    ended = f", {STATUS_WORDS[found.status]} since" if found.status != "live" else ""
    place = f"version {found.version} of {one_line(found.scope)}"
    yield Text(f"{indent}├ {place}: remembered {time_text(found.recorded_at)}{by}{ended}", style="dim")
    if found.replaces is not None:
        yield Text(f"{indent}├ instead of {one_line(found.replaces)}", style="dim")
    if origin.thread_id is not None:
        yield Text.assemble(
            f"{indent}├ learned in thread ",
            (one_line(origin.thread_id), "bold"),
            f" at version {origin.version}: ",
            _message(origin),
        )
    elif origin.promoted_from is None:
        yield Text(f"{indent}├ not learned in a thread")
    if origin.promoted_from is not None:
        yield Text(f"{indent}├ promoted from {one_line(origin.promoted_from.fact.scope)}:")
        yield from _origin_lines(origin.promoted_from, f"{indent}│  ")


def _message(origin: FactOrigin) -> Text:
    if origin.redacted:
        return Text("[redacted]", style="dim italic")
    if origin.message is None:
        return Text("[the message is missing]", style="dim italic")
    text = shortened(one_line(origin.message.text), BEGINNING)
    return Text(f"{origin.message.role}: “{text}”" if text else f"{origin.message.role}: [no text]")


def _origin(found: Fact) -> str:
    if found.promoted is not None:
        return f"promoted from {one_line(found.promoted.scope)}"
    return "" if found.learned is None else f"learned in {one_line(found.learned.thread)} v{found.learned.version}"
