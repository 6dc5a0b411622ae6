"""The PostgreSQL projection store keeps the contract and agrees with the SQLite store."""

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
from tests.infrastructure.recorder_steps import PATIENCE, in_forked_child, wait_until
from tests.servers.postgres_server import GUARDED, PASSWORD, ask
from tests.service.projection_contents import History, contents, made, projector, rebuild

from clew.conversations import Conversations
from clew.domain.errors import InvalidProjectionError
from clew.domain.messages import Message
from clew.domain.projection import Change, Column, IndexText, Query, Recorded, Rows, Table, Upsert, Words
from clew.domain.projection_store import ProjectionStore
from clew.infrastructure.postgres.connection import Session
from clew.infrastructure.postgres.projection_store import PostgresProjections
from clew.infrastructure.postgres.projection_transaction import PostgresSession
from clew.infrastructure.recorder_ports import Append
from clew.infrastructure.sqlite.projection_store import SQLiteProjections
from clew.projections import Usage
from clew.service import projection_batch


class TestPostgresProjections(ProjectionContract):
    pass


# Against SQLite


def test_has_the_same_contents_as_sqlite_for_every_kind_of_event(
    postgres: str, sqlite_store: SQLiteProjections, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.service.projection_contents.instances", lambda *_: [])  # it reads SQLite's own tables
    with Conversations.open(postgres, embedded=False) as conversations:
        history = made(History(conversations), 6, round(100 + 400 * scale))
        with closing(PostgresProjections(postgres)) as store:
            for each in (store, sqlite_store):
                projector(history.log, each).drain()
            assert contents(history.log, store) == contents(history.log, sqlite_store)
            for name in ("directory", "search"):
                rebuild(projector(history.log, store), name)
            assert contents(history.log, store) == contents(history.log, sqlite_store)


# Concurrent updates


def test_different_projections_are_updated_concurrently(postgres: str, store: PostgresProjections) -> None:
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
        assert done.wait(PATIENCE), "it waits for the update of another projection"
        done.clear()
        same = threading.Thread(target=fill, args=("one",))
        same.start()
        assert waits_for_a_lock(postgres), "two threads update the same projection"
        assert not done.is_set()
    same.join(PATIENCE)
    other.join(PATIENCE)
    assert store.select("other", Query("thing")) == [row("other", 1)]


@pytest.mark.parametrize("moves", [False, True], ids=["at the end", "before the position"])
def test_stores_nothing_of_a_batch_with_a_row_that_the_server_refuses(
    store: PostgresProjections, *, moves: bool
) -> None:
    with store.session(0) as session:
        built = Opened(session).built

    def fill() -> None:
        with store.session(0) as session:
            refused = thing(os.urandom(9_000).hex(), 2)
            Opened(session, built).apply(thing("a", 1), refused, IndexText("words", "word"))
            if moves:
                session.move(built, 7, b"hash")

    with pytest.raises(InvalidProjectionError, match="ProgramLimitExceeded"):
        fill()
    assert store.generations() == [built]
    assert store.select("declared", Query("thing")) == []
    assert store.find("declared", "words", Words(("word",)), before=None, limit=9) == []
    with store.session(0) as session:
        Opened(session, built).apply(thing("a", 1))
        session.move(built, 7, b"hash")
    assert [each.position for each in store.generations()] == [7]
    assert store.select("declared", Query("thing")) == [row("a", 1)]


class Mixed:
    """Counts by a key that is the same text in PostgreSQL, but a number and a text in the projection."""

    name = "mixed"
    version = 1
    tables = (Table("row", (Column("key"), Column("count", "integer", adds=True)), key=("key",)),)
    texts = ()
    types = frozenset({"message-appended"})

    def project(self, event: Recorded, rows: Rows) -> Iterable[Change]:
        del rows
        return (Upsert("row", {"key": "1" if event.version % 2 else 1, "count": 1}),)


def test_applies_events_one_by_one_if_the_server_refuses_the_batch(postgres: str) -> None:
    with Conversations.open(postgres, projections=[Mixed()]) as conversations:
        conversations.start_thread(messages=[Message.user(str(number)) for number in range(4)])
        assert conversations.rows("mixed", Query("row")) == [{"key": "1", "count": 4}]
        assert [(each.parked, each.lag) for each in conversations.projections()] == [(0, 0)]


def test_a_recount_of_a_long_thread_flushes_its_rows_regularly(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection_batch, "PAGE", 10)
    with Conversations.open(postgres, embedded=False) as conversations:
        thread = conversations.start_thread(messages=[Message.user(str(number)) for number in range(50)])
        thread.redact(2)
        log = conversations._core.log
        flush, flushed = PostgresSession.flush, threading.Semaphore(0)

        def count_flushes(session: PostgresSession) -> None:
            flush(session)
            flushed.release()

        monkeypatch.setattr(PostgresSession, "flush", count_flushes)
        with closing(PostgresProjections(postgres)) as store:
            projector(log, store, [Usage()]).drain()
        assert all(flushed.acquire(blocking=False) for _ in range(52 // 10))


def test_another_process_repeats_the_uncommitted_update_of_a_killed_process(postgres: str) -> None:
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

                    psycopg.Connection.execute = execute  # type: ignore[method-assign] # only in this process
                    with Conversations.open(postgres, embedded=False) as child:
                        projector(child._core.log, own).advance()

            assert in_forked_child(die_before_the_commit) == -signal.SIGKILL
            assert contents_of_usage(store) == before
            projector(log, store).drain()
            assert contents_of_usage(store) == before + 21


# Deletion of text


def test_purges_the_index_rows_of_deleted_text(postgres: str, store: PostgresProjections) -> None:
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
        assert store.purge(), "a reader could still see it"
        table = f"clew_g{opened.built.id}_words"
        assert dead_rows(postgres, table) == 1
    wait_until(lambda: not store.purge())
    assert dead_rows(postgres, table) == 0
    assert store.find("declared", "words", Words(("secret",)), before=None, limit=9) == [3, 1]


@pytest.mark.parametrize("crashed", [False, True], ids=["process ended", "server crashed"])
def test_purges_rows_that_an_ended_process_has_left(
    postgres: str, store: PostgresProjections, *, crashed: bool
) -> None:
    with store.session(0) as session:
        opened = Opened(session)
        opened.apply(IndexText("more_words", "secret"))
    with store.session(0) as session:
        session.forget(opened.built, "more_words", 1, 9)
    store.close()  # the server counts dead rows when the session ends
    table = f"clew_g{opened.built.id}_more_words"
    wait_until(lambda: dead_rows(postgres, table) == 1)
    if crashed:
        ask(postgres, "SELECT pg_stat_reset()")  # a crashed server loses its counts
        assert dead_rows(postgres, table) == 0
    for vacuums in (1, 1):
        with closing(PostgresProjections(postgres)) as other:
            assert not other.purge()
        assert ask(postgres, f"SELECT pg_stat_get_vacuum_count('{table}'::regclass)") == [(vacuums,)]
    assert dead_rows(postgres, table) == 0


def test_the_servers_statistics_contain_no_text(postgres: str) -> None:
    with Conversations.open(postgres) as conversations:
        messages = [Message.user(f"canary{number} word") for number in range(60)]
        conversations.start_thread(messages=messages)
        conversations.wait()
    ask(postgres, "ANALYZE")
    statistics = "SELECT attname FROM pg_stats WHERE schemaname = 'public' AND {} ~ 'canary|63616e617279'"
    for what in ("most_common_vals::text", "histogram_bounds::text", "most_common_elems::text"):
        assert ask(postgres, statistics.format(what)) == []
    assert ask(postgres, statistics.format("'canary'")) != []


def test_ignores_a_table_that_the_user_may_not_vacuum(postgres: str, store: PostgresProjections) -> None:
    with store.session(0) as session:
        opened = Opened(session)
        opened.apply(IndexText("words", "secret"))
    with store.session(0) as session:
        session.forget(opened.built, "words", 1, 9)
    ask(postgres, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {GUARDED}")
    store.close()
    table = f"clew_g{opened.built.id}_words"
    wait_until(lambda: dead_rows(postgres, table) == 1)
    with closing(PostgresProjections(make_conninfo(postgres, user=GUARDED, password=PASSWORD))) as other:
        assert not other.purge(), "another attempt would not help"
    assert dead_rows(postgres, table) == 1


def dead_rows(url: str, table: str) -> int:
    return int(ask(url, f"SELECT pg_stat_get_dead_tuples('{table}'::regclass)")[0][0])


# Plans


def test_lists_of_threads_and_searches_use_indexes(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
        queries: list[tuple[bytes, Any]] = []
        execute = psycopg.Cursor.execute

        def record(self: Any, query: Any, parameters: Any = None, **more: Any) -> Any:
            if isinstance(query, bytes) and b"SELECT" in query and b"FROM " in query:
                queries.append((query, parameters))
            return execute(self, query, parameters, **more)

        query_session = Session.query

        def record_session(self: Session, sql: str, parameters: Any = None, **more: Any) -> Any:
            queries.append((sql.encode(), parameters))
            return query_session(self, sql, parameters, **more)

        monkeypatch.setattr(psycopg.Cursor, "execute", record)
        monkeypatch.setattr(Session, "query", record_session)
        for order in ("begun", "updated"):
            first = list(conversations.threads(order=order, newest_first=True, limit=20))
            assert len(list(conversations.threads(order=order, newest_first=True, limit=20, after=first[-1]))) == 20
        assert len(list(conversations.threads(labels={"team": "one"}, limit=20))) == 1
        assert len(conversations.search("word the", limit=20)) == 20
        assert len(conversations.search('"of 3"', limit=20)) == 20
        assert len(conversations.search("wor*", thread="t3", limit=20)) == 12
        monkeypatch.undo()
    with psycopg.connect(postgres) as connection:
        for query, parameters in queries:
            # With so few threads, a full scan is faster. Without it, the plan shows whether an index fits.
            off = b"width_bucket" in query or b"ANY" in query
            connection.execute("SELECT set_config('enable_seqscan', %s, false)", ("off" if off else "on",))
            plan = "\n".join(line for (line,) in connection.execute(b"EXPLAIN " + query, parameters))
            scanned = set(re.findall(r"Seq Scan on (clew_event|clew_g\d+_(?:thread|_?words))", plan))
            assert not scanned, plan
    assert sum(b"width_bucket" in query for query, _ in queries) >= 3


def waits_for_a_lock(url: str) -> bool:
    """Wait until a session waits for an advisory lock."""
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    wait_until(lambda: ask(url, waits)[0][0] == 1)
    return True


def contents_of_usage(store: ProjectionStore) -> int:
    return sum(each["events"] for each in store.select("usage", Query("usage")))


def test_later_updates_succeed_after_one_interruption(
    store: PostgresProjections, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, interruptions = PrepareManager.validate, list[bytes]()

    def interrupt_once(self: PrepareManager, key: Any, *arguments: Any) -> None:
        if not interruptions and key[0].startswith(b"SET LOCAL synchronous_commit"):
            interruptions.append(key[0])
            raise KeyboardInterrupt
        real(self, key, *arguments)

    monkeypatch.setattr(PrepareManager, "validate", interrupt_once)
    with suppress(KeyboardInterrupt), store.session(0):
        pass
    assert len(interruptions) == 1
    for _ in range(10):
        with store.session(0) as session:
            assert session.generations() == []
