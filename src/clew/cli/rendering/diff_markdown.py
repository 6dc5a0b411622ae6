"""A diff as a Markdown document for GitHub and other readers.

Text of users and models is escaped: none of it becomes markup.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clew.cli.output import one_line, shortened
from clew.cli.rendering.diff_blocks import Block, blocks, join_sides, record_texts, row_groups, summary, unchanged_text
from clew.domain.differences.word_diff import DiffPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clew.domain.differences.diff import Diff, DiffRow
    from clew.domain.history import History

LONGEST = 100
"""Characters of an unchanged message."""

_ALWAYS = re.compile(r"[\\`*\[\]<&~|$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.", re.IGNORECASE)
_AT_THE_START = re.compile(r"^(\d{1,9}(?=[.)])|(?=[-+=#>]))")
_MARKS = {"only-a": ("~~", "del"), "only-b": ("**", "strong")}
_WHERE = {"same": "the same", "changed": "changed", "only-a": "only in a", "only-b": "only in b"}


def diff_document(diff: Diff, *, everything: bool) -> Iterator[str]:
    """The lines of a diff. Unchanged messages are counted and long values are cut, unless ``everything``."""
    yield from ("# Diff", "", "| | thread | version | messages |", "|---|---|---|---|")
    yield from (_head("a", diff.a), _head("b", diff.b))
    counts = summary(diff)
    legend = "Words only in a are ~~struck through~~, words only in b are **bold**."
    yield from ("", f"{counts[0].upper()}{counts[1:]}. {legend}")
    for group in row_groups(diff):
        if group.kind == "same" and not everything:
            count, last = unchanged_text(group)
            yield from ("", f"*… {count}:* {escaped(shortened(last, LONGEST))}")
            continue
        for row in group.rows:
            yield from _row(row, everything=everything)
    if texts := list(record_texts(diff)):
        yield from ("", "### Records", "")
        for kind, text in texts:
            yield f"- {_WHERE[kind]}: {escaped(text if everything else shortened(text, LONGEST))}"


def escaped(text: str) -> str:
    """Text for a line of Markdown, with its markup escaped."""
    return _ALWAYS.sub(lambda match: f"\\{match[0]}", text)


def _head(name: str, history: History) -> str:
    return f"| {name} | {escaped(one_line(history.thread_id))} | {history.version} | {len(history)} |"


def _row(row: DiffRow, *, everything: bool) -> Iterator[str]:
    yield from ("", _heading(row), "")
    previous: Block | None = None
    for block in blocks(row, whole=everything):
        if previous is not None and not (previous.inner and block.inner):
            yield ">"
        yield from (f"> {line}" if line else ">" for line in _block_lines(block))
        previous = block


def _heading(row: DiffRow) -> str:
    messages = [message for message in (row.a, row.b) if message is not None]
    author = f" {escaped(one_line(messages[0].author))}" if messages[0].author else ""
    versions = " ⇄ ".join(dict.fromkeys(str(message.version) for message in messages))
    return f"### {messages[0].role}{author} · {_WHERE[row.kind]} · version {versions}"


def _block_lines(block: Block) -> Iterator[str]:
    """A block as a paragraph with line ends, or an inner block as an item of a list."""
    lines = [_line(parts) for parts in _split_lines(join_sides(block.parts))]
    label = f"*{escaped(block.label)}*: " if block.label else ""
    if block.inner:
        yield f"- {label}{'<br>'.join(lines)}"
        return
    lines[0] = label + lines[0]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        yield f"{line}\\" if line and following else line


def _split_lines(parts: Sequence[DiffPart]) -> list[list[DiffPart]]:
    """The parts line by line: Markdown's marks must end within a line."""
    lines: list[list[DiffPart]] = [[]]
    for kind, text in parts:
        first, *others = text.split("\n")
        lines[-1].append(DiffPart(kind, first))
        lines += [[DiffPart(kind, line)] for line in others]
    return lines


def _line(parts: Sequence[DiffPart]) -> str:
    """One line with its words marked and its indentation kept. Its start never begins a list or a heading."""
    plain = "".join(part.text for part in parts)
    markdown, start = "", 0
    for kind, text in parts:
        end = start + len(text)
        markdown += _marked(kind, text, plain[start - 1 : start], plain[end : end + 1])
        start = end
    indent = plain[: len(plain) - len(plain.lstrip())].expandtabs(4)
    markdown = _AT_THE_START.sub(r"\1\\", markdown.strip())
    return "&nbsp;" * len(indent) + markdown if markdown else ""


def _marked(kind: str, text: str, before: str, after: str) -> str:
    """Marked words. Markdown does not recognise its marks within a word, so HTML tags are used there."""
    core = text.strip()
    if not core or kind not in _MARKS:
        return escaped(text)
    sign, tag = _MARKS[kind]
    start = text.index(core)
    space, rest = text[:start], text[start + len(core) :]
    opens = space or core[0].isalnum() or not before.isalnum()
    closes = rest or core[-1].isalnum() or not after.isalnum()
    inner = escaped(core)
    marked = f"{sign}{inner}{sign}" if opens and closes else f"<{tag}>{inner}</{tag}>"
    return f"{space}{marked}{rest}"
