"""Events for people: what each one did, in a few words on one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from rich.text import Text

from clew.cli.output import failure_text, joined, minute_text, one_line, plural_if_any, shortened, time_text
from clew.cli.rendering.conversation import (
    LONGEST_SUMMARY,
    REDACTED,
    START_LENGTH,
    call_at,
    duration_text,
    left_out_text,
    message_start,
    provided_counts,
    record_text,
    reduction_text,
    text_or_json,
    tokens_text,
)
from clew.cli.rendering.threads import ROOMY, WIDE, plain_table
from clew.domain import events as thread_events
from clew.domain.context import events as context_events
from clew.domain.events import MESSAGE_APPENDED, Event, HistoryRewound, MessageAppended, Shredded, StateClaimed, to_time
from clew.domain.history import spans
from clew.domain.memory import events as memory_events
from clew.domain.runs import events as run_events

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from clew.sync.threads import Thread

FindEvent: TypeAlias = Callable[[Event, int], Event | None]
"""Finds the event at a version of the lineage of another event; None if it is unknown."""

CACHED = 16
"""Events that are cached: events in a row often name the same one."""

OFF_PATH = "↩"
"""Marks an event that a rewind took from the path."""

LONGEST_ACTOR = 16
"""Columns of an actor in a table on a terminal that is not wide."""

NARROW = 56
"""Columns of a terminal below which a table has no actors."""

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


def event_finder(thread: Callable[[str], Thread]) -> FindEvent:
    """Finds events in the threads of a store."""
    from clew.domain.errors import ClewError

    @lru_cache(maxsize=CACHED)
    def find(thread_id: str, version: int) -> Event | None:
        try:
            return next(thread(thread_id).events(after=version - 1, at=version), None)
        except ClewError:  # the event names a version that no event has
            return None

    return lambda event, version: find(event.thread_id, version)


def find_nothing(event: Event, version: int) -> None:
    """Finds no event."""
    del event, version


def event_table(
    events: Sequence[Event],
    thread_id: str,
    console: Console,
    find: FindEvent,
    rewound: frozenset[int] = frozenset(),
    *,
    whole: bool = False,
) -> Table:
    """A row for each event. Events of ancestors are dim; the versions in ``rewound`` are dim and marked.

    Within a run, an actor is not repeated. With ``whole`` no actor is cut.
    """
    table = plain_table(expand=not whole)
    table.add_column("Ver", justify="right", no_wrap=True)
    roomy, wide = console.width >= ROOMY, console.width >= WIDE
    if roomy:
        table.add_column("Time", no_wrap=True)
    table.add_column("Event", no_wrap=True)
    actors = _actors(events)
    by = any(actors) and (whole or console.width >= NARROW)
    if by:
        longest = None if whole else console.width // 3 if wide else LONGEST_ACTOR
        table.add_column("By", overflow="ellipsis", no_wrap=True, max_width=longest)
    table.add_column("What", overflow="ellipsis", no_wrap=True, ratio=1, min_width=10)
    for event, actor in zip(events, actors, strict=True):
        off = event.version in rewound
        table.add_row(
            f"{OFF_PATH} {event.version}" if off else str(event.version),
            *((time_text(event.time) if wide else minute_text(event.time),) if roomy else ()),
            type_text(event),
            *((Text(actor),) if by else ()),
            Text(shortened(what_happened(event, find), START_LENGTH)),
            style="dim" if off or event.thread_id != thread_id else "",
        )
    return table


def _actors(events: Iterable[Event]) -> list[str]:
    """The actor to name for each event, or an empty text."""
    actors: list[str] = []
    newest: tuple[str | None, str] = None, ""
    for event in events:
        actor = event.run_id, actor_text(event)
        actors.append("" if event.run_id is not None and actor == newest else actor[1])
        newest = actor
    return actors


def actor_text(event: Event) -> str:
    """Who did it, and for whom; an empty text if that is not known."""
    behalf = "" if event.on_behalf_of is None else f"for {event.on_behalf_of}"
    return one_line(" ".join(filter(None, (event.actor, behalf))))


def off_path(events: Sequence[Event]) -> frozenset[int]:
    """The versions, among these events of one lineage up to its head, that rewinds took from the path."""
    rewinds = {event.version: event.data.to for event in events if isinstance(event.data, HistoryRewound)}
    if not rewinds:
        return frozenset()
    on_path = spans(rewinds, events[-1].version)
    versions = {event.version for event in events}
    return frozenset(v for v in versions if not any(first <= v <= last for first, last in on_path))


def event_line(event: Event, find: FindEvent, *, of_store: bool) -> Text:
    """An event on one line; in a list of a whole store it names its thread."""
    actor = actor_text(event)
    by = f"{actor} · " if actor else ""
    return Text.assemble(
        (f"{time_text(event.time)} ", "dim"),
        (f"{one_line(event.thread_id)} " if of_store else "", "bold"),
        f"{event.version:>5} ",
        (f"{type_text(event).plain:<24} ", "cyan"),
        shortened(f"{by}{what_happened(event, find)}", START_LENGTH),
    )


def type_text(event: Event) -> Text:
    """The type of an event. A line connects the events of a run, from its start to its end."""
    line = ""
    if event.run_id is not None and not isinstance(event.data, run_events.RunStarted):
        ends = isinstance(event.data, run_events.RunCompleted | run_events.RunFailed | run_events.RunAbandoned)
        line = "└ " if ends else "│ "
    return Text.assemble((line, "dim"), (one_line(event.type), EVENT_STYLES.get(event.type, "")))


def what_happened(event: Event, find: FindEvent = find_nothing) -> str:
    """What an event contains besides its type, on one line."""
    match event.data:
        case thread_events.ThreadLabelled(labels=labels) if event.redacted:
            return one_line(", ".join(f"{name}={REDACTED}" for name in labels))
        case thread_events.CheckpointMade(at=at) if event.redacted:
            return f"{REDACTED}: version {at}"
        case data:
            text = _content(event, find)
            return f"{text} {REDACTED}".lstrip() if event.redacted and not isinstance(data, Shredded) else text


def _content(event: Event, find: FindEvent) -> str:
    """What an event contains, as far as it was not redacted."""
    match event.data:
        case Shredded(role=role, record=record):
            return one_line(f"{role or record or 'content'}: {REDACTED}")
        case thread_events.Opaque():
            return "of a type that this Clew does not know"
        case MessageAppended(message=message):
            return f"{message.role}: {message_start(message)}"
        case thread_events.ThreadSuspended(reason=reason) | thread_events.ThreadEnded(reason=reason):
            return one_line(reason or "")
        case thread_events.ThreadResumed():
            return ""
        case data if isinstance(data, run_events.RunEvent):
            return one_line(run_text(event, data, find))
        case data if isinstance(data, context_events.ContextEvent):
            return one_line(context_text(event, data, find))
        case data if isinstance(data, memory_events.MemoryEvent):
            return one_line(memory_text(data))
        case data:
            return one_line(_thread_text(data))


def _thread_text(data: thread_events.ThreadEvent | StateClaimed) -> str:
    match data:
        case thread_events.ThreadStarted(title=title, source=source, kind=kind):
            origin = None if source is None else "imported" if source.id is None else f"imported: {source.id}"
            return ", ".join(part for part in (title, origin, kind if kind != "local" else None) if part)
        case thread_events.ThreadForked(parent_id=parent, parent_version=version, title=title):
            options = "" if data.kind is None else f", {data.kind}"
            options += "" if data.memory is None else f", memory {data.memory}"
            return f"from {parent} at version {version}{options}" + ("" if title is None else f": {title}")
        case thread_events.HistoryRewound(to=to):
            return f"to version {to}"
        case thread_events.CheckpointMade(name=name, at=at):
            return f"{name}: version {at}"
        case thread_events.RecordAppended():
            return f"{data.type}: {record_text(data)}"
        case thread_events.MessageRedacted(version=version, reason=reason):
            return f"version {version}" + ("" if reason is None else f": {reason}")
        case thread_events.ThreadLabelled(labels=labels):
            return ", ".join(f"{key}={text_or_json(value)}" for key, value in labels.items())
        case StateClaimed(provider=provider, thread_id=thread_id):
            return f"{provider}: {thread_id}"
        case thread_events.ThreadDeleted(reason=reason, service=service):
            copies = (f"{each.id} {'deleted' if each.failed is None else 'remains'} at the service" for each in service)
            return ", ".join(part for part in (reason, *copies) if part)
        case _:
            declared = thread_events.EVENT_TYPES[thread_events.TYPE_NAMES[type(data)]]
            what = declared.describe(data.model_dump(mode="json", exclude_none=True))
            why = data.reason if isinstance(data, thread_events.ThreadPurged) else None
            return what if why is None else f"{what}: {why}"


def run_text(event: Event, data: run_events.RunEvent, find: FindEvent) -> str:
    """The details of an event of a run; the names of tools are looked up."""
    match data:
        case run_events.RunStarted(agent=agent, fingerprint=fingerprint, missing=missing):
            providers = (*fingerprint.providers, *data.providers, *data.run_providers)
            return joined(
                agent_name(agent),
                fingerprint.client,
                plural_if_any(len(fingerprint.tools), "tool"),
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
        case run_events.GuardrailTripped(guardrail=guardrail, stage=stage, reason=reason):
            return joined(guardrail, f"{stage} the model", one_line(reason))
        case run_events.RequestChanged(by=by, patch=patch):
            return joined(by, *(f"{each.get('op')} {each.get('path')}" for each in patch))
        case (
            run_events.ModelCalled()
            | run_events.RequestWithheld()
            | run_events.ModelAnswered()
            | run_events.ModelFailed()
            | run_events.AnswerInterrupted()
        ):
            return _model_text(data)
        case _:
            return _tool_text(event, data, find)


def _model_text(
    data: run_events.ModelCalled
    | run_events.RequestWithheld
    | run_events.ModelAnswered
    | run_events.ModelFailed
    | run_events.AnswerInterrupted,
) -> str:
    match data:
        case run_events.RequestWithheld(by=by):
            return by
        case run_events.ModelCalled(model=model, attempt=attempt, streamed=streamed, left_out=left_out):
            return joined(
                model,
                f"attempt {attempt}" if attempt > 1 else "",
                "streamed" if streamed else "",
                left_out_text(len(left_out)),
            )
        case run_events.ModelAnswered(finish_reason=reason, usage=usage, ms=ms, first_ms=first, answered_by=by):
            tokens = "" if usage is None else tokens_text(usage.input_tokens, usage.output_tokens)
            return joined(
                "" if by is None else f"by {by} instead",
                duration_text(ms),
                tokens,
                reason or "",
                "" if first is None else f"first after {duration_text(first)}",
            )
        case run_events.ModelFailed(error=error, retry_in=seconds, ms=ms):
            retry = "" if seconds is None else f"retries in {seconds:,.3g} s"
            message = "" if error.message is None else f": {error.message}"
            return joined(duration_text(ms), failure_text(error, message=False), retry) + message
        case run_events.AnswerInterrupted(message=message, reason=reason, error=error):
            partial = "nothing had arrived" if message is None else f"version {message} is partial"
            return joined(reason, partial, "" if error is None else failure_text(error))


_REASONS = {"approval": "", "outcome-unknown": "outcome unknown", "child": "its agent waits for an approval"}


def _tool_text(
    event: Event,
    data: run_events.ToolStarted
    | run_events.ChildThread
    | run_events.ToolProgressed
    | run_events.ToolFinished
    | run_events.ToolFailed
    | run_events.HandedOff
    | run_events.ApprovalRequested
    | run_events.ApprovalGiven,
    find: FindEvent,
) -> str:
    if isinstance(data, run_events.ApprovalGiven):
        request = find(event, data.request)
        call = f"version {data.request}"
        if request is not None and isinstance(request.data, run_events.ApprovalRequested):
            call = _tool_name(event, request.data, find)
        reason = "" if data.reason is None else f": {data.reason}"
        always = " always" if data.always else ""
        return f"{'approved' if data.approved else 'rejected'} {call}{always}{reason}"
    name = _tool_name(event, data, find)
    match data:
        case run_events.ToolStarted(standing=standing):
            by = None if standing is None else standing.actor or "somebody without a name"
            return joined(name, "" if by is None else f"always approved by {by}")
        case run_events.ToolFinished(ms=ms):
            return joined(name, duration_text(ms))
        case run_events.ToolFailed(reason=reason, kind=kind, ms=ms):
            return joined(name, reason if kind is None else f"{reason} {kind}", duration_text(ms) if ms else "")
        case run_events.ApprovalRequested(reason=reason):
            return joined(name, _REASONS[reason])
        case run_events.HandedOff(agent=agent, reason=reason):
            return joined(agent_name(agent), one_line(reason))
        case run_events.ToolProgressed(text=text, fraction=fraction):
            return joined(name, "" if fraction is None else f"{fraction:.0%}", one_line(text))
        case run_events.ChildThread(thread_id=thread_id):
            return joined(name, f"thread {thread_id}")


def _tool_name(
    event: Event,
    place: run_events.ToolStarted
    | run_events.ChildThread
    | run_events.ToolProgressed
    | run_events.ToolFinished
    | run_events.ToolFailed
    | run_events.HandedOff
    | run_events.ApprovalRequested,
    find: FindEvent,
) -> str:
    """The name of the tool in the call that an event refers to."""
    message = find(event, place.message)
    if message is not None and isinstance(message.data, Shredded) and message.type == MESSAGE_APPENDED:
        return REDACTED
    if message is not None and isinstance(message.data, MessageAppended):
        call = call_at(message.data.message.contents, place.index)
        if call is not None:
            return call.name
    return f"call {place.index} of version {place.message}"


def agent_name(agent: run_events.AgentIdentity) -> str:
    """The name of an agent, and its id if that is different."""
    return agent.id if agent.name in {None, agent.id} else f"{agent.name} ({agent.id})"


def context_text(event: Event, data: context_events.ContextEvent, find: FindEvent) -> str:
    """The details of an event of a context provider; how many messages were left out is looked up."""
    match data:
        case context_events.ContextProvided(provider=provider, instructions=instructions):
            words = plural_if_any(len((instructions or "").split()), "word")
            return f"{provider}: {joined(words, *provided_counts(data)) or 'nothing'}"
        case context_events.ContextFailed(provider=provider, hook=hook, error=error):
            return f"{provider}: {joined(hook, failure_text(error))}"
        case context_events.ContextStateRecorded(provider=provider, state=state):
            text = "nothing" if state is None else shortened(json.dumps(state, ensure_ascii=False), LONGEST_SUMMARY)
            return f"{provider}: state {text}"
        case context_events.HistoryReduced():
            return reduction_text(data, lambda spans: _count_messages(event, spans, find))


def _count_messages(event: Event, spans: Iterable[tuple[int, int]], find: FindEvent) -> int | None:
    """How many messages are in spans of versions, by the counts of the events at their ends; None if one is missing."""
    number = 0
    for first, last in spans:
        start, end = find(event, first), find(event, last)
        if start is None or end is None:
            return None
        number += end.messages - start.messages + (start.type == MESSAGE_APPENDED)
    return number


def memory_text(data: memory_events.MemoryEvent) -> str:
    """The details of an event of a memory scope."""
    match data:
        case memory_events.ScopeOpened(holds=holds, embedder=embedder, dimensions=dimensions):
            size = "" if dimensions is None else f" ({dimensions:,})"
            return joined(holds, "" if embedder is None else f"{embedder}{size}")
        case memory_events.FactRemembered(fact=fact, statement=statement):
            return joined(f"{fact}: {statement.text}", *_statement_details(statement))
        case memory_events.FactSuperseded(fact=fact, by=by, statement=statement):
            return joined(f"{by} instead of {fact}: {statement.text}", *_statement_details(statement))
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


def _statement_details(statement: memory_events.Statement) -> tuple[str, ...]:
    """The details of a fact besides its text."""
    learned, promoted = statement.learned, statement.promoted
    return (
        "" if statement.key is None else f"key {statement.key}",
        statement.kind or "",
        "" if statement.valid_from is None else f"from {time_text(to_time(statement.valid_from))}",
        "" if statement.valid_to is None else f"until {time_text(to_time(statement.valid_to))}",
        "" if learned is None else f"learned in {learned.thread} v{learned.version}",
        "" if promoted is None else f"from {promoted.fact} of {promoted.scope}",
    )
