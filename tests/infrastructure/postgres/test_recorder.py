"""The PostgreSQL store keeps the contract."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from tests.infrastructure.recorder_contract import RecorderContract
from tests.infrastructure.recorder_steps import PATIENCE, Opener, event, paused_writer
from tests.infrastructure.waiting_contract import LostReplyContract, TwoProcessContract
from tests.servers.postgres_server import ask

from clew.domain.ports import Blob
from clew.infrastructure.postgres.connection import Session
from clew.infrastructure.postgres.datastore import PostgresDatastore
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.stream_ids import stream_id
from clew.infrastructure.recorder_ports import Append, Recorder
from clew.infrastructure.verification import verify_store


class TestPostgresRecorder(RecorderContract, LostReplyContract, TwoProcessContract):
    retries = True

    @pytest.fixture
    def opener(self, postgres: str) -> Opener:
        return lambda: PostgresRecorder.open(postgres)

    @pytest.fixture
    def break_commit(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
        def break_next(happens: bool) -> None:  # noqa: FBT001 - its only parameter
            def lost(write: Callable[..., object], *parts: Any) -> None:
                monkeypatch.undo()
                if happens:
                    write(*parts)
                message = "the test lost the connection"
                raise psycopg.OperationalError(message)

            commit, query_numbers = Session.commit, Session.query_numbers
            monkeypatch.setattr(Session, "commit", lambda *parts: lost(commit, *parts))
            monkeypatch.setattr(Session, "query_numbers", lambda *parts: lost(query_numbers, *parts))

        return break_next

    @pytest.mark.parametrize("happens", [True, False])
    def test_all_appends_of_a_batch_have_the_same_outcome(
        self,
        recorder: Recorder,
        break_commit: Callable[[bool], None],
        happens: bool,  # noqa: FBT001 - pytest's
    ) -> None:
        """No append fails: the recorder finds the stored appends, or writes them again."""
        with paused_writer(recorder, event("other", 1)) as writer:
            writer.future.result(PATIENCE)  # its commit is not the one to break
            break_commit(happens)
            futures = [recorder.submit(Append([event(f"s{number}", 1)])) for number in range(10)]
        assert [future.exception(PATIENCE) for future in futures] == [None] * 10
        assert [len(recorder.own_rows(f"s{number}", limit=9)) for number in range(10)] == [1] * 10


def test_a_blob_belongs_to_the_tenant_that_stored_it(postgres: str) -> None:
    data = b"data of tenant b"
    blob = Blob(sha256(data).digest(), "content", data)
    with ExitStack() as stack:
        both = [
            stack.enter_context(closing(PostgresDatastore(postgres, tenant=tenant, originator_id_type="text")))
            for tenant in "ab"
        ]
        a, b = map(PostgresRecorder, both)
        b.submit(Append([event("b/thread/t", 1)], blobs=[blob])).result(PATIENCE)
        assert (a.blob(blob.digest), b.blob(blob.digest)) == (None, blob)
        a.submit(Append([event("a/thread/t", 1)], blobs=[blob])).result(PATIENCE)
        assert a.blob(blob.digest) == blob
        undamaged = verify_store(a).first_bad
        for tenant in "ab":
            damage = f"UPDATE clew_blob SET data = data || 'x' WHERE tenant = {stream_id(tenant)}"  # noqa: S608 - a number
            ask(postgres, damage)
            for recorder in (a, b):
                fault = verify_store(recorder).first_bad
                assert fault is not None, "the blobs of each tenant are verified"
                assert blob.digest.hex() in fault.thread_id
            ask(postgres, "UPDATE clew_blob SET data = rtrim(data, 'x')")
        assert verify_store(a).first_bad == undamaged


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_transactions_are_read_committed_with_any_default_isolation(postgres: str, level: str) -> None:
    options = quote(f"-cdefault_transaction_isolation={level.replace(' ', chr(92) + ' ')}")
    url = f"{postgres}{'&' if '?' in postgres else '?'}options={options}"
    with closing(PostgresDatastore(url, originator_id_type="text")) as store, store.writing.use() as session:
        assert session.connection.execute("SHOW transaction_isolation").fetchall() == [(level,)]
        session.begin()
        assert session.connection.execute("SHOW transaction_isolation").fetchall() == [("read committed",)]
        session.connection.execute("ROLLBACK")
        with session.connection.transaction():
            assert session.connection.execute("SHOW transaction_isolation").fetchall() == [("read committed",)]
