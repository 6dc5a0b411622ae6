"""Parking events that a projection cannot apply."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.failing_projection import Lengths, Ten, positions, projector_of
from tests.service.projection_contents import History, batches_of, made, projector, rebuild

from clew.conversations import Conversations
from clew.domain.errors import StoreUnavailableError
from clew.domain.messages import Message
from clew.domain.ports import EventLog
from clew.domain.projection import Change, Column, Query, Recorded, Rows, Table, Unreadable, Upsert
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError
from clew.infrastructure.sqlite.projection_store import SQLiteProjections, SQLiteSession
from clew.projections import Directory
from clew.service import projection_batch


def test_parks_a_failing_event_and_continues(ten: Ten, store: SQLiteProjections) -> None:
    ten.conversations.thread("t").label(topic="secret")
    ten.conversations.thread("t").append(Message.user("more"))
    with batches_of(4):
        projector(ten.log, store, [Lengths(fails=["thread-labelled"]), Directory()]).drain()
    assert positions(store) == [*range(1, 11), 12], "the failed event has no rows"
    count, (parked,) = store.parked("lengths", 9)
    assert (count, parked.position, parked.stream, parked.version) == (1, 11, "default/thread/t", 11)
    assert parked.type == "thread-labelled"
    assert parked.error.startswith("ValueError in failing_projection.py, line ")
    assert store.parked("directory", 9) == (0, [])
    assert store.select("directory", Query("thread"))[0]["labels"] == {"topic": "secret"}


def test_a_parked_event_does_not_reveal_its_content(ten: Ten, store: SQLiteProjections) -> None:
    projector_of(ten.log, store, Lengths(fails=["message-appended"])).drain()
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
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Collect one entry per event that is applied alone; no batch ends early on a slow machine."""
    calls: list[None] = []
    attempt = SQLiteSession.attempt

    def counted(session: SQLiteSession) -> Any:
        calls.append(None)
        return attempt(session)

    monkeypatch.setattr(SQLiteSession, "attempt", counted)
    monkeypatch.setattr(projection_batch, "LONGEST_SECONDS", float("inf"))
    return calls


def test_a_failing_event_delays_few_others(
    ten: Ten, store: SQLiteProjections, attempts: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ten.conversations.start_thread(messages=[Message.user("word")] * 1_989)
    read: list[int] = []
    sessions: list[int] = []
    recorded_after, session = ten.log.recorded_after, store.session

    def recording_read(position: int, limit: int, upto: int) -> Sequence[Recorded | Unreadable]:
        read.append(position)
        return recorded_after(position, limit, upto)

    def recording_session(seen: int, names: Any = None, **options: Any) -> Any:
        sessions.append(seen)
        return session(seen, names, **options)

    monkeypatch.setattr(ten.log, "recorded_after", recording_read)
    monkeypatch.setattr(store, "session", recording_session)
    projector_of(ten.log, store, Poisoned({1_000})).drain()
    assert positions(store) == [each for each in range(1, 2_001) if each != 1_000]
    assert [each.position for each in store.parked("lengths", 9)[1]] == [1_000]
    assert 0 < len(attempts) <= projection_batch.AT_ONCE
    assert len(sessions) < 25, "each session reads all positions"
    assert read == [0], "the next attempt reuses the events of the failed one"


@pytest.fixture(scope="module")
def many() -> Iterator[EventLog]:
    ten = Ten()
    ten.conversations.start_thread(messages=[Message.user("word")] * 389)
    yield ten.log
    ten.conversations.close()


def test_other_events_are_applied_once_for_any_failures(many: EventLog, attempts: list[None]) -> None:
    @given(st.sets(st.integers(1, 400), max_size=5), st.sampled_from([7, 60, 130, 8_000]))
    def check(at: set[int], size: int) -> None:
        attempts.clear()
        store = SQLiteProjections(None)
        with batches_of(size):
            projector_of(many, store, Poisoned(at)).drain()
        assert positions(store) == [each for each in range(1, 401) if each not in at]
        assert sum(row["events"] for row in store.select("lengths", Query("sum"))) == 400 - len(at)
        assert [each.position for each in store.parked("lengths", 9)[1]] == sorted(at)
        assert len(attempts) <= projection_batch.AT_ONCE * len(at)
        store.close()

    check()


def test_logs_a_parked_event_only_after_the_commit(
    log: EventLog, store: SQLiteProjections, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise SQLiteUnavailableError("the disk is full")

    one = projector_of(log, store, Poisoned({5}))
    with monkeypatch.context() as broken:
        broken.setattr(SQLiteSession, "move", fail)
        with pytest.raises(StoreUnavailableError):
            one.drain()
    assert caplog.messages == []
    one.drain()
    assert caplog.messages == ["Projection lengths continues without the event at position 5"]


@pytest.mark.parametrize("value", [2**70, "not a number", 1.5], ids=str)
def test_parks_an_event_with_values_that_the_store_refuses(log: EventLog, store: SQLiteProjections, value: Any) -> None:
    class Sums(Lengths):
        tables = (Table("event", (Column("position", "integer"), Column("sum", "integer", adds=True)), ("position",)),)

        def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
            yield Upsert("event", {"position": event.position, "sum": value if event.version == 5 else 1})

    projector_of(log, store, Sums()).drain()
    assert positions(store) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert [each.version for each in store.parked("lengths", 9)[1]] == [5]


def test_parks_events_before_a_sum_overflows(log: EventLog, store: SQLiteProjections) -> None:
    class Sums(Lengths):
        tables = (Table("event", (Column("position", "integer"), Column("sum", "integer", adds=True)), ("position",)),)

        def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
            yield Upsert("event", {"position": event.position * 0, "sum": 2**62})

    with batches_of(1):
        projector_of(log, store, Sums()).drain()
    assert store.select("lengths", Query("event")) == [{"position": 0, "sum": 2**62}]
    assert store.parked("lengths", 1)[0] == 9


@pytest.mark.parametrize(
    "change",
    [
        Upsert("nowhere", {"position": 1}),
        Upsert("event", {"position": 1, "unknown": 1}),
        Upsert("event", {"length": 1}),
        Upsert("event", {"position": [1]}),
        "not a change",
    ],
    ids=str,
)
def test_parks_an_event_whose_changes_do_not_fit_the_declaration(
    log: EventLog, store: SQLiteProjections, change: Any
) -> None:
    class Unfit(Lengths):
        def project(self, event: Recorded, _: Rows) -> Iterator[Change]:
            yield change if event.version == 5 else Upsert("event", {"position": event.position})

    projector_of(log, store, Unfit()).drain()
    assert positions(store) == [1, 2, 3, 4, 6, 7, 8, 9, 10]


def damaged(url: str, folder: Path, statement: str) -> None:
    """Make a log, then change its file with this statement."""
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


def test_ends_at_an_unreadable_last_row(file_url: str, tmp_path: Path, store: SQLiteProjections) -> None:
    damaged(file_url, tmp_path, "UPDATE event SET stream = 77 WHERE position = (SELECT max(position) FROM event)")
    with Conversations.open(file_url, embedded=False) as conversations:
        log = conversations._core.log
        one = projector_of(log, store, Lengths())
        one.drain()
        one.catch_up("lengths")
        assert positions(store) == list(range(1, log.last_position()))
        rebuild(one, "lengths")
        assert positions(store) == list(range(1, log.last_position()))


def test_a_rebuild_with_fixed_code_applies_parked_events(log: EventLog, store: SQLiteProjections) -> None:
    projector_of(log, store, Lengths(fails=["thread-started"])).drain()
    assert store.parked("lengths", 9)[0] == 1
    projector_of(log, store, Lengths(), code="fixed").drain()
    assert store.parked("lengths", 9)[0] == 0
    assert positions(store) == list(range(1, 11))
