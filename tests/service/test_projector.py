"""Filling projections: batches, changed code, another log, and rebuilding."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
from tests.infrastructure.recorder_steps import wait_until
from tests.service.failing_projection import Lengths, Ten, live, positions, projector_of
from tests.service.projection_contents import History, batches_of, contents, made, projector, rebuild

from clew.conversations import Conversations
from clew.domain.errors import (
    InvalidProjectionError,
    ProjectionBehindError,
    StoreUnavailableError,
    UnknownProjectionError,
)
from clew.domain.messages import Message
from clew.domain.ports import EventLog
from clew.domain.projection import Column, Query, Table
from clew.infrastructure.sqlite.errors import SQLiteUnavailableError
from clew.infrastructure.sqlite.projection_store import SQLiteProjections, SQLiteSession
from clew.projections import SHIPPED, Directory
from clew.service.read_models import BackgroundWorker

# Batches


def test_saves_the_position_with_the_rows_of_a_batch(log: EventLog, store: SQLiteProjections) -> None:
    one = projector_of(log, store, Lengths())
    with batches_of(4):
        for reached in (4, 8, 10):
            assert one.advance()
            assert positions(store) == list(range(1, reached + 1))
            assert live(store) == [("a", 1, reached)]
        assert not one.advance()


def test_a_batch_that_is_not_committed_leaves_neither_rows_nor_position(
    log: EventLog, store: SQLiteProjections, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = projector_of(log, store, Lengths())
    with batches_of(4):
        one.advance()

        def fail(*_: object) -> None:
            raise SQLiteUnavailableError("the disk is full")

        with monkeypatch.context() as broken:
            broken.setattr(SQLiteSession, "move", fail)
            with pytest.raises(StoreUnavailableError):
                one.advance()
        assert (positions(store), live(store)) == ([1, 2, 3, 4], [("a", 1, 4)])
        one.drain()
        assert positions(store) == list(range(1, 11))


def test_unwanted_events_move_the_position_of_a_projection(log: EventLog, store: SQLiteProjections) -> None:
    projection = Lengths()
    projection.types = frozenset({"thread-started"})
    projector_of(log, store, projection).drain()
    assert positions(store) == [1]
    assert live(store) == [("a", 1, 10)]


def test_projections_at_different_positions_catch_up_together(ten: Ten, store: SQLiteProjections) -> None:
    projector_of(ten.log, store, Lengths()).drain()
    ten.conversations.thread("t").append(Message.user("more"))
    both = projector(ten.log, store, [Lengths(), Directory()])
    with batches_of(7):
        both.drain()
    assert {built.position for built in store.generations() if built.live} == {11}
    assert store.select("directory", Query("thread"))[0]["version"] == 11


def test_reads_events_appended_after_the_end_was_read_ahead(ten: Ten, store: SQLiteProjections) -> None:
    one = projector(ten.log, store, [Lengths()])
    with batches_of(5):
        one.drain()
        assert len(store.select("lengths", Query("event"))) == 10
        ten.conversations.thread("t").append(Message.user("one more"))
        one.catch_up("lengths")
    assert len(store.select("lengths", Query("event"))) == 11


# Changed code


def test_changed_code_is_built_next_to_the_live_tables(log: EventLog, store: SQLiteProjections) -> None:
    projector_of(log, store, Lengths()).drain()
    changed = projector_of(log, store, Lengths(length=99), code="b")
    with batches_of(3):
        while changed.advance():
            rows = store.select("lengths", Query("event"))
            assert len(rows) == 10
            assert len({row["length"] == 99 for row in rows}) == 1, "a mix of old and new rows"
    assert live(store) == [("b", 1, 10)]
    assert {row["length"] for row in store.select("lengths", Query("event"))} == {99}
    assert len(store.generations()) == 1


def test_reads_use_the_old_tables_until_a_higher_version_is_built(ten: Ten, store: SQLiteProjections) -> None:
    projector_of(ten.log, store, Lengths()).drain()
    newer = projector_of(ten.log, store, Lengths(version=2), code="b")
    ten.conversations.thread("t").append(Message.user("more"))
    with batches_of(3):
        newer.catch_up("lengths")
        assert live(store) == [("a", 1, 11)], "reads see the new event during the rebuild"
        newer.drain()
    assert live(store) == [("b", 2, 11)]


@pytest.mark.parametrize("code", ["a", "b"])
def test_waits_for_tables_with_a_new_declaration(log: EventLog, store: SQLiteProjections, code: str) -> None:
    projector_of(log, store, Lengths()).drain()

    class Wider(Lengths):
        tables = (*Lengths.tables, Table("other", (Column("key"),), ("key",)))

    with batches_of(3):
        projector_of(log, store, Wider(), code=code).catch_up("lengths")
    assert live(store) == [(code, 1, 10)]
    assert store.select("lengths", Query("other")) == []


def test_leaves_a_newer_version_unchanged(ten: Ten, store: SQLiteProjections, monkeypatch: pytest.MonkeyPatch) -> None:
    projector_of(ten.log, store, Lengths(version=3), code="b").drain()
    older = projector_of(ten.log, store, Lengths(version=2), code="a")
    older.catch_up("lengths")
    ten.conversations.thread("t").append(Message.user("more"))
    assert not older.advance()
    assert live(store) == [("b", 3, 10)]
    monkeypatch.setattr("clew.service.projector.PATIENCE_SECONDS", 0.0)
    with pytest.raises(ProjectionBehindError, match="built by code that differs"):
        older.catch_up("lengths")
    with pytest.raises(ProjectionBehindError, match="version 3"):
        rebuild(older, "lengths")


def test_two_processes_with_different_code_do_not_rebuild_in_turns(ten: Ten, store: SQLiteProjections) -> None:
    first, second = projector_of(ten.log, store, Lengths(), "a"), projector_of(ten.log, store, Lengths(), "b")
    generations: set[int] = set()
    for _ in range(5):
        ten.conversations.thread("t").append(Message.user("more"))
        first.drain()
        second.drain()
        generations.update(built.id for built in store.generations())
        first.catch_up("lengths")
        assert len(positions(store)) == ten.log.last_position()
    assert generations == {2}, "the second code replaced the first once"
    assert live(store) == [("b", 1, 15)]


# Another log


def test_tables_of_another_log_are_rebuilt(log: EventLog, store: SQLiteProjections) -> None:
    with Conversations.open("memory:", embedded=False) as other:
        other.start_thread(messages=[Message.user("word")] * 20)
        projector_of(other._core.log, store, Lengths()).drain()
    assert len(positions(store)) == 21
    projector_of(log, store, Lengths()).drain()
    assert len(positions(store)) == 10
    assert store.select("lengths", Query("sum"))[0]["events"] == 9


# Rebuilding


def test_reads_see_all_rows_during_a_rebuild(ten: Ten) -> None:
    made(History(ten.conversations), 3, 150)
    store = SQLiteProjections(None)
    one = projector(ten.log, store)
    one.drain()
    before = contents(ten.log, store)
    seen: list[tuple[int, int]] = []

    def progress(reached: int, last: int) -> None:
        seen.append((reached, last))
        assert contents(ten.log, store) == before

    with batches_of(13):
        for projection in SHIPPED:
            seen.clear()
            rebuild(one, projection.name, progress)
            assert len(seen) > 3
            assert seen == sorted(seen)
            assert seen[-1] == (ten.log.last_position(), ten.log.last_position())
    assert contents(ten.log, store) == before
    store.close()


def test_concurrent_reads_see_all_rows_during_a_rebuild(tmp_path: Path, ten: Ten) -> None:
    store = SQLiteProjections(str(tmp_path / "clew.db.projections"))
    one = projector_of(ten.log, store, Lengths())
    one.drain()
    counts: list[int] = []
    done = threading.Event()

    def read_repeatedly() -> None:
        while not done.is_set():
            counts.append(len(positions(store)))

    reader = threading.Thread(target=read_repeatedly)
    reader.start()
    with batches_of(2):
        for _ in range(10):
            rebuild(one, "lengths")
    wait_until(lambda: len(counts) > 20)
    done.set()
    reader.join()
    assert set(counts) == {10}
    store.close()


def test_a_rebuild_ends_while_events_are_appended(ten: Ten, store: SQLiteProjections) -> None:
    one = projector_of(ten.log, store, Lengths())
    one.drain()
    rounds = 0

    def progress(reached: int, last: int) -> None:
        nonlocal rounds
        del reached, last
        rounds += 1
        assert rounds < 30
        ten.conversations.thread("t").append(Message.user("more"))

    with batches_of(3):
        rebuild(one, "lengths", progress)
    assert [built.id for built in store.generations()] == [2]


def test_an_interrupted_rebuild_is_continued(log: EventLog, store: SQLiteProjections) -> None:
    one = projector_of(log, store, Lengths())
    one.drain()

    def interrupt(reached: int, last: int) -> None:
        del last
        if reached >= 4:
            raise KeyboardInterrupt

    with batches_of(2), pytest.raises(KeyboardInterrupt):
        rebuild(one, "lengths", interrupt)
    assert [(built.live, built.position) for built in store.generations()] == [(True, 10), (False, 4)]
    projector_of(log, store, Lengths()).drain()
    assert [(built.live, built.position) for built in store.generations()] == [(True, 10)]
    assert store.generations()[0].id == 2


def test_a_rebuild_of_a_new_projection_builds_it_once(log: EventLog, store: SQLiteProjections) -> None:
    rebuild(projector_of(log, store, Lengths()), "lengths")
    assert [(built.id, built.live, built.position) for built in store.generations()] == [(1, True, 10)]


def test_refuses_unknown_and_duplicate_names(log: EventLog, store: SQLiteProjections) -> None:
    one = projector_of(log, store, Lengths())
    for call in (partial(rebuild, one), one.catch_up):
        with pytest.raises(UnknownProjectionError, match="lengths"):
            call("widths")
    with pytest.raises(InvalidProjectionError, match="same name"):
        projector(log, store, [Lengths(), Lengths()])


@pytest.mark.parametrize("projections", [(), (Lengths(),)])
def test_notifies_the_background_worker_only_with_projections(
    file_url: str, monkeypatch: pytest.MonkeyPatch, projections: tuple[Lengths, ...]
) -> None:
    notified: list[BackgroundWorker] = []

    def record(background: BackgroundWorker) -> None:
        notified.append(background)

    monkeypatch.setattr(BackgroundWorker, "notify", record)
    with Conversations.open(file_url, projections=projections) as conversations:
        conversations.start_thread()
    assert len(notified) == len(projections)
