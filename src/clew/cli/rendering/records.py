"""Records as a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.text import Text

from clew.cli.output import joined, minute_text, one_line, plural, time_text
from clew.cli.rendering.conversation import REDACTED
from clew.cli.rendering.threads import ROOMY, WIDE, plain_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from clew.domain.records import ThreadRecord

LONGEST_NAME = 16
"""Columns of a type, a key or an actor on a terminal that is not wide."""


def record_table(records: Sequence[ThreadRecord], console: Console, *, whole: bool = False) -> Table:
    """A row for each record. Keys and actors have a column if a record has one. With ``whole`` nothing is cut."""
    roomy, wide = console.width >= ROOMY, console.width >= WIDE
    keys, actors = any(each.key for each in records), any(each.actor for each in records) and roomy
    longest = None if whole or wide else LONGEST_NAME
    table = plain_table(expand=not whole)
    table.add_column("Ver", justify="right", no_wrap=True)
    if roomy:
        table.add_column("Time", no_wrap=True)
    table.add_column("Type", no_wrap=True, overflow="ellipsis", max_width=longest)
    if keys:
        table.add_column("Key", no_wrap=True, overflow="ellipsis", max_width=longest)
    if actors:
        table.add_column("By", no_wrap=True, overflow="ellipsis", max_width=longest)
    table.add_column("Content", no_wrap=True, overflow="ellipsis", ratio=1, min_width=10)
    for each in records:
        table.add_row(
            str(each.version),
            *((time_text(each.time) if wide else minute_text(each.time),) if roomy else ()),
            Text(one_line(each.type), style="bold"),
            *((Text(one_line(each.key or "")),) if keys else ()),
            *((Text(one_line(each.actor or "")),) if actors else ()),
            Text(REDACTED, style="dim italic") if each.redacted else Text(one_line(_content(each))),
        )
    return table


def _content(record: ThreadRecord) -> str:
    """The data, and the number of bytes."""
    return joined(
        "" if record.data is None else json.dumps(record.data, ensure_ascii=False),
        "" if record.blob is None else plural(len(record.blob), "byte"),
    )
