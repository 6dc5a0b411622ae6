"""A diff for a terminal: in two columns if there is room, otherwise as one text."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.text import Text

from clew.cli.output import one_line
from clew.cli.rendering.diff_blocks import Block, blocks, in_one, messages_same, runs, summary
from clew.cli.rendering.messages import ROLE_STYLES
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


def diff_lines(found: Diff, console: Console, *, everything: bool) -> Iterator[Text]:
    """The lines of a diff. Unchanged messages are counted and long values are cut, unless ``everything``."""
    page = _Columns(console) if console.width >= ROOMY else _Stack(console, console.width)
    yield from page.heads(_head("a", found.a), _head("b", found.b))
    yield Text(summary(found), style="dim")
    alone: list[DiffRow] = []
    for run in runs(found):
        if run.kind in BRACKETS:
            alone += run.rows
            continue
        yield from page.apart(alone, everything=everything)
        alone = []
        if run.kind == "same" and not everything:
            yield Text()
            many, last = messages_same(run)
            yield Text(f"… {many}:", style="dim italic")
            line = Text(f"{INDENT}{last}", style="dim")
            line.truncate(console.width, overflow="ellipsis")
            yield line
            continue
        for row in run.rows:
            yield from page.together(row, everything=everything)
    yield from page.apart(alone, everything=everything)


class _Stack:
    """One column: the words of both sides in one text, each with its mark."""

    def __init__(self, console: Console, width: int) -> None:
        self.console = console
        self.width = width

    def heads(self, a: Text, b: Text) -> Iterator[Text]:
        """The two histories."""
        yield from (*a.split(), *b.split())

    def together(self, row: DiffRow, *, everything: bool) -> Iterator[Text]:
        """A row that both sides have."""
        yield Text()
        yield _heading(row.kind, (row.a, row.b))
        for block in blocks(row, whole=everything):
            yield from self._lines(block, in_one(block.parts), bracketed=True)

    def apart(self, rows: Sequence[DiffRow], *, everything: bool) -> Iterator[Text]:
        """Rows that one side has."""
        for row in rows:
            yield from self.together(row, everything=everything)

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


class _Columns(_Stack):
    """Two columns; what belongs together is at the same height."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, (console.width - len(BETWEEN)) // 2)
        self.bracketed = console.color_system is None or console.no_color

    def heads(self, a: Text, b: Text) -> Iterator[Text]:
        """The two histories, with a line below."""
        yield from self._side_by_side(self._wrapped(a), self._wrapped(b))
        yield Text("─" * (self.width + 1) + "┼" + "─" * (self.width + 1), style="dim")

    def together(self, row: DiffRow, *, everything: bool) -> Iterator[Text]:
        """A row that both sides have, block next to block."""
        yield self._line(Text(), Text())
        yield self._line(_heading(row.kind, (row.a,)), _heading(row.kind, (row.b,)))
        for block in blocks(row, whole=everything):
            yield from self._side_by_side(self._side(block, "only-a"), self._side(block, "only-b"))

    def apart(self, rows: Sequence[DiffRow], *, everything: bool) -> Iterator[Text]:
        """Rows of ``a`` next to rows of ``b``: they do not belong together, but this saves height."""
        ours, theirs = ([row for row in rows if row.kind == kind] for kind in BRACKETS)
        for own, their in zip_longest(ours, theirs):
            yield self._line(Text(), Text())
            yield from self._side_by_side(
                self._whole(own, everything=everything), self._whole(their, everything=everything)
            )

    def _whole(self, row: DiffRow | None, *, everything: bool) -> list[Text]:
        if row is None:
            return []
        shown = [line for block in blocks(row, whole=everything) for line in self._side(block, row.kind)]
        return [_heading(row.kind, (row.a or row.b,)), *shown]

    def _side(self, block: Block, side: str) -> list[Text]:
        parts = [part for part in block.parts if part.kind in {"same", side}]
        return self._lines(block, parts, bracketed=self.bracketed) if parts else []

    def _side_by_side(self, left: Sequence[Text], right: Sequence[Text]) -> Iterator[Text]:
        for own, their in zip_longest(left, right):
            yield self._line(own or Text(), their or Text())

    def _line(self, left: Text, right: Text) -> Text:
        left.truncate(self.width, overflow="ellipsis", pad=True)
        line = Text.assemble(left, (BETWEEN, "dim"), right)
        line.rstrip()
        return line


def _head(name: str, history: History) -> Text:
    count = len(history)
    return Text.assemble(
        (f"{name}  ", "dim"),
        (one_line(history.thread_id), "bold"),
        (f"\n   version {history.version} · {count} message{'' if count == 1 else 's'}", "dim"),
    )


def _heading(kind: str, said: Sequence[HistoryMessage | None]) -> Text:
    """The sign of the row, its role and author, and its version on each side."""
    there = [each for each in said if each is not None]
    versions = " ⇄ ".join(dict.fromkeys(str(each.version) for each in there))
    return Text.assemble(
        (f"{SIGNS[kind]} ", SIGN_STYLES[kind]),
        (there[0].role, f"bold {ROLE_STYLES[there[0].role]}"),
        "" if there[0].author is None else f" {one_line(there[0].author)}",
        (f"  version {versions}", "dim"),
        (f" · {kind.replace('-', ' in ')}" if kind.startswith("only") and len(said) > 1 else "", "dim"),
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
