"""Events that a projection cannot take in."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.service.lengths import Lengths, Ten, filling, positions
from tests.service.projected import History, batches_of, made, projector, rebuild

from clew.conversations import Conversations
from clew.domain.messages import Message
from clew.domain.ports import EventLog
from clew.domain.projection import Change, Column, Query, Recorded, Rows, Table, Upsert
from clew.infrastructure.sqlite.projections import SQLiteProjections
from clew.projections import Directory


def test_parks_an_event_that_a_projection_fails_at_and_goes_on(ten: Ten, store: SQLiteProjections) -> None:
    ten.conversations.thread("t").label(topic="secret")
    ten.conversations.thread("t").append(Message.user("more"))
    with batches_of(4):
        projector(ten.log, store, [Lengths(fails=["thread-labelled"]), Directory()]).settle()
    assert positions(store) == [*range(1, 11), 12], "nothing of the event that failed is there"
    count, (parked,) = store.parked("lengths", 9)
    assert (count, parked.position, parked.stream, parked.version) == (1, 11, "default/thread/t", 11)
    assert parked.type == "thread-labelled"
    assert parked.error.startswith("ValueError in lengths.py, line ")
    assert store.parked("directory", 9) == (0, [])
    assert store.select("directory", Query("thread"))[0]["labels"] == {"topic": "secret"}


def test_what_is_noted_of_a_parked_event_has_nothing_of_its_content(ten: Ten, store: SQLiteProjections) -> None:
    filling(ten.log, store, Lengths(fails=["message-appended"])).settle()
    count, parked = store.parked("lengths", 3)
    assert count == 9
    assert len(parked) == 3
    assert all("secret" not in each.error and "word" not in each.error for each in parked)


@pytest.mark.parametrize("value", [2**70, "no number", 1.5], ids=str)
def test_parks_an_event_whose_values_the_store_cannot_take(log: EventLog, store: SQLiteProjections, value: Any) -> None:
    class Sums(Lengths):
        tables = (Table("event", (Column("position", "integer"), Column("sum", "integer", adds=True)), ("position",)),)

        def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
            yield Upsert("event", {"position": event.position, "sum": value if event.version == 5 else 1})

    filling(log, store, Sums()).settle()
    assert positions(store) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert [each.version for each in store.parked("lengths", 9)[1]] == [5]


def test_a_sum_never_becomes_too_large_to_be_exact(log: EventLog, store: SQLiteProjections) -> None:
    class Sums(Lengths):
        tables = (Table("event", (Column("position", "integer"), Column("sum", "integer", adds=True)), ("position",)),)

        def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
            yield Upsert("event", {"position": event.position * 0, "sum": 2**62})

    with batches_of(1):
        filling(log, store, Sums()).settle()
    assert store.select("lengths", Query("event")) == [{"position": 0, "sum": 2**62}]
    assert store.parked("lengths", 1)[0] == 9


@pytest.mark.parametrize(
    "change",
    [
        Upsert("nowhere", {"position": 1}),
        Upsert("event", {"position": 1, "unheard_of": 1}),
        Upsert("event", {"length": 1}),
        Upsert("event", {"position": [1]}),
        "no change",
    ],
    ids=str,
)
def test_parks_an_event_whose_changes_do_not_fit_the_declaration(
    log: EventLog, store: SQLiteProjections, change: Any
) -> None:
    class Unfit(Lengths):
        def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
            yield change if event.version == 5 else Upsert("event", {"position": event.position})

    filling(log, store, Unfit()).settle()
    assert positions(store) == [1, 2, 3, 4, 6, 7, 8, 9, 10]


def damaged(url: str, folder: Path, statement: str) -> None:
    """Make a log, and let somebody change its file."""
    with Conversations.open(url, embedded=False) as conversations:
        made(History(conversations), 9, 10)
    with closing(sqlite3.connect(folder / "clew.db")) as connection:
        connection.execute(statement)
        connection.commit()


def test_parks_a_damaged_row_of_the_log(file_url: str, tmp_path: Path, store: SQLiteProjections) -> None:
    damaged(file_url, tmp_path, "UPDATE event SET state = x'00010203' WHERE position = 3")
    with Conversations.open(file_url, embedded=False) as conversations:
        one = projector(conversations._core.log, store)
        one.settle()
        parked = store.parked("directory", 9)[1]
        assert [each.position for each in parked] == [3]
        assert conversations._core.log.last_position() == min(built.position for built in store.built())


def test_ends_where_the_last_row_of_the_log_cannot_be_read(
    file_url: str, tmp_path: Path, store: SQLiteProjections
) -> None:
    damaged(file_url, tmp_path, "UPDATE event SET stream = 77 WHERE position = (SELECT max(position) FROM event)")
    with Conversations.open(file_url, embedded=False) as conversations:
        log = conversations._core.log
        one = filling(log, store, Lengths())
        one.settle()
        one.catch_up("lengths")
        assert positions(store) == list(range(1, log.last_position()))
        rebuild(one, "lengths")
        assert positions(store) == list(range(1, log.last_position()))


def test_a_rebuild_with_mended_code_takes_in_what_was_parked(log: EventLog, store: SQLiteProjections) -> None:
    filling(log, store, Lengths(fails=["thread-started"])).settle()
    assert store.parked("lengths", 9)[0] == 1
    filling(log, store, Lengths(), code="mended").settle()
    assert store.parked("lengths", 9)[0] == 0
    assert positions(store) == list(range(1, 11))
