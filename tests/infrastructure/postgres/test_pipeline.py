"""Statements that bypass the driver's cursor have the same results and errors as with a cursor."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.infrastructure.recorder_steps import PATIENCE, event, interrupt_when
from tests.servers.postgres_server import ask

from clew.infrastructure.postgres.connection import Address, Session
from clew.infrastructure.postgres.connection_pool import ConnectionPool
from clew.infrastructure.postgres.errors import is_cut
from clew.infrastructure.postgres.pipeline import (
    BYTEA_TYPE,
    INT8_TYPE,
    BoundStatement,
    Statement,
    byteas,
    execute,
    int8,
    int8s,
    read_numbers,
)
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.recorder_ports import Append

DOUBLED = Statement(
    b"SELECT $1 + n FROM generate_series($1, $1 + 2) AS n WHERE length($2) > 0", [INT8_TYPE, BYTEA_TYPE]
)


def arguments(number: int, text: bytes = b"x") -> tuple[bytes, bytes]:
    return int8(number), text


def execute_last(session: Session, *statements: BoundStatement) -> list[int]:
    return read_numbers(execute(session.connection, session.prepared, *statements, is_transaction=True)[-1])


@pytest.fixture
def session(postgres: str) -> Iterator[Session]:
    PostgresRecorder.open(postgres).close()
    sessions = ConnectionPool(Address(postgres), 1)
    with sessions.use() as session:
        yield session
    sessions.close()


def test_returns_the_numbers_of_a_result(session: Session) -> None:
    assert session.query_numbers(DOUBLED, arguments(-4)) == [-8, -7, -6]
    assert session.query_numbers(DOUBLED, arguments(1, b"")) == []
    nothing = Statement(b"SELECT nullif(n, 2) FROM generate_series(1, $1) AS n", [INT8_TYPE])
    assert session.query_numbers(nothing, [int8(3)]) == [1, 3]
    assert session.query_numbers(nothing, [None]) == []


def test_executes_several_statements_in_one_transaction(session: Session) -> None:
    setting = Statement(b"SELECT 0::int8 FROM set_config('clew.tenant', convert_from($1, 'UTF8'), true)", [BYTEA_TYPE])
    length = Statement(b"SELECT length(current_setting('clew.tenant'))::int8 + $1", [INT8_TYPE])
    for _ in range(2):
        assert execute_last(session, (setting, [b"abc"]), (length, [int8(10)])) == [13]
    assert session.query_numbers(length, [int8(0)]) == [0]
    division = Statement(b"SELECT 1 / $1", [INT8_TYPE])
    with pytest.raises(psycopg.errors.DivisionByZero):
        execute_last(session, (setting, [b"abc"]), (division, [int8(0)]), (length, [int8(0)]))
    assert session.query_numbers(length, [int8(0)]) == [0]


def test_returns_rows_of_numbers_and_bytes_and_accepts_arrays_of_them(session: Session) -> None:
    unnest = Statement(b"SELECT n, b FROM unnest($1::int8[], $2::bytea[]) AS rows (n, b)")
    rows = [(7, b"x"), (None, b""), (-(2**63), None), (2**63 - 1, bytes(range(256)))]
    statement = unnest, [int8s(n for n, _ in rows), byteas(b for _, b in rows)]
    nothing = unnest, [int8s([]), byteas([])]
    assert session.execute_together(statement, nothing, statement) == [rows, [], rows]
    assert session.execute_together((Statement(b"SELECT"), ())) == [[()]]
    assert session.execute_together() == []


def test_executes_nothing_after_a_failed_statement_and_raises_its_error(session: Session) -> None:
    session.connection.execute("CREATE TABLE numbers (n bigint)")
    insertion = Statement(b"INSERT INTO numbers VALUES ($1)"), [int8(1)]
    division = Statement(b"SELECT 1 / $1", [INT8_TYPE]), [int8(0)]
    for first in ((), (insertion,)):
        with pytest.raises(psycopg.errors.DivisionByZero):
            session.execute_together(*first, division, insertion, division)
        assert session.execute_together((Statement(b"SELECT count(*) FROM numbers"), ())) == [[(0,)]]
    session.begin(insertion)
    with pytest.raises(psycopg.errors.DivisionByZero):
        session.commit(insertion, division)
    session.roll_back()
    assert session.execute_together((Statement(b"SELECT count(*) FROM numbers"), ())) == [[(0,)]]


@pytest.mark.parametrize("earlier", [(), ((DOUBLED, arguments(1)),)])
def test_prepares_deallocated_statements_again(
    session: Session, earlier: tuple[tuple[Statement, tuple[bytes, bytes]], ...]
) -> None:
    statements = (*earlier, (DOUBLED, arguments(1)))
    assert [execute_last(session, *statements) for _ in range(2)] == [[2, 3, 4]] * 2
    first = dict(session.prepared)
    session.connection.execute("DEALLOCATE ALL")
    assert execute_last(session, *statements) == [2, 3, 4]
    assert list(session.prepared) == list(first)
    assert session.prepared != first


def test_raises_the_cursor_s_errors_and_stays_usable(session: Session) -> None:
    division = Statement(b"SELECT 1 / $1", [INT8_TYPE])
    with pytest.raises(psycopg.errors.DivisionByZero):
        session.query_numbers(division, [int8(0)])
    with pytest.raises(psycopg.errors.SyntaxError):
        session.query_numbers(Statement(b"SELEC $1", [INT8_TYPE]), [int8(0)])
    assert session.query_numbers(division, [int8(1)]) == [1]


@pytest.mark.parametrize("several", [False, True])
def test_raises_the_cursor_s_error_when_the_server_closes_the_connection(session: Session, several: bool) -> None:  # noqa: FBT001 - pytest's
    termination = Statement(b"SELECT pg_terminate_backend(pg_backend_pid())::int::int8 + $1", [INT8_TYPE])
    statement = (termination, [int8(0)])
    with pytest.raises(psycopg.OperationalError) as caught:
        execute_last(session, *[statement] * (1 + several))
    assert is_cut(caught.value)


def test_prepares_nothing_if_the_url_disables_it(postgres: str) -> None:
    with Address(f"{postgres}?prepare=no").connect() as connection:
        prepared: dict[Statement, bytes] = {}
        assert read_numbers(execute(connection, prepared, (DOUBLED, arguments(1)))[-1]) == [2, 3, 4]
        assert read_numbers(execute(connection, prepared, (DOUBLED, arguments(1)), (DOUBLED, arguments(2)))[-1]) == [
            4,
            5,
            6,
        ]
        assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchall() == [(0,)]
        assert not prepared


def test_sends_more_than_the_network_accepts_at_once(session: Session) -> None:
    text = bytes(range(256)) * 100_000
    length = Statement(b"SELECT length($1)::int8", [BYTEA_TYPE])
    assert session.query_numbers(length, [text]) == [len(text)]
    assert execute_last(session, (length, [text]), (length, [text])) == [len(text)]


def test_ctrl_c_interrupts_the_wait_for_a_silent_server(session: Session, postgres: str) -> None:
    sleeps = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    with interrupt_when(lambda: ask(postgres, sleeps) == [(1,)]):
        session.query_numbers(Statement(b"SELECT length(pg_sleep($1)::text)::int8", [INT8_TYPE]), [int8(60)])


def test_writes_an_append_after_a_rollback(postgres: str) -> None:
    recorder = PostgresRecorder.open(postgres, workers=1)
    for version in range(1, 4):
        assert recorder.submit(Append([event("a", version)])).result(PATIENCE)
        assert recorder.submit(Append([event("a", version)])).exception(PATIENCE)
    assert [row.version for row in recorder.lineage("a")] == [1, 2, 3]
    recorder.close()
