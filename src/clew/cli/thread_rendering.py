"""Trees of forks in lines of text: each fork hangs at its cut, with its checkpoints, its state and its head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from clew.cli.output import one_line
from clew.cli.rendering import STATUS_STYLES

if TYPE_CHECKING:
    from clew.domain.views.fork_tree import Branch
    from clew.service.thread_queries import ThreadSummary

STATE = 31
"""Columns to the right: a thread's status, its messages and its head."""

LEVEL = 3
"""Columns of a level of the tree."""

NARROWEST = 16
"""Columns for a thread's id and title at the least."""


class _Shown(NamedTuple):
    """What is drawn of a tree: its branches, how many forks of each, and how many of each are left out."""

    branches: list[Branch[ThreadSummary]]
    forks: dict[str, int]
    left_out: dict[str, int]


def drawn(
    branches: Sequence[Branch[ThreadSummary]],
    width: int,
    said: Callable[[ThreadSummary], Text],
    *,
    marked: str | None = None,
    most: int | None = None,
) -> Iterator[Text]:
    """The lines of one tree, which comes depth first; ``said`` gives what a thread is called.

    Of a thread's forks at most ``most`` are drawn, and those that lead to the thread that is ``marked``.
    """
    shown = _shown(branches, marked, most)
    above = _Above(max(2, (width - STATE) // (LEVEL * LEVEL)))
    for branch in shown.branches:
        yield from _left_out(shown, above, branch.depth)
        yield _line(branch, above.joint(branch.thread.forked_at), width, said, marked=marked)
        id_ = branch.thread.id
        above.open.append((id_, shown.forks.get(id_, 0) + (id_ in shown.left_out)))
        if branch.checkpoints:
            yield _checkpoints(branch, above.bars(), width)
    yield from _left_out(shown, above, 0)


def _shown(branches: Sequence[Branch[ThreadSummary]], marked: str | None, most: int | None) -> _Shown:
    parents = {branch.thread.id: branch.thread.parent_id for branch in branches}
    kept: set[str] = set()
    above = marked
    while above is not None:
        kept.add(above)
        above = parents.get(above)
    shown = _Shown([], {}, {})
    hidden_at: int | None = None
    for branch in branches:
        if hidden_at is not None and branch.depth > hidden_at:
            continue
        hidden_at = None
        parent = branch.thread.parent_id
        if branch.depth and parent is not None:
            number = shown.forks.get(parent, 0)
            if most is not None and number >= most and branch.thread.id not in kept:
                shown.left_out[parent] = shown.left_out.get(parent, 0) + 1
                hidden_at = branch.depth
                continue
            shown.forks[parent] = number + 1
        shown.branches.append(branch)
    return shown


class _Above:
    """The threads above a line, each with how many lines are to come below it; the innermost ``levels`` are drawn."""

    def __init__(self, levels: int) -> None:
        self.open: list[tuple[str, int]] = []
        self._levels = levels

    def bars(self, upto: int | None = None) -> str:
        """What leads past a line to those that come below it."""
        there = self.open[:upto]
        bars = "".join("│  " if left > 0 else "   " for _, left in there[-self._levels :])
        return ("⋯  " if len(there) > self._levels else "") + bars

    def joint(self, cut: int | None) -> str:
        """What leads to a line below the innermost thread, which has one less to come then."""
        if not self.open:
            return ""
        id_, left = self.open[-1]
        self.open[-1] = (id_, left - 1)
        joint = "├" if left > 1 else "└"
        return self.bars(-1) + (f"{joint}─ " if cut is None else f"{joint}─{cut}─ ")


def _left_out(shown: _Shown, above: _Above, depth: int) -> Iterator[Text]:
    """Leave the threads that are as deep or deeper, saying of each how many forks were left out."""
    while len(above.open) > depth:
        number = shown.left_out.get(above.open[-1][0])
        if number:
            forks = "fork" if number == 1 else "forks"
            yield Text(f"{above.joint(None)}… and {number:,} more {forks}", style="dim")
        above.open.pop()


def _line(
    branch: Branch[ThreadSummary], left: str, width: int, said: Callable[[ThreadSummary], Text], *, marked: str | None
) -> Text:
    thread = branch.thread
    messages = f"{thread.messages:,} {'message' if thread.messages == 1 else 'messages'}"
    state = Text.assemble(
        (f" {thread.status:<9}", STATUS_STYLES[thread.status]), f"{messages:>14}", (f"{f'v{thread.version}':>7}", "dim")
    )
    here = thread.id == marked
    name = Text.assemble(
        (left, "dim"), (one_line(thread.id), "bold reverse" if here else "bold"), " ◀ " if here else "  "
    )
    name.append_text(said(thread))
    room = max(width - len(state), NARROWEST)
    name.truncate(room, overflow="ellipsis", pad=True)
    return name.append_text(state)


def _checkpoints(branch: Branch[ThreadSummary], left: str, width: int) -> Text:
    """The checkpoints that were made in a thread, by version, below it."""
    marks = "  ".join(f"◆ {mark.version} {one_line(mark.name)}" for mark in branch.checkpoints)
    line = Text.assemble((left, "dim"), (marks, "magenta"))
    line.truncate(width, overflow="ellipsis")
    return line
