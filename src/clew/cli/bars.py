"""Bars that show how far projections have come, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clew.conversations import Conversations

MANY = 10_000
"""Events that take long enough to be told of."""


@contextmanager
def position_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Takes how far it is and how far there is to go, in positions: shown as a share, as those may have gaps."""
    if not sys.stderr.isatty():
        yield lambda _reached, _last: None
        return

    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from clew.cli import rendering

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=rendering.console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda reached, last: progress.update(task, completed=max(0, reached), total=last)


def catch_up(conversations: Conversations, projection: str) -> None:
    """Let a projection take in what was written, with a bar if that is much; otherwise reading it does so anyway."""
    if not sys.stderr.isatty():
        return
    for status in conversations.projections():
        if status.name == projection and status.lag >= MANY and status.state in {"live", "waiting"}:
            with position_bar(f"Reading what is new for {projection}") as progress:
                conversations.wait(projection=projection, progress=progress)
