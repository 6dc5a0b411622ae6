"""Projections that count events, so that a test sees in the view whether each counted once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clew.infrastructure import clock
from clew.projections import Change, Column, Query, Recorded, Rows, Table, Upsert
from clew.service.core import Core, open_core


class Counting:
    """Counts events, and says which those are that it has met; ``made`` says by which version of it."""

    name = "counting"
    version = 1
    tables = (
        Table("total", (Column("all"), Column("events", "integer", adds=True)), ("all",)),
        Table("event", (Column("position", "integer"), Column("made", "integer")), ("position",)),
    )
    texts = ()
    types = None

    def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
        yield Upsert("total", {"all": "", "events": 1})
        yield Upsert("event", {"position": event.position, "made": self.version})


class Newer(Counting):
    version = 2


class Lame(Counting):
    """As before, but for the events of one type."""

    name = "lame"

    def project(self, event: Recorded, rows: Rows) -> Iterator[Change]:
        if event.type == "thread-labelled":
            raise ValueError("no labels, says the test")
        yield from super().project(event, rows)


def opened(url: str, *projections: Any) -> Core:
    shown = projections or (Counting(), Lame())
    return open_core(url, tenant="default", create=True, now=clock.now, projections=shown, embedded=False)


def nothing(*_: int) -> None:
    """Nobody wants to be told."""


def assert_every_event_counts_once(core: Core) -> None:
    """In what was filled so far; and that is all of it up to the position that it has come to."""
    store = core.models.projector.store
    for built in store.generations():
        events = core.log.recorded_after(0, 100_000)
        met = [event.position for event in events if event.position <= built.position]
        if built.name == "lame":
            without = [event.position for event in events if event.type == "thread-labelled"]
            met = [position for position in met if position not in without]
        rows = store.select(built.name, Query("event", order=("position",)))
        assert [row["position"] for row in rows] == met
        assert sum(row["events"] for row in store.select(built.name, Query("total"))) == len(met)
