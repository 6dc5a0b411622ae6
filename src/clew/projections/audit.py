"""The audit trail: where the events of a thread, an actor or a type are; what they say is in the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import NamedTuple

from clew.domain.projection import Change, Column, Recorded, Rows, Table, Upsert

BLOCK = 63
"""Positions of a block: a number of 64 bits with a sign has this many bits."""


class Audit:
    """The positions of events in blocks of 63: bit n of ``events`` is the event at position ``63 * block + n``.

    There is one row for each block with events of a thread, a memory scope, a type or an actor, or on somebody's
    behalf: ``by`` says which of these ``value`` is; where ``by`` is "all", the row is of all events. ``first`` and
    ``last`` are the times between which these events were recorded, in microseconds since 1970.
    """

    name = "audit"
    version = 4
    code_digest = "audit-4"  # of this version: change both where it makes other rows
    tables = (
        Table(
            "entry",
            (
                Column("tenant"),
                Column("by"),
                Column("value"),
                Column("block", "integer"),
                Column("events", "integer", adds=True),
                Column("first", "integer", keeps="least"),
                Column("last", "integer", keeps="greatest"),
            ),
            key=("tenant", "by", "value", "block"),
        ),
    )
    texts = ()
    types = None

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        """Add the position of every event of a thread or of a scope."""
        del rows
        if event.kind == "thread":
            by = "thread"
        elif event.kind == "memory":
            by = "scope"
        else:
            return ()
        block, bit = divmod(event.position, BLOCK)
        time = event.recorded_at
        row = {"tenant": event.tenant, "block": block, "events": 1 << bit, "first": time, "last": time}
        changes = [
            Upsert("entry", {**row, "by": "all", "value": ""}),
            Upsert("entry", {**row, "by": by, "value": event.thread_id}),
            Upsert("entry", {**row, "by": "type", "value": event.type}),
        ]
        if event.actor is not None:
            changes.append(Upsert("entry", {**row, "by": "actor", "value": event.actor}))
        if event.on_behalf_of is not None:
            changes.append(Upsert("entry", {**row, "by": "on_behalf_of", "value": event.on_behalf_of}))
        return changes


class Part(NamedTuple):
    """A part of a list of events: the bits of each of its blocks, and whether more blocks follow."""

    blocks: Mapping[int, int]
    more: bool


def in_all(parts: Sequence[Part], *, newest_first: bool) -> Iterator[int]:
    """The positions that are in all parts, in the order of their blocks."""
    first, *others = [each.blocks for each in parts]
    for block in first:
        events = reduce(and_, [other.get(block, 0) for other in others], first[block])
        bits = range(BLOCK - 1, -1, -1) if newest_first else range(BLOCK)
        yield from [block * BLOCK + bit for bit in bits if events >> bit & 1]


def following(parts: Sequence[Part], *, newest_first: bool) -> int | None:
    """The block from which to read on, past those that one of the lists lacks. None if no list has what all have."""
    direction = -1 if newest_first else 1
    ends = [direction * next(reversed(each.blocks)) for each in parts if each.more]
    if not ends:
        return None
    end = min(ends)
    begin = end + 1
    for each in parts:
        beyond = next((direction * block for block in each.blocks if direction * block > end), None)
        if beyond is not None:
            begin = max(begin, beyond)
        elif not each.more:
            return None
    return direction * begin
