"""Conversations for people: messages and runs, wrapped on a terminal, in colour where there is any."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from clew.cli.output import one_line, plural, safe, shortened, time_text
from clew.cli.rendering.runs import partial_answer, run_lines
from clew.domain import messages as content_types

if TYPE_CHECKING:
    from rich.console import Console

    from clew.domain.history import History, HistoryMessage
    from clew.domain.json_values import Json
    from clew.domain.runs.summaries import RunSummary

ROLE_STYLES = {"system": "magenta", "developer": "magenta", "user": "green", "assistant": "cyan", "tool": "yellow"}

BEGINNING = 200
"""Characters of a message in a list."""

INDENT = "    "

LONGEST_URI = 120
"""Characters of an address; a longer one is a file within the address."""


def conversation(
    history: History, title: str | None, newest: int, console: Console, runs: Sequence[RunSummary] = ()
) -> Iterator[Text]:
    """The lines of a thread's messages, wrapped on a terminal only. A run follows the last message that it added."""
    place = f"version {history.version}" + ("" if history.version == newest else f" of {newest}")
    if title is not None:
        yield Text(one_line(title), style="bold")
    yield Text(f"{one_line(history.thread_id)} · {place} · {plural(len(history), 'message')}", style="dim")
    by_version = {message.version: message for message in history}
    partial = {each.message: each.reason for run in runs for each in run.interrupted}
    waiting = list(reversed(runs))
    for number, message in enumerate(history, start=1):
        while waiting and waiting[-1].last_version < message.version:
            yield from _run(waiting.pop(), by_version, console)
        yield Text()
        yield heading(number, message)
        for content in contents(message):
            yield from _indented(content, console)
        if message.version in partial:
            yield from _indented(partial_answer(partial[message.version]), console)
    while waiting:
        yield from _run(waiting.pop(), by_version, console)


def _run(run: RunSummary, messages: Mapping[int, HistoryMessage], console: Console) -> Iterator[Text]:
    yield Text()
    for line in run_lines(run, messages):
        yield from _indented(line, console)


def _indented(text: Text, console: Console) -> Iterator[Text]:
    width = max(console.width - len(INDENT), len(INDENT))
    lines = text.wrap(console, width, overflow="fold") if console.is_terminal else text.split(allow_blank=True)
    for line in lines:
        line.rstrip()
        yield Text(INDENT).append_text(line) if line else line


def heading(number: int, message: HistoryMessage) -> Text:
    """The line above a message: its number, role, author, version and time."""
    return Text.assemble(
        (f"{number:>3} ", "dim"),
        (message.role, f"bold {ROLE_STYLES[message.role]}"),
        "" if message.author is None else f" {one_line(message.author)}",
        (f"  version {message.version} · {time_text(message.time)}", "dim"),
    )


def contents(message: HistoryMessage) -> Iterator[Text]:
    """Each content of a message, whole."""
    if message.redacted:
        yield Text("[redacted]", style="dim italic")
    elif not message.contents:
        yield Text("[no content]", style="dim italic")
    for content in message.contents:
        yield content_text(content)


def content_text(content: content_types.Content) -> Text:
    """A content, whole and safe for a terminal."""
    match content:
        case content_types.Text(text=text):
            return Text(safe(text))
        case content_types.Reasoning(text=text):
            return Text(safe(text), style="dim italic")
        case content_types.Media(uri=uri, media_type=kind):
            address = uri if len(uri) <= LONGEST_URI else f"{uri[:40]}… ({len(uri):,} characters)"
            return Text(f"[{one_line(kind or 'media')}: {one_line(address)}]", style="blue")
        case content_types.FunctionCall():
            return _call("→", content)
        case content_types.FunctionResult(name=name, result=result):
            by = "" if name is None else f"{one_line(name)}: "
            return Text.assemble(("← ", "yellow"), (by, "bold yellow"), safe(text_or_json(result)))
        case content_types.ApprovalRequest(call=call):
            return _call("approve?", call)
        case content_types.ApprovalResponse(approved=approved, reason=reason):
            word, style = ("approved", "bold green") if approved else ("rejected", "bold red")
            return Text(word if reason is None else f"{word}: {safe(reason)}", style=style)
        case content_types.Raw(value=value):
            return Text(safe(text_or_json(value)), style="dim")


def _call(sign: str, call: content_types.FunctionCall) -> Text:
    return Text.assemble((f"{sign} ", "cyan"), (one_line(call.name), "bold cyan"), f"({safe(call.arguments)})")


def text_or_json(value: Json) -> str:
    """A string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def beginning(message: content_types.Message) -> str:
    """How a message begins, on one line: its words, or else its calls or results."""
    words = message.text.strip()
    if not words and message.calls:
        words = ", ".join(f"→ {call.name}({call.arguments})" for call in message.calls)
    if not words and message.results:
        words = ", ".join(f"← {text_or_json(result.result)}" for result in message.results)
    return shortened(one_line(words[: 4 * BEGINNING]), BEGINNING)
