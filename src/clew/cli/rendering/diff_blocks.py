"""The parts of a diff, for terminals and documents: blocks of words that are on both sides or on one."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from clew.cli.output import one_line, safe, without_middle
from clew.cli.rendering.conversation import REDACTED, content_text, message_start, record_text, text_or_json
from clew.domain.differences.content_diff import parsed
from clew.domain.differences.word_diff import DiffPart, Side
from clew.domain.messages import FunctionCall, FunctionResult, Reasoning, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clew.domain.differences.content_diff import FieldDiff, Path
    from clew.domain.differences.diff import ContentDiff, Diff, DiffRow
    from clew.domain.history import HistoryMessage
    from clew.domain.json_values import Json
    from clew.domain.messages import Content

LONGEST = 300
"""Characters of a value, except message text; ``--all`` shows it whole."""

LONG = 80
"""Characters of an old or a new text from which each is on its own line."""

_ONLY_A: Side = "only-a"
_ONLY_B: Side = "only-b"


class Block(NamedTuple):
    """Words with an optional label. Some words may be on one side only.

    An ``inner`` block belongs to the block before it, as an argument belongs to its call.
    """

    parts: tuple[DiffPart, ...]
    label: str = ""
    inner: bool = False


class RowGroup(NamedTuple):
    """Rows of one kind that follow each other; ``shared`` rows are the same events."""

    kind: str
    shared: bool
    rows: tuple[DiffRow, ...]


def row_groups(diff: Diff) -> Iterator[RowGroup]:
    """The rows, grouped by kind."""
    for (kind, shared), rows in groupby(enumerate(diff.rows), lambda item: (item[1].kind, item[0] < diff.shared)):
        yield RowGroup(kind, shared, tuple(row for _, row in rows))


def unchanged_text(group: RowGroup) -> tuple[str, str]:
    """The text in place of unchanged messages: their number, and the start of the last one."""
    count = len(group.rows)
    kind = "shared" if group.shared else "the same"
    ours, theirs = _versions([row.a for row in group.rows]), _versions([row.b for row in group.rows])
    versions = ours if ours == theirs else f"{ours} ⇄ {theirs}"
    summary = f"1 message {kind} (version {versions})"
    if count > 1:
        summary = f"{count:,} messages {kind} (versions {versions}), the last"
    last = group.rows[-1].a
    start = "" if last is None or last.message is None else message_start(last.message)
    return summary, "" if last is None else f"{last.role}: {start or (REDACTED if last.redacted else '[no content]')}"


def summary(diff: Diff) -> str:
    """The number of messages of each kind."""
    counts = diff.counts
    kinds = (
        (counts.same, "the same"),
        (counts.changed, "changed"),
        (counts.only_a, "only in a"),
        (counts.only_b, "only in b"),
    )
    return ", ".join(f"{count:,} {kind}" for count, kind in kinds if count) or "no messages"


def record_texts(diff: Diff) -> Iterator[tuple[str, str]]:
    """The kind and the text of each record that differs: its type, its versions, and what it holds."""
    for row in diff.records:
        records = [record for record in (row.a, row.b) if record is not None]
        if row.kind != "same":
            versions = " ⇄ ".join(dict.fromkeys(str(record.version) for record in records))
            texts = dict.fromkeys(REDACTED if each.redacted else record_text(each) for each in records)
            yield row.kind, one_line(f"{records[0].type} · version {versions} · {' ⇄ '.join(texts)}")


def blocks(row: DiffRow, *, whole: bool) -> Iterator[Block]:
    """The blocks of a row. In a row that both sides have, words of only one side are marked."""
    if row.kind != "changed":
        message = row.a or row.b
        if message is not None and message.contents:
            for content in message.contents:
                yield from _unchanged_blocks(content, "same", whole=whole)
        elif message is not None:
            yield Block((DiffPart("same", REDACTED if message.redacted else "[no content]"),))
        return
    for field in row.fields:
        yield Block(_values(field, whole=whole), _path_text(field.path))
    for side, kind in ((row.a, _ONLY_A), (row.b, _ONLY_B)):
        if side is not None and side.redacted:
            yield Block((DiffPart(kind, REDACTED),))
    for content_diff in row.contents:
        yield from _content_blocks(content_diff, whole=whole)


def join_sides(parts: Sequence[DiffPart]) -> tuple[DiffPart, ...]:
    """The parts as one text of both sides: old and new words are separated, on their own lines if they are long."""
    joined: list[DiffPart] = []
    for part in parts:
        if joined and (joined[-1].kind, part.kind) == (_ONLY_A, _ONLY_B):
            joined.append(DiffPart("same", "\n" if max(len(joined[-1].text), len(part.text)) > LONG else " "))
        joined.append(part)
    return tuple(joined)


def _content_blocks(diff: ContentDiff, *, whole: bool) -> Iterator[Block]:
    if diff.a is None or diff.b is None:
        for content, kind in ((diff.a, _ONLY_A), (diff.b, _ONLY_B)):
            if content is not None:
                yield from _unchanged_blocks(content, kind, whole=whole)
    elif diff.kind == "same":
        yield from _unchanged_blocks(diff.a, "same", whole=whole)
    elif isinstance(diff.a, Text | Reasoning):
        for field in diff.fields:
            yield Block(_values(field, whole=True), "" if field.path == ("text",) else _path_text(field.path))
    else:
        yield from _field_blocks(diff.a, diff.b, diff.fields, whole=whole)


def _unchanged_blocks(content: Content, kind: Side, *, whole: bool) -> Iterator[Block]:
    """A content that is on one side, or the same on both; the arguments of a call are one below the other."""
    arguments = parsed(content.arguments) if isinstance(content, FunctionCall) else None
    if isinstance(content, FunctionCall) and isinstance(arguments, dict):
        yield Block((DiffPart(kind, f"→ {one_line(content.name)}"),))
        for name, value in arguments.items():
            yield Block((DiffPart(kind, _value_text(value, whole=whole)),), _path_text((name,)), inner=True)
    else:
        yield Block((DiffPart(kind, _content_value(content, whole=whole)),))


def _field_blocks(a: Content, b: Content, fields: Sequence[FieldDiff], *, whole: bool) -> Iterator[Block]:
    """A call or a result by its name, and then its differences; anything else by its type."""
    head: tuple[DiffPart, ...] = (DiffPart("same", a.type),)
    within = None
    if isinstance(a, FunctionCall | FunctionResult) and isinstance(b, FunctionCall | FunctionResult):
        sign, within = ("→ ", "arguments") if isinstance(a, FunctionCall) else ("← ", "result")
        names = [field for field in fields if field.path == ("name",)]
        name = _values(names[0], whole=True) if names else (DiffPart("same", one_line(a.name or "")),)
        head = (DiffPart("same", sign), *name)
    yield Block(head)
    for field in fields:
        if within is None or field.path[0] == within:
            path = field.path[1:] if within else field.path
            yield Block(_values(field, whole=whole), _path_text(path), inner=True)


def _values(field: FieldDiff, *, whole: bool) -> tuple[DiffPart, ...]:
    if field.parts:
        return tuple(part._replace(text=_words(part, whole=whole)) for part in field.parts)
    parts: list[DiffPart] = []
    if field.kind != _ONLY_B:
        parts.append(DiffPart(_ONLY_A, _value_text(field.a, whole=whole)))
    if field.kind != _ONLY_A:
        parts.append(DiffPart(_ONLY_B, _value_text(field.b, whole=whole)))
    return tuple(parts)


def _words(part: DiffPart, *, whole: bool) -> str:
    text = safe(part.text)
    if whole:
        return text
    return without_middle(text, LONGEST) if part.kind == "same" else _cut(text)


def _content_value(content: Content, *, whole: bool) -> str:
    text = content_text(content).plain
    return text if whole or isinstance(content, Text | Reasoning) else _cut(text)


def _value_text(value: Json, *, whole: bool) -> str:
    text = safe(text_or_json(value))
    return text if whole else _cut(text)


def _cut(text: str) -> str:
    """The beginning of a long text, and its length."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()}… ({len(text):,} characters)"


def _path_text(path: Path) -> str:
    """The path of a field, as in flights[0].date; keys that are not plain words are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.replace("-", "_").isidentifier():
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step, ensure_ascii=False)}]"
    return one_line(text)


def _versions(messages: Sequence[HistoryMessage | None]) -> str:
    first, *_, last = [message.version for message in messages if message is not None] * 2
    return str(first) if first == last else f"{first}\N{EN DASH}{last}"
