"""A projection that can fail, a log of ten events, and queries on them for the tests of the projector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from clew.conversations import Conversations
from clew.domain.messages import Message
from clew.domain.ports import EventLog
from clew.domain.projection import Change, Column, Query, Recorded, Rows, Table, Upsert
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.service.projector import Projector


class Lengths:
    """Records the version of each event and counts the events of each type."""

    name = "lengths"
    tables: tuple[Table, ...] = (
        Table("event", (Column("position", "integer"), Column("type"), Column("length", "integer")), ("position",)),
        Table("sum", (Column("type"), Column("events", "integer", adds=True)), ("type",)),
    )
    texts: tuple[str, ...] = ()
    types: frozenset[str] | None = None

    def __init__(self, version: int = 1, fails: Iterable[str] = (), length: int | None = None) -> None:
        self.version = version
        self.fails = fails
        self.length = length

    def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
        length = event.version if self.length is None else self.length
        yield Upsert("event", {"position": event.position, "type": event.type, "length": length})
        if event.type in self.fails:
            raise ValueError(f"the secret of {event.data}")
        yield Upsert("sum", {"type": event.type, "events": 1})


class Ten:
    """A log of ten events: a thread of nine messages."""

    def __init__(self) -> None:
        self.conversations = Conversations.open("memory:", embedded=False)
        self.conversations.start_thread(thread_id="t", messages=[Message.user(f"word{number}") for number in range(9)])
        self.log: EventLog = self.conversations._core.log


def projector_of(log: EventLog, store: SQLiteProjections, projection: Any, code: str = "a") -> Projector:
    """Build a projector for one projection, with this digest of its code."""
    return Projector(log, store, [projection], lambda _: code)


def positions(store: SQLiteProjections) -> list[int]:
    return [row["position"] for row in store.select("lengths", Query("event", order=("position",)))]


def live(store: SQLiteProjections) -> list[tuple[str, int, int]]:
    return [(built.code, built.version, built.position) for built in store.generations() if built.live]
