"""What events and runs show to people: an event in a few words, and a run on a line or two."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from rich.text import Text

from clew.cli.output import counted, failure, joined, one_line, safe, shortened, shown_time
from clew.domain.context import events as given
from clew.domain.events import MESSAGE_APPENDED, Event, MessageAppended, Shredded, to_time
from clew.domain.memory import events as known
from clew.domain.messages import FunctionCall
from clew.domain.runs import events as ran

if TYPE_CHECKING:
    from clew.domain.events import Event
    from clew.domain.history import HistoryMessage
    from clew.domain.runs.summaries import RunOutcome, RunSummary
    from clew.sync.threads import Thread

REDACTED = "[redacted]"

OUTCOMES: Mapping[RunOutcome, tuple[str, str]] = {
    "open": ("open", "cyan"),
    "waiting": ("waits for approval", "bold yellow"),
    "completed": ("completed", "green"),
    "failed": ("failed", "bold red"),
    "abandoned": ("abandoned", "yellow"),
}

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
"""How the types that stand out are coloured."""

INTERRUPTED = {
    "fault": "the stream broke",
    "cancelled": "the run was cancelled",
    "stopped": "the stream was left",
    "crashed": "the process ended",
}

SECOND = 1_000
MINUTE = 60_000


def type_of(event: Event) -> Text:
    """The type of an event; a line leads from the beginning of a run along its events to its end."""
    line = ""
    if event.run_id is not None and not isinstance(event.data, ran.RunStarted):
        line = "└ " if isinstance(event.data, ran.RunCompleted | ran.RunFailed | ran.RunAbandoned) else "│ "
    return Text.assemble((line, "dim"), (one_line(event.type), EVENT_STYLES.get(event.type, "")))


def run_words(event: Event, data: ran.RunEvent, look: Lookup) -> str:
    """What an event of a run says beside its type; the names of tools are looked up."""
    match data:
        case ran.RunStarted(agent=agent, fingerprint=made_of, missing=missing):
            providers = (*made_of.providers, *data.providers, *data.run_providers)
            return joined(
                agent_name(agent),
                made_of.client,
                counted(len(made_of.tools), "tool"),
                f"with {', '.join(providers)}" if providers else "",
                f"without {', '.join(missing)}" if missing else "",
            )
        case ran.RunResumed(agent=agent, attempt=attempt):
            return joined(agent_name(agent), f"attempt {attempt}")
        case ran.RunCompleted(finish_reason=reason):
            return reason or ""
        case ran.RunFailed(error=error):
            return failure(error)
        case ran.RunAbandoned(reason=reason):
            return reason
        case ran.ServiceThreadBound(id=id_, kind=kind):
            return f"{kind} {id_}"
        case ran.ModelCalled() | ran.ModelAnswered() | ran.ModelFailed() | ran.AnswerInterrupted():
            return _of_a_model(data)
        case _:
            return _of_a_tool(event, data, look)


def _of_a_model(data: ran.ModelCalled | ran.ModelAnswered | ran.ModelFailed | ran.AnswerInterrupted) -> str:
    match data:
        case ran.ModelCalled(model=model, attempt=attempt, streamed=streamed):
            return joined(f"{model} #{attempt}", "streamed" if streamed else "")
        case ran.ModelAnswered(finish_reason=reason, usage=usage, ms=ms, first_ms=first):
            tokens = "" if usage is None else _tokens(usage.input_tokens, usage.output_tokens)
            return joined(took(ms), tokens, reason or "", "" if first is None else f"first after {took(first)}")
        case ran.ModelFailed(error=error, retry_in=again, ms=ms):
            waits = "" if again is None else f"again in {again:,.3g} s"
            said = "" if error.message is None else f": {error.message}"
            return joined(took(ms), failure(error, said=False), waits) + said
        case ran.AnswerInterrupted(message=message, reason=reason, error=error):
            kept = "nothing had come" if message is None else f"version {message} is partial"
            return joined(reason, kept, "" if error is None else failure(error))


def _of_a_tool(
    event: Event,
    data: ran.ToolStarted | ran.ToolFinished | ran.ToolFailed | ran.ApprovalRequested | ran.ApprovalGiven,
    look: Lookup,
) -> str:
    if isinstance(data, ran.ApprovalGiven):
        asked = look(event, data.request)
        what = f"version {data.request}"
        if asked is not None and isinstance(asked.data, ran.ApprovalRequested):
            what = _tool(event, asked.data, look)
        because = "" if data.reason is None else f": {data.reason}"
        return f"{'approved' if data.approved else 'rejected'} {what}{because}"
    name = _tool(event, data, look)
    match data:
        case ran.ToolStarted():
            return name
        case ran.ToolFinished(ms=ms):
            return joined(name, took(ms))
        case ran.ToolFailed(reason=reason, kind=kind, ms=ms):
            return joined(name, reason if kind is None else f"{reason} {kind}", took(ms) if ms else "")
        case ran.ApprovalRequested(reason=reason):
            return joined(name, "outcome unknown" if reason == "outcome-unknown" else "")


def _tool(
    event: Event,
    place: ran.ToolStarted | ran.ToolFinished | ran.ToolFailed | ran.ApprovalRequested,
    look: Lookup,
) -> str:
    """The name of the tool that is called at a place, as the message there has it."""
    said = look(event, place.message)
    if said is not None and isinstance(said.data, Shredded) and said.type == MESSAGE_APPENDED:
        return REDACTED
    contents = said.data.message.contents if said is not None and isinstance(said.data, MessageAppended) else ()
    call = contents[place.index] if 0 <= place.index < len(contents) else None
    return call.name if isinstance(call, FunctionCall) else f"call {place.index} of version {place.message}"


def run_lines(run: RunSummary, messages: Mapping[int, HistoryMessage]) -> Iterator[Text]:
    """A run on a line: whose it is, what came of it, and what it took.

    Below it, what the model was told beside the history, what went wrong, and what is waited for.
    """
    word, style = OUTCOMES[run.outcome]
    if run.outcome == "abandoned" and run.reason is not None:
        word += f" ({one_line(run.reason)})"
    figures = (
        f"attempt {run.attempts}" if run.attempts > 1 else "",
        counted(run.model_calls, "model call"),
        counted(run.tool_calls, "tool call"),
        f"{run.failed_calls:,} failed" if run.failed_calls else "",
        _tokens(run.input_tokens, run.output_tokens) if run.input_tokens or run.output_tokens else "",
        took(run.model_ms + run.tool_ms) if run.model_ms or run.tool_ms else "",
    )
    yield Text.assemble(
        ("└ ", "dim"),
        (one_line(run.agent.name or run.agent.id), "bold"),
        " ",
        (word, style),
        ("".join(f" · {figure}" for figure in figures if figure), "dim"),
    )
    yield from context_lines(run, messages)
    if run.error is not None:
        yield Text(f"  {one_line(failure(run.error))}", style="red")
    for asked in run.approvals:
        told = " was begun, and nobody knows whether it was done" if asked.reason == "outcome-unknown" else ""
        name = one_line(_called(messages.get(asked.message), asked.index))
        yield Text.assemble(("  approve? ", "yellow"), (name, "bold"), f"{told} (version {asked.version})")


def _called(said: HistoryMessage | None, index: int) -> str:
    if said is not None and said.redacted:
        return REDACTED
    contents = () if said is None else said.contents
    call = contents[index] if 0 <= index < len(contents) else None
    return call.name if isinstance(call, FunctionCall) else "a call"


def partial_answer(reason: str) -> Text:
    """What stands below an answer that was interrupted."""
    return Text(f"[partial: {INTERRUPTED[reason]}]", style="yellow italic")


def agent_name(agent: ran.AgentIdentity) -> str:
    """Who ran: the name, and the id where that is another."""
    return agent.id if agent.name in {None, agent.id} else f"{agent.name} ({agent.id})"


def took(milliseconds: int) -> str:
    """How long something took, as people read it."""
    if milliseconds < SECOND:
        return f"{milliseconds} ms"
    if milliseconds < MINUTE:
        return f"{milliseconds / SECOND:.1f} s"
    minutes, rest = divmod(milliseconds // SECOND, 60)
    return f"{minutes:,} min {rest} s"


def _tokens(input_: int, output: int) -> str:
    return f"{input_:,}→{output:,} tokens"


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


Lookup: TypeAlias = "Callable[[Event, int], Event | None]"
"""The event at a version of the lineage that an event belongs to; None where it is not known."""

KEPT = 16
"""Events that are kept because others may name them."""


def lookup(thread: Callable[[str], Thread]) -> Lookup:
    """What finds the events that other events name, in the thread of that id.

    Several in a row name the same one, so the last are kept.
    """
    from clew.domain.errors import ClewError

    @lru_cache(maxsize=KEPT)
    def found(thread_id: str, version: int) -> Event | None:
        try:
            return next(thread(thread_id).events(after=version - 1, at=version), None)
        except ClewError:  # a version that no event is at, which somebody wrote there
            return None

    return lambda event, version: found(event.thread_id, version)


def nowhere(event: Event, version: int) -> None:
    """A lookup that knows of nothing."""
    del event, version
