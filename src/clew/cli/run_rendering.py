"""What runs show to people: an event of a run in a few words, and a run on a line or two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from clew.cli.context_rendering import context_lines
from clew.cli.text import one_line
from clew.cli.words import counted, failure, joined
from clew.domain.events import MESSAGE_APPENDED, Event, MessageAppended, Shredded
from clew.domain.messages import FunctionCall
from clew.domain.runs import events as ran

if TYPE_CHECKING:
    from clew.cli.named_events import Lookup
    from clew.domain.history import HistoryMessage
    from clew.domain.runs.summaries import RunOutcome, RunSummary

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
