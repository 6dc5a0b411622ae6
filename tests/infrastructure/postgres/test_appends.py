"""Appends that one statement writes have the same outcomes as one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.infrastructure.recorder_steps import PATIENCE, append, event
from tests.servers.postgres_server import PostgresServer
from tests.servers.row_level_security import isolate_tenants

from clew.domain.errors import StoreUnavailableError
from clew.domain.ports import Appended
from clew.domain.streams import ROOT
from clew.infrastructure.inmemory.recorder import InMemoryRecorder
from clew.infrastructure.postgres.connection import Session
from clew.infrastructure.postgres.datastore import PostgresDatastore
from clew.infrastructure.postgres.pipeline import Statement, int8
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.stream_ids import only_stream, stream_id
from clew.infrastructure.recorder_ports import Append, RecordedConflictError, Recorder
from clew.infrastructure.verification import verify_store

BITS = 20


@pytest.fixture
def recorder(postgres: str) -> Iterator[PostgresRecorder]:
    with closing(PostgresRecorder.open(postgres)) as recorder:
        for name in "abc":
            append(recorder, event(name, 1))
        yield recorder


def write(recorder: PostgresRecorder, *appends: Append) -> list[Appended | Exception | None]:
    """Write like the pool: appends that the writer defers are written one by one."""
    writer = recorder.datastore.writer
    patient = len({only_stream(each) for each in appends}) == 1
    written = writer.write(appends, patient=patient)
    return [done or writer.write([each], patient=True)[0] for done, each in zip(written, appends, strict=True)]


def head(recorder: Recorder, stream: str) -> bytes:
    return recorder.own_rows(stream, limit=99)[-1].hash


def test_writes_a_batch_of_known_heads_and_refuses_conflicts(recorder: PostgresRecorder) -> None:
    a = Append([event("a", 2), event("a", 3)], previous={"a": head(recorder, "a")})
    b = Append([event("b", 2)], previous={"b": bytes(31) + b"x"})
    c = Append([event("c", 2)])
    first, refused, last = write(recorder, a, b, c)
    assert isinstance(first, Appended)
    assert isinstance(refused, RecordedConflictError)
    assert isinstance(last, Appended)
    assert {each >> BITS for each in first.positions} == {last.positions[0] >> BITS}, "one transaction wrote them"
    assert [recorder.rows_at(each.positions)[-1].version for each in (first, last)] == [3, 2]
    assert verify_store(recorder).first_bad is None


def test_a_batch_can_contain_successive_appends_to_a_stream(recorder: PostgresRecorder) -> None:
    outcomes = write(recorder, *[Append([event("a", version)]) for version in range(2, 7)])
    positions = [each.positions[0] for each in outcomes if isinstance(each, Appended)]
    assert len(positions) == 5
    assert len({each >> BITS for each in positions}) == 1
    assert [row.version for row in recorder.own_rows("a", limit=99)] == [1, 2, 3, 4, 5, 6]
    assert verify_store(recorder).first_bad is None


def test_keeps_the_order_of_a_stream_even_for_appends_that_need_a_plan(recorder: PostgresRecorder) -> None:
    """The third version comes too early. It is not written after the second version."""
    outcomes = write(recorder, *[Append([event("a", version)]) for version in (3, 2)])
    assert [type(each) for each in outcomes] == [RecordedConflictError, Appended]
    assert [row.version for row in recorder.own_rows("a", limit=99)] == [1, 2]


def test_writes_nothing_after_a_head_that_another_writer_has_changed(recorder: PostgresRecorder, postgres: str) -> None:
    first = head(recorder, "a")
    second = Append([event("a", 2)], previous={"a": first})
    with closing(PostgresRecorder.open(postgres)) as other:
        append(other, event("a", 2, b"faster"))
    outcomes = write(recorder, second, Append([event("a", 3)]), Append([event("b", 2)]))
    assert [type(each) for each in outcomes] == [RecordedConflictError, Appended, Appended], (
        "the third version follows the second version of any writer"
    )
    assert [row.state for row in recorder.own_rows("a", limit=99)][1] == b"faster"
    assert verify_store(recorder).first_bad is None


@pytest.mark.parametrize("happens", [True, False])
def test_a_batch_whose_reply_is_lost_is_stored_once(
    recorder: PostgresRecorder,
    monkeypatch: pytest.MonkeyPatch,
    happens: bool,  # noqa: FBT001 - pytest's
) -> None:
    query_numbers = Session.query_numbers

    def lose(session: Session, statement: Statement, values: list[bytes | None]) -> list[int]:
        monkeypatch.undo()
        if happens:
            query_numbers(session, statement, values)
        message = "the test lost the connection"
        raise psycopg.OperationalError(message)

    monkeypatch.setattr(Session, "query_numbers", lose)
    refused = Append([event("c", 2)], previous={"c": bytes(31) + b"x"})
    batch = [Append([event("a", 2)]), Append([event("a", 3), event("a", 4)]), refused, Append([event("b", 2)])]
    kinds = [type(each) for each in write(recorder, *batch)]
    assert kinds == [Appended, Appended, RecordedConflictError, Appended]
    assert [len(recorder.own_rows(name, limit=99)) for name in "abc"] == [4, 2, 1]
    assert verify_store(recorder).first_bad is None


# For each append: the stream, the number of events, the error of its version, and whether it names the previous hash.
APPENDS = st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.sampled_from([0, 0, 0, 0, -1, 1]), st.booleans())
BATCHES = st.lists(st.tuples(st.integers(0, 1), st.lists(APPENDS, min_size=1, max_size=6)), min_size=1, max_size=5)


def test_a_batch_has_the_same_outcomes_as_its_appends_one_by_one(postgres_server: PostgresServer, scale: float) -> None:
    @settings(max_examples=max(int(150 * scale), 15), deadline=None)
    @given(batches=BATCHES)
    def check(batches: list[tuple[int, list[tuple[str, int, int, bool]]]]) -> None:
        with ExitStack() as stack:
            url = stack.enter_context(postgres_server.database())
            both = [stack.enter_context(closing(PostgresRecorder.open(url))) for _ in range(2)]
            expected = stack.enter_context(closing(InMemoryRecorder()))
            for number, (writer, specs) in enumerate(batches):
                appends, outcomes = _appends(expected, specs, number)
                assert [_comparable(each) for each in write(both[writer], *appends)] == outcomes
            for name in "abc":
                rows = [recorder.own_rows(name, limit=99) for recorder in (expected, both[0])]
                assert [row._replace(position=0) for row in rows[0]] == [row._replace(position=0) for row in rows[1]]
            assert verify_store(both[0]).first_bad is None

    check()


def _appends(
    expected: InMemoryRecorder, specs: list[tuple[str, int, int, bool]], batch: int
) -> tuple[list[Append], list[object]]:
    """Appends, and their outcomes when they are written one by one."""
    appends: list[Append] = []
    outcomes: list[object] = []
    for number, (name, events, off, names_previous) in enumerate(specs):
        rows = expected.own_rows(name, limit=99)
        version, previous = (rows[-1].version, rows[-1].hash) if rows else (0, ROOT)
        first = max(version + 1 + off, 1)
        one = Append(
            [event(name, first + each, b"%d-%d-%d" % (batch, number, each)) for each in range(events)],
            previous={name: previous} if names_previous and rows else {},
        )
        appends.append(one)
        future = expected.submit(one)
        outcomes.append(_comparable(future.exception() or future.result()))
    return appends, outcomes


def _comparable(outcome: object) -> object:
    return (outcome.hashes, outcome.versions) if isinstance(outcome, Appended) else type(outcome)


def test_an_append_that_the_database_refuses_fails_alone(postgres: str) -> None:
    app = isolate_tenants(postgres).app
    with closing(PostgresRecorder(PostgresDatastore(app, originator_id_type="text", tenant="a"))) as recorder:
        append(recorder, event("a/thread/t", 1))
        foreign = Append([event("b/thread/t", 2)], previous={"b/thread/t": bytes(31) + b"x"})
        mine, refused = write(recorder, Append([event("a/thread/t", 2)]), foreign)
        assert isinstance(mine, Appended)
        assert isinstance(refused, Exception)
        assert [row.version for row in recorder.own_rows("a/thread/t", limit=9)] == [1, 2]


def test_sorts_the_appends_of_a_statement_by_stream(
    recorder: PostgresRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, two processes that write to the same streams could deadlock."""
    streams: list[list[bytes | None]] = []
    query_numbers = Session.query_numbers

    def record(session: Session, statement: Statement, values: list[bytes | None]) -> list[int]:
        streams.append([each for number, each in enumerate(values[2:]) if number % 8 == 1 and each is not None])
        return query_numbers(session, statement, values)

    monkeypatch.setattr(Session, "query_numbers", record)
    for order in ("abc", "cba"):
        version = 2 if order == "abc" else 3
        outcomes = write(recorder, *[Append([event(name, version)]) for name in order])
        assert [recorder.rows_at(each.positions)[0].stream for each in outcomes if isinstance(each, Appended)] == list(
            order
        )
    assert streams == [sorted(int8(stream_id(name)) for name in "abc")] * 2


@pytest.fixture
def other_client(
    postgres: str,
    recorder: PostgresRecorder,  # noqa: ARG001 - it writes the first event
) -> Iterator[psycopg.Connection[object]]:
    """A client with an open transaction that has written the second version of the stream ``a``."""
    with psycopg.connect(postgres) as connection:
        connection.execute(
            "INSERT INTO clew_event (position, tenant, stream, version, type, state, hash) "
            "SELECT position + 1, tenant, stream, 2, type, state, hash FROM clew_event WHERE stream = %s",
            (stream_id("a"),),
        )
        yield connection
        connection.rollback()


def test_a_lock_on_one_stream_delays_no_other(
    recorder: PostgresRecorder, other_client: psycopg.Connection[object]
) -> None:
    pool = recorder.datastore.pool
    delayed, queued = (pool.submit(Append([event("a", version)])) for version in (2, 3))
    others = [pool.submit(Append([event(name, version)])) for version in (2, 3) for name in "bc"]
    threads = [threading.Thread(target=future.result) for future in (delayed, *others)]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    others += [pool.submit(Append([event("b", 4)]))]
    assert all(future.result(PATIENCE).positions for future in others)
    assert not delayed.done()
    assert not queued.done()
    other_client.rollback()
    assert delayed.result(PATIENCE).positions < queued.result(PATIENCE).positions
    threads[0].join(PATIENCE)
    assert [len(recorder.own_rows(name, limit=99)) for name in "abc"] == [3, 4, 3]
    assert verify_store(recorder).first_bad is None


def test_defers_a_statement_at_a_lock_without_changing_session_settings(
    recorder: PostgresRecorder, other_client: psycopg.Connection[object]
) -> None:
    writer = recorder.datastore.writer
    batch = [Append([event(name, 2)]) for name in "ab"]
    with recorder.datastore.writing.use() as session:
        before = session.query("SHOW lock_timeout")
    assert writer.write(batch, patient=False) == [None, None]
    other_client.rollback()
    assert [type(each) for each in writer.write(batch, patient=False)] == [Appended, Appended]
    with recorder.datastore.writing.use() as session:
        assert session.query("SHOW lock_timeout") == before


def test_reports_the_user_s_own_lock_timeout(postgres: str, other_client: psycopg.Connection[object]) -> None:
    limit = ("&" if "?" in postgres else "?") + "options=-clock_timeout%3D20ms"
    with closing(PostgresRecorder.open(postgres + limit)) as limited:
        alone, other = (limited.submit(Append([event(name, 2)])) for name in "ab")
        with pytest.raises(StoreUnavailableError, match="another session holds a lock"):
            alone.result()
        assert other.result(PATIENCE).positions
        other_client.rollback()
        append(limited, event("a", 2))
