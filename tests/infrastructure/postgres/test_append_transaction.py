"""Appends that are planned in a transaction: their round trips to the server, and their failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.infrastructure.recorder_steps import PATIENCE, append, event, failure, interrupt_when, wait_until
from tests.servers.cutting_proxy import CuttingProxy
from tests.servers.postgres_server import ask
from tests.servers.row_level_security import isolate_tenants

from clew.domain.ports import Appended, Blob, Claim, Draft, Forget, Fork, Key, Shred
from clew.domain.streams import digest
from clew.infrastructure.append_plan import Plan
from clew.infrastructure.postgres.append_transaction import COPY_THRESHOLD, Transaction
from clew.infrastructure.postgres.datastore import PostgresDatastore
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.stream_ids import stream_id
from clew.infrastructure.recorder_ports import Append, RecordedConflictError, Recorder, Snapshot
from clew.infrastructure.verification import verify_store

WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

ANSWERED = b"QSc"
"""The messages after which a client waits for an answer: Query, Sync and CopyDone."""


class CountingProxy(CuttingProxy):
    """Counts how often a client waits for an answer, on one existing connection."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._sent = b""

    def round_trips(self, do: Callable[[], object]) -> int:
        self._sent = b""
        do()
        kinds, rest = b"", self._sent
        while rest:
            kinds += rest[:1]
            rest = rest[1 + int.from_bytes(rest[1:5]) :]
        return sum(kind in ANSWERED for kind in kinds)

    def _is_next(self, sent: bytes, *, begins: bool) -> bool:
        self._sent += sent
        return super()._is_next(sent, begins=begins)


@pytest.fixture
def proxy(postgres: str) -> Iterator[CountingProxy]:
    with CountingProxy(urlsplit(postgres).port or 5432) as proxy:
        yield proxy


def through(proxy: CountingProxy, url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.username}@127.0.0.1:{proxy.port}"))


def blob(data: bytes) -> Blob:
    return Blob(digest(data), "content", data)


OPERATIONS: dict[str, tuple[int, Callable[[Recorder, str], object]]] = {
    "one event": (1, lambda log, name: append(log, event("old", int(name)))),
    "a new stream": (2, lambda log, name: append(log, event(name, 1), event(name, 2))),
    "a fork": (2, lambda log, name: append(log, event(name, 2), forks={name: Fork("old", 1)})),
    "an append with a key": (2, lambda log, name: append(log, event("old", int(name)), key=Key("old", name, b""))),
    "an append with rows in all side tables": (
        2,
        lambda log, name: append(
            log,
            event("old", int(name)),
            claims=[Claim("old", name, 0, 0)],
            drafts=[Draft("old", name, b"part")],
            blobs=[blob(name.encode())],
            snapshots=[Snapshot("old", 1, b"")],
        ),
    ),
    "a redaction": (3, lambda log, name: redact(log, int(name))),
    "many events": (5, lambda log, name: append(log, *[event(name, version + 1) for version in range(COPY_THRESHOLD)])),
}


def redact(log: Recorder, version: int) -> None:
    shred = Shred("old", version - 1, digest(f"old {version - 1}".encode()), b"stub")
    append(log, event("old", version), shreds=[shred])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_takes_only_the_necessary_round_trips(proxy: CountingProxy, postgres: str, operation: str) -> None:
    expected, do = OPERATIONS[operation]
    with closing(PostgresRecorder.open(through(proxy, postgres), workers=1)) as recorder:
        append(recorder, event("old", 1), event("old", 2))
        assert [proxy.round_trips(lambda: do(recorder, "3")), proxy.round_trips(lambda: do(recorder, "4"))] == [
            expected
        ] * 2
        assert len(recorder.own_rows("old", limit=9)) + len(recorder.own_rows("4", limit=99)) > 2


def test_takes_no_more_round_trips_with_row_level_security(proxy: CountingProxy, postgres: str) -> None:
    app = through(proxy, isolate_tenants(postgres).app)
    store = PostgresDatastore(app, originator_id_type="text", tenant="a", workers=1)
    with closing(PostgresRecorder(store)) as recorder:
        append(recorder, event("a/thread/t", 1))
        assert proxy.round_trips(lambda: append(recorder, event("a/thread/u", 1))) == 2
        assert proxy.round_trips(lambda: append(recorder, event("a/thread/u", 2), key=Key("a/thread/u", "k", b""))) == 2
        assert failure(recorder, event("b/thread/t", 1)) is not None
        assert append(recorder, event("a/thread/u", 3)).versions == (3,)


@pytest.fixture
def recorder(postgres: str) -> Iterator[PostgresRecorder]:
    with closing(PostgresRecorder.open(postgres, workers=1)) as recorder:
        append(recorder, event("a", 1), event("a", 2))
        yield recorder


@pytest.fixture
def other_client(
    postgres: str,
    recorder: PostgresRecorder,  # noqa: ARG001 - creates the tables
) -> Iterator[psycopg.Connection[object]]:
    with psycopg.connect(postgres) as connection:
        yield connection
        connection.rollback()


def has_lock_wait(url: str) -> bool:
    """Whether a session waits for a lock."""
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return ask(url, count) != [(0,)]


def commit_meanwhile(other_client: psycopg.Connection[object], url: str, future: Future[Appended]) -> None:
    """Execute the append in another thread, and commit the other client's transaction when the append waits for it."""
    thread = threading.Thread(target=future.exception)
    thread.start()
    wait_until(lambda: has_lock_wait(url))
    other_client.commit()
    thread.join(PATIENCE)


def test_raises_the_first_error_and_stores_nothing(
    recorder: PostgresRecorder, other_client: psycopg.Connection[object], postgres: str
) -> None:
    """The client had already sent the commit."""
    other_client.execute(
        "INSERT INTO clew_event (position, tenant, stream, version, type, state, hash) "
        "SELECT position + 1, tenant, stream, 3, type, state, hash FROM clew_event WHERE stream = %s AND version = 2",
        (stream_id("a"),),
    )
    future = recorder.submit(
        Append(
            [event("b", 1), event("a", 3)],
            key=Key("a", "k", b""),
            drafts=[Draft("a", "run", b"part")],
            snapshots=[Snapshot("a", 1, b"")],
        )
    )
    commit_meanwhile(other_client, postgres, future)
    assert isinstance(future.exception(PATIENCE), RecordedConflictError)
    assert [len(recorder.own_rows(name, limit=9)) for name in "ab"] == [3, 0]
    assert recorder.stream("b") is None
    assert recorder.draft("a") is None
    assert recorder.snapshot("a") is None
    assert recorder.repeated(Key("a", "k", b"")) is None


def test_stores_nothing_of_a_redaction_if_another_one_was_faster(
    recorder: PostgresRecorder, other_client: psycopg.Connection[object], postgres: str
) -> None:
    original = digest(b"a 1")
    other_client.execute("SELECT clew_shred(%s, 1, %s, 'x')", (stream_id("a"), original))
    future = recorder.submit(Append([event("b", 1), event("a", 3)], shreds=[Shred("a", 1, original, b"stub")]))
    commit_meanwhile(other_client, postgres, future)
    assert isinstance(future.exception(PATIENCE), RecordedConflictError)
    assert [len(recorder.own_rows(name, limit=9)) for name in "ab"] == [2, 0]
    assert recorder.shredded() == 0


def test_ctrl_c_also_cancels_the_statement_in_the_server(
    recorder: PostgresRecorder, other_client: psycopg.Connection[object], postgres: str
) -> None:
    other_client.execute("INSERT INTO clew_draft VALUES (0, %s, '', '')", (stream_id("a"),))
    with interrupt_when(lambda: has_lock_wait(postgres)):
        with_a_draft = Append([event("a", 3)], key=Key("a", "k", b""), drafts=[Draft("a", "run", b"part")])
        recorder.submit(with_a_draft).result()  # this thread writes the append
    wait_until(lambda: not has_lock_wait(postgres))
    other_client.rollback()
    assert append(recorder, event("a", 3), key=Key("a", "k", b"")).versions == (3,)
    assert recorder.draft("a") is None
    assert verify_store(recorder).first_bad is None


def test_keeps_prepared_statements_after_a_rollback(recorder: PostgresRecorder) -> None:
    counts = set()
    for version in range(3, 7):
        append(recorder, event("a", version), key=Key("a", f"{version}", b""))
        assert isinstance(failure(recorder, event("a", 1)), RecordedConflictError)
        with recorder.datastore.writing.use() as session:
            counts.add(session.connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchall()[0])
    assert len(counts) == 1


def test_copies_rows_after_beginning_their_streams_and_at_the_returned_positions(recorder: PostgresRecorder) -> None:
    done = append(recorder, *[event("c", version + 1) for version in range(COPY_THRESHOLD)], key=Key("c", "k", b""))
    assert [row.position for row in recorder.rows_at(done.positions)] == list(done.positions)
    assert recorder.repeated(Key("c", "k", b"")) == done._replace(repeated=True)
    assert verify_store(recorder).first_bad is None


def test_an_append_that_forbids_forks_waits_for_one_that_is_being_made(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, may_write = Transaction.write, threading.Event()

    def write_forks_later(self: Transaction, made: Plan) -> object:
        if made.append.forks:
            may_write.wait(PATIENCE)
        return write(self, made)

    monkeypatch.setattr(Transaction, "write", write_forks_later)
    with closing(PostgresRecorder.open(postgres)) as one, closing(PostgresRecorder.open(postgres)) as other:
        append(one, event("a", 1))
        fork = other.submit(Append([event("b", 2)], forks={"b": Fork("a", 1)}))
        in_use = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
        wait_until(lambda: ask(postgres, in_use) == [(1,)])
        purge = one.submit(Append([event("a", 2)], forgets=[Forget("a", unforked_from=1)]))
        wait_until(lambda: ask(postgres, WAITING) == [(1,)])
        may_write.set()
        fork.result(PATIENCE)
        assert isinstance(purge.exception(PATIENCE), RecordedConflictError)
