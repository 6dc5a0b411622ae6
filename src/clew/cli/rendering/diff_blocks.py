"""The content of a diff for terminals and documents: blocks of words, each on both sides or on one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from clew.cli.output import one_line, safe, without_middle
from clew.cli.rendering.messages import beginning, content_text
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
"""Characters of an old or a new text from which on each is on its own line."""

_ONLY_A: Side = "only-a"
_ONLY_B: Side = "only-b"


class Block(NamedTuple):
    """Words, of which some may be on one side only, with an optional label.

    An ``inner`` block belongs to the block before it, as an argument belongs to its call.
    """

    parts: tuple[DiffPart, ...]
    label: str = ""
    inner: bool = False


class Run(NamedTuple):
    """Rows of one kind that follow each other; ``shared`` rows are the same events."""

    kind: str
    shared: bool
    rows: tuple[DiffRow, ...]


def runs(found: Diff) -> Iterator[Run]:
    """The rows, grouped by kind."""
    waiting: list[DiffRow] = []
    for number, row in enumerate(found.rows):
        if waiting and (row.kind != waiting[-1].kind or number == found.shared):
            yield Run(waiting[-1].kind, number <= found.shared, tuple(waiting))
            waiting = []
        waiting.append(row)
    if waiting:
        yield Run(waiting[-1].kind, len(found.rows) <= found.shared, tuple(waiting))


def messages_same(run: Run) -> tuple[str, str]:
    """What stands in place of unchanged messages: their number, and how the last one begins."""
    count = len(run.rows)
    word = "shared" if run.shared else "the same"
    ours, theirs = _versions([row.a for row in run.rows]), _versions([row.b for row in run.rows])
    where = ours if ours == theirs else f"{ours} ⇄ {theirs}"
    many = (
        f"{count:,} messages {word} (versions {where}), the last"
        if count > 1
        else f"1 message {word} (version {where})"
    )
    last = run.rows[-1].a
    words = "" if last is None or last.message is None else beginning(last.message)
    return many, "" if last is None else f"{last.role}: {words or ('[redacted]' if last.redacted else '[no content]')}"


def summary(found: Diff) -> str:
    """The number of messages of each kind."""
    counts = found.counts
    kinds = ((counts.same, "the same"), (counts.changed, "changed"), (counts.only_a, "only in a"))
    item = [f"{count:,} {kind}" for count, kind in (*kinds, (counts.only_b, "only in b")) if count]
    return ", ".join(item) or "no messages"


def blocks(row: DiffRow, *, whole: bool) -> Iterator[Block]:
    """The blocks of a row. In a row that both sides have, what only one side has is marked."""
    if row.kind != "changed":
        item = row.a or row.b
        if item is not None and item.contents:
            for content in item.contents:
                yield from _whole(content, "same", whole=whole)
        elif item is not None:
            yield Block((DiffPart("same", "[redacted]" if item.redacted else "[no content]"),))
        return
    for field in row.fields:
        yield Block(_values(field, whole=whole), _shown_path(field.path))
    for side, kind in ((row.a, _ONLY_A), (row.b, _ONLY_B)):
        if side is not None and side.redacted:
            yield Block((DiffPart(kind, "[redacted]"),))
    for found in row.contents:
        yield from _content_blocks(found, whole=whole)


def in_one(parts: Sequence[DiffPart]) -> tuple[DiffPart, ...]:
    """The parts as one text of both sides: old and new words are separated, on their own lines if they are long."""
    found: list[DiffPart] = []
    for part in parts:
        if found and (found[-1].kind, part.kind) == ("only-a", "only-b"):
            found.append(DiffPart("same", "\n" if max(len(found[-1].text), len(part.text)) > LONG else " "))
        found.append(part)
    return tuple(found)


def _content_blocks(found: ContentDiff, *, whole: bool) -> Iterator[Block]:
    if found.a is None or found.b is None:
        for content, kind in ((found.a, _ONLY_A), (found.b, _ONLY_B)):
            if content is not None:
                yield from _whole(content, kind, whole=whole)
    elif found.kind == "same":
        yield from _whole(found.a, "same", whole=whole)
    elif isinstance(found.a, Text | Reasoning):
        for field in found.fields:
            yield Block(_values(field, whole=True), "" if field.path == ("text",) else _shown_path(field.path))
    else:
        yield from _field_blocks(found.a, found.b, found.fields, whole=whole)


def _whole(content: Content, kind: Side, *, whole: bool) -> Iterator[Block]:
    """A content that is on one side, or the same on both; the arguments of a call are one below the other."""
    arguments = parsed(content.arguments) if isinstance(content, FunctionCall) else None
    if isinstance(content, FunctionCall) and isinstance(arguments, dict):
        yield Block((DiffPart(kind, f"→ {one_line(content.name)}"),))
        for name, value in arguments.items():
            yield Block((DiffPart(kind, _shown(value, whole=whole)),), _shown_path((name,)), inner=True)
    else:
        yield Block((DiffPart(kind, _text(content, whole=whole)),))


def _field_blocks(a: Content, b: Content, fields: Sequence[FieldDiff], *, whole: bool) -> Iterator[Block]:
    """A call or a result by its name, and then its differences; anything else by its type."""
    head: tuple[DiffPart, ...] = (DiffPart("same", a.type),)
    within = None
    if isinstance(a, FunctionCall | FunctionResult) and isinstance(b, FunctionCall | FunctionResult):
        sign, within = ("→ ", "arguments") if isinstance(a, FunctionCall) else ("← ", "result")
        named = [field for field in fields if field.path == ("name",)]
        name = _values(named[0], whole=True) if named else (DiffPart("same", one_line(a.name or "")),)
        head = (DiffPart("same", sign), *name)
    yield Block(head)
    for field in fields:
        if within is None or field.path[0] == within:
            path = field.path[1:] if within else field.path
            yield Block(_values(field, whole=whole), _shown_path(path), inner=True)


def _values(field: FieldDiff, *, whole: bool) -> tuple[DiffPart, ...]:
    if field.parts:
        return tuple(part._replace(text=_words(part, whole=whole)) for part in field.parts)
    found: list[DiffPart] = []
    if field.kind != "only-b":
        found.append(DiffPart("only-a", _shown(field.a, whole=whole)))
    if field.kind != "only-a":
        found.append(DiffPart("only-b", _shown(field.b, whole=whole)))
    return tuple(found)


def _words(part: DiffPart, *, whole: bool) -> str:
    text = safe(part.text)
    if whole:
        return text
    return without_middle(text, LONGEST) if part.kind == "same" else _cut(text)


def _text(content: Content, *, whole: bool) -> str:
    text = content_text(content).plain
    return text if whole or isinstance(content, Text | Reasoning) else _cut(text)


def _shown(value: Json, *, whole: bool) -> str:
    text = safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if whole else _cut(text)


def _cut(text: str) -> str:
    """The beginning of a long text, and its length."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()}… ({len(text):,} characters)"


def _shown_path(path: Path) -> str:
    """The path of a field, as in flights[0].date; keys that are not plain words are quoted."""
    shown = ""
    for step in path:
        if isinstance(step, int):
            shown += f"[{step}]"
        elif step.replace("-", "_").isidentifier():
            shown += f".{step}" if shown else step
        else:
            shown += f"[{json.dumps(step, ensure_ascii=False)}]"
    return one_line(shown)


def _versions(item: Sequence[HistoryMessage | None]) -> str:
    first, *_, last = [each.version for each in item if each is not None] * 2
    return str(first) if first == last else f"{first}–{last}"  # noqa: RUF001  # the dash of ranges
