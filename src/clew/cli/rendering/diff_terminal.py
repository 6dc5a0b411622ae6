"""A diff for a terminal: in two columns if there is room, otherwise as one text."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.text import Text

from clew.cli.output import one_line, plural
from clew.cli.rendering.conversation import ROLE_STYLES
from clew.cli.rendering.diff_blocks import Block, blocks, join_sides, record_texts, row_groups, summary, unchanged_text
from clew.cli.rendering.threads import ROOMY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from clew.domain.differences.diff import Diff, DiffRow
    from clew.domain.differences.word_diff import DiffPart
    from clew.domain.history import History, HistoryMessage

STYLES = {"same": "", "only-a": "bold red underline", "only-b": "bold green underline"}
SIGNS = {"same": "=", "changed": "~", "only-a": "-", "only-b": "+"}
SIGN_STYLES = {"same": "dim", "changed": "bold yellow", "only-a": "bold red", "only-b": "bold green"}
BRACKETS = {"only-a": ("[-", "-]"), "only-b": ("{+", "+}")}
"""Marks around words that only one side has, for output without colour."""

BETWEEN = " │ "

INDENT = "  "


def diff_lines(diff: Diff, console: Console, *, everything: bool) -> Iterator[Text]:
    """The lines of a diff. Unchanged messages are counted and long values are cut, unless ``everything``."""
    layout = _TwoColumns(console) if console.width >= ROOMY else _OneColumn(console, console.width)
    yield from layout.heads(_head("a", diff.a), _head("b", diff.b))
    yield Text(summary(diff), style="dim")
    one_sided: list[DiffRow] = []
    for group in row_groups(diff):
        if group.kind in BRACKETS:
            one_sided += group.rows
            continue
        yield from layout.one_sided(one_sided, everything=everything)
        one_sided = []
        if group.kind == "same" and not everything:
            count, last = unchanged_text(group)
            line = Text(f"{INDENT}{last}", style="dim")
            line.truncate(console.width, overflow="ellipsis")
            yield from (Text(), Text(f"… {count}:", style="dim italic"), line)
            continue
        for row in group.rows:
            yield from layout.two_sided(row, everything=everything)
    yield from layout.one_sided(one_sided, everything=everything)
    if texts := list(record_texts(diff)):
        yield from (Text(), Text("Records", style="bold"))
        for kind, text in texts:
            line = Text.assemble((f"{SIGNS[kind]} ", SIGN_STYLES[kind]), text)
            if not everything:
                line.truncate(console.width, overflow="ellipsis")
            yield line


class _OneColumn:
    """One column: the words of both sides in one text, each with its mark."""

    def __init__(self, console: Console, width: int) -> None:
        self.console = console
        self.width = width

    def heads(self, a: Text, b: Text) -> Iterator[Text]:
        """The two histories."""
        yield from (*a.split(), *b.split())

    def two_sided(self, row: DiffRow, *, everything: bool) -> Iterator[Text]:
        """A row that both sides have."""
        yield Text()
        yield _heading(row.kind, (row.a, row.b))
        for block in blocks(row, whole=everything):
            yield from self._lines(block, join_sides(block.parts), bracketed=True)

    def one_sided(self, rows: Sequence[DiffRow], *, everything: bool) -> Iterator[Text]:
        """Rows that one side has."""
        for row in rows:
            yield from self.two_sided(row, everything=everything)

    def _lines(self, block: Block, parts: Sequence[DiffPart], *, bracketed: bool) -> list[Text]:
        """A block's label and words, indented and wrapped."""
        text = Text.assemble((f"{block.label}: " if block.label else "", "dim"))
        for part in parts:
            text.append_text(_marked(part, bracketed=bracketed))
        return self._wrapped(text, INDENT * (2 if block.inner else 1))

    def _wrapped(self, text: Text, indent: str = "") -> list[Text]:
        lines = text.wrap(self.console, max(self.width - len(indent), 1), overflow="fold")
        for line in lines:
            line.rstrip()
        return [Text(indent).append_text(line) for line in lines]


class _TwoColumns(_OneColumn):
    """Two columns, in which the two sides of a turn are at the same height."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, (console.width - len(BETWEEN)) // 2)
        self.bracketed = console.color_system is None or console.no_color

    def heads(self, a: Text, b: Text) -> Iterator[Text]:
        """The two histories, with a line below."""
        yield from self._side_by_side(self._wrapped(a), self._wrapped(b))
        yield Text("─" * (self.width + 1) + "┼" + "─" * (self.width + 1), style="dim")

    def two_sided(self, row: DiffRow, *, everything: bool) -> Iterator[Text]:
        """A row that both sides have, block next to block."""
        yield self._line(Text(), Text())
        yield self._line(_heading(row.kind, (row.a,)), _heading(row.kind, (row.b,)))
        for block in blocks(row, whole=everything):
            yield from self._side_by_side(self._side(block, "only-a"), self._side(block, "only-b"))

    def one_sided(self, rows: Sequence[DiffRow], *, everything: bool) -> Iterator[Text]:
        """Rows of ``a`` next to rows of ``b``: they do not belong together, but this saves height."""
        ours, theirs = ([row for row in rows if row.kind == kind] for kind in BRACKETS)
        for our_row, their_row in zip_longest(ours, theirs):
            yield self._line(Text(), Text())
            yield from self._side_by_side(
                self._row_lines(our_row, everything=everything), self._row_lines(their_row, everything=everything)
            )

    def _row_lines(self, row: DiffRow | None, *, everything: bool) -> list[Text]:
        if row is None:
            return []
        lines = [line for block in blocks(row, whole=everything) for line in self._side(block, row.kind)]
        return [_heading(row.kind, (row.a or row.b,)), *lines]

    def _side(self, block: Block, side: str) -> list[Text]:
        parts = [part for part in block.parts if part.kind in {"same", side}]
        return self._lines(block, parts, bracketed=self.bracketed) if parts else []

    def _side_by_side(self, left: Sequence[Text], right: Sequence[Text]) -> Iterator[Text]:
        for left_line, right_line in zip_longest(left, right):
            yield self._line(left_line or Text(), right_line or Text())

    def _line(self, left: Text, right: Text) -> Text:
        left.truncate(self.width, overflow="ellipsis", pad=True)
        line = Text.assemble(left, (BETWEEN, "dim"), right)
        line.rstrip()
        return line


def _head(name: str, history: History) -> Text:
    return Text.assemble(
        (f"{name}  ", "dim"),
        (one_line(history.thread_id), "bold"),
        (f"\n   version {history.version} · {plural(len(history), 'message')}", "dim"),
    )


def _heading(kind: str, sides: Sequence[HistoryMessage | None]) -> Text:
    """The sign of the row, its role and author, and its version on each side."""
    messages = [message for message in sides if message is not None]
    role, author = messages[0].role, messages[0].author
    versions = " ⇄ ".join(dict.fromkeys(str(message.version) for message in messages))
    return Text.assemble(
        (f"{SIGNS[kind]} ", SIGN_STYLES[kind]),
        (role, f"bold {ROLE_STYLES[role]}"),
        "" if author is None else f" {one_line(author)}",
        (f"  version {versions}", "dim"),
        (f" · {kind.replace('-', ' in ')}" if kind in BRACKETS and len(sides) > 1 else "", "dim"),
    )


def _marked(part: DiffPart, *, bracketed: bool) -> Text:
    if not bracketed or part.kind not in BRACKETS:
        return Text(part.text, style=STYLES[part.kind])
    inner = part.text.strip() or part.text.strip("\n")
    if not inner:
        return Text(part.text)
    before, after = BRACKETS[part.kind]
    start = part.text.index(inner)
    space, rest = part.text[:start], part.text[start + len(inner) :]
    return Text.assemble(space, (f"{before}{inner}{after}", STYLES[part.kind]), rest)
