"""Events for people: what each one did, in a few words on one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from rich.text import Text

from clew.cli.output import (
    failure_text,
    joined,
    minute_text,
    one_line,
    plural_if_any,
    shortened,
    time_text,
)
from clew.cli.rendering.messages import BEGINNING, beginning, text_or_json
from clew.cli.rendering.runs import (
    LONGEST_SUMMARY,
    REDACTED,
    provided_counts,
    reduction_text,
    tokens_text,
    took,
)
from clew.cli.rendering.threads import ROOMY, WIDE, plain_table
from clew.domain import events as thread_events
from clew.domain.context import events as context_events
from clew.domain.events import MESSAGE_APPENDED, Event, HistoryRewound, MessageAppended, Shredded, StateClaimed, to_time
from clew.domain.history import spans
from clew.domain.memory import events as memory_events
from clew.domain.messages import FunctionCall
from clew.domain.runs import events as run_events

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from clew.sync.threads import Thread

Lookup: TypeAlias = Callable[[Event, int], Event | None]
"""The event at a version of the lineage of another event; None where it is unmemory_events."""

CACHED = 16
"""Events that a lookup keeps: events in a row often name the same one."""

OFF_PATH = "↩"
"""Marks an event that a rewind took from the path."""

LONGEST_ACTOR = 16
"""Columns of an actor in a table."""

EVENT_STYLES: Mapping[str, str] = {
    "context-failed": "yellow",
    "history-reduced": "yellow",
    "model-failed": "red",
    "answer-interrupted": "yellow",
    "tool-failed": "red",
    "approval-requested": "yellow",
    "approval-given": "yellow",
    "run-completed": "green",
    "run-failed": "bold red",
    "run-abandoned": "yellow",
}
"""The colours of types that stand out."""


def lookup(thread: Callable[[str], Thread]) -> Lookup:
    """A lookup in the threads of a store."""
    from clew.domain.errors import ClewError

    @lru_cache(maxsize=CACHED)
    def found(thread_id: str, version: int) -> Event | None:
        try:
            return next(thread(thread_id).events(after=version - 1, at=version), None)
        except ClewError:  # no event has the version that was written there
            return None

    return lambda event, version: found(event.thread_id, version)


def nowhere(event: Event, version: int) -> None:
    """A lookup that finds nothing."""
    del event, version


def event_table(
    events: Sequence[Event], thread_id: str, console: Console, look: Lookup, undone: frozenset[int] = frozenset()
) -> Table:
    """A row for each event. Those of ancestors are dim; those in ``undone`` are dim and marked.

    Within a run, only another actor than the one that started it is named.
    """
    table = plain_table(expand=True)
    table.add_column("Ver", justify="right", no_wrap=True)
    roomy, wide = console.width >= ROOMY, console.width >= WIDE
    if roomy:
        table.add_column("Time", no_wrap=True)
    table.add_column("Event", no_wrap=True)
    actors = _actors(events)
    if any(actors):
        table.add_column("By", overflow="ellipsis", no_wrap=True, max_width=LONGEST_ACTOR)
    table.add_column("What", overflow="ellipsis", no_wrap=True, ratio=1, min_width=10)
    for event, actor in zip(events, actors, strict=True):
        off = event.version in undone
        table.add_row(
            f"{OFF_PATH} {event.version}" if off else str(event.version),
            *((time_text(event.time) if wide else minute_text(event.time),) if roomy else ()),
            type_text(event),
            *((Text(actor),) if any(actors) else ()),
            Text(shortened(what_happened(event, look), BEGINNING)),
            style="dim" if off or event.thread_id != thread_id else "",
        )
    return table


def _actors(events: Iterable[Event]) -> list[str]:
    """The actor to show for each event, empty for none."""
    actors: list[str] = []
    started: dict[str | None, str | None] = {None: None}
    for event in events:
        actors.append("" if event.actor in {None, started.get(event.run_id)} else one_line(event.actor or ""))
        if isinstance(event.data, run_events.RunStarted):
            started = {None: None, event.run_id: event.actor}
    return actors


def off_path(events: Sequence[Event]) -> frozenset[int]:
    """The versions, among these events of one lineage up to its head, that rewinds took from the path."""
    rewinds = {event.version: event.data.to for event in events if isinstance(event.data, HistoryRewound)}
    if not rewinds:
        return frozenset()
    on_path = spans(rewinds, events[-1].version)
    versions = {event.version for event in events}
    return frozenset(v for v in versions if not any(first <= v <= last for first, last in on_path))


def event_line(event: Event, look: Lookup, *, of_store: bool) -> Text:
    """An event on one line; in a list of a whole store it names its thread."""
    by = "" if event.actor is None else f"{one_line(event.actor)} · "
    return Text.assemble(
        (f"{time_text(event.time)} ", "dim"),
        (f"{one_line(event.thread_id)} " if of_store else "", "bold"),
        f"{event.version:>5} ",
        (f"{type_text(event).plain:<24} ", "cyan"),
        shortened(f"{by}{what_happened(event, look)}", BEGINNING),
    )


def type_text(event: Event) -> Text:
    """The type of an event. A line connects the events of a run, from its start to its end."""
    line = ""
    if event.run_id is not None and not isinstance(event.data, run_events.RunStarted):
        line = (
            "└ "
            if isinstance(event.data, run_events.RunCompleted | run_events.RunFailed | run_events.RunAbandoned)
            else "│ "
        )
    return Text.assemble((line, "dim"), (one_line(event.type), EVENT_STYLES.get(event.type, "")))


def what_happened(event: Event, look: Lookup = nowhere) -> str:
    """What an event says besides its type, on one line."""
    match event.data:
        case Shredded(role=role):
            return f"{role or 'content'}: [redacted]"
        case thread_events.Opaque():
            return "of a type that this Clew does not know"
        case MessageAppended(message=message):
            return f"{message.role}: {beginning(message)}"
        case thread_events.ThreadSuspended(reason=reason) | thread_events.ThreadEnded(reason=reason):
            return one_line(reason or "")
        case thread_events.ThreadResumed():
            return ""
        case data if isinstance(data, run_events.RunEvent):
            return one_line(run_words(event, data, look))
        case data if isinstance(data, context_events.ContextEvent):
            return one_line(context_words(event, data, look))
        case data if isinstance(data, memory_events.MemoryEvent):
            return one_line(memory_words(data))
        case data:
            return one_line(_of_the_thread(data))


def _of_the_thread(data: thread_events.ThreadEvent | StateClaimed) -> str:
    match data:
        case thread_events.ThreadStarted(title=title, source=source, kind=kind):
            origin = None if source is None else "imported" if source.id is None else f"imported: {source.id}"
            return ", ".join(part for part in (title, origin, kind if kind != "local" else None) if part)
        case thread_events.ThreadForked(parent_id=parent, parent_version=version, title=title):
            kind_and_memory = "" if data.kind is None else f", {data.kind}"
            kind_and_memory += "" if data.memory is None else f", memory {data.memory}"
            return f"from {parent} at version {version}{kind_and_memory}" + ("" if title is None else f": {title}")
        case thread_events.HistoryRewound(to=to):
            return f"to version {to}"
        case thread_events.CheckpointMade(name=name, at=at):
            return f"{name}: version {at}"
        case thread_events.MessageRedacted(version=version, reason=reason):
            return f"version {version}" + ("" if reason is None else f": {reason}")
        case thread_events.ThreadLabelled(labels=labels):
            return ", ".join(f"{key}={text_or_json(value)}" for key, value in labels.items())
        case StateClaimed(provider=provider, thread_id=thread_id):
            return f"{provider}: {thread_id}"
        case thread_events.ThreadDeleted(reason=reason, service=service):
            there = (f"{each.id} {'deleted' if each.failed is None else 'remains'} at the service" for each in service)
            return ", ".join(part for part in (reason, *there) if part)
        case _:
            declared = thread_events.EVENT_TYPES[thread_events.TYPE_NAMES[type(data)]]
            return declared.describe(data.model_dump(mode="json", exclude_none=True))


def run_words(event: Event, data: run_events.RunEvent, look: Lookup) -> str:
    """What an event of a run says; the names of tools are looked up."""
    match data:
        case run_events.RunStarted(agent=agent, fingerprint=made_of, missing=missing):
            providers = (*made_of.providers, *data.providers, *data.run_providers)
            return joined(
                agent_name(agent),
                made_of.client,
                plural_if_any(len(made_of.tools), "tool"),
                f"with {', '.join(providers)}" if providers else "",
                f"without {', '.join(missing)}" if missing else "",
            )
        case run_events.RunResumed(agent=agent, attempt=attempt):
            return joined(agent_name(agent), f"attempt {attempt}")
        case run_events.RunCompleted(finish_reason=reason):
            return reason or ""
        case run_events.RunFailed(error=error):
            return failure_text(error)
        case run_events.RunAbandoned(reason=reason):
            return reason
        case run_events.ServiceThreadBound(id=id_, kind=kind):
            return f"{kind} {id_}"
        case (
            run_events.ModelCalled()
            | run_events.ModelAnswered()
            | run_events.ModelFailed()
            | run_events.AnswerInterrupted()
        ):
            return _of_a_model(data)
        case _:
            return _of_a_tool(event, data, look)


def _of_a_model(
    data: run_events.ModelCalled | run_events.ModelAnswered | run_events.ModelFailed | run_events.AnswerInterrupted,
) -> str:
    match data:
        case run_events.ModelCalled(model=model, attempt=attempt, streamed=streamed):
            return joined(model, f"attempt {attempt}" if attempt > 1 else "", "streamed" if streamed else "")
        case run_events.ModelAnswered(finish_reason=reason, usage=usage, ms=ms, first_ms=first):
            tokens = "" if usage is None else tokens_text(usage.input_tokens, usage.output_tokens)
            return joined(took(ms), tokens, reason or "", "" if first is None else f"first after {took(first)}")
        case run_events.ModelFailed(error=error, retry_in=again, ms=ms):
            retry = "" if again is None else f"retries in {again:,.3g} s"
            words = "" if error.message is None else f": {error.message}"
            return joined(took(ms), failure_text(error, message=False), retry) + words
        case run_events.AnswerInterrupted(message=message, reason=reason, error=error):
            kept = "nothing had arrived" if message is None else f"version {message} is partial"
            return joined(reason, kept, "" if error is None else failure_text(error))


def _of_a_tool(
    event: Event,
    data: run_events.ToolStarted
    | run_events.ToolFinished
    | run_events.ToolFailed
    | run_events.ApprovalRequested
    | run_events.ApprovalGiven,
    look: Lookup,
) -> str:
    if isinstance(data, run_events.ApprovalGiven):
        asked = look(event, data.request)
        what = f"version {data.request}"
        if asked is not None and isinstance(asked.data, run_events.ApprovalRequested):
            what = _tool(event, asked.data, look)
        because = "" if data.reason is None else f": {data.reason}"
        return f"{'approved' if data.approved else 'rejected'} {what}{because}"
    name = _tool(event, data, look)
    match data:
        case run_events.ToolStarted():
            return name
        case run_events.ToolFinished(ms=ms):
            return joined(name, took(ms))
        case run_events.ToolFailed(reason=reason, kind=kind, ms=ms):
            return joined(name, reason if kind is None else f"{reason} {kind}", took(ms) if ms else "")
        case run_events.ApprovalRequested(reason=reason):
            return joined(name, "outcome unknown" if reason == "outcome-unknown" else "")


def _tool(
    event: Event,
    place: run_events.ToolStarted | run_events.ToolFinished | run_events.ToolFailed | run_events.ApprovalRequested,
    look: Lookup,
) -> str:
    """The name of the tool in the call that an event refers to."""
    said = look(event, place.message)
    if said is not None and isinstance(said.data, Shredded) and said.type == MESSAGE_APPENDED:
        return REDACTED
    contents = said.data.message.contents if said is not None and isinstance(said.data, MessageAppended) else ()
    call = contents[place.index] if 0 <= place.index < len(contents) else None
    return call.name if isinstance(call, FunctionCall) else f"call {place.index} of version {place.message}"


def agent_name(agent: run_events.AgentIdentity) -> str:
    """The name of an agent, and its id if that is different."""
    return agent.id if agent.name in {None, agent.id} else f"{agent.name} ({agent.id})"


def context_words(event: Event, data: context_events.ContextEvent, look: Lookup) -> str:
    """What an event of a context provider says; how many messages were left out is looked up."""
    match data:
        case context_events.ContextProvided(provider=provider, instructions=instructions):
            words = plural_if_any(len((instructions or "").split()), "word")
            return f"{provider}: {joined(words, *provided_counts(data)) or 'nothing'}"
        case context_events.ContextFailed(provider=provider, hook=hook, error=error):
            return f"{provider}: {joined(hook, failure_text(error))}"
        case context_events.ContextStateRecorded(provider=provider, state=state):
            kept = "nothing" if state is None else shortened(json.dumps(state, ensure_ascii=False), LONGEST_SUMMARY)
            return f"{provider}: state {kept}"
        case context_events.HistoryReduced():
            return reduction_text(data, lambda spans: _looked_up(event, spans, look))


def _looked_up(event: Event, spans: Iterable[tuple[int, int]], look: Lookup) -> int | None:
    """How many messages are in spans of versions, by the counts of the events at their ends; None if one is missing."""
    number = 0
    for first, last in spans:
        begin, end = look(event, first), look(event, last)
        if begin is None or end is None:
            return None
        number += end.messages - begin.messages + (begin.type == MESSAGE_APPENDED)
    return number


def memory_words(data: memory_events.MemoryEvent) -> str:
    """What an event of a memory scope says."""
    match data:
        case memory_events.ScopeOpened(holds=holds, embedder=embedder, dimensions=dimensions):
            size = "" if dimensions is None else f" ({dimensions:,})"
            return joined(holds, "" if embedder is None else f"{embedder}{size}")
        case memory_events.FactRemembered(fact=fact, statement=statement):
            return joined(f"{fact}: {statement.text}", *_stated(statement))
        case memory_events.FactSuperseded(fact=fact, by=by, statement=statement):
            return joined(f"{by} instead of {fact}: {statement.text}", *_stated(statement))
        case memory_events.FactRetracted(fact=fact, reason=reason):
            return fact if reason is None else f"{fact}: {reason}"
        case memory_events.DocumentAdded(document=document, namespaces=namespaces, replaces=replaces):
            name = data.source_name or data.source_link or ""
            instead = "" if replaces is None else f"instead of {replaces}"
            return joined(
                document, name, f"in {', '.join(namespaces)}", plural_if_any(len(data.text), "character"), instead
            )
        case memory_events.DocumentRemoved(document=document, reason=reason):
            return document if reason is None else f"{document}: {reason}"


def _stated(statement: memory_events.Statement) -> tuple[str, ...]:
    """What a fact says besides its words."""
    learned, promoted = statement.learned, statement.promoted
    return (
        "" if statement.key is None else f"key {statement.key}",
        statement.kind or "",
        "" if statement.valid_from is None else f"from {time_text(to_time(statement.valid_from))}",
        "" if statement.valid_to is None else f"until {time_text(to_time(statement.valid_to))}",
        "" if learned is None else f"learned in {learned.thread} v{learned.version}",
        "" if promoted is None else f"from {promoted.fact} of {promoted.scope}",
    )
