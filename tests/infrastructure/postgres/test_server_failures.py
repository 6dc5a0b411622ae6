"""The PostgreSQL store when its server refuses requests, stops, loses replies or is slow; and its error messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit, urlunsplit

import pytest
from eventsourcing.persistence import Tracking
from tests.infrastructure.recorder_steps import PATIENCE, append, event, failure, fill, recomputed_hashes, run_threads
from tests.servers.cutting_proxy import CuttingProxy
from tests.servers.postgres_server import GUARDED, PASSWORD, PostgresServer, ask, end_sessions

from clew.domain.errors import StoreError, StoreSchemaError, StoreUnavailableError, StoreUrlError
from clew.domain.ports import Claim, Draft, Key, Shred
from clew.domain.streams import ROOT, digest
from clew.infrastructure.postgres.connection import Session
from clew.infrastructure.postgres.pipeline import BoundStatement
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.schema import SCHEMA_VERSION
from clew.infrastructure.postgres.store import PostgresStore
from clew.infrastructure.recorder_ports import Append, RecordedConflictError
from clew.infrastructure.stores import store_at


@pytest.fixture
def recorder(postgres: str) -> Iterator[PostgresRecorder]:
    recorder = PostgresRecorder.open(postgres)
    yield recorder
    recorder.close()


def replaced(url: str, *, port: int = 0, user: str = "", database: str = "") -> str:
    """The URL with another port, user (and password) or database."""
    parts = urlsplit(url)
    before, _, host = parts.netloc.rpartition("@")
    if port:
        host = f"{parts.hostname}:{port}"
    return urlunsplit(
        parts._replace(netloc=f"{user or before}@{host}", path=f"/{database}" if database else parts.path)
    )


# Lost replies


@pytest.mark.parametrize("message", [b"a statement by itself", b"BEGIN", b"COMMIT"])
def test_an_append_whose_reply_is_lost_is_stored_exactly_once(postgres_server: PostgresServer, message: bytes) -> None:
    with postgres_server.database() as url, CuttingProxy(postgres_server.port) as proxy:
        recorder = PostgresRecorder.open(replaced(url, port=proxy.port), workers=1)
        fill(recorder, "a", 2)
        fill(recorder, "a", 4, start=3)  # from now on, the statement is prepared
        key = Key("a", "k", b"content") if message.isupper() else None
        proxy.lose_reply(message)
        outcome = append(recorder, event("a", 5, message.lower()), event("a", 6), key=key)
        assert proxy.lost.is_set()
        assert not outcome.repeated
        rows = recorder.lineage("a")
        assert [row.version for row in rows] == [1, 2, 3, 4, 5, 6]
        assert outcome.positions == (rows[4].position, rows[5].position)
        assert [row.hash for row in rows] == recomputed_hashes(rows)
        assert append(recorder, event("a", 7)).versions == (7,)
        recorder.close()


def test_an_append_without_rows_happens_once_when_the_reply_to_its_commit_is_lost(
    postgres_server: PostgresServer,
) -> None:
    with (
        postgres_server.database() as url,
        CuttingProxy(postgres_server.port) as proxy,
        closing(PostgresRecorder.open(replaced(url, port=proxy.port), workers=1)) as recorder,
    ):
        fill(recorder, "a", 2)
        shred = Shred("a", 1, digest(recorder.lineage("a")[0].state), b"stub")
        alone: list[dict[str, Any]] = [
            {"tracking": Tracking("app", 7)},
            {"shreds": [shred]},
            {"claims": [Claim("a", "run", 1, 99)], "drafts": [Draft("a", "run", b"data")]},
        ]
        for each in alone:
            proxy.lose_reply(b"COMMIT")
            append(recorder, **each)
            assert proxy.lost.is_set()
        assert recorder.max_tracking_id("app") == 7
        assert recorder.lineage("a")[0].state == b"stub"
        assert recorder.shredded() == 1
        assert recorder.draft("a") == Draft("a", "run", b"data")


# Killed servers


def test_keeps_every_acknowledged_append_and_continues_after_the_server_is_killed(scale: float) -> None:
    with PostgresServer(18) as server, server.database() as url:
        recorder = PostgresRecorder.open(url)
        acknowledged: dict[str, int] = {}
        stop = threading.Event()

        def write(name: str) -> None:
            version = 0
            while not stop.is_set():
                error = failure(recorder, event(name, version + 1))
                if error is None:
                    version += 1
                    acknowledged[name] = version
                elif isinstance(error, RecordedConflictError):
                    # It was stored, but its outcome is unknown, because the server did not answer.
                    version = error.actual
                else:
                    assert isinstance(error, StoreUnavailableError)

        names = [f"s{number}" for number in range(4)]
        threads = [threading.Thread(target=write, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        try:
            for _ in range(max(2, round(50 * scale))):
                woken = threading.Semaphore(0)
                end = recorder.listen(lambda woken=woken: woken.release() and None)  # type: ignore[misc] # a bound loop
                for _ in range(20):
                    assert woken.acquire(timeout=PATIENCE)
                end()
                server.kill()
                server.start()
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert sorted(acknowledged) == names
        for name in names:
            rows = recorder.lineage(name)
            assert len(rows) >= acknowledged[name]
            assert [row.hash for row in rows] == recomputed_hashes(rows)
        recorder.close()


def test_writes_an_append_without_rows_even_if_its_transaction_id_is_assigned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crashed server has lost the transaction, and commits another client's transaction with the same id."""
    commit = Session.commit

    def crash_and_commit(session: Session, *bound: BoundStatement) -> None:
        monkeypatch.undo()
        ((transaction_id,),) = session.connection.execute("SELECT pg_current_xact_id()::text::int8").fetchall()
        server.kill()
        server.start()
        while ask(url, "SELECT pg_current_xact_id()::text::int8")[0][0] < transaction_id:
            pass
        assert ask(url, f"SELECT pg_xact_status('{transaction_id}')") == [("committed",)]
        commit(session, *bound)

    with PostgresServer(18) as server, server.database() as url, closing(PostgresRecorder.open(url)) as recorder:
        fill(recorder, "a", 2)
        monkeypatch.setattr(Session, "commit", crash_and_commit)
        append(recorder, drafts=[Draft("a", "run", b"data")])
        assert recorder.draft("a") == Draft("a", "run", b"data")


def test_continues_after_all_connections_were_cut(postgres: str, recorder: PostgresRecorder) -> None:
    fill(recorder, "a", 2)
    assert len(recorder.lineage("a")) == 2
    end_sessions(postgres)
    assert len(recorder.lineage("a")) == 2
    assert append(recorder, event("a", 3)).versions == (3,)


# Readers in position order


def test_continues_above_the_positions_of_a_restored_dump(postgres: str) -> None:
    with_dump = PostgresRecorder.open(postgres)
    last = fill(with_dump, "a", 3).positions[-1]
    with_dump.close()
    higher = 10**9 << 20
    ask(postgres, f"UPDATE clew_event SET position = position + {higher}")  # noqa: S608 - a number
    ask(postgres, f"UPDATE clew_stream SET began = began + {higher}")  # noqa: S608 - as above
    restored = PostgresRecorder.open(postgres)
    assert restored.last_position() == last + higher
    assert fill(restored, "a", 4, start=4).positions[0] > last + higher
    assert [row.version for row in restored.rows(after=0, limit=9)] == [1, 2, 3, 4]
    restored.close()


# Two processes


def test_another_process_s_commits_are_visible_and_wake_listeners(postgres: str, recorder: PostgresRecorder) -> None:
    other = PostgresRecorder.open(postgres)
    fill(recorder, "a", 2)
    head = fill(other, "a", 3, start=3).hashes[-1]
    error = failure(recorder, event("a", 3))
    assert isinstance(error, RecordedConflictError)
    assert error.actual == 3
    assert append(recorder, event("a", 4), previous={"a": head}).versions == (4,)
    woken = threading.Event()
    end = recorder.listen(woken.set)
    fill(other, "a", 5, start=5)
    assert woken.wait(PATIENCE)
    end()
    other.close()


def test_only_one_of_many_recorders_gets_a_lease_or_a_key(postgres: str) -> None:
    recorders = [PostgresRecorder.open(postgres, workers=1) for _ in range(4)]
    fill(recorders[0], "a", 1)
    for round_ in range(8):
        claims = [
            recorder.submit(Append((), claims=[Claim("a", f"{number}", round_ * 10, round_ * 10 + 10)]))
            for number, recorder in enumerate(recorders)
        ]
        assert sorted(future.exception(PATIENCE) is None for future in claims) == [False, False, False, True]
        key = Key("a", f"k{round_}", b"")
        keyed = [recorder.submit(Append([event("a", round_ + 2)], key=key)) for recorder in recorders]
        assert sorted(future.result(PATIENCE).repeated for future in keyed) == [False, True, True, True]
    for recorder in recorders:
        recorder.close()


# Streams and schemas


def test_refuses_a_stream_with_the_number_of_another(
    recorder: PostgresRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(recorder, "a", 1)
    for module in ("recorder", "append_transaction", "appends"):
        monkeypatch.setattr(f"clew.infrastructure.postgres.{module}.stream_id", lambda _: 7)
    fill(recorder, "b", 1)
    error = failure(recorder, event("c", 1), previous={"c": ROOT})
    assert isinstance(error, StoreError)
    assert "'b'" in str(error)
    assert "'c'" in str(error)
    assert recorder.lineage("c") == []


def test_creates_the_tables_once_when_many_open_an_empty_database(postgres: str) -> None:
    assert store_at(postgres).schemas() == (0, SCHEMA_VERSION)
    with pytest.raises(StoreSchemaError, match="clew migrate"):
        store_at(postgres).open_log(create=False)
    run_threads([lambda: PostgresRecorder.open(postgres).close()] * 6)
    assert store_at(postgres).schemas() == store_at(postgres).migrate() == (SCHEMA_VERSION, SCHEMA_VERSION)
    store_at(postgres).open_log(create=False).close()


def test_refuses_a_newer_schema_and_does_not_change_it(postgres: str) -> None:
    assert store_at(postgres).migrate() == (0, SCHEMA_VERSION)
    ask(postgres, "UPDATE clew_meta SET schema = 99")
    for use in (PostgresStore.open_log, PostgresStore.schemas, PostgresStore.migrate):
        with pytest.raises(StoreSchemaError, match="schema 99"):
            use(PostgresStore(postgres))
    assert ask(postgres, "SELECT schema FROM clew_meta") == [(99,)]


# Error messages


def test_explains_errors_without_the_password(postgres_server: PostgresServer, tmp_path: Path) -> None:
    guarded = f"{GUARDED}:{PASSWORD}"
    server = postgres_server.url()
    with postgres_server.database() as url:
        store_at(url).migrate()
        cases = {
            replaced(url, user=f"{GUARDED}:wrong-{PASSWORD}"): "password",
            replaced(url, user="missing"): "user",
            replaced(url, user=guarded, database="none"): "this database does not exist",
            replaced(url, user=guarded): "rights",
            replaced(url, user=guarded, port=1): "cannot be reached",
            f"postgresql://{guarded}@/{tmp_path.name}?host={quote(str(tmp_path))}": "cannot be reached",
        }
        for address, words in cases.items():
            with pytest.raises(StoreUnavailableError, match=words) as raised:
                store_at(address).open_log()
            assert PASSWORD not in str(raised.value)
            assert "127.0.0.1" in str(raised.value) or str(tmp_path) in str(raised.value)
    for address in (f"{server}?pass={PASSWORD}", f"postgresql://u:{PASSWORD}@[::1/x", f"{server}?workers={PASSWORD}"):
        with pytest.raises(StoreUrlError) as refused:
            store_at(address).open_log()
        assert PASSWORD not in str(refused.value)


def test_uses_the_configured_number_of_connections(postgres: str) -> None:
    log = store_at(f"{postgres}?workers=2&application_name=clew-test&readers=1").open_log()
    recorder = cast("PostgresRecorder", log.recorder)
    run_threads([lambda name=f"s{number}": fill(recorder, name, 9) for number in range(6)])  # type: ignore[misc] # as above
    run_threads([lambda: recorder.rows(after=0, limit=99)] * 6)
    (count,) = ask(postgres, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'clew-test'")[0]
    assert count <= 3
    log.close()
    for wrong in ("workers=0", "readers=many", "workers=-1", "nonsense=1"):
        with pytest.raises(StoreUrlError):
            store_at(f"{postgres}?{wrong}").open_log()


def test_only_one_of_many_writers_shreds_a_row(postgres: str) -> None:
    recorders = [PostgresRecorder.open(postgres, workers=1) for _ in range(3)]
    fill(recorders[0], "a", 20)
    for version in range(1, 21):
        shred = Append((), shreds=[Shred("a", version, digest(f"a {version}".encode()), b"stub")])
        errors = [future.exception(PATIENCE) for future in [each.submit(shred) for each in recorders]]
        assert sorted(isinstance(error, RecordedConflictError) for error in errors) == [False, True, True]
    assert recorders[0].shredded() == 20
    for each in recorders:
        each.close()


def test_reports_an_unreachable_server_and_reconnects() -> None:
    with PostgresServer(16) as server, server.database() as url:
        recorder = PostgresRecorder.open(url)
        fill(recorder, "a", 1)
        server.kill()
        for use in (lambda: append(recorder, event("a", 2)), lambda: recorder.lineage("a"), recorder.last_position):
            with pytest.raises(StoreUnavailableError):
                use()
        server.start()
        assert append(recorder, event("a", 2)).versions == (2,)
        assert [row.version for row in recorder.rows(after=0, limit=9)] == [1, 2]
        recorder.close()
