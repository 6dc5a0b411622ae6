"""A store of one tenant in a database with row-level security."""

from __future__ import annotations

from contextlib import ExitStack, closing
from hashlib import sha256
from io import BytesIO
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.infrastructure.recorder_steps import PATIENCE, append, event
from tests.infrastructure.waiting_contract import Woken
from tests.servers.pooling_proxy import PoolingProxy
from tests.servers.postgres_server import PASSWORD, PostgresServer, ask
from tests.servers.row_level_security import Logins, isolate_tenants

from clew import Conversations, Message
from clew.domain.errors import ProjectionBehindError, StoreUnavailableError, TenantRequiredError
from clew.domain.ports import Blob, Claim, Draft, Lease
from clew.infrastructure.postgres.datastore import PostgresDatastore
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.postgres.stream_ids import stream_id
from clew.infrastructure.recorder_ports import Append
from clew.service import projector
from clew.service.projection_worker import Runner

B = stream_id("b")


@pytest.mark.parametrize("tenant", [None, ""])
def test_a_store_is_not_opened_without_a_tenant(shared_logins: Logins, tenant: str | None) -> None:
    store = PostgresDatastore(shared_logins.app, tenant=tenant)
    try:
        with pytest.raises(TenantRequiredError, match="Open it with a tenant") as error:
            store.query("SELECT count(*) FROM clew_event")
        assert PASSWORD not in str(error.value)
        with pytest.raises(TenantRequiredError):
            PostgresRecorder(store).submit(Append([event("a/thread/t", 1)])).result(PATIENCE)
    finally:
        store.close()


def test_a_tenant_is_set_for_one_transaction_only(shared_logins: Logins) -> None:
    store = PostgresDatastore(shared_logins.app, tenant="a")
    setting = "SELECT current_setting('clew.tenant', true), count(*) FROM clew_stream"
    try:
        with store.reading.use() as session:
            assert session.secured
            for _ in range(3):
                assert session.query(setting) == [("a", 1)]
                assert session.connection.execute(setting).fetchall() == [("", 0)]
            session.begin()
            assert session.query(setting) == [("a", 1)]
            session.connection.execute("COMMIT")
            with pytest.raises(psycopg.errors.UndefinedTable):
                session.query("SELECT * FROM clew_nothing")
            assert session.query(setting) == [("a", 1)]
            assert session.connection.execute(setting).fetchall() == [("", 0)]
    finally:
        store.close()


def test_commits_of_other_processes_wake_only_the_listeners_of_their_tenant(logins: Logins) -> None:
    with ExitStack() as stack:
        mine, theirs = (
            stack.enter_context(closing(PostgresRecorder(PostgresDatastore(logins.app, tenant=tenant))))
            for tenant in "ab"
        )
        woken, others = Woken(mine, "", "a/", "b/"), Woken(theirs, "", "a/", "b/")
        with closing(PostgresRecorder(PostgresDatastore(logins.app, tenant="a"))) as elsewhere:
            append(elsewhere, event("a/thread/new", 1))
        woken.wait_for({"": 1, "a/": 1})
        others.wait_for({})
        woken.end()
        others.end()


def test_a_pooler_passes_no_tenant_to_another_client(postgres_server: PostgresServer) -> None:
    with postgres_server.database() as url:
        parts = urlsplit(isolate_tenants(url).app)
        user, database = str(parts.username), parts.path[1:]
        with PoolingProxy(postgres_server.port, user, database, sessions=1) as pooler, ExitStack() as stack:
            pooled = f"postgresql://{user}@127.0.0.1:{pooler.port}/any"
            threads = [
                stack.enter_context(Conversations.open(f"{pooled}?prepare=no", tenant=tenant)).open_thread("t")
                for tenant in "ab"
            ]
            for turn in range(3):
                for thread, tenant in zip(threads, "ab", strict=True):
                    thread.append([Message.user(f"{tenant} {turn} {part}") for part in range(60)])
                    tenants = {message.text.split()[0] for message in thread.history().messages}
                    assert tenants == {tenant}
                    assert ask(pooled, "SELECT count(*) FROM clew_event") == [(0,)]
            assert [len(thread.history()) for thread in threads] == [180, 180]


def test_a_tenant_name_with_sql_is_only_a_name(shared_logins: Logins) -> None:
    store = PostgresDatastore(shared_logins.app, tenant="a'; RESET ROLE; --")
    try:
        with store.writing.use() as session:
            session.begin()
            assert session.query("SELECT current_setting('clew.tenant')") == [("a'; RESET ROLE; --",)]
            session.connection.execute("ROLLBACK")
    finally:
        store.close()


def test_leases_drafts_blobs_and_conflicts_work_with_row_level_security(filled: Logins) -> None:
    with Conversations.open(filled.app, tenant="a") as one, Conversations.open(filled.app, tenant="a") as two:
        for number in range(4):
            (one, two)[number % 2].thread("t").append(Message.user(str(number)))
        assert len(one.thread("t").history()) == 6
    store = PostgresDatastore(filled.app, tenant="a", originator_id_type="text")
    try:
        recorder = PostgresRecorder(store)
        name, data = "a/thread/t", b"part of an answer"
        blob = Blob(sha256(data).digest(), "content", data)
        for until in (5, 6):
            written = Append((), claims=[Claim(name, "me", 1, until)], drafts=[Draft(name, "run", data)], blobs=[blob])
            recorder.submit(written).result(PATIENCE)
        assert recorder.lease(name) == Lease(name, "me", 6)
        assert recorder.draft(name) == Draft(name, "run", data)
        assert recorder.blob(blob.digest) == blob
        release = Append((), claims=[Claim(name, "me", 1, 0)], drafts=[Draft(name, "run", None)])
        recorder.submit(release).result(PATIENCE)
        assert (recorder.lease(name), recorder.draft(name)) == (None, None)
    finally:
        store.close()


def test_a_redaction_is_limited_to_the_tenant_for_each_role(filled: Logins) -> None:
    for number, url in enumerate((filled.app, filled.operator)):
        with Conversations.open(url, tenant="a") as conversations:
            thread = conversations.thread("t")
            thread.redact(thread.history().messages[number])
            assert thread.history().messages[number].redacted
            assert thread.verify().first_bad is None
    with Conversations.open(filled.operator, tenant="b") as conversations:
        assert [each.text for each in conversations.thread("t").history().messages] == ["from b", "more"]
        assert conversations.verify().first_bad is None


def test_a_log_with_redactions_can_be_imported(logins: Logins) -> None:
    with Conversations.open("memory:", tenant="a") as source:
        thread = source.start_thread(thread_id="t", messages=[Message.user(str(number)) for number in range(60)])
        thread.redact(thread.history().messages[0])
        lines = b"".join(source.export_events())
    with Conversations.open(logins.app, tenant="a") as conversations:
        assert not conversations.import_events(BytesIO(lines)).failed
        assert [each.redacted for each in conversations.thread("t").history().messages] == [True, *[False] * 59]
        assert conversations.verify().first_bad is None
    with Conversations.open(logins.app, tenant="b") as conversations:
        (refused,) = conversations.import_events(BytesIO(lines)).failed
        assert "tenant 'a'" in str(refused.error)


def test_positions_continue_above_those_of_a_restored_dump(filled: Logins) -> None:
    ask(filled.owner, f"UPDATE clew_event SET position = position + {1 << 50} WHERE tenant = {B}")  # noqa: S608 - numbers
    (highest,) = ask(filled.owner, "SELECT max(position) FROM clew_event")[0]
    store = PostgresDatastore(filled.app, tenant="a", originator_id_type="text")
    try:
        (position,) = append(PostgresRecorder(store), event("a/thread/t", 4)).positions
    finally:
        store.close()
    assert position > highest


def test_a_reader_does_not_wait_for_a_projection_without_a_worker(
    filled: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projector, "PATIENCE_SECONDS", 0.05)
    with Conversations.open(filled.app, tenant="a") as conversations:
        with pytest.raises(ProjectionBehindError, match="member of clew_operator"):
            conversations.usage()
        with Conversations.open(filled.operator) as operator:
            operator.wait()
        assert conversations.usage()[0].threads == 1
        for projection in ("usage", "search"):
            with pytest.raises(StoreUnavailableError, match="member of clew_operator"):
                conversations.rebuild(projection)
        with pytest.raises(StoreUnavailableError, match="member of clew_operator"):
            Runner(conversations._core, (), lambda *_: None)
