"""Runs for people: a run on a line or two, and what its model received besides the history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from clew.cli.output import failure_text, joined, one_line, plural_if_any, safe, shortened
from clew.domain.context import events as context_events
from clew.domain.messages import FunctionCall

if TYPE_CHECKING:
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

INTERRUPTED = {
    "fault": "the stream broke",
    "cancelled": "the run was cancelled",
    "stopped": "the reader closed the stream",
    "crashed": "the process ended",
}

SECOND = 1_000
MINUTE = 60_000

LONGEST_INSTRUCTIONS = 1_000
"""Characters of a provider's instructions in ``show``; ``clew request`` shows all of them."""

LONGEST_SUMMARY = 120
"""Characters of a summary or a state on one line."""


def run_lines(run: RunSummary, messages: Mapping[int, HistoryMessage]) -> Iterator[Text]:
    """A run on one line: its agent, its outcome and its figures.

    Lines below it show what the model received besides the history, the error, and the approvals it waits for.
    """
    word, style = OUTCOMES[run.outcome]
    if run.outcome == "abandoned" and run.reason is not None:
        word += f" ({one_line(run.reason)})"
    figures = (
        f"attempt {run.attempts}" if run.attempts > 1 else "",
        plural_if_any(run.model_calls, "model call"),
        plural_if_any(run.tool_calls, "tool call"),
        f"{run.failed_calls:,} failed" if run.failed_calls else "",
        tokens_text(run.input_tokens, run.output_tokens) if run.input_tokens or run.output_tokens else "",
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
        yield Text(f"  {one_line(failure_text(run.error))}", style="red")
    for request in run.approvals:
        unknown = " was started, and its outcome is unknown" if request.reason == "outcome-unknown" else ""
        name = one_line(_called(messages.get(request.message), request.index))
        yield Text.assemble(("  approve? ", "yellow"), (name, "bold"), f"{unknown} (version {request.version})")


def _called(message: HistoryMessage | None, index: int) -> str:
    if message is not None and message.redacted:
        return REDACTED
    contents = () if message is None else message.contents
    call = contents[index] if 0 <= index < len(contents) else None
    return call.name if isinstance(call, FunctionCall) else "a call"


def partial_answer(reason: str) -> Text:
    """The note below an interrupted answer."""
    return Text(f"[partial: {INTERRUPTED[reason]}]", style="yellow italic")


def took(milliseconds: int) -> str:
    """A duration for people."""
    if milliseconds < SECOND:
        return f"{milliseconds} ms"
    if milliseconds < MINUTE:
        return f"{milliseconds / SECOND:.1f} s"
    minutes, rest = divmod(milliseconds // SECOND, 60)
    return f"{minutes:,} min {rest} s"


def tokens_text(input_: int, output: int) -> str:
    """The tokens of a call or a run, in and out."""
    return f"{input_:,}→{output:,} tokens"


def context_lines(run: RunSummary, messages: Mapping[int, HistoryMessage]) -> Iterator[Text]:
    """What providers gave to the model of a run, which of them failed, and what was left out of the history."""
    for provider in run.missing:
        yield Text(f"  without the provider {one_line(provider)}, which was missing", style="yellow")
    for _, event in run.context:
        match event:
            case context_events.ContextProvided(provider=provider, instructions=instructions):
                rest = one_line(joined(*provided_counts(event)))
                gave = f" · {rest}" if rest else "" if instructions else " · nothing"
                yield Text.assemble(("  + ", "magenta"), (one_line(provider), "bold"), (gave, "dim"))
                texts = [] if instructions is None else [instructions]
                texts += [f"{message.role}: {message.text}" for message in event.messages]
                for text in texts:
                    for line in safe(shortened(text.strip(), LONGEST_INSTRUCTIONS)).splitlines():
                        yield Text(f"    {line}", style="dim")
            case context_events.ContextFailed(provider=provider, hook=hook, error=error):
                yield Text(f"  {one_line(f'{provider} failed in {hook}: {failure_text(error)}')}", style="yellow")
            case context_events.HistoryReduced():
                text = reduction_text(event, lambda spans: sum(_within(version, spans) for version in messages))
                yield Text.assemble(("  - ", "magenta"), one_line(text))


def provided_counts(data: context_events.ContextProvided) -> tuple[str, ...]:
    """What a provider gave besides instructions, and the scopes that it read."""
    return (
        plural_if_any(len(data.messages), "message"),
        plural_if_any(len(data.tools), "tool"),
        plural_if_any(len(data.facts), "fact"),
        plural_if_any(len(data.citations), "citation"),
        "read " + ", ".join(f"{each.scope} v{each.version}" for each in data.reads) if data.reads else "",
    )


def reduction_text(
    data: context_events.HistoryReduced, count: Callable[[tuple[tuple[int, int], ...]], int | None]
) -> str:
    """Which reducer left out what, and its summary; ``count`` gives the number of messages in spans of versions."""
    number = count(data.left_out) if data.left_out else 0
    if number is None:
        spans = (str(first) if first == last else f"{first} to {last}" for first, last in data.left_out)
        left_out = f"versions {', '.join(spans)} left out"
    else:
        left_out = f"{plural_if_any(number, 'message') or 'nothing'} left out"
    summary = "" if data.summary is None else f"replaced by: {shortened(data.summary.text, LONGEST_SUMMARY)}"
    trimmed = f"{plural_if_any(len(data.trimmed), 'message')} trimmed" if data.trimmed else ""
    return f"{data.reducer}: {joined(left_out, trimmed, 'over budget' if data.over_budget else '', summary)}"


def _within(version: int, spans: Iterable[tuple[int, int]]) -> bool:
    return any(first <= version <= last for first, last in spans)
