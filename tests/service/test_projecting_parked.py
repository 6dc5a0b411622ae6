"""Events that a projection cannot take in."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.lengths import Lengths, Ten, filling, positions
from tests.service.projected import History, batches_of, made, projector, rebuild

from clew.conversations import Conversations
from clew.domain.errors import StoreUnavailableError
from clew.domain.messages import Message
from clew.domain.ports import EventLog
from clew.domain.projection import Change, Column, Query, Recorded, Rows, Table, Unreadable, Upsert
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError
from clew.infrastructure.sqlite.projection_session import SQLiteSession
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.projections import Directory
from clew.service import projection_batch


def test_parks_an_event_that_a_projection_fails_at_and_goes_on(ten: Ten, store: SQLiteProjections) -> None:
    ten.conversations.thread("t").label(topic="secret")
    ten.conversations.thread("t").append(Message.user("more"))
    with batches_of(4):
        projector(ten.log, store, [Lengths(fails=["thread-labelled"]), Directory()]).drain()
    assert positions(store) == [*range(1, 11), 12], "nothing of the event that failed is there"
    count, (parked,) = store.parked("lengths", 9)
    assert (count, parked.position, parked.stream, parked.version) == (1, 11, "default/thread/t", 11)
    assert parked.type == "thread-labelled"
    assert parked.error.startswith("ValueError in lengths.py, line ")
    assert store.parked("directory", 9) == (0, [])
    assert store.select("directory", Query("thread"))[0]["labels"] == {"topic": "secret"}


def test_what_is_noted_of_a_parked_event_has_nothing_of_its_content(ten: Ten, store: SQLiteProjections) -> None:
    filling(ten.log, store, Lengths(fails=["message-appended"])).drain()
    count, parked = store.parked("lengths", 3)
    assert count == 9
    assert len(parked) == 3
    assert all("secret" not in each.error and "word" not in each.error for each in parked)


class Poisoned(Lengths):
    """Fails at the events at some positions."""

    def __init__(self, at: Collection[int]) -> None:
        super().__init__()
        self.at = at

    def project(self, event: Recorded, rows: Rows) -> Iterator[Change]:
        yield from super().project(event, rows)
        if event.position in self.at:
            raise ValueError


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """As long as the number of events that were taken in alone; no batch ends early because the machine is slow."""
    found: list[None] = []
    attempt = SQLiteSession.attempt

    def counted(session: SQLiteSession) -> Any:
        found.append(None)
        return attempt(session)

    monkeypatch.setattr(SQLiteSession, "attempt", counted)
    monkeypatch.setattr(projection_batch, "LONGEST_SECONDS", float("inf"))
    return found


def test_an_event_that_a_projection_fails_at_costs_few_others_anything(
    ten: Ten, store: SQLiteProjections, alone: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ten.conversations.start_thread(messages=[Message.user("word")] * 1_989)
    read: list[int] = []
    begun: list[int] = []
    recorded_after, session = ten.log.recorded_after, store.session

    def reading(position: int, limit: int) -> Sequence[Recorded | Unreadable]:
        read.append(position)
        return recorded_after(position, limit)

    def beginning(seen: int, names: Any = None) -> Any:
        begun.append(seen)
        return session(seen, names)

    monkeypatch.setattr(ten.log, "recorded_after", reading)
    monkeypatch.setattr(store, "session", beginning)
    filling(ten.log, store, Poisoned({1_000})).drain()
    assert positions(store) == [each for each in range(1, 2_001) if each != 1_000]
    assert [each.position for each in store.parked("lengths", 9)[1]] == [1_000]
    assert 0 < len(alone) <= projection_batch.AT_ONCE
    assert len(begun) < 25, "each of them reads where everything stands"
    assert read == [0], "what a failed attempt has read is there for the next"


@pytest.fixture(scope="module")
def many() -> Iterator[EventLog]:
    ten = Ten()
    ten.conversations.start_thread(messages=[Message.user("word")] * 389)
    yield ten.log
    ten.conversations.close()


def test_whatever_a_projection_fails_at_the_rest_is_taken_in_once(many: EventLog, alone: list[None]) -> None:
    @given(st.sets(st.integers(1, 400), max_size=5), st.sampled_from([7, 60, 130, 8_000]))
    def check(at: set[int], size: int) -> None:
        alone.clear()
        store = SQLiteProjections(None)
        with batches_of(size):
            filling(many, store, Poisoned(at)).drain()
        assert positions(store) == [each for each in range(1, 401) if each not in at]
        assert sum(row["events"] for row in store.select("lengths", Query("sum"))) == 400 - len(at)
        assert [each.position for each in store.parked("lengths", 9)[1]] == sorted(at)
        assert len(alone) <= projection_batch.AT_ONCE * len(at)
        store.close()

    check()


def test_it_is_said_that_an_event_was_parked_when_it_is_there_to_be_seen(
    log: EventLog, store: SQLiteProjections, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise SQLiteUnavailableError("the disk is full, says the test")

    one = filling(log, store, Poisoned({5}))
    with monkeypatch.context() as broken:
        broken.setattr(SQLiteSession, "move", fail)
        with pytest.raises(StoreUnavailableError):
            one.drain()
    assert caplog.messages == []
    one.drain()
    assert caplog.messages == ["Projection lengths continues without the event at position 5"]


@pytest.mark.parametrize("value", [2**70, "no number", 1.5], ids=str)
def test_parks_an_event_whose_values_the_store_cannot_take(log: EventLog, store: SQLiteProjections, value: Any) -> None:
    class Sums(Lengths):
        tables = (Table("event", (Column("position", "integer"), Column("sum", "integer", adds=True)), ("position",)),)

        def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
            yield Upsert("event", {"position": event.position, "sum": value if event.version == 5 else 1})

    filling(log, store, Sums()).drain()
    assert positions(store) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert [each.version for each in store.parked("lengths", 9)[1]] == [5]


def test_a_sum_never_becomes_too_large_to_be_exact(log: EventLog, store: SQLiteProjections) -> None:
    class Sums(Lengths):
        tables = (Table("event", (Column("position", "integer"), Column("sum", "integer", adds=True)), ("position",)),)

        def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
            yield Upsert("event", {"position": event.position * 0, "sum": 2**62})

    with batches_of(1):
        filling(log, store, Sums()).drain()
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

    filling(log, store, Unfit()).drain()
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
        one.drain()
        parked = store.parked("directory", 9)[1]
        assert [each.position for each in parked] == [3]
        assert conversations._core.log.last_position() == min(built.position for built in store.generations())


def test_ends_where_the_last_row_of_the_log_cannot_be_read(
    file_url: str, tmp_path: Path, store: SQLiteProjections
) -> None:
    damaged(file_url, tmp_path, "UPDATE event SET stream = 77 WHERE position = (SELECT max(position) FROM event)")
    with Conversations.open(file_url, embedded=False) as conversations:
        log = conversations._core.log
        one = filling(log, store, Lengths())
        one.drain()
        one.catch_up("lengths")
        assert positions(store) == list(range(1, log.last_position()))
        rebuild(one, "lengths")
        assert positions(store) == list(range(1, log.last_position()))


def test_a_rebuild_with_mended_code_takes_in_what_was_parked(log: EventLog, store: SQLiteProjections) -> None:
    filling(log, store, Lengths(fails=["thread-started"])).drain()
    assert store.parked("lengths", 9)[0] == 1
    filling(log, store, Lengths(), code="mended").drain()
    assert store.parked("lengths", 9)[0] == 0
    assert positions(store) == list(range(1, 11))
