"""What context and memory show to people: what a model was told beside the history, and what scopes know."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from clew.cli.text import one_line, safe, shortened, shown_time
from clew.cli.words import counted, failure, joined
from clew.domain.context import events as given
from clew.domain.events import MESSAGE_APPENDED, to_time
from clew.domain.memory import events as known

if TYPE_CHECKING:
    from clew.cli.named_events import Lookup
    from clew.domain.events import Event
    from clew.domain.history import HistoryMessage
    from clew.domain.runs.summaries import RunSummary

LONGEST_SAID = 1_000
"""Characters of a provider's instructions that ``show`` has at the most; ``clew request`` has all of them."""

LONGEST_STATE = 120
"""Characters of a state on a line."""


def context_words(event: Event, data: given.ContextEvent, look: Lookup) -> str:
    """What an event of a component says beside its type; how many messages were left out is looked up."""
    match data:
        case given.ContextProvided(provider=provider, instructions=instructions):
            words = counted(len((instructions or "").split()), "word")
            return f"{provider}: {joined(words, *_beside(data)) or 'nothing'}"
        case given.ContextFailed(provider=provider, hook=hook, error=error):
            return f"{provider}: {joined(hook, failure(error))}"
        case given.ContextStateRecorded(provider=provider, state=state):
            kept = "nothing" if state is None else shortened(json.dumps(state, ensure_ascii=False), LONGEST_STATE)
            return f"{provider}: keeps {kept}"
        case given.HistoryReduced():
            return _reduced(data, lambda spans: _looked_up(event, spans, look))


def memory_words(data: known.MemoryEvent) -> str:
    """What an event of a memory scope says beside its type."""
    match data:
        case known.ScopeOpened(holds=holds, embedder=embedder, dimensions=dimensions):
            size = "" if dimensions is None else f" ({dimensions:,})"
            return joined(holds, "" if embedder is None else f"{embedder}{size}")
        case known.FactRemembered(fact=fact, statement=statement):
            return joined(f"{fact}: {statement.text}", *_stated(statement))
        case known.FactSuperseded(fact=fact, by=by, statement=statement):
            return joined(f"{by} instead of {fact}: {statement.text}", *_stated(statement))
        case known.FactRetracted(fact=fact, reason=reason):
            return fact if reason is None else f"{fact}: {reason}"
        case known.DocumentAdded(document=document, namespaces=namespaces, replaces=replaces):
            name = data.source_name or data.source_link or ""
            instead = "" if replaces is None else f"instead of {replaces}"
            return joined(document, name, f"in {', '.join(namespaces)}", counted(len(data.text), "character"), instead)
        case known.DocumentRemoved(document=document, reason=reason):
            return document if reason is None else f"{document}: {reason}"


def context_lines(run: RunSummary, messages: Mapping[int, HistoryMessage]) -> Iterator[Text]:
    """The lines below a run that say what the model was told beside the history, and what it was not told."""
    for provider in run.missing:
        yield Text(f"  without {one_line(provider)}, which nobody supplied", style="yellow")
    for _, said in run.context:
        match said:
            case given.ContextProvided(provider=provider, instructions=instructions):
                beside = one_line(joined(*_beside(said)))
                given_what = f" · {beside}" if beside else "" if instructions else " · nothing"
                yield Text.assemble(("  + ", "magenta"), (one_line(provider), "bold"), (given_what, "dim"))
                texts = [] if instructions is None else [instructions]
                texts += [f"{message.role}: {message.text}" for message in said.messages]
                for text in texts:
                    for line in safe(shortened(text.strip(), LONGEST_SAID)).splitlines():
                        yield Text(f"    {line}", style="dim")
            case given.ContextFailed(provider=provider, hook=hook, error=error):
                yield Text(f"  {one_line(f'{provider} failed in {hook}: {failure(error)}')}", style="yellow")
            case given.HistoryReduced():
                told = _reduced(said, lambda spans: sum(_within(version, spans) for version in messages))
                yield Text.assemble(("  - ", "magenta"), one_line(told))


def _beside(data: given.ContextProvided) -> tuple[str, ...]:
    """What a provider gave beside its instructions, and what it read for it."""
    return (
        counted(len(data.messages), "message"),
        counted(len(data.tools), "tool"),
        counted(len(data.facts), "fact"),
        counted(len(data.citations), "citation"),
        "read " + ", ".join(f"{each.scope} v{each.version}" for each in data.reads) if data.reads else "",
    )


def _reduced(data: given.HistoryReduced, count: Callable[[tuple[tuple[int, int], ...]], int | None]) -> str:
    """What was left out, by what, and in favour of what; ``count`` tells how many messages lie in spans of versions."""
    number = count(data.left_out) if data.left_out else 0
    if number is None:
        spans = (str(first) if first == last else f"{first} to {last}" for first, last in data.left_out)
        left_out = f"versions {', '.join(spans)} left out"
    else:
        left_out = f"{counted(number, 'message') or 'nothing'} left out"
    summary = "" if data.summary is None else f"in their place: {shortened(data.summary.text, LONGEST_STATE)}"
    trimmed = f"{counted(len(data.trimmed), 'message')} trimmed" if data.trimmed else ""
    return f"{data.reducer}: {joined(left_out, trimmed, 'over budget' if data.over_budget else '', summary)}"


def _looked_up(event: Event, spans: Iterable[tuple[int, int]], look: Lookup) -> int | None:
    """How many messages lie in spans of versions, by what the events at their ends count; None if one is not there."""
    number = 0
    for first, last in spans:
        begin, end = look(event, first), look(event, last)
        if begin is None or end is None:
            return None
        number += end.messages - begin.messages + (begin.type == MESSAGE_APPENDED)
    return number


def _within(version: int, spans: Iterable[tuple[int, int]]) -> bool:
    return any(first <= version <= last for first, last in spans)


def _stated(statement: known.Statement) -> tuple[str, ...]:
    """What a fact says beside its words."""
    learned, promoted = statement.learned, statement.promoted
    return (
        "" if statement.key is None else f"key {statement.key}",
        statement.kind or "",
        "" if statement.valid_from is None else f"from {shown_time(to_time(statement.valid_from))}",
        "" if statement.valid_to is None else f"until {shown_time(to_time(statement.valid_to))}",
        "" if learned is None else f"learned in {learned.thread} v{learned.version}",
        "" if promoted is None else f"from {promoted.fact} of {promoted.scope}",
    )
