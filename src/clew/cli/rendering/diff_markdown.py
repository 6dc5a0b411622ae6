"""A diff as a Markdown document for GitHub and other readers.

Text of users and models is escaped: none of it becomes markup.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clew.cli.output import one_line, shortened
from clew.cli.rendering.diff_blocks import Block, blocks, in_one, messages_same, runs, summary
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


def diff_document(found: Diff, *, everything: bool) -> Iterator[str]:
    """The lines of a diff. Unchanged messages are counted and long values are cut, unless ``everything``."""
    yield from ("# Diff", "", "| | thread | version | messages |", "|---|---|---|---|")
    yield from (_head("a", found.a), _head("b", found.b))
    yield from (
        "",
        f"{_capital(summary(found))}. Words only in a are ~~struck through~~, words only in b are **bold**.",
    )
    for run in runs(found):
        if run.kind == "same" and not everything:
            many, last = messages_same(run)
            yield from ("", f"*… {many}:* {escaped(shortened(last, LONGEST))}")
            continue
        for row in run.rows:
            yield from _row(row, everything=everything)


def escaped(text: str) -> str:
    """Text for a line of Markdown, with its markup escaped."""
    return _ALWAYS.sub(lambda found: f"\\{found[0]}", text)


def _head(name: str, history: History) -> str:
    return f"| {name} | {escaped(one_line(history.thread_id))} | {history.version} | {len(history)} |"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _row(row: DiffRow, *, everything: bool) -> Iterator[str]:
    yield from ("", _heading(row), "")
    before: Block | None = None
    for block in blocks(row, whole=everything):
        if before is not None and not (before.inner and block.inner):
            yield ">"
        yield from (f"> {line}" if line else ">" for line in _block_lines(block))
        before = block


def _heading(row: DiffRow) -> str:
    there = [said for said in (row.a, row.b) if said is not None]
    author = f" {escaped(one_line(there[0].author))}" if there[0].author else ""
    versions = " ⇄ ".join(dict.fromkeys(str(said.version) for said in there))
    return f"### {there[0].role}{author} · {_WHERE[row.kind]} · version {versions}"


def _block_lines(block: Block) -> Iterator[str]:
    """A block as a paragraph with line ends, or an inner block as an item of a list."""
    lines = [_line(parts) for parts in _in_lines(in_one(block.parts))]
    label = f"*{escaped(block.label)}*: " if block.label else ""
    if block.inner:
        yield f"- {label}{'<br>'.join(lines)}"
        return
    lines[0] = label + lines[0]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        yield f"{line}\\" if line and following else line


def _in_lines(parts: Sequence[DiffPart]) -> list[list[DiffPart]]:
    """The parts line by line: Markdown's marks must end within a line."""
    found: list[list[DiffPart]] = [[]]
    for kind, text in parts:
        first, *more = text.split("\n")
        found[-1].append(DiffPart(kind, first))
        found += [[DiffPart(kind, line)] for line in more]
    return found


def _line(parts: Sequence[DiffPart]) -> str:
    """One line with its words marked and its indentation kept. Its start never begins a list or a heading."""
    plain = "".join(part.text for part in parts)
    written = seen = ""
    for kind, text in parts:
        written += _marked(kind, text, plain[len(seen) - 1 : len(seen)], plain[len(seen) + len(text) :][:1])
        seen += text
    indent = plain[: len(plain) - len(plain.lstrip())].expandtabs(4)
    written = _AT_THE_START.sub(r"\1\\", written.strip())
    return "&nbsp;" * len(indent) + written if written else ""


def _marked(kind: str, text: str, before: str, after: str) -> str:
    """Marked words. Within a word Markdown does not recognise its marks, so there it is an HTML tag."""
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
