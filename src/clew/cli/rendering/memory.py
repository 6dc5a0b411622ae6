"""Memory scopes for people: scopes in a table, facts on two lines each, and the origin of a fact as a tree."""

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

START_LENGTH = 300
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
    for scope in scopes:
        table.add_row(
            Text(one_line(scope.name), style="bold"),
            scope.holds,
            f"{scope.facts:,}" if scope.holds == "facts" else "",
            *((str(scope.version), minute_text(scope.updated_at)) if roomy else ()),
        )
    return table


def scope_heading(name: str, number: int, at: str | None) -> Text:
    """The line above the facts of a scope."""
    then = "" if at is None else f" · at {one_line(at)}"
    return Text.assemble((one_line(name), "bold"), (f"{then} · {plural_if_any(number, 'fact') or 'no facts'}", "dim"))


def fact_text(fact: Fact, *, score: float | None = None) -> Text:
    """A fact: its id and text, and below them its key, its time and its origin."""
    details = joined(
        STATUS_WORDS[fact.status],
        "" if score is None else f"score {score:.2f}",
        "" if fact.key is None else f"key {one_line(fact.key)}",
        one_line(fact.kind or ""),
        f"from {time_text(fact.valid_from)}" + ("" if fact.valid_to is None else f" to {time_text(fact.valid_to)}"),
        _origin_text(fact),
        "" if fact.actor is None else f"by {one_line(fact.actor)}",
    )
    return Text.assemble(
        (one_line(fact.id), "bold"),
        "  ",
        (one_line(fact.text), STATUS_STYLES[fact.status]),
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
    fact = origin.fact
    by = "" if fact.actor is None else f" by {one_line(fact.actor)}"
    yield Text.assemble(
        indent,
        (one_line(fact.id), "bold"),
        "  ",
        (one_line(fact.text), STATUS_STYLES[fact.status]),
    )
    ended = f", {STATUS_WORDS[fact.status]} since" if fact.status != "live" else ""
    place = f"version {fact.version} of {one_line(fact.scope)}"
    yield Text(f"{indent}├ {place}: remembered {time_text(fact.recorded_at)}{by}{ended}", style="dim")
    if fact.replaces is not None:
        yield Text(f"{indent}├ instead of {one_line(fact.replaces)}", style="dim")
    if origin.thread_id is not None:
        yield Text.assemble(
            f"{indent}├ learned in thread ",
            (one_line(origin.thread_id), "bold"),
            f" at version {origin.version}: ",
            _message_text(origin),
        )
    elif origin.promoted_from is None:
        yield Text(f"{indent}├ not learned in a thread")
    if origin.promoted_from is not None:
        yield Text(f"{indent}├ promoted from {one_line(origin.promoted_from.fact.scope)}:")
        yield from _origin_lines(origin.promoted_from, f"{indent}│  ")


def _message_text(origin: FactOrigin) -> Text:
    if origin.redacted:
        return Text("[redacted]", style="dim italic")
    if origin.message is None:
        return Text("[the message is missing]", style="dim italic")
    text = shortened(one_line(origin.message.text), START_LENGTH)
    return Text(f"{origin.message.role}: “{text}”" if text else f"{origin.message.role}: [no text]")


def _origin_text(fact: Fact) -> str:
    if fact.promoted is not None:
        return f"promoted from {one_line(fact.promoted.scope)}"
    return "" if fact.learned is None else f"learned in {one_line(fact.learned.thread)} v{fact.learned.version}"
