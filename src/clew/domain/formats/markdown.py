"""A thread as Markdown for human readers. User text is in fences and code spans, and cannot end them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from clew.domain.events import to_time
from clew.domain.history import HistoryMessage, ThreadState
from clew.domain.json_values import Json
from clew.domain.media_types import address_of
from clew.domain.messages import (
    ApprovalRequest,
    ApprovalResponse,
    Content,
    FunctionCall,
    FunctionResult,
    Media,
    Raw,
    Reasoning,
    Text,
)
from clew.domain.models.chat_requests import media_type
from clew.domain.records import ThreadRecord

LONGEST_ADDRESS = 200
"""The most characters of an address that are written in full; a longer address contains the file itself."""

_SPECIAL = re.compile(r"([\\`*_\[\]<>&!|~#$])")


class ForkedThread(NamedTuple):
    """A fork of the thread in the document."""

    id: str
    forked_at: int | None
    title: str | None


def as_markdown(
    thread_id: str,
    state: ThreadState,
    forks: Iterable[ForkedThread] = (),
    records: Sequence[ThreadRecord] = (),
) -> str:
    """A thread at a version: its title and facts, every message and record on its path, and its forks."""
    control = state.control
    parts = [f"# {_inline(control.title or '') or _code(thread_id)}", "\n".join(_facts(thread_id, state))]
    following = list(reversed(records))
    for number, message in enumerate(state.messages, start=1):
        while following and following[-1].version < message.version:
            parts += _record(following.pop())
        parts += _message(number, message)
    for record in reversed(following):
        parts += _record(record)
    fork_lines = [
        f"- {_code(fork.id)} at version {fork.forked_at}" + ("" if fork.title is None else f": {_inline(fork.title)}")
        for fork in forks
    ]
    if fork_lines:
        parts += ["## Forks", "\n".join(fork_lines)]
    return "\n\n".join(parts) + "\n"


def _facts(thread_id: str, state: ThreadState) -> Iterator[str]:
    control = state.control
    yield f"- Thread: {_code(thread_id)}"
    if control.parent_id is not None:
        yield f"- Forked from: {_code(control.parent_id)} at version {control.forked_at}"
    yield f"- Status: {control.status}"
    yield f"- Version: {control.version}"
    yield f"- Messages: {len(state.messages)}"
    yield f"- Started: {_time(to_time(control.created_at))}"
    yield f"- Updated: {_time(to_time(control.updated_at))}"
    if control.source_id is not None:
        yield f"- Imported from: {_code(_compact(control.source_id))}"
    for name, version in control.checkpoints.items():
        yield f"- Checkpoint: {_code(name)} at version {version}"
    for name, value in control.labels.items():
        yield f"- Label: {_code(f'{name}={_compact(value)}')}"
    if control.metadata:
        yield f"- Metadata: {_code(json.dumps(control.metadata, ensure_ascii=False))}"


def _message(number: int, message: HistoryMessage) -> Iterator[str]:
    by = "" if message.author is None else f" {_code(message.author)}"
    yield f"## {number}. {message.role}{by}"
    recorded = "" if message.actor is None else f", recorded by {_code(message.actor)}"
    said = "" if message.said_at is None else f", said {_time(message.said_at)}"
    yield f"{_time(message.time)}, version {message.version}{said}{recorded}"
    if message.redacted:
        yield "*Redacted.*"
    elif not message.contents:
        yield "*No content.*"
    for content in message.contents:
        yield from _content(content)


def _record(record: ThreadRecord) -> Iterator[str]:
    yield f"## Record: {_code(record.type)}"
    key = "" if record.key is None else f", key {_code(record.key)}"
    recorded = "" if record.actor is None else f", recorded by {_code(record.actor)}"
    yield f"{_time(record.time)}, version {record.version}{key}{recorded}"
    if record.redacted:
        yield "*Redacted.*"
    if record.data is not None:
        yield _fenced(json.dumps(record.data, ensure_ascii=False, indent=2), "json")
    if record.blob is not None:
        yield f"{len(record.blob):,} bytes."


def _content(content: Content) -> Iterator[str]:
    match content:
        case Text(text=text):
            yield _fenced(text, "text")
        case Reasoning(text=text):
            yield "Reasoning:"
            yield _fenced(text, "text")
        case Media():
            kind, address = media_type(content), address_of(content, LONGEST_ADDRESS)
            yield f"Media{f' ({_code(kind)})' if kind else ''}: {_code(address)}"
        case FunctionCall():
            yield f"Calls {_code(content.name)} ({_code(content.call_id)}):"
            yield _fenced_json(content.arguments)
        case FunctionResult():
            yield from _result(content)
        case ApprovalRequest(call=call, reason=reason):
            yield f"Asks for approval to call {_code(call.name)}{_because(reason)}:"
            yield _fenced_json(call.arguments)
        case ApprovalResponse(approved=approved, reason=reason):
            yield f"{'Approved' if approved else 'Rejected'}{_because(reason)}."
        case Raw(value=value):
            yield _fenced_json(value)


def _result(result: FunctionResult) -> Iterator[str]:
    of = "" if result.name is None else f" of {_code(result.name)}"
    yield f"Result{of} ({_code(result.call_id)}):"
    if not result.contents:
        yield _fenced_json(result.result)
    for each in result.contents:
        yield from _content(each)


def _because(reason: str | None) -> str:
    return "" if reason is None else f" ({_inline(reason)})"


def _fenced_json(value: Json) -> str:
    """JSON, or text that is usually JSON, with indents; other text unchanged."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return _fenced(str(value), "text")
    return _fenced(json.dumps(value, ensure_ascii=False, indent=2), "json")


def _fenced(text: str, kind: str) -> str:
    """A block of code. Its fence is longer than any in the text."""
    fence = "`" * max(3, 1 + _longest_run(text))
    return f"{fence}{kind}\n{text}\n{fence}"


def _code(text: str) -> str:
    """A span of code on one line."""
    line = " ".join(text.split())
    ticks = "`" * (1 + _longest_run(line))
    space = " " if not line or "`" in (line[0], line[-1]) else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def _inline(text: str) -> str:
    """Text on one line, with a backslash before Markdown's special characters."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _compact(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _time(time: datetime) -> str:
    return f"{time.replace(tzinfo=None).isoformat(' ', 'seconds')} UTC"
