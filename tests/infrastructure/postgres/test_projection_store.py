"""The tables of projections in PostgreSQL: they keep the contract, and find what the index of SQLite finds."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest
from eventsourcing.persistence import StoredEvent
from psycopg._preparing import PrepareManager
from psycopg.conninfo import make_conninfo
from tests.infrastructure.projection_contract import Declared, Opened, ProjectionContract, row, thing
from tests.infrastructure.recording import PATIENCE, in_child, wait_until
from tests.servers.postgres_server import GUARDED, PASSWORD, ask
from tests.service.projected import History, contents, made, projector, rebuild

from clew.conversations import Conversations
from clew.domain.errors import InvalidProjectionError
from clew.domain.messages import Message
from clew.domain.projection import Change, Column, IndexText, Query, Recorded, Rows, Table, Upsert, Words
from clew.domain.projection_store import ProjectionStore
from clew.infrastructure.postgres.connection import Session
from clew.infrastructure.postgres.projection_session import PostgresSession
from clew.infrastructure.postgres.projection_store import PostgresProjections
from clew.infrastructure.recorder import Append
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.projections import Usage
from clew.service import projection_batch


class TestPostgresProjections(ProjectionContract):
    pass


# Against SQLite


def test_holds_what_sqlite_holds_of_every_kind_of_event(
    postgres: str, lite: SQLiteProjections, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.service.projected.instances", lambda *_: [])  # it looks into SQLite's own tables
    with Conversations.open(postgres, embedded=False) as conversations:
        history = made(History(conversations), 6, round(100 + 400 * scale))
        with closing(PostgresProjections(postgres)) as store:
            for each in (store, lite):
                projector(history.log, each).drain()
            assert contents(history.log, store) == contents(history.log, lite)
            for name in ("directory", "search"):
                rebuild(projector(history.log, store), name)
            assert contents(history.log, store) == contents(history.log, lite)


# Several who fill


def test_different_projections_are_filled_at_the_same_time(postgres: str, store: PostgresProjections) -> None:
    with store.session(0) as session:
        built = {name: session.begin(Declared(name), "code", live=True) for name in ("one", "other")}
    done = threading.Event()

    def fill(name: str) -> None:
        with store.session(0, [name]) as session:
            Opened(session, built[name]).apply(thing(name, 1))
        done.set()

    with store.session(0, ["one"]) as session:
        Opened(session, built["one"]).apply(thing("one", 1))
        other = threading.Thread(target=fill, args=("other",))
        other.start()
        assert done.wait(PATIENCE), "it waits for who fills another"
        done.clear()
        same = threading.Thread(target=fill, args=("one",))
        same.start()
        assert waits_for_a_lock(postgres), "two fill the same"
        assert not done.is_set()
    same.join(PATIENCE)
    other.join(PATIENCE)
    assert store.select("other", Query("thing")) == [row("other", 1)]


@pytest.mark.parametrize("moves", [False, True], ids=["at the end", "before the position"])
def test_nothing_is_there_of_a_batch_of_which_the_server_refuses_a_row(
    store: PostgresProjections, *, moves: bool
) -> None:
    with store.session(0) as session:
        built = Opened(session).built

    def fill() -> None:
        with store.session(0) as session:
            refused = thing(os.urandom(9_000).hex(), 2)
            Opened(session, built).apply(thing("a", 1), refused, IndexText("words", "said"))
            if moves:
                session.move(built, 7, b"hash")

    with pytest.raises(InvalidProjectionError, match="ProgramLimitExceeded"):
        fill()
    assert store.generations() == [built]
    assert store.select("declared", Query("thing")) == []
    assert store.find("declared", "words", Words(("said",)), before=None, limit=9) == []
    with store.session(0) as session:
        Opened(session, built).apply(thing("a", 1))
        session.move(built, 7, b"hash")
    assert [each.position for each in store.generations()] == [7]
    assert store.select("declared", Query("thing")) == [row("a", 1)]


class Mixed:
    """Counts by a key that is text to PostgreSQL, and a number and a text to the projection."""

    name = "mixed"
    version = 1
    tables = (Table("row", (Column("key"), Column("count", "integer", adds=True)), key=("key",)),)
    texts = ()
    types = frozenset({"message-appended"})

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        del rows
        return (Upsert("row", {"key": "1" if event.version % 2 else 1, "count": 1}),)


def test_takes_events_one_by_one_where_the_server_refuses_what_they_come_to_together(postgres: str) -> None:
    with Conversations.open(postgres, projections=[Mixed()]) as conversations:
        conversations.start_thread(messages=[Message.user(str(number)) for number in range(4)])
        assert conversations.rows("mixed", Query("row")) == [{"key": "1", "count": 4}]
        assert [(each.parked, each.lag) for each in conversations.projections()] == [(0, 0)]


def test_a_recount_of_a_long_thread_is_no_transaction_that_stands_still(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection_batch, "PAGE", 10)
    with Conversations.open(postgres, embedded=False) as conversations:
        thread = conversations.start_thread(messages=[Message.user(str(number)) for number in range(50)])
        thread.redact(2)
        log = conversations._core.log
        flush, flushed = PostgresSession.flush, threading.Semaphore(0)

        def counted(session: PostgresSession) -> None:
            flush(session)
            flushed.release()

        monkeypatch.setattr(PostgresSession, "flush", counted)
        with closing(PostgresProjections(postgres)) as store:
            projector(log, store, [Usage()]).drain()
        assert all(flushed.acquire(blocking=False) for _ in range(52 // 10))


def test_what_a_process_had_not_committed_when_it_was_killed_is_done_by_the_next(postgres: str) -> None:
    with Conversations.open(postgres, embedded=False) as conversations:
        conversations.start_thread(messages=[Message.user(f"word{number}") for number in range(50)])
        log = conversations._core.log
        with closing(PostgresProjections(postgres)) as store:
            projector(log, store).drain()
            before = contents_of_usage(store)
            conversations.start_thread(messages=[Message.user("more")] * 20)

            def die_before_the_commit() -> None:
                with closing(PostgresProjections(postgres)) as own:
                    commit = psycopg.Connection.execute

                    def execute(self: Any, query: Any, *rest: Any, **more: Any) -> Any:
                        if query == "COMMIT":
                            os.kill(os.getpid(), signal.SIGKILL)
                        return commit(self, query, *rest, **more)

                    psycopg.Connection.execute = execute  # type: ignore[method-assign] # of this process alone
                    with Conversations.open(postgres, embedded=False) as child:
                        projector(child._core.log, own).advance()

            assert in_child(die_before_the_commit) == -signal.SIGKILL
            assert contents_of_usage(store) == before
            projector(log, store).drain()
            assert contents_of_usage(store) == before + 21


# Forgetting


def test_cleans_away_the_rows_of_words_that_were_forgotten(postgres: str, store: PostgresProjections) -> None:
    with store.session(0) as session:
        opened = Opened(session)
        for number in range(1, 4):
            opened.apply(IndexText("words", "secret"), position=number)
    assert not store.purge()
    with psycopg.connect(postgres) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1 FROM clew_generation")
        with store.session(0) as session:
            session.forget(opened.built, None, 2, 9)
        assert store.purge(), "somebody reads who could see it"
        table = f"clew_g{opened.built.id}_words"
        assert dead(postgres, table) == 1
    wait_until(lambda: not store.purge())
    assert dead(postgres, table) == 0
    assert store.find("declared", "words", Words(("secret",)), before=None, limit=9) == [3, 1]


@pytest.mark.parametrize("crashed", [False, True], ids=["ended", "and the server with it"])
def test_cleans_away_what_a_process_left_that_ended_before(
    postgres: str, store: PostgresProjections, *, crashed: bool
) -> None:
    with store.session(0) as session:
        opened = Opened(session)
        opened.apply(IndexText("more_words", "secret"))
    with store.session(0) as session:
        session.forget(opened.built, "more_words", 1, 9)
    store.close()  # then the server counts what it did
    table = f"clew_g{opened.built.id}_more_words"
    wait_until(lambda: dead(postgres, table) == 1)
    if crashed:
        ask(postgres, "SELECT pg_stat_reset()")  # a server that crashes forgets what it has counted
        assert dead(postgres, table) == 0
    for vacuums in (1, 1):
        with closing(PostgresProjections(postgres)) as other:
            assert not other.purge()
        assert ask(postgres, f"SELECT pg_stat_get_vacuum_count('{table}'::regclass)") == [(vacuums,)]
    assert dead(postgres, table) == 0


def test_the_server_keeps_no_text_in_its_statistics(postgres: str) -> None:
    with Conversations.open(postgres) as conversations:
        said = [Message.user(f"canary{number} said") for number in range(60)]
        conversations.start_thread(messages=said)
        conversations.wait()
    ask(postgres, "ANALYZE")
    shown = "SELECT attname FROM pg_stats WHERE schemaname = 'public' AND {} ~ 'canary|63616e617279'"
    for what in ("most_common_vals::text", "histogram_bounds::text", "most_common_elems::text"):
        assert ask(postgres, shown.format(what)) == []
    assert ask(postgres, shown.format("'canary'")) != []


def test_a_user_who_may_not_clean_a_table_is_no_error(postgres: str, store: PostgresProjections) -> None:
    with store.session(0) as session:
        opened = Opened(session)
        opened.apply(IndexText("words", "secret"))
    with store.session(0) as session:
        session.forget(opened.built, "words", 1, 9)
    ask(postgres, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {GUARDED}")
    store.close()
    table = f"clew_g{opened.built.id}_words"
    wait_until(lambda: dead(postgres, table) == 1)
    with closing(PostgresProjections(make_conninfo(postgres, user=GUARDED, password=PASSWORD))) as other:
        assert not other.purge(), "to try again is of no use"
    assert dead(postgres, table) == 1


def dead(url: str, table: str) -> int:
    return int(ask(url, f"SELECT pg_stat_get_dead_tuples('{table}'::regclass)")[0][0])


# Plans


def test_pages_of_threads_and_searches_are_read_by_indexes(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Conversations.open(postgres, embedded=False) as conversations:
        conversations.start_thread(thread_id="t0", messages=[Message.user(f"the word of {each}") for each in range(12)])
        recorder: Any = conversations._core.log.recorder  # type: ignore[attr-defined] # the log of a store
        rows = recorder.own_rows("default/thread/t0", limit=20)
        for start in range(1, 500, 50):
            others = [f"default/thread/t{number}" for number in range(start, start + 50)]
            events = [StoredEvent(name, row.version, row.type, row.state) for name in others for row in rows]
            recorder.submit(Append(events)).result(PATIENCE)
        conversations.thread("t7").label(team="one")
    with Conversations.open(postgres) as conversations:
        conversations.wait()
        ask(postgres, "ANALYZE")
        asked: list[tuple[bytes, Any]] = []
        execute = psycopg.Cursor.execute

        def note(self: Any, query: Any, parameters: Any = None, **more: Any) -> Any:
            if isinstance(query, bytes) and b"SELECT" in query and b"FROM " in query:
                asked.append((query, parameters))
            return execute(self, query, parameters, **more)

        say = Session.query

        def note_said(self: Session, sql: str, parameters: Any = None, **more: Any) -> Any:
            asked.append((sql.encode(), parameters))
            return say(self, sql, parameters, **more)

        monkeypatch.setattr(psycopg.Cursor, "execute", note)
        monkeypatch.setattr(Session, "query", note_said)
        for order in ("begun", "updated"):
            first = list(conversations.threads(order=order, newest_first=True, limit=20))
            assert len(list(conversations.threads(order=order, newest_first=True, limit=20, after=first[-1]))) == 20
        assert len(list(conversations.threads(labels={"team": "one"}, limit=20))) == 1
        assert len(conversations.search("word the", limit=20)) == 20
        assert len(conversations.search('"of 3"', limit=20)) == 20
        assert len(conversations.search("wor*", thread="t3", limit=20)) == 12
        monkeypatch.undo()
    with psycopg.connect(postgres) as connection:
        for query, parameters in asked:
            # Of so few threads twenty are sooner found by going through all: it is asked whether an index has them.
            off = b"width_bucket" in query or b"ANY" in query
            connection.execute("SELECT set_config('enable_seqscan', %s, false)", ("off" if off else "on",))
            plan = "\n".join(line for (line,) in connection.execute(b"EXPLAIN " + query, parameters))
            scanned = set(re.findall(r"Seq Scan on (clew_event|clew_g\d+_(?:thread|_?words))", plan))
            assert not scanned, plan
    assert sum(b"width_bucket" in query for query, _ in asked) >= 3


def waits_for_a_lock(url: str) -> bool:
    """Whether somebody waits for an advisory lock, before the test gives up."""
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    wait_until(lambda: ask(url, waits)[0][0] == 1)
    return True


def contents_of_usage(store: ProjectionStore) -> int:
    return sum(each["events"] for each in store.select("usage", Query("usage")))


def test_one_interruption_keeps_nothing_from_being_filled_later(
    store: PostgresProjections, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, interrupted = PrepareManager.validate, list[bytes]()

    def once(self: PrepareManager, key: Any, *told: Any) -> None:
        if not interrupted and key[0].startswith(b"SET LOCAL synchronous_commit"):
            interrupted.append(key[0])
            raise KeyboardInterrupt
        real(self, key, *told)

    monkeypatch.setattr(PrepareManager, "validate", once)
    with suppress(KeyboardInterrupt), store.session(0):
        pass
    for _ in range(10):
        with store.session(0) as session:
            assert session.generations() == []
