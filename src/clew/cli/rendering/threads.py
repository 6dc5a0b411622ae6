"""Threads as a table, and as a tree in which each fork starts at its cut, a version of its parent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from clew.cli.output import minute_text, one_line, plural

if TYPE_CHECKING:
    from rich.console import Console

    from clew.domain.event_types import Status
    from clew.domain.fork_tree import Branch
    from clew.service.thread_queries import ThreadSummary

STATUS_STYLES: Mapping[Status, str] = {"active": "green", "suspended": "yellow", "ended": "blue", "deleted": "red"}

ROOMY = 72
"""Columns of a terminal from which lists show every column."""

BESIDE_ID = 50
"""Columns next to the widest id from which lists show every column, and trees the times: with a part of each title."""

WIDE = 100
"""Columns of a terminal from which a tree abbreviates nothing."""

SHORT_STATE = 10
"""Columns of a thread's status in a tree on a very narrow terminal."""

STATE = 31
"""Columns to the right of the ids and titles in a tree on a narrow terminal."""

LEVEL = 3
"""Columns of a level of the tree."""

NARROWEST = 16
"""Columns that a thread's id and title always have."""

DEEPEST = 5
"""Levels of forks that the table indents."""


def plain_table(*, expand: bool = False) -> Table:
    """A table with a line below its headings and no other lines."""
    return Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=expand)


def thread_table(
    threads: Sequence[tuple[ThreadSummary, str | None]], console: Console, *, nested: bool = True
) -> Table:
    """A row for each thread, with its first words in place of a missing title.

    Forks come under their parents, or with ``nested=False`` in their order.
    """
    rows = [
        ("  " * (depth - 1) + "└ " if depth else "", one_line(summary.id), summary, words)
        for depth, summary, words in (_forks_under_parents(threads) if nested else ((0, *each) for each in threads))
    ]
    widest = max((cell_len(branch + id_) for branch, id_, _, _ in rows), default=0)
    roomy = console.width >= max(ROOMY, widest + BESIDE_ID)
    said = roomy and any(summary.first_said_at is not None for summary, _ in threads)
    table = plain_table(expand=True)
    table.add_column("Thread", overflow="fold", no_wrap=False, min_width=12)
    table.add_column("Title", overflow="ellipsis", no_wrap=True, ratio=1, min_width=8)
    table.add_column("Status", no_wrap=True)
    table.add_column("Msgs", justify="right", no_wrap=True)
    if roomy:
        table.add_column("Ver", justify="right", no_wrap=True)
        table.add_column("Updated", no_wrap=True)
    if said:
        table.add_column("Said", no_wrap=True)
    for branch, id_, summary, words in rows:
        table.add_row(
            Text.assemble((branch, "dim"), (id_, "bold")),
            Text(words or "", style="dim italic") if summary.title is None else Text(one_line(summary.title)),
            Text(summary.status, style=STATUS_STYLES[summary.status]),
            str(summary.messages),
            *((str(summary.version), minute_text(summary.updated_at)) if roomy else ()),
            *((_days_said(summary),) if said else ()),
        )
    return table


def _days_said(summary: ThreadSummary) -> str:
    """The first and the last day on which something was said, in UTC, if something was said before the thread began."""
    if summary.first_said_at is None or summary.last_said_at is None:
        return ""
    return " to ".join(dict.fromkeys(each.date().isoformat() for each in (summary.first_said_at, summary.last_said_at)))


def _forks_under_parents(
    threads: Sequence[tuple[ThreadSummary, str | None]],
) -> Iterator[tuple[int, ThreadSummary, str | None]]:
    """Depth first, siblings in their order. Without recursion, as forks may be of any depth."""
    listed = {summary.id for summary, _ in threads}
    children: dict[str | None, list[tuple[ThreadSummary, str | None]]] = {}
    for summary, words in threads:
        parent = summary.parent_id if summary.parent_id in listed else None
        children.setdefault(parent, []).append((summary, words))
    stack = [(0, *each) for each in reversed(children.get(None, []))]
    while stack:
        depth, summary, words = stack.pop()
        yield min(depth, DEEPEST), summary, words
        stack += [(depth + 1, *each) for each in reversed(children.get(summary.id, []))]


class _Selection(NamedTuple):
    """The part of a tree that is drawn: its branches, and by thread how many forks are drawn and left out."""

    branches: list[Branch[ThreadSummary]]
    forks: dict[str, int]
    left_out: dict[str, int]


def tree_lines(
    branches: Sequence[Branch[ThreadSummary]],
    width: int,
    title: Callable[[ThreadSummary], Text],
    *,
    marked: str | None = None,
    most: int | None = None,
) -> Iterator[Text]:
    """The lines of one tree, whose branches come depth first; ``title`` gives the title of a thread.

    Of each thread's forks ``most`` are drawn, and those that lead to the thread that is ``marked``.
    """
    selection = _select(branches, marked, most)
    levels = max(2, (width - STATE) // (LEVEL * LEVEL))
    ancestors = _Ancestors(levels)
    dated = width >= max(ROOMY, _widest(selection.branches, levels) + BESIDE_ID)
    for branch in selection.branches:
        yield from _left_out(selection, ancestors, branch.depth)
        yield _thread_line(branch, ancestors.joint(branch.thread.forked_at), width, title, marked=marked, dated=dated)
        id_ = branch.thread.id
        ancestors.open.append((id_, selection.forks.get(id_, 0) + (id_ in selection.left_out)))
        if branch.checkpoints:
            yield _checkpoint_line(branch, ancestors.bars(), width)
    yield from _left_out(selection, ancestors, 0)


def _widest(branches: Sequence[Branch[ThreadSummary]], levels: int) -> int:
    """Columns of the widest id in a tree, with the lines to the left of it."""
    return max(
        cell_len(one_line(branch.thread.id))
        + (LEVEL * min(branch.depth, levels + 2) + len(f" {branch.thread.forked_at}") if branch.depth else 0)
        for branch in branches
    )


def _select(branches: Sequence[Branch[ThreadSummary]], marked: str | None, most: int | None) -> _Selection:
    parents = {branch.thread.id: branch.thread.parent_id for branch in branches}
    lead_to_marked: set[str] = set()
    id_ = marked
    while id_ is not None:
        lead_to_marked.add(id_)
        id_ = parents.get(id_)
    selection = _Selection([], {}, {})
    hidden_at: int | None = None
    for branch in branches:
        if hidden_at is not None and branch.depth > hidden_at:
            continue
        hidden_at = None
        parent = branch.thread.parent_id
        if branch.depth and parent is not None:
            number = selection.forks.get(parent, 0)
            if most is not None and number >= most and branch.thread.id not in lead_to_marked:
                selection.left_out[parent] = selection.left_out.get(parent, 0) + 1
                hidden_at = branch.depth
                continue
            selection.forks[parent] = number + 1
        selection.branches.append(branch)
    return selection


class _Ancestors:
    """The threads above a line, each with the number of lines still to come below it; draws the innermost levels."""

    def __init__(self, levels: int) -> None:
        self.open: list[tuple[str, int]] = []
        self._levels = levels

    def bars(self, upto: int | None = None) -> str:
        """The vertical lines that connect what is above with the lines below."""
        above = self.open[:upto]
        bars = "".join("│  " if remaining > 0 else "   " for _, remaining in above[-self._levels :])
        return ("⋯  " if len(above) > self._levels else "") + bars

    def joint(self, cut: int | None) -> str:
        """The connection to a line below the innermost thread, which then has one line less to come."""
        if not self.open:
            return ""
        id_, remaining = self.open[-1]
        self.open[-1] = (id_, remaining - 1)
        joint = "├" if remaining > 1 else "└"
        return self.bars(-1) + (f"{joint}─ " if cut is None else f"{joint}─{cut}─ ")


def _left_out(selection: _Selection, ancestors: _Ancestors, depth: int) -> Iterator[Text]:
    """Close the threads that are at least as deep; a line for each says how many of its forks are not drawn."""
    while len(ancestors.open) > depth:
        number = selection.left_out.get(ancestors.open[-1][0])
        if number:
            yield Text(f"{ancestors.joint(None)}… and {plural(number, 'more fork')}", style="dim")
        ancestors.open.pop()


def _thread_line(
    branch: Branch[ThreadSummary],
    prefix: str,
    width: int,
    title: Callable[[ThreadSummary], Text],
    *,
    marked: str | None,
    dated: bool,
) -> Text:
    thread = branch.thread
    messages = f"{plural(thread.messages, 'message'):>14}" if width >= WIDE else f"{thread.messages:>5,} msg"
    state = Text.assemble(
        (f" {thread.status:<9}", STATUS_STYLES[thread.status]),
        messages,
        (f"{f'v{thread.version}':>6}", "dim"),
        (f"  {minute_text(thread.updated_at)}" if dated else "", "dim"),
    )
    if width < max(NARROWEST, cell_len(f"{prefix}{one_line(thread.id)}  ")) + len(state):  # only the status fits
        state.truncate(SHORT_STATE)
    is_marked = thread.id == marked
    line = Text.assemble(
        (prefix, "dim"), (one_line(thread.id), "bold reverse" if is_marked else "bold"), " ◀ " if is_marked else "  "
    )
    line.append_text(title(thread))
    line.truncate(max(width - len(state), NARROWEST), overflow="ellipsis", pad=True)
    line.append_text(state).truncate(width)
    return line


def _checkpoint_line(branch: Branch[ThreadSummary], prefix: str, width: int) -> Text:
    """The checkpoints that were made in a thread, by version, below it."""
    marks = "  ".join(f"◆ {mark.version} {one_line(mark.name)}" for mark in branch.checkpoints)
    line = Text.assemble((prefix, "dim"), (marks, "magenta"))
    line.truncate(width, overflow="ellipsis")
    return line
