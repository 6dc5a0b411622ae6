"""Projections that count events, so that a test can check that each event counts exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clew.infrastructure import clock
from clew.projections import Change, Column, Query, Recorded, Rows, Table, Upsert
from clew.service.core import Core, open_core


class Counting:
    """Counts events and lists the ones that it processed; ``made`` is the version of the projection that did."""

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


class NewerCounting(Counting):
    version = 2


class Failing(Counting):
    """Counts like ``Counting``, but fails on events of one type."""

    name = "lame"

    def project(self, event: Recorded, rows: Rows) -> Iterator[Change]:
        if event.type == "thread-labelled":
            raise ValueError("this projection refuses labels")
        yield from super().project(event, rows)


def opened(url: str, *projections: Any) -> Core:
    chosen = projections or (Counting(), Failing())
    return open_core(url, tenant="default", create=True, now=clock.now, projections=chosen, embedded=False)


def ignore_notification(*_: int) -> None:
    """Ignore the notification: no test waits for it."""


def assert_every_event_counts_once(core: Core) -> None:
    """Check each generation against all events up to its position."""
    store = core.models.projector.store
    for built in store.generations():
        events = core.log.recorded_after(0, 100_000)
        expected = [event.position for event in events if event.position <= built.position]
        if built.name == "lame":
            without = [event.position for event in events if event.type == "thread-labelled"]
            expected = [position for position in expected if position not in without]
        rows = store.select(built.name, Query("event", order=("position",)))
        assert [row["position"] for row in rows] == expected
        assert sum(row["events"] for row in store.select(built.name, Query("total"))) == len(expected)
