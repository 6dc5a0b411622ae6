"""Statements that go past the driver's cursor, and end as if they had not."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import psycopg
import pytest
from tests.infrastructure.recording import PATIENCE, event, wait_until
from tests.servers.postgres_server import ask

from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.round_trip import number
from clew.infrastructure.postgres.sessions import Address, Session, Sessions
from clew.infrastructure.recorder import Append

DOUBLED = "SELECT %(number)b + n FROM generate_series(%(number)b, %(number)b + 2) AS n WHERE length(%(text)b) > 0"


@pytest.fixture
def session(postgres: str) -> Iterator[Session]:
    PostgresRecorder.open(postgres).close()
    sessions = Sessions(Address(postgres), 1)
    with sessions.use() as session:
        yield session
    sessions.close()


def test_answers_the_lowest_number_or_none(session: Session) -> None:
    assert session.first(DOUBLED, {"text": b"x", "number": -4}) == -8
    assert session.first(DOUBLED, {"text": b"", "number": 1}) is None
    assert session.first("SELECT max(n) FROM unnest(%(all)b::int8[]) AS n", {"all": [3, 4]}) == 4


def test_prepares_again_what_the_driver_had_the_server_forget(session: Session) -> None:
    asked = {"text": b"x", "number": 1}
    assert [session.first(DOUBLED, asked) for _ in range(2)] == [2, 2]
    first = dict(session.prepared)
    session.connection.execute("DEALLOCATE ALL")
    assert session.first(DOUBLED, asked) == 2
    assert list(session.prepared) == list(first)
    assert session.prepared != first


def test_raises_what_the_cursor_would_and_goes_on(session: Session) -> None:
    divided = "SELECT 1 / %(number)b"
    with pytest.raises(psycopg.errors.DivisionByZero):
        session.first(divided, {"number": 0})
    with pytest.raises(psycopg.errors.SyntaxError):
        session.first("SELEC %(number)b", {"number": 0})
    assert session.first(divided, {"number": 1}) == 1


def test_prepares_nothing_where_the_url_says_so(postgres: str) -> None:
    with Address(f"{postgres}?prepare=no").connect() as connection:
        known: dict[str, bytes] = {}
        assert number(connection, known, DOUBLED, {"text": b"x", "number": 1}) == 2
        assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchall() == [(0,)]
        assert not known


def test_sends_more_than_the_network_takes_at_once(session: Session) -> None:
    text = bytes(range(256)) * 100_000
    assert session.first("SELECT length(%(text)b)::int8", {"text": text}) == len(text)


def test_sees_ctrl_c_while_the_server_is_silent(session: Session, postgres: str) -> None:
    sleeps = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"

    def interrupt() -> None:
        wait_until(lambda: ask(postgres, sleeps) == [(1,)])
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            session.first("SELECT length(pg_sleep(%(number)b)::text)::int8", {"number": 60})
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_writes_an_append_after_one_that_was_rolled_back(postgres: str) -> None:
    recorder = PostgresRecorder.open(postgres, workers=1)
    for version in range(1, 4):
        assert recorder.submit(Append([event("a", version)])).result(PATIENCE)
        assert recorder.submit(Append([event("a", version)])).exception(PATIENCE)
    assert [row.version for row in recorder.lineage("a")] == [1, 2, 3]
    recorder.close()
