"""Applying a batch: its duration, reading again, and the record of a parked event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from tests.service.projection_contents import projector

from clew import Conversations, Message
from clew.domain.errors import StoreUnavailableError
from clew.domain.ports import EventLog
from clew.domain.projection import Change, Column, Query, Recorded, Rows, Table, Unreadable, Upsert, Words
from clew.infrastructure.sqlite.projection_store import SQLiteProjections, SQLiteSession
from clew.projections.search import Search
from clew.service import projection_batch


class Events:
    """Stores the position of each event; fails on labels."""

    name = "events"
    version = 1
    tables = (Table("event", (Column("position", "integer"),), ("position",)),)
    texts: tuple[str, ...] = ()
    types: frozenset[str] | None = None

    def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
        if event.type == "thread-labelled":
            raise ValueError
        yield Upsert("event", {"position": event.position})


def test_a_slow_batch_ends_early(store: SQLiteProjections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection_batch, "LONGEST_SECONDS", 0.0)
    with Conversations.open("memory:", embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user("word")] * (2 * projection_batch.AT_ONCE))
        one = projector(conversations._core.log, store, [Events()])
        reached = [0]
        while one.advance():
            reached += [built.position for built in store.generations()]
    batch = projection_batch.AT_ONCE
    assert reached == [0, batch, 2 * batch, 2 * batch + 1]
    assert [row["position"] for row in store.select("events", Query("event", order=("position",)))] == [
        *range(1, 2 * batch + 2)
    ]


def positions_read(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record after which positions the log is read from now on."""
    read: list[int] = []

    def recorded_after(position: int, limit: int, upto: int) -> Sequence[Recorded | Unreadable]:
        read.append(position)
        return type(log).recorded_after(log, position, limit, upto)

    monkeypatch.setattr(log, "recorded_after", recorded_after)
    return read


@pytest.mark.parametrize("redacted", [False, True])
def test_the_rest_of_a_batch_is_read_again_only_after_a_redaction(
    store: SQLiteProjections, monkeypatch: pytest.MonkeyPatch, *, redacted: bool
) -> None:
    monkeypatch.setattr(projection_batch, "LONGEST_SECONDS", 0.0)
    with Conversations.open("memory:", embedded=False) as conversations:
        thread = conversations.start_thread(messages=[Message.user("word")] * (2 * projection_batch.AT_ONCE))
        log = conversations._core.log
        read = positions_read(log, monkeypatch)
        one = projector(log, store, [Search()])
        one.advance()
        if redacted:
            thread.redact(2 * projection_batch.AT_ONCE)
        while one.advance():
            pass
        assert read[:2] == ([0, projection_batch.AT_ONCE] if redacted else [0])
        positions = store.find("search", Search.texts[0], Words(("word",)), before=None, limit=1_000)
    assert len(positions) == 2 * projection_batch.AT_ONCE - redacted


def test_reads_the_log_again_after_the_store_was_unavailable(
    store: SQLiteProjections, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailableError("unavailable")

    with Conversations.open("memory:", embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user("word")])
        log = conversations._core.log
        read = positions_read(log, monkeypatch)
        one = projector(log, store, [Search()])
        with monkeypatch.context() as broken:
            broken.setattr(SQLiteSession, "move", fail)
            with pytest.raises(StoreUnavailableError):
                one.advance()
        one.advance()
    assert read == [0, 0]


def test_a_parked_event_names_its_stream(store: SQLiteProjections) -> None:
    with Conversations.open("memory:", tenant="a b/c", embedded=False) as conversations:
        conversations.start_thread(thread_id="t u").label(topic="refund")
        projector(conversations._core.log, store, [Events()]).drain()
    ((parked,),) = [store.parked("events", 9)[1]]
    assert parked.stream == "a%20b%2Fc/thread/t%20u"
