"""Row-level security: what each of the two roles may do, said by the database itself to users who log in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from hashlib import sha256
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg.sql import SQL, Literal
from tests.infrastructure.recording import PATIENCE, append, event, wait_until
from tests.servers.pooling_proxy import PoolingProxy
from tests.servers.postgres_server import GUARDED, PASSWORD, Databases, PostgresServer, ask
from tests.servers.tenanted import Logins, keep_apart

from clew import Conversations, Message
from clew.domain.errors import (
    ProjectionBehindError,
    StoreUnavailableError,
    StoreUrlError,
    TenantRequiredError,
)
from clew.infrastructure import urls
from clew.infrastructure.postgres.datastore import PostgresDatastore
from clew.infrastructure.postgres.encoding import stream_id
from clew.infrastructure.postgres.recorder import PostgresRecorder
from clew.infrastructure.recorder import Append, Blob, Claim, Draft, Lease
from clew.service import projecting
from clew.service.running import Runner

A, B = stream_id("a"), stream_id("b")
EVENT = "INSERT INTO clew_event (position, tenant, stream, version, type, state, hash)"

PRIVILEGES = """
SELECT relname, relacl::text, relrowsecurity, relforcerowsecurity FROM pg_class WHERE relname LIKE 'clew%' ORDER BY 1
"""
POLICIES = "SELECT * FROM pg_policies ORDER BY tablename, policyname"
FUNCTIONS = """
SELECT proname, proacl::text, prosecdef, proconfig, pg_get_userbyid(proowner) FROM pg_proc WHERE proname LIKE 'clew%'
ORDER BY proname
"""


@pytest.fixture
def logins(postgres: str) -> Logins:
    return keep_apart(postgres)


@pytest.fixture
def filled(logins: Logins) -> Logins:
    return _fill(logins)


@pytest.fixture(scope="module")
def kept(databases: Databases) -> Iterator[Logins]:
    """The same for tests that change nothing."""
    with databases.one() as url:
        yield _fill(keep_apart(url))


def _fill(logins: Logins) -> Logins:
    """Let two tenants say something in threads of the same name."""
    for tenant in "ab":
        with Conversations.open(logins.app, tenant=tenant) as conversations:
            thread = conversations.start_thread(thread_id="t", messages=[Message.user(f"from {tenant}")])
            thread.append(Message.user("more"), idempotency_key="key")
    return logins


def asked(url: str, statement: str, tenant: str | None) -> list[tuple[Any, ...]]:
    """The answer to a statement on behalf of a tenant."""
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        if tenant is not None:
            connection.execute(SQL("SET LOCAL clew.tenant = {}").format(Literal(tenant)))
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_to_say_it_again_changes_nothing(kept: Logins) -> None:
    before = [ask(kept.owner, each) for each in (PRIVILEGES, POLICIES, FUNCTIONS)]
    urls.migrate(kept.owner, row_level_security=True)
    assert [ask(kept.owner, each) for each in (PRIVILEGES, POLICIES, FUNCTIONS)] == before
    tables = ask(
        kept.owner,
        "SELECT relname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid "
        "WHERE relname LIKE 'clew%' AND attname = 'tenant' AND relkind IN ('r', 'p') "
        "AND NOT (relrowsecurity AND relforcerowsecurity)",
    )
    assert tables == []


@pytest.mark.parametrize("tenant", [None, "", "nobody", "a/b"])
def test_without_its_tenant_nothing_is_seen(kept: Logins, tenant: str | None) -> None:
    for table in ("clew_event", "clew_stream", "clew_key", "clew_snapshot"):
        assert asked(kept.app, f"SELECT count(*) FROM {table}", tenant) == [(0,)]  # noqa: S608 - of constants
    assert asked(kept.app, "SELECT count(*), min(tenant), max(tenant) FROM clew_stream", "a") == [(1, A, A)]
    assert ask(kept.operator, "SELECT count(*) FROM clew_stream") == [(2,)]


@pytest.mark.parametrize("tenant", [None, ""])
def test_a_store_is_not_opened_without_a_tenant(kept: Logins, tenant: str | None) -> None:
    store = PostgresDatastore(kept.app, tenant=tenant)
    try:
        with pytest.raises(TenantRequiredError, match="Open it with a tenant") as error:
            store.query("SELECT count(*) FROM clew_event")
        assert PASSWORD not in str(error.value)
        with pytest.raises(TenantRequiredError):
            PostgresRecorder(store).submit(Append([event("a/thread/t", 1)])).result(PATIENCE)
    finally:
        store.close()


@pytest.mark.parametrize("role", ["app", "operator"])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE clew_event SET state = ''",
        "UPDATE clew_event SET digest = NULL WHERE version = 2",
        "DELETE FROM clew_event",
        "TRUNCATE clew_event",
        "UPDATE clew_stream SET began = 0",
        "UPDATE clew_stream SET name = ''",
        "DELETE FROM clew_stream",
        "DROP TABLE clew_event",
        "ALTER TABLE clew_event DISABLE ROW LEVEL SECURITY",
        "DROP POLICY clew_tenant ON clew_event",
        "MERGE INTO clew_event USING (SELECT 1) AS one ON true WHEN MATCHED THEN DELETE",
        "INSERT INTO clew_event SELECT * FROM clew_event ON CONFLICT (stream, version) DO UPDATE SET state = ''",
    ],
)
def test_events_are_neither_changed_nor_deleted_by_either_role(kept: Logins, role: str, statement: str) -> None:
    before = ask(kept.owner, "SELECT * FROM clew_event ORDER BY position")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        asked(getattr(kept, role), statement, "a")
    assert ask(kept.owner, "SELECT * FROM clew_event ORDER BY position") == before


@pytest.mark.parametrize(
    "statement",
    [
        "{event} VALUES (1, {b}, {theirs}, 9, '', '', '')",
        "{event} VALUES (1, {a}, {theirs}, 9, '', '', '')",
        "{event} VALUES (1, {a}, {mine}, 9, '', '', '')",
        "{event} VALUES (1::bigint << 62, {a}, {mine}, 9, '', '', '')",
        "INSERT INTO clew_stream (id, tenant, name, began) VALUES ({own}, {a}, 'a/thread/new', 1)",
        "INSERT INTO clew_stream (id, tenant, name, began) VALUES ({new}, {a}, 'b/thread/new', 1)",
        "INSERT INTO clew_stream (id, tenant, name, began) VALUES ({new}, {a}, 'a/thread/new', 1)",
        "INSERT INTO clew_lease (tenant, stream, holder, until) VALUES ({a}, {theirs}, '', 9)",
        "INSERT INTO clew_draft (tenant, stream, run, data) VALUES ({a}, {theirs}, '', '')",
        "INSERT INTO clew_key (tenant, stream, key, salt, first, last) VALUES ({a}, {theirs}, '', '', 1, 1)",
        "INSERT INTO clew_snapshot (tenant, stream, version, state) VALUES ({a}, {theirs}, 9, '')",
        "INSERT INTO clew_blob (tenant, digest, kind, data, came) VALUES ({b}, '', '', '', 1)",
        "UPDATE clew_meta SET base = 0",
        "UPDATE clew_generation SET position = 0",
        "DELETE FROM clew_key",
    ],
)
def test_nothing_is_put_where_it_is_another_s(kept: Logins, statement: str) -> None:
    numbers = {"a": A, "b": B, "theirs": stream_id("b/thread/t"), "new": stream_id("b/thread/new")}
    numbers |= {"mine": stream_id("a/thread/t"), "own": stream_id("a/thread/new")}
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        asked(kept.app, statement.format(event=EVENT, **numbers), "a")


STUB = b"\x02stub"


def shred(url: str, tenant: str | None, stream: str, version: int, state: bytes, stub: bytes = STUB) -> int | None:
    digest = sha256(state).hexdigest()
    call = f"SELECT clew_shred({stream_id(stream)}, {version}, '\\x{digest}', '\\x{stub.hex()}')"
    (found,) = asked(url, call, tenant)[0]
    return None if found is None else int(found)


def test_a_message_of_the_tenant_is_shredded_and_nothing_else(filled: Logins) -> None:
    own = f"SELECT version, state, position FROM clew_event WHERE tenant = {A} ORDER BY version"  # noqa: S608 - a number
    theirs = f"SELECT * FROM clew_event WHERE tenant = {B} ORDER BY version"  # noqa: S608 - a number
    rows = ask(filled.owner, own)
    states = {version: state for version, state, _ in rows}
    others = ask(filled.owner, theirs)
    stream = "a/thread/t"
    for url in (filled.app, filled.operator):
        for tenant in (None, "", "b"):
            assert shred(url, tenant, stream, 2, states[2]) is None
        assert shred(url, "a", stream, 2, b"other bytes") is None
        assert shred(url, "a", stream, 1, states[1]) is None, "a thread-started"
        assert shred(url, "a", stream, 9, states[2]) is None
    assert ask(filled.owner, own) == rows
    assert shred(filled.app, "a", stream, 3, states[3]) == rows[2][2]
    assert shred(filled.app, "a", stream, 3, states[3]) is None, "it is shredded already"
    gone = "SELECT version, state, digest FROM clew_event WHERE digest IS NOT NULL"
    assert ask(filled.owner, gone) == [(3, STUB, sha256(states[3]).digest())]
    assert ask(filled.owner, "SELECT tenant FROM clew_key WHERE digest IS NULL") == [(A,)]
    assert shred(filled.operator, "a", stream, 2, states[2]) == rows[1][2]
    assert ask(filled.owner, theirs) == others


def test_no_other_message_takes_the_place_of_one(filled: Logins) -> None:
    own = f"SELECT state FROM clew_event WHERE tenant = {A} AND version = 2"  # noqa: S608 - a number
    ((state,),) = ask(filled.owner, own)
    for forged in (state.replace(b"from a", b"from b"), b"", b"\x01 not to be read"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            shred(filled.app, "a", "a/thread/t", 2, state, forged)
    assert ask(filled.owner, own) == [(state,)]


def test_a_redaction_is_the_tenant_s_whoever_carries_it_out(filled: Logins) -> None:
    for number, url in enumerate((filled.app, filled.operator)):
        with Conversations.open(url, tenant="a") as conversations:
            thread = conversations.thread("t")
            thread.redact(thread.history().messages[number])
            assert thread.history().messages[number].redacted
            assert thread.verify().first_bad is None
    with Conversations.open(filled.operator, tenant="b") as conversations:
        assert [each.text for each in conversations.thread("t").history().messages] == ["from b", "more"]
        assert conversations.verify().first_bad is None


def test_a_tenant_is_set_for_one_transaction_and_not_for_the_next(kept: Logins) -> None:
    store = PostgresDatastore(kept.app, tenant="a")
    setting = "SELECT current_setting('clew.tenant', true), count(*) FROM clew_stream"
    try:
        with store.reading.use() as session:
            assert session.secured
            for _ in range(3):
                assert session.ask(setting) == [("a", 1)]
                assert session.connection.execute(setting).fetchall() == [("", 0)]
            session.begin()
            assert session.ask(setting) == [("a", 1)]
            session.connection.execute("COMMIT")
            with pytest.raises(psycopg.errors.UndefinedTable):
                session.ask("SELECT * FROM clew_nothing")
            assert session.ask(setting) == [("a", 1)]
            assert session.connection.execute(setting).fetchall() == [("", 0)]
    finally:
        store.close()


def test_a_pooler_hands_no_tenant_on_to_another(postgres_server: PostgresServer) -> None:
    with postgres_server.database() as url:
        parts = urlsplit(keep_apart(url).app)
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
                    said = {message.text.split()[0] for message in thread.history().messages}
                    assert said == {tenant}
                    assert ask(pooled, "SELECT count(*) FROM clew_event") == [(0,)]
            assert [len(thread.history()) for thread in threads] == [180, 180]


def test_a_name_that_is_written_in_sql_is_only_a_name(kept: Logins) -> None:
    store = PostgresDatastore(kept.app, tenant="a'; RESET ROLE; --")
    try:
        with store.writing.use() as session:
            session.begin()
            assert session.ask("SELECT current_setting('clew.tenant')") == [("a'; RESET ROLE; --",)]
            session.connection.execute("ROLLBACK")
    finally:
        store.close()


def test_leases_drafts_blobs_and_conflicts_are_as_without(filled: Logins) -> None:
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
        over = Append((), claims=[Claim(name, "me", 1, 0)], drafts=[Draft(name, "run", None)])
        recorder.submit(over).result(PATIENCE)
        assert (recorder.lease(name), recorder.draft(name)) == (None, None)
    finally:
        store.close()


def test_a_log_is_brought_in_with_what_was_redacted_of_it(logins: Logins) -> None:
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


def test_positions_go_on_above_those_of_a_restored_dump(filled: Logins) -> None:
    ask(filled.owner, f"UPDATE clew_event SET position = position + {1 << 50} WHERE tenant = {B}")  # noqa: S608 - numbers
    (highest,) = ask(filled.owner, "SELECT max(position) FROM clew_event")[0]
    store = PostgresDatastore(filled.app, tenant="a", originator_id_type="text")
    try:
        (position,) = append(PostgresRecorder(store), event("a/thread/t", 4)).positions
    finally:
        store.close()
    assert position > highest


def test_what_nobody_fills_is_not_waited_for_in_vain(filled: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projecting, "PATIENCE_SECONDS", 0.05)
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


def test_a_user_without_the_rights_is_told_who_may(postgres: str) -> None:
    urls.migrate(postgres)
    parts = urlsplit(postgres)
    netloc = f"{GUARDED}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}"
    ask(postgres, f"GRANT SELECT ON clew_meta TO {GUARDED}")
    with pytest.raises(StoreUnavailableError, match="a superuser, or by the owner") as error:
        urls.migrate(urlunsplit(parts._replace(netloc=netloc)), row_level_security=True)
    assert PASSWORD not in str(error.value)
    assert ask(postgres, "SELECT count(*) FROM pg_policies") == [(0,)]


def test_an_owner_who_is_no_superuser_may_do_it(logins: Logins, postgres: str) -> None:
    owner = "clew_owner_of_tests"
    schema = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
    ask(
        postgres,
        f"{schema}; DROP ROLE IF EXISTS {owner}; CREATE ROLE {owner} LOGIN CREATEROLE PASSWORD '{PASSWORD}'; "
        f"GRANT clew_app, clew_operator, clew_shredder TO {owner} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE; "
        f"ALTER SCHEMA public OWNER TO {owner}",
    )
    parts = urlsplit(postgres)
    url = urlunsplit(parts._replace(netloc=f"{owner}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}"))
    try:
        urls.migrate(url, row_level_security=True)
        urls.migrate(url, row_level_security=True)
        with Conversations.open(logins.app, tenant="a") as conversations:
            thread = conversations.start_thread(messages=[Message.user("hello")])
            thread.redact(thread.history().messages[0])
            assert conversations.verify().first_bad is None
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            asked(logins.app, "DELETE FROM clew_event", "a")
    finally:
        ask(postgres, f"{schema}; GRANT USAGE ON SCHEMA public TO public; DROP ROLE {owner}")


def test_a_partition_is_nobody_s(postgres: str) -> None:
    urls.migrate(postgres, partitions=2)
    logins = keep_apart(postgres)
    with Conversations.open(logins.app, tenant="a") as conversations:
        conversations.start_thread(messages=[Message.user("hello")])
        assert conversations.verify().threads == 1
    for login in (logins.app, logins.operator):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            asked(login, "SELECT * FROM clew_event_0", "a")


def test_what_new_tables_are_granted_to_by_default_opens_none_of_them(postgres: str) -> None:
    ask(postgres, "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO PUBLIC")
    ask(postgres, "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON SEQUENCES TO PUBLIC")
    urls.migrate(postgres, partitions=2)
    with Conversations.open(postgres, tenant="a") as before:
        before.start_thread(messages=[Message.user("hello")])
        before.usage()
    logins = keep_apart(postgres)
    tables = (*("clew_event", "clew_event_0", "clew_key_1", "clew_stream", "clew_meta"), "clew_g1_usage")
    refused = ["TRUNCATE {}", "DELETE FROM {}", "CREATE TRIGGER mine AFTER INSERT ON {} EXECUTE FUNCTION suppress()"]
    for table in tables:
        for statement in refused:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                asked(logins.app, statement.format(table), "a")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        asked(logins.app, "SELECT setval('clew_generation_id_seq', 1)", "a")
    for statement in ("UPDATE clew_event_0 SET state = ''", "DELETE FROM clew_event_1"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            asked(logins.operator, statement, "a")
    with Conversations.open(logins.operator) as operator:
        operator.wait()
    with Conversations.open(logins.app, tenant="a") as conversations:
        assert conversations.usage()[0].threads == 1


def test_what_others_were_granted_is_taken_back(postgres: str) -> None:
    for what in ("TABLES", "SEQUENCES", "FUNCTIONS"):
        ask(postgres, f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON {what} TO {GUARDED} WITH GRANT OPTION")
    urls.migrate(postgres)
    ask(postgres, f"GRANT UPDATE (state) ON clew_event TO {GUARDED}")
    with Conversations.open(postgres, tenant="a") as before:
        before.start_thread(messages=[Message.user("hello")])
        before.usage()
    keep_apart(postgres)
    tables = "SELECT relname FROM pg_class WHERE relname LIKE 'clew%' AND relacl::text || {} LIKE '%{}%'"
    columns = "coalesce((SELECT string_agg(attacl::text, '') FROM pg_attribute WHERE attrelid = pg_class.oid), '')"
    assert ask(postgres, tables.format(columns, GUARDED)) == []
    functions = "SELECT proname FROM pg_proc WHERE proname LIKE 'clew%' AND prosecdef AND proacl::text LIKE '%{}%'"
    assert ask(postgres, functions.format(GUARDED)) == []


def test_who_may_call_nothing_by_default_may_call_what_it_needs(postgres: str) -> None:
    ask(postgres, "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    try:
        logins = _fill(keep_apart(postgres))
        with Conversations.open(logins.operator) as operator:
            operator.wait()
        with Conversations.open(logins.app, tenant="a") as conversations:
            assert [hit.thread_id for hit in conversations.search("more")] == ["t"]
            thread = conversations.thread("t")
            thread.redact(thread.history().messages[0])
    finally:
        ask(postgres, "ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC")


def test_what_is_shown_without_a_policy_tells_of_no_tenant(filled: Logins) -> None:
    with Conversations.open(filled.operator) as operator:
        operator.wait()
    shown = ask(
        filled.owner,
        "SELECT relname FROM pg_class WHERE relname LIKE 'clew%' AND relkind IN ('r', 'p', 'v', 'm', 'S') "
        "AND NOT relrowsecurity AND (has_table_privilege('clew_app', oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE') "
        "OR has_any_column_privilege('clew_app', oid, 'SELECT, INSERT, UPDATE')) ORDER BY 1",
    )
    assert [name for (name,) in shown] == ["clew_generation", "clew_meta", "clew_stretch", "clew_worker"]


def test_nothing_is_put_below_what_readers_have_passed(filled: Logins) -> None:
    ask(filled.owner, "UPDATE clew_meta SET base = base + 100000")
    above = "((SELECT pg_current_xact_id()::text::bigint) + {} + (SELECT base FROM clew_meta)) << 20"
    for off in (-100_000, -1, 1):
        row = f"{above.format(off)}, {A}, {stream_id('a/thread/t')}, 9, '', '', ''"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            asked(filled.app, f"{EVENT} VALUES ({row})", "a")
    with Conversations.open(filled.app, tenant="a") as conversations:
        conversations.thread("t").append(Message.user("goes on"))


def test_no_tenant_brings_the_count_of_all_to_its_end(filled: Logins) -> None:
    for _ in range(2):
        asked(filled.app, f"SELECT clew_count_shreds({2**63 - 1})", "a")
    with Conversations.open(filled.app, tenant="b") as conversations:
        thread = conversations.thread("t")
        thread.redact(thread.history().messages[0])
        assert thread.history().messages[0].redacted


def test_a_part_of_a_name_is_no_tenant(kept: Logins) -> None:
    assert asked(kept.app, "SELECT clew_tenant(), clew_tenant_name()", "a/thread") == [(None, None)]
    place = "((SELECT base FROM clew_meta) + pg_current_xact_id()::text::bigint) << 20"
    names = "clew_number('a/thread/new'), clew_number('a/thread'), 'a/thread/new'"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        asked(kept.app, f"INSERT INTO clew_stream (id, tenant, name, began) VALUES ({names}, {place})", "a/thread")  # noqa: S608 - of constants


def test_a_parent_that_is_another_s_shows_nothing_to_who_may_see_all(filled: Logins) -> None:
    place = "((SELECT base FROM clew_meta) + pg_current_xact_id()::text::bigint) << 20"
    forged = f"clew_number('a/thread/forged'), {A}, 'a/thread/forged', {stream_id('b/thread/t')}, 3, {place}"
    asked(filled.app, f"INSERT INTO clew_stream (id, tenant, name, parent, cut, began) VALUES ({forged})", "a")  # noqa: S608 - of constants
    store = PostgresDatastore(filled.operator, tenant="a", originator_id_type="text")
    try:
        recorder = PostgresRecorder(store)
        assert recorder.lineage("b/thread/t") != []
        assert recorder.lineage("a/thread/forged") == []
    finally:
        store.close()
    with closing(urls.glance(filled.operator, tenant="a")) as glance:
        ((key, _),) = glance.streams("a/thread/forged", "a/thread/forged~", 1)
        assert glance.events(key, "message-appended") == []


def test_what_others_have_made_in_the_schema_does_not_run_as_who_migrates(filled: Logins) -> None:
    trap = "RETURNS {} LANGUAGE sql AS 'UPDATE clew_event SET state = NULL; SELECT NULL::{}'"
    function = f"CREATE FUNCTION format(text, regclass) {trap.format('text', 'text')}; RESET ROLE"
    ask(filled.owner, f"GRANT USAGE, CREATE ON SCHEMA public TO {GUARDED}; SET ROLE {GUARDED}; {function}")
    with pytest.raises(StoreUnavailableError, match="made format: drop it first"):
        urls.migrate(filled.owner, row_level_security=True)
    ask(filled.owner, "DROP FUNCTION format(text, regclass)")
    for name in ("clew_protect(oid)", "format(text, regclass)", "pg_advisory_xact_lock(integer)"):
        asked(filled.operator, f"CREATE FUNCTION {name} {trap.format('void', 'void')}", None)
        with pytest.raises(StoreUnavailableError, match="drop it first"):
            urls.migrate(filled.owner, row_level_security=True)
        asked(filled.operator, f"DROP FUNCTION {name}", None)
    asked(filled.operator, f"CREATE FUNCTION same(oid, regclass) {trap.format('boolean', 'boolean')}", None)
    asked(filled.operator, "CREATE OPERATOR = (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = same)", None)
    with pytest.raises(StoreUnavailableError, match="drop it first"):
        urls.migrate(filled.owner, row_level_security=True)
    asked(filled.operator, "DROP OPERATOR = (oid, regclass); DROP FUNCTION same", None)
    urls.migrate(filled.owner, row_level_security=True)
    with Conversations.open(filled.operator) as conversations:
        assert conversations.verify().first_bad is None


def test_tables_in_another_schema_are_kept_apart_too(postgres: str) -> None:
    ask(postgres, "CREATE SCHEMA elsewhere; CREATE TABLE public.clew_event (state bytea)")
    there = f"{postgres}{'&' if '?' in postgres else '?'}options=-csearch_path%3Delsewhere"
    logins = _fill(keep_apart(there))
    with Conversations.open(logins.app, tenant="a") as conversations:
        thread = conversations.thread("t")
        thread.redact(thread.history().messages[0])
        with Conversations.open(logins.operator) as operator:
            operator.wait()
        assert conversations.usage()[0].threads == 1
        assert [hit.thread_id for hit in conversations.search("more")] == ["t"]
        assert conversations.verify().first_bad is None
    assert ask(postgres, "SELECT count(*) FROM public.clew_event") == [(0,)]
    ask(postgres, "DROP SCHEMA elsewhere CASCADE")


# Words


@pytest.fixture(scope="module")
def searched(databases: Databases) -> Iterator[Logins]:
    """Two tenants' threads with an index of their words; tests change nothing."""
    with databases.one() as url:
        logins = _fill(keep_apart(url))
        with Conversations.open(logins.operator) as operator:
            operator.wait()
        yield logins


def _found(url: str, tenant: str | None, index: str = "words", among: str = "!''#nothing''") -> list[int]:
    """The positions that the function finds for who asks it directly, by default all that it would ever show."""
    asked_for = (
        f"clew_find(id, '{index}', '{among}', false, '{{}}', '{{}}', {2**63 - 1}, {2**63 - 1}, 100, 100) AS found "
        "WHERE name = 'search' AND live AND found.position IS NOT NULL"
    )
    rows = asked(url, f"SELECT found.position FROM clew_generation CROSS JOIN LATERAL {asked_for}", tenant)  # noqa: S608 - of constants
    return sorted(position for (position,) in rows)


def test_a_tenant_s_words_are_found_by_their_index(searched: Logins) -> None:
    looked = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname LIKE 'clew_i%words_words'"
    before = ask(searched.owner, looked)
    for tenant in "ab":
        with Conversations.open(searched.app, tenant=tenant) as conversations:
            hits = conversations.search("from")
            assert ["".join(part.text for part in hit.snippet) for hit in hits] == [f"from {tenant}"]
            assert len(conversations.search('"from b" -more')) == (tenant == "b")
            assert len(conversations.search("mor*", thread="t")) == 1
    wait_until(lambda: ask(searched.owner, looked) > before)


def test_whatever_is_asked_of_an_index_of_words_it_shows_the_tenant_s_texts_alone(searched: Logins) -> None:
    positions = "SELECT position FROM clew_event WHERE type = 'message-appended' AND tenant = {} ORDER BY position"
    own = {tenant: [each for (each,) in ask(searched.owner, positions.format(stream_id(tenant)))] for tenant in "ab"}
    assert _found(searched.app, "a") == own["a"]
    assert _found(searched.app, "b") == own["b"]
    others = f"''#/{sha256(f'tenant {B}'.encode()).hexdigest()[:16]}''"
    assert _found(searched.app, "b", among=others) == own["b"]
    assert _found(searched.app, "a", among=others) == []
    for tenant in (None, "", "nobody", "a/thread"):
        assert _found(searched.app, tenant) == []


@pytest.mark.parametrize("index", ["none", "", "words AS there, clew_event", "words''; DROP TABLE clew_event; --"])
def test_an_index_of_words_is_one_that_was_declared(searched: Logins, index: str) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable, match="no such index"):
        _found(searched.app, "a", index)


def test_nobody_else_looks_into_an_index_of_words(searched: Logins) -> None:
    ask(searched.owner, "CREATE ROLE clew_nobody")
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="clew_find"):
            ask(searched.owner, "SET ROLE clew_nobody; SELECT clew_find(1, '', '', true, '{}', '{}', 1, 1, 1, 1)")
    finally:
        ask(searched.owner, "DROP ROLE clew_nobody")


def test_only_a_server_keeps_tenants_apart() -> None:
    with pytest.raises(StoreUrlError, match="SQLite file"):
        urls.migrate("sqlite:///clew.db", row_level_security=True)


def test_the_number_of_a_tenant_is_the_same_in_sql(kept: Logins) -> None:
    for name in ("a", "default", "a%2Fb", "%C3%A4 -._:@"):
        number, plain = asked(kept.app, "SELECT clew_tenant(), clew_tenant_name()", name)[0]
        assert number == stream_id(name)
        assert plain.decode() == re.sub("%2F", "/", name).replace("%C3%A4", "ä")
