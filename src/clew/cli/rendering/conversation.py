"""Conversations for people: messages and runs, wrapped on a terminal, in colour if the terminal has colours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from clew.cli.output import failure_text, joined, one_line, plural, plural_if_any, safe, shortened, time_text
from clew.domain import messages as content_types
from clew.domain.context import events as context_events
from clew.domain.media_types import address_of
from clew.domain.models.chat_requests import media_type, result_words

if TYPE_CHECKING:
    from rich.console import Console

    from clew.domain.events import RecordAppended
    from clew.domain.history import History, HistoryMessage
    from clew.domain.json_values import Json
    from clew.domain.records import ThreadRecord
    from clew.domain.runs.summaries import RunOutcome, RunSummary
    from clew.service.message_search import Hit

ROLE_STYLES = {"system": "magenta", "developer": "magenta", "user": "green", "assistant": "cyan", "tool": "yellow"}

OUTCOMES: Mapping[RunOutcome, tuple[str, str]] = {
    "open": ("open", "cyan"),
    "waiting": ("waits for approval", "bold yellow"),
    "completed": ("completed", "green"),
    "failed": ("failed", "bold red"),
    "abandoned": ("abandoned", "yellow"),
}

INTERRUPTIONS = {
    "fault": "the stream broke",
    "cancelled": "the run was cancelled",
    "stopped": "the reader closed the stream",
    "crashed": "the process ended",
}

REDACTED = "[redacted]"

INDENT = "    "

START_LENGTH = 200
"""Characters of a message in a list."""

LONGEST_URI = 120
"""Characters of an address; a longer one is a file within the address."""

LONGEST_INSTRUCTIONS = 1_000
"""Characters of a provider's instructions in ``show``; ``clew request`` shows all of them."""

LONGEST_SUMMARY = 120
"""Characters of a summary or a state on one line."""

SECOND = 1_000
MINUTE = 60_000


def conversation_lines(
    history: History,
    title: str | None,
    newest: int,
    console: Console,
    runs: Sequence[RunSummary] = (),
    records: Sequence[ThreadRecord] = (),
) -> Iterator[Text]:
    """The lines of a thread's messages and records, wrapped on a terminal only.

    A run follows the last message that it added.
    """
    place = f"version {history.version}" + ("" if history.version == newest else f" of {newest}")
    if title is not None:
        yield Text(one_line(title), style="bold")
    counts = joined(place, plural(len(history), "message"), plural_if_any(len(records), "record"))
    yield Text(f"{one_line(history.thread_id)} · {counts}", style="dim")
    by_version = {message.version: message for message in history}
    interruptions = {each.message: each.reason for run in runs for each in run.interrupted}
    remaining, unlisted = list(reversed(runs)), list(reversed(records))
    for number, message in enumerate(history, start=1):
        while remaining and remaining[-1].last_version < message.version:
            yield from _indented_run(remaining.pop(), by_version, console)
        yield from _record_lines(unlisted, message.version, console)
        yield Text()
        yield message_heading(number, message)
        for content in content_texts(message):
            yield from _indented(content, console)
        if message.version in interruptions:
            note = f"[partial: {INTERRUPTIONS[interruptions[message.version]]}]"
            yield from _indented(Text(note, style="yellow italic"), console)
    while remaining:
        yield from _indented_run(remaining.pop(), by_version, console)
    yield from _record_lines(unlisted, history.version + 1, console)


def _record_lines(unlisted: list[ThreadRecord], end: int, console: Console) -> Iterator[Text]:
    """A line for each record before a version, which is removed from the list; the newest is the first in it."""
    if unlisted and unlisted[-1].version < end:
        yield Text()
    while unlisted and unlisted[-1].version < end:
        record = unlisted.pop()
        text = joined(f"version {record.version}", REDACTED if record.redacted else one_line(record_text(record)))
        yield from _indented(Text.assemble(("◇ ", "dim"), one_line(record.type), (f"  {text}", "dim")), console)


def _indented_run(run: RunSummary, messages: Mapping[int, HistoryMessage], console: Console) -> Iterator[Text]:
    yield Text()
    for line in run_lines(run, messages):
        yield from _indented(line, console)


def _indented(text: Text, console: Console) -> Iterator[Text]:
    width = max(console.width - len(INDENT), len(INDENT))
    lines = text.wrap(console, width, overflow="fold") if console.is_terminal else text.split(allow_blank=True)
    for line in lines:
        line.rstrip()
        yield Text(INDENT).append_text(line) if line else line


def message_heading(number: int, message: HistoryMessage | Hit) -> Text:
    """The line above a message: its number, role, author, version and time."""
    return Text.assemble(
        (f"{number:>3} ", "dim"),
        (message.role, f"bold {ROLE_STYLES[message.role]}"),
        "" if message.author is None else f" {one_line(message.author)}",
        (f"  version {message.version} · {time_text(message.time)}", "dim"),
        ("" if message.said_at is None else f" · said {time_text(message.said_at)}", "dim"),
    )


def content_texts(message: HistoryMessage) -> Iterator[Text]:
    """Each content of a message, whole."""
    if message.redacted:
        yield Text(REDACTED, style="dim italic")
    elif not message.contents:
        yield Text("[no content]", style="dim italic")
    yield from map(content_text, message.contents)


def content_text(content: content_types.Content) -> Text:
    """A content, whole and safe for a terminal."""
    match content:
        case content_types.Text(text=text):
            return Text(safe(text))
        case content_types.Reasoning(text=text):
            return Text(safe(text), style="dim italic")
        case content_types.Media():
            kind = media_type(content)
            address = address_of(content, LONGEST_URI)
            return Text(f"[{one_line(kind or 'media')}: {one_line(address)}]", style="blue")
        case content_types.FunctionCall():
            return _call_text("→", content)
        case content_types.FunctionResult(name=name, result=result):
            by = "" if name is None else f"{one_line(name)}: "
            head = Text.assemble(("← ", "yellow"), (by, "bold yellow"))
            if not content.contents:
                return head.append(safe(text_or_json(result)))
            return head.append_text(Text("\n").join(map(content_text, content.contents)))
        case content_types.ApprovalRequest(call=call):
            return _call_text("approve?", call)
        case content_types.ApprovalResponse(approved=approved, reason=reason):
            word, style = ("approved", "bold green") if approved else ("rejected", "bold red")
            return Text(word if reason is None else f"{word}: {safe(reason)}", style=style)
        case content_types.Raw(value=value):
            return Text(safe(text_or_json(value)), style="dim")


def _call_text(sign: str, call: content_types.FunctionCall) -> Text:
    return Text.assemble((f"{sign} ", "cyan"), (one_line(call.name), "bold cyan"), f"({safe(call.arguments)})")


def text_or_json(value: Json) -> str:
    """A string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def message_start(message: content_types.Message) -> str:
    """The start of a message on one line: of its text, or else its calls or results."""
    text = message.text.strip()
    if not text and message.calls:
        text = ", ".join(f"→ {call.name}({call.arguments})" for call in message.calls)
    if not text and message.results:
        text = ", ".join(f"← {result_words(result)}" for result in message.results)
    return shortened(one_line(text[: 4 * START_LENGTH]), START_LENGTH)


def record_text(record: RecordAppended | ThreadRecord) -> str:
    """The key, the data and the number of bytes of a record."""
    return joined(
        "" if record.key is None else f"key {record.key}",
        "" if record.data is None else shortened(json.dumps(record.data, ensure_ascii=False), LONGEST_SUMMARY),
        "" if record.blob is None else plural(len(record.blob), "byte"),
    )


def run_lines(run: RunSummary, messages: Mapping[int, HistoryMessage]) -> Iterator[Text]:
    """A run on one line: its agent, its outcome and its figures.

    Lines below it show what the model received besides the history, the error, and the approvals it waits for.
    """
    word, style = OUTCOMES[run.outcome]
    if run.outcome == "abandoned" and run.reason is not None:
        word += f" ({one_line(run.reason)})"
    figures = joined(
        f"attempt {run.attempts}" if run.attempts > 1 else "",
        plural_if_any(run.model_calls, "model call"),
        plural_if_any(run.tool_calls, "tool call"),
        f"{run.failed_calls:,} failed" if run.failed_calls else "",
        tokens_text(run.input_tokens, run.output_tokens) if run.input_tokens or run.output_tokens else "",
        duration_text(run.model_ms + run.tool_ms) if run.model_ms or run.tool_ms else "",
    )
    yield Text.assemble(
        ("└ ", "dim"),
        (one_line(run.agent.name or run.agent.id), "bold"),
        " ",
        (word, style),
        (f" · {figures}" if figures else "", "dim"),
    )
    yield from context_lines(run, messages)
    if run.left_out:
        yield Text.assemble(("  - ", "magenta"), left_out_text(run.left_out))
    if run.error is not None:
        yield Text(f"  {one_line(failure_text(run.error))}", style="red")
    for request in run.approvals:
        unknown = _REASONS.get(request.reason, "")
        name = one_line(_tool_name(messages.get(request.message), request.index))
        yield Text.assemble(("  approve? ", "yellow"), (name, "bold"), f"{unknown} (version {request.version})")


_REASONS = {
    "outcome-unknown": " was started, and its outcome is unknown",
    "child": " runs an agent that waits for an approval on its own thread",
}


def _tool_name(message: HistoryMessage | None, index: int) -> str:
    if message is not None and message.redacted:
        return REDACTED
    call = None if message is None else call_at(message.contents, index)
    return "a call" if call is None else call.name


def call_at(contents: Sequence[content_types.Content], index: int) -> content_types.FunctionCall | None:
    """The call at an index; None if the index has no content, or another one."""
    content = contents[index] if 0 <= index < len(contents) else None
    return content if isinstance(content, content_types.FunctionCall) else None


def context_lines(run: RunSummary, messages: Mapping[int, HistoryMessage]) -> Iterator[Text]:
    """What providers gave to the model of a run, which of them failed, and what was left out of the history."""
    for provider in run.missing:
        yield Text(f"  without the provider {one_line(provider)}, which was missing", style="yellow")
    for _, event in run.context:
        match event:
            case context_events.ContextProvided(provider=provider, instructions=instructions):
                counts = one_line(joined(*provided_counts(event)))
                summary = f" · {counts}" if counts else "" if instructions else " · nothing"
                yield Text.assemble(("  + ", "magenta"), (one_line(provider), "bold"), (summary, "dim"))
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


def left_out_text(messages: int) -> str:
    """From how many messages a request left out the parts that only their own model accepts; empty for none."""
    return f"signed parts of {plural(messages, 'message')} left out" if messages else ""


def provided_counts(event: context_events.ContextProvided) -> tuple[str, ...]:
    """What a provider gave besides instructions, and the scopes that it read."""
    return (
        plural_if_any(len(event.messages), "message"),
        plural_if_any(len(event.tools), "tool"),
        plural_if_any(len(event.facts), "fact"),
        plural_if_any(len(event.citations), "citation"),
        "read " + ", ".join(f"{read.scope} v{read.version}" for read in event.reads) if event.reads else "",
    )


def reduction_text(
    event: context_events.HistoryReduced, count: Callable[[tuple[tuple[int, int], ...]], int | None]
) -> str:
    """Which reducer left out what, and its summary; ``count`` gives the number of messages in spans of versions."""
    number = count(event.left_out) if event.left_out else 0
    if number is None:
        spans = (str(first) if first == last else f"{first} to {last}" for first, last in event.left_out)
        left_out = f"versions {', '.join(spans)} left out"
    else:
        left_out = f"{plural_if_any(number, 'message') or 'nothing'} left out"
    summary = "" if event.summary is None else f"replaced by: {shortened(event.summary.text, LONGEST_SUMMARY)}"
    trimmed = f"{plural(len(event.trimmed), 'message')} trimmed" if event.trimmed else ""
    return f"{event.reducer}: {joined(left_out, trimmed, 'over budget' if event.over_budget else '', summary)}"


def _within(version: int, spans: Iterable[tuple[int, int]]) -> bool:
    return any(first <= version <= last for first, last in spans)


def duration_text(milliseconds: int) -> str:
    """A duration for people."""
    if milliseconds < SECOND:
        return f"{milliseconds} ms"
    if milliseconds < MINUTE:
        return f"{milliseconds / SECOND:.1f} s"
    minutes, seconds = divmod(milliseconds // SECOND, 60)
    return f"{minutes:,} min {seconds} s"


def tokens_text(input_: int, output: int) -> str:
    """The tokens of a call or a run, in and out."""
    return f"{input_:,}→{output:,} tokens"
